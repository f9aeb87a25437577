"""Updates of dictionaries of any values, as pylance makes them."""

import lance
import pyarrow as pa
import pytest

import lance_core


@pytest.mark.parametrize("mode", ["rewrite_rows", "rewrite_columns"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind in (pa.int64(), pa.float64(), pa.string(), pa.large_string()) for value in ("NULL", "v")]
    + [(pa.int64(), "7"), (pa.float64(), "1.5"), (pa.string(), "'7'"), (pa.large_string(), "'x'")],
)
def test_updates_of_dictionaries(tmp_path, kind, value, mode):
    values = pa.array([1, 7, 1, None]).cast(kind)
    rows = pa.table({"k": [1, 2, 3, 4], "v": values.take(pa.array([1, 1, 1, 0])), "d": values.dictionary_encode()})
    found = []
    for library in (lance, lance_core):
        table = library.write_dataset(rows, str(tmp_path / library.__name__))
        options = {"write_mode": mode} if library is lance_core else {}
        table.update({"d": value}, where="k > 2", **options)
        done = lance.dataset(table.uri).to_table().sort_by("k")
        found.append((done.schema.field("d").type, done["d"].to_pylist()))
    assert found[0] == found[1]


def _words_inside(ids, words, make):
    child = pa.array(words).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string()))
    return pa.table({"id": ids, "h": [0] * len(ids), "s": make(child)})


_INSIDE = {
    "struct": lambda child: pa.StructArray.from_arrays([child], names=["c"]),
    "struct in a struct": lambda child: pa.StructArray.from_arrays(
        [pa.StructArray.from_arrays([child], names=["c"])], names=["d"]
    ),
    "map": lambda child: pa.MapArray.from_arrays([*range(len(child) + 1)], pa.array(["k"] * len(child)), child),
}


@pytest.mark.parametrize("inside", _INSIDE)
def test_rows_of_two_fragments_with_dictionaries_inside(tmp_path, inside):
    """Arrow's unification of dictionaries ends the process for slices of such arrays."""
    uri = str(tmp_path / "t.lance")
    version = "2.2" if inside == "map" else "2.1"
    first, second = (
        _words_inside([0, 1, 2], [*"abe"], _INSIDE[inside]),
        _words_inside([3, 4, 5], [*"cdf"], _INSIDE[inside]),
    )
    lance_core.write_dataset(first, uri, data_storage_version=version)
    lance_core.dataset(uri).insert(second)
    before = {row["id"]: row["s"] for row in lance.dataset(uri).to_table().to_pylist()}
    lance_core.dataset(uri).update({"h": "1"}, "id % 2 = 0")
    keys = pa.table({"id": [1, 4], "h": [2, 2]})
    lance_core.dataset(uri).merge_insert("id").when_matched_update_all().execute(keys)
    lance_core.write_dataset(
        lance_core.dataset(uri).to_table(filter="id % 2 = 0"),
        str(tmp_path / "copy.lance"),
        data_storage_version=version,
    )
    rows = lance.dataset(uri).to_table().to_pylist()
    assert {row["id"]: row["s"] for row in rows} == before
    assert {row["id"]: row["h"] for row in rows} == {0: 1, 1: 2, 2: 1, 3: 0, 4: 2, 5: 0}
    copied = lance.dataset(str(tmp_path / "copy.lance")).to_table().to_pylist()
    assert {row["id"]: row["s"] for row in copied} == {key: before[key] for key in (0, 2, 4)}

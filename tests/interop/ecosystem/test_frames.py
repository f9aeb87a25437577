"""Frames of pandas are stored as pylance stores them: columns, index, and the metadata that bring the index back."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError
from tests.interop.pairs import Pair

pd = pytest.importorskip("pandas", reason="an extra")

INDICES = {
    "row numbers": lambda: pd.RangeIndex(3),
    "row numbers with a name": lambda: pd.RangeIndex(3, name="k"),
    "numbers": lambda: pd.Index([7, 5, 9], name="k"),
    "strings": lambda: pd.Index(["x", "y", "z"], name="k"),
    "strings without a name": lambda: pd.Index(["x", "y", "z"]),
    "times": lambda: pd.date_range("2024-01-01", periods=3, tz="Europe/Paris", name="k"),
    "categories": lambda: pd.CategoricalIndex(["x", "y", "x"], name="k"),
    "periods": lambda: pd.period_range("2024-01", periods=3, freq="M", name="k"),
    "two levels": lambda: pd.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x")], names=["k", "l"]),
    "two levels, one without a name": lambda: pd.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x")], names=["k", None]),
    "the name of a column": lambda: pd.Index([5, 6, 8], name="a"),
}  # fmt: skip
VERBS = {
    "insert": lambda d, _, frame: d.insert(frame),
    "append": lambda d, library, frame: library.write_dataset(frame, d, mode="append") and None,
    "merge": lambda d, _, frame: (
        d.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(frame) and None
    ),
    "columns": lambda d, _, frame: d.merge(frame.rename(columns={"b": "new"}), "a"),
}


def frame_of(name, first=0):
    return pd.DataFrame({"a": [first, first + 1, first + 2], "b": [1.5, None, 2.5]}, index=INDICES[name]())


@pytest.mark.parametrize("name", INDICES)
def test_write_dataset(tmp_path, name):
    stored = [library.write_dataset(frame_of(name), tmp_path / library.__name__) for library in (lance_core, lance)]
    ours, reference = (lance.dataset(value.uri).to_table() for value in stored)
    assert ours.schema.equals(reference.schema, check_metadata=True)
    assert ours.equals(reference)
    pd.testing.assert_frame_equal(stored[0].to_table().to_pandas(), reference.to_pandas())


@pytest.mark.variants(15)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", INDICES)
def test_verbs(tmp_path, name, verb):
    pair = Pair(tmp_path, pa.Table.from_pandas(frame_of(name)))
    pair.run(lambda d, library: VERBS[verb](d, library, frame_of(name, first=1)), check=False)
    ours, reference = (lance.dataset(uri).to_table().sort_by("a") for uri in pair.uris.values())
    assert ours.equals(reference)
    assert ours.schema.equals(reference.schema)


def test_objects_of_polars_are_rejected(tmp_path):
    """Polars gives Arrow their addresses in memory, which pylance stores; its own writers of files reject them."""
    pl = pytest.importorskip("polars", reason="an extra")
    objects = pl.DataFrame({"a": [1, 2], "o": pl.Series(["one", {"two": 2}], dtype=pl.Object)})
    with pytest.raises(SchemaError, match=r"\['o'\] are Python objects"):
        lance_core.write_dataset(objects, tmp_path / "t")
    assert not (tmp_path / "t").exists()
    table = lance_core.write_dataset(pa.table({"a": [1], "o": pa.array([b"12345678"], pa.binary(8))}), tmp_path / "t")
    calls = (
        lambda: table.insert(objects),
        lambda: lance_core.write_fragments(objects, table),
        lambda: table.merge_insert("a").when_matched_update_all().execute(objects),
        lambda: table.merge(objects.rename({"o": "new"}), "a"),
        lambda: table.get_fragments()[0].update_columns(objects, left_on="a"),
    )
    for call in calls:
        with pytest.raises(SchemaError, match="are Python objects"):
            call()
    assert table.latest_version == 1

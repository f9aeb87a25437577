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

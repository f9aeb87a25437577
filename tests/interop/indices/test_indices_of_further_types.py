"""Indices that pylance builds on types which have none here: filters scan, maintenance keeps them and does the rest."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance.verify.files import verify

COLUMNS = {
    "fixed_size_binary": pa.array([bytes([n % 50]) for n in range(100)], pa.binary(1)),
    "half_float": pa.array([float(n % 50) for n in range(100)], pa.float16()),
    "struct": pa.array([{"a": n % 50} if n % 7 else None for n in range(100)]),
    "list": pa.array([[n % 50] if n % 7 else None for n in range(100)]),
    "map": pa.array([[("a", n)] for n in range(100)], pa.map_(pa.string(), pa.int32())),
    "dictionary": pa.array(["x", "y", None, "z"] * 25).dictionary_encode(),
}
FILTERS = {
    "fixed_size_binary": ["c = X'05'", "c is null"],
    "half_float": ["c = 5", "c > 40"],
    "struct": ["c.a = 5", "c is null", "c is not null"],
    "list": ["array_has(c, 5)", "c is null"],
    "map": ["c is null"],
    "dictionary": ["c = 'x'", "c is null"],
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "ZONEMAP") for name in COLUMNS),
        *((name, kind) for name in ("fixed_size_binary", "half_float") for kind in ("BTREE", "BITMAP")),
    ],
)
def test_it_is_kept_and_stops_nothing(tmp_path, name, kind):
    rows = pa.table({"c": COLUMNS[name], "n": range(100)})
    lance.write_dataset(rows, tmp_path / "t.lance").create_scalar_index("c", kind)
    table = lance_core.dataset(tmp_path / "t.lance")
    table.create_scalar_index("n", "BTREE")
    table.insert(rows)
    assert verify(table) == []
    table.optimize.optimize_indices()
    assert table.index_statistics("n_idx")["num_unindexed_rows"] == 0
    for condition in FILTERS[name]:
        expected = lance.dataset(table.uri).count_rows(condition)
        assert table.count_rows(condition) == expected
        assert table.to_table(filter=f"({condition}) and n >= 0").num_rows == expected
    table.optimize.compact_files()
    table.optimize.optimize_indices()
    assert {one.name for one in table.describe_indices()} >= {"c_idx", "n_idx"}
    for condition in FILTERS[name]:
        assert table.count_rows(condition) == lance.dataset(table.uri).count_rows(condition)
    assert verify(table) == []

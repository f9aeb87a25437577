"""Scans with pylance's arguments give what pylance gives, on tables with deletions, files of columns and stable ids."""

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.dataset import ColumnOrdering

import lance_core

NAN = float("nan")
TABLE = pa.table({
    "id": pa.array(range(10)),
    "v": pa.array([3, None, 1, 2, None, 5, 4, 0, 9, 8], pa.int32()),
    "f": pa.array([1.0, NAN, None, -1, 0, NAN, 3, None, 5, 6]),
    "s": list("abcdefghij"),
    "st": [{"a": i, "b": {"c": str(i)}} for i in range(10)],
    "Up": range(10),
    "l": [[{"x": i, "y": 1}] for i in range(10)],
})  # fmt: skip

SCANS = [
    {"columns": ["id", "_rowid"]},
    {"columns": ["_rowaddr", "id"]},
    {"columns": ["_rowid", "id"], "with_row_id": True, "with_row_address": True},
    {"columns": ["_rowoffset", "id"]},
    {"columns": ["_row_created_at_version", "_row_last_updated_at_version", "id"]},
    {"columns": ["st.a"]},
    {"columns": ["st.b.c", "id", "st.a"]},
    {"columns": ["st.b.c", "st", "id", "st.b"]},
    {"columns": ["st", "st.a"]},
    {"columns": [], "with_row_id": True},
    {"columns": {"x": "id + 1", "y": "st.a", "z": "`Up`", "w": "st"}},
    {"columns": {"x": "_rowid", "y": "_rowaddr", "id": "id"}},
    {"columns": {"x": "id"}, "with_row_id": True},
    {"columns": ["id"], "filter": "_rowid > 3"},
    {"columns": ["id"], "filter": "_rowaddr > 3 AND v > 1"},
    {"columns": ["s"], "filter": "v > 1 AND f > 0"},
    {"columns": ["s", "v"], "filter": "v > 1", "late_materialization": False},
    {"columns": ["s", "v"], "filter": "v > 1", "late_materialization": ["s"]},
    {"filter": "v > 1", "with_row_id": True},
    {"filter": pc.field("v") > 1},
    {"filter": {"expr_filter": "id > 7"}},
    {"filter": "id > 100"},
    {"limit": 0},
    {"limit": 3, "offset": 2},
    {"limit": 3, "offset": 2, "filter": "id > 3"},
    {"offset": 100},
    {"columns": ["id"], "include_deleted_rows": True, "with_row_id": True},
    {"columns": ["_rowoffset", "id"], "include_deleted_rows": True, "with_row_id": True},
    {"columns": ["id", "s"], "include_deleted_rows": True, "with_row_id": True, "with_row_address": True},
    {"columns": ["id"], "include_deleted_rows": True, "with_row_id": True, "filter": "id < 5"},
    {"columns": ["id"], "include_deleted_rows": True, "with_row_id": True, "limit": 3, "offset": 1},
    {"columns": ["id"], "prefilter": True, "use_stats": False, "batch_readahead": 2, "io_buffer_size": 2**20},
    {"columns": ["id", "v"], "order_by": [ColumnOrdering("v")]},
]


@pytest.fixture(scope="module", params=["addresses", "stable ids"])
def both(request, tmp_path_factory):
    uri = tmp_path_factory.mktemp("reading") / "t"
    stable = request.param == "stable ids"
    theirs = lance.write_dataset(TABLE, uri, max_rows_per_file=4, enable_stable_row_ids=stable)
    theirs.delete("id in (0, 1, 7)")
    return lance_core.dataset(uri), lance.dataset(uri)


@pytest.mark.parametrize("arguments", SCANS, ids=str)
def test_tables(both, arguments):
    ours, theirs = both
    expected = theirs.to_table(**arguments)
    found = ours.to_table(**arguments)
    assert found.schema.equals(expected.schema)
    assert repr(found.to_pydict()) == repr(expected.to_pydict())  # by text: NaN differs from itself
    assert found.num_rows == expected.num_rows


@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("columns", [["v"], ["f"], ["s"], ["v", "id"], ["f", "v"]], ids=str)
def test_orders(both, columns, ascending, nulls_first):
    ours, theirs = both
    order = [ColumnOrdering(name, ascending, nulls_first) for name in columns]
    wanted = ["id", *dict.fromkeys(name for name in columns if name != "id")]
    for more in ({}, {"limit": 3, "offset": 1}):
        expected = theirs.to_table(columns=wanted, order_by=order, **more)
        found = ours.to_table(columns=wanted, order_by=order, **more)
        # Rows that are equal have no order of their own.
        for name in columns[:1]:
            assert repr(found.column(name).to_pylist()) == repr(expected.column(name).to_pylist())
        assert sorted(found.column("id").to_pylist()) == sorted(set(found.column("id").to_pylist()))


def test_rows_by_position(both):
    ours, theirs = both
    for columns in (
        ["id"],
        ["id", "_rowid"],
        ["_rowaddr"],
        {"x": "id + 1"},
        ["st.a"],
        ["st.a", "id", "_rowid"],
        ["st.a", "st"],
    ):
        assert ours.take([0, 3, 3, 1], columns).equals(theirs.take([0, 3, 3, 1], columns))
    assert ours.take([], ["id"]).equals(theirs.take([], ["id"]))
    assert ours.head(2, columns=["id"]).equals(theirs.head(2, columns=["id"]))
    assert ours.slice(1, 4, ["id"]).equals(theirs.slice(1, 4, ["id"]))
    assert ours.slice(1, 40, {"x": "id * 2"}).equals(theirs.slice(1, 40, {"x": "id * 2"}))
    assert ours.scanner(columns=["id"]).head(2).equals(theirs.scanner(columns=["id"]).head(2))
    assert ours.count_rows("id > 3") == theirs.count_rows("id > 3")
    assert ours.scanner(include_deleted_rows=True, with_row_id=True).count_rows() == 10


def test_fragments(both):
    ours, theirs = both
    for mine, other in zip(ours.get_fragments(), theirs.get_fragments(), strict=True):
        assert mine.take([0, 1], ["id"]).equals(other.take([0, 1], ["id"]))
        assert repr(mine.head(2).to_pylist()) == repr(other.head(2).to_pylist())
        assert mine.count_rows() == other.count_rows()
        assert mine.count_rows("id > 2") == other.count_rows("id > 2")
        arguments = {"columns": {"x": "id + 1"}, "filter": "id > 0", "limit": 1, "offset": 0}
        assert mine.scanner(**arguments).to_table().equals(other.scanner(**arguments).to_table())
        assert mine.to_pandas().equals(other.to_pandas())
    backwards = (dataset.scanner(columns=["id"], fragments=dataset.get_fragments()[::-1]) for dataset in both)
    mine, other = (scanner.to_table() for scanner in backwards)
    assert mine.equals(other)


def test_schemas_of_scanners(both):
    arguments = {"columns": ["id", "st.a"], "with_row_id": True}
    mine, other = (dataset.scanner(**arguments) for dataset in both)
    assert mine.projected_schema.equals(other.projected_schema)
    assert mine.dataset_schema.equals(other.dataset_schema)
    assert mine.to_reader().schema.equals(mine.projected_schema)

"""One table, two libraries: what one writes the other reads, appends to, deletes from and compacts."""

import datetime as dt
import decimal

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    SchemaError,
    UnsupportedError,
    VersionNotFoundError,
)
from tests.interop.format.wire import latest_message

COLUMNS = pa.table({
    "id": pa.array(range(300), pa.int64()),
    "flag": pa.array([None if i % 7 == 0 else i % 2 == 0 for i in range(300)]),
    "price": pa.array([decimal.Decimal(i) / 4 for i in range(300)], pa.decimal128(12, 2)),
    "at": pa.array([dt.datetime(2013, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i) for i in range(300)], pa.timestamp("us", "UTC")),
    "day": pa.array([dt.date(2013, 1, 1 + i // 30) for i in range(300)]),
    "name": pa.array([None if i % 11 == 0 else f"name {i % 13}" for i in range(300)]),
    "blob": pa.array([bytes([i % 256]) * (i % 5) for i in range(300)]),
    "tags": pa.array([None if i % 9 == 0 else [f"t{j}" for j in range(i % 4)] for i in range(300)]),
    "point": pa.array([None if i % 8 == 0 else {"x": i, "y": [i / 2, None]} for i in range(300)]),
    "props": pa.array([[("a", i), ("b", None)] if i % 3 else None for i in range(300)], pa.map_(pa.string(), pa.int32())),
    "vector": pa.array([None if i % 50 == 0 else [float(i)] * 8 for i in range(300)], pa.list_(pa.float32(), 8)),
    "kind": pa.array([f"k{i % 3}" for i in range(300)]).dictionary_encode(),
})  # fmt: skip


def same(left: pa.Table, right: pa.Table) -> bool:
    """Equal rows; dictionaries may list their values in another order."""
    plain = pa.schema(f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in right.schema)
    return left.cast(plain).combine_chunks().equals(right.cast(plain).combine_chunks())


def test_pylance_reads_appends_deletes_and_compacts_what_we_wrote(tmp_path):
    uri = tmp_path / "t"
    ours = lance_core.write_dataset(
        COLUMNS.slice(0, 100), uri, commit_message="first", transaction_properties={"run": "r1"}
    )
    assert (ours.version, ours.count_rows(), ours.data_storage_version) == (1, 100, "2.2")
    theirs = lance.dataset(uri)
    assert same(theirs.to_table(), COLUMNS.slice(0, 100))
    assert theirs.schema == ours.schema
    properties = theirs.read_transaction(1).transaction_properties
    assert properties == {"run": "r1", "__lance_commit_message": "first"}

    lance.write_dataset(COLUMNS.slice(100, 100), uri, mode="append")
    lance_core.write_dataset(COLUMNS.slice(200, 100), uri, mode="append")
    assert same(lance.dataset(uri).to_table(), COLUMNS)
    lance.dataset(uri).delete("id % 10 = 3")
    kept = COLUMNS.filter(pa.array([i % 10 != 3 for i in range(300)]))
    assert same(lance_core.dataset(uri).to_table(), kept)
    assert lance_core.dataset(uri).count_rows() == 270
    metrics = lance.dataset(uri).optimize.compact_files()
    assert metrics.fragments_removed == 3
    after = lance_core.dataset(uri)
    assert same(after.to_table(), kept)
    assert [after.read_transaction(v).operation.name for v in range(1, after.version + 1)] == [
        "Overwrite", "Append", "Append", "Delete", "ReserveFragments", "Rewrite",
    ]  # fmt: skip


def test_we_read_every_version_that_pylance_wrote(tmp_path):
    uri = tmp_path / "t"
    lance.write_dataset(COLUMNS.slice(0, 100), uri, max_rows_per_file=30)
    lance.write_dataset(COLUMNS.slice(100, 50), uri, mode="append")
    lance.dataset(uri).delete("id < 10")
    lance.write_dataset(COLUMNS.select(["id", "name"]), uri, mode="overwrite")
    latest = lance_core.dataset(uri)
    theirs = lance.dataset(uri)
    assert [v["version"] for v in latest.versions()] == [1, 2, 3, 4]
    assert latest.versions() == theirs.versions()
    for version in range(1, 5):
        one = lance_core.dataset(uri, version=version)
        other = lance.dataset(uri, version=version)
        assert same(one.to_table(), other.to_table())
        assert one.schema == other.schema
        assert one.count_rows() == other.count_rows()
        assert [f.metadata.to_json() for f in one.get_fragments()] == [
            f.metadata.to_json() for f in other.get_fragments()
        ]


@pytest.mark.parametrize("options", [
    {"limit": 7}, {"offset": 95}, {"limit": 60, "offset": 20}, {"columns": ["name", "id"]}, {"columns": ["id"], "limit": 0},
    {"filter": pc.field("id") > 120}, {"filter": pc.field("name") == "name 3", "columns": ["id", "vector"]},
    {"filter": (pc.field("id") == 77) | pc.field("flag"), "columns": ["tags"], "limit": 5, "offset": 2},
    {"with_row_id": True, "columns": ["id"]}, {"with_row_address": True, "columns": [], "offset": 40},
    {"batch_size": 17, "columns": ["id", "point"]}, {"filter": pc.field("id") == -1},
])  # fmt: skip
def test_scans_agree(tmp_path, options):
    lance.write_dataset(COLUMNS, tmp_path / "t", max_rows_per_file=64)
    lance.dataset(tmp_path / "t").delete("id % 4 = 1")
    ours, theirs = lance_core.dataset(tmp_path / "t"), lance.dataset(tmp_path / "t")
    expected = theirs.to_table(**options)
    found = ours.to_table(**options)
    assert same(found, expected)
    assert sum(batch.num_rows for batch in ours.to_batches(**options)) == expected.num_rows


def test_nested_projection_and_take(tmp_path):
    lance_core.write_dataset(COLUMNS, tmp_path / "t", max_rows_per_file=64)
    lance.dataset(tmp_path / "t").delete("id % 4 = 1")
    ours, theirs = lance_core.dataset(tmp_path / "t"), lance.dataset(tmp_path / "t")
    # pylance gives 0 instead of null where the struct is null and the field inside of it is not nullable.
    assert ours.to_table(columns=["point.x"]).to_pydict() == {
        "point.x": [p and p["x"] for p in theirs.to_table(columns=["point"]).column("point").to_pylist()]
    }
    rows = [5, 5, 200, 0, 199]
    assert same(ours.take(rows), theirs.take(rows))
    assert ours.take([], columns=["id"]).num_rows == 0
    with pytest.raises(ValueError, match="225"):
        ours.take([300])
    assert same(ours.head(3), theirs.head(3))
    for mine, other in zip(ours.get_fragments(), theirs.get_fragments(), strict=True):
        assert same(mine.to_table(), other.to_table())
        assert mine.count_rows() == other.count_rows()


def test_rejections_change_nothing(tmp_path):
    uri = tmp_path / "t"
    with pytest.raises(DatasetNotFoundError):
        lance_core.dataset(uri)
    assert not uri.exists()
    lance_core.write_dataset(COLUMNS, uri)
    files = sorted(p for p in uri.rglob("*") if p.is_file())
    with pytest.raises(DatasetExistsError):
        lance_core.write_dataset(COLUMNS, uri)
    with pytest.raises(SchemaError, match="other"):
        lance_core.write_dataset(pa.table({"other": [1]}), uri, mode="append")
    with pytest.raises(SchemaError, match="`id`"):
        lance_core.write_dataset(pa.table({"id": ["a"]}), uri, mode="append")
    with pytest.raises(UnsupportedError, match="max_page_bytes"):
        lance_core.write_dataset(COLUMNS, uri, mode="append", max_page_bytes=5)
    with pytest.raises(VersionNotFoundError):
        lance_core.dataset(uri, version=9)
    with pytest.raises(ValueError, match="mode"):
        lance_core.write_dataset(COLUMNS, uri, mode="merge")
    assert sorted(p for p in uri.rglob("*") if p.is_file()) == files


def test_a_failed_write_leaves_no_file(tmp_path):
    uri = tmp_path / "t"

    def broken():
        yield COLUMNS.slice(0, 100).to_batches()[0]
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        lance_core.write_dataset(broken(), uri, COLUMNS.schema, max_rows_per_file=20)
    assert not [p for p in uri.rglob("*") if p.is_file()]


def test_time_travel_and_tags(tmp_path):
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.table({"a": [1]}), uri)
    between = dt.datetime.now()
    lance.write_dataset(pa.table({"a": [2]}), uri, mode="append")
    handle = lance_core.dataset(uri, version=1)
    assert handle.latest_version == 2
    assert lance_core.dataset(uri, asof=between).version == 1
    with pytest.raises(VersionNotFoundError):
        lance_core.dataset(uri, asof=between - dt.timedelta(days=1))
    handle.tags.create("first", 1)
    lance.dataset(uri).tags.create("second", 2)
    assert lance.dataset(uri, version="first").version == 1
    assert lance_core.dataset(uri, version="second").to_table()["a"].to_pylist() == [1, 2]
    assert handle.tags.list().keys() == lance.dataset(uri).tags.list().keys() == {"first", "second"}
    handle.tags.update("first", 2)
    assert lance.dataset(uri, version="first").version == 2
    handle.tags.delete("first")
    with pytest.raises(VersionNotFoundError):
        lance_core.dataset(uri, version="first")
    handle.checkout_latest()
    assert (handle.version, handle.count_rows()) == (2, 2)


def test_stable_row_ids_survive_pylances_compaction(tmp_path):
    uri = tmp_path / "t"
    lance_core.write_dataset(pa.table({"a": range(50)}), uri, enable_stable_row_ids=True, max_rows_per_file=20)
    lance.write_dataset(pa.table({"a": range(50, 60)}), uri, mode="append")
    lance.dataset(uri).delete("a % 5 = 0")
    before = lance_core.dataset(uri).to_table(with_row_id=True).to_pylist()
    assert all(row["_rowid"] == row["a"] for row in before)
    lance.dataset(uri).optimize.compact_files()
    assert lance_core.dataset(uri).to_table(with_row_id=True).to_pylist() == before
    assert lance.dataset(uri).to_table(with_row_id=True).to_pylist() == before


def test_missing_columns_read_as_nulls(tmp_path):
    uri = tmp_path / "t"
    lance_core.write_dataset(COLUMNS.slice(0, 10), uri)
    lance_core.write_dataset(COLUMNS.slice(10, 10).select(["vector", "id"]), uri, mode="append")
    ours, theirs = lance_core.dataset(uri).to_table(), lance.dataset(uri).to_table()
    assert same(ours, theirs)
    assert ours["name"].to_pylist()[10:] == [None] * 10


@pytest.mark.parametrize("kind", ["pandas", "polars", "reader", "batches", "dataset", "lance_core"])
def test_rows_come_from_many_places(tmp_path, kind):
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    data, schema = {
        "pandas": lambda: (table.to_pandas(), table.schema),
        "polars": lambda: (pytest.importorskip("polars").from_arrow(table), None),
        "reader": lambda: (table.to_reader(), None),
        "batches": lambda: (iter(table.to_batches()), table.schema),
        "dataset": lambda: (lance.write_dataset(table, tmp_path / "source"), None),
        "lance_core": lambda: (lance_core.write_dataset(table, tmp_path / "source"), None),
    }[kind]()
    written = lance_core.write_dataset(data, tmp_path / "t", schema)
    assert same(written.to_table(), table.cast(written.schema))


def test_arrow_consumers_take_a_dataset(tmp_path):
    import duckdb
    import polars as pl

    dataset = lance_core.write_dataset(pa.table({"a": range(1000)}), tmp_path / "t")
    assert pa.table(dataset).num_rows == 1000
    assert pl.DataFrame(dataset)["a"].sum() == 499_500
    assert duckdb.from_arrow(dataset.to_reader()).sum("a").fetchall() == [(499_500,)]
    assert dataset.to_pandas()["a"].max() == 999


def test_empty_texts_of_0_1_are_null_only_where_nulls_are_allowed(tmp_path):
    inside = pa.struct([pa.field("z", pa.string(), nullable=False)])
    fields = [("s", pa.string()), ("b", pa.binary()), ("t", inside)]
    schema = pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in fields), ("n", pa.string())])
    table = pa.Table.from_pylist([{"s": text, "b": b"", "t": {"z": ""}, "n": ""} for text in ("", "x")], schema=schema)
    lance_core.write_dataset(table, tmp_path, data_storage_version="0.1")
    expected = table.set_column(3, "n", pa.nulls(2, pa.string()))
    for library in (lance_core, lance):
        dataset = library.dataset(tmp_path)
        assert dataset.to_table().equals(expected)
        assert dataset.count_rows("s = ''") == 1


KINDS = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float64(), pa.decimal128(9, 2)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7), pa.date32(), pa.time64("us")),
    *(pa.timestamp("ns", "UTC"), pa.duration("s"), pa.list_(pa.int8()), pa.large_list(pa.string())),
    *(pa.list_(pa.float32(), 2), pa.struct({"x": pa.large_binary()}), pa.dictionary(pa.int8(), pa.string())),
]


def test_fields_are_described_as_by_pylance(tmp_path):
    schema = pa.schema([pa.field(f"c{i}", kind, i % 2 == 0) for i, kind in enumerate(KINDS)])
    for library in (lance, lance_core):
        library.write_dataset(schema.empty_table(), tmp_path / library.__name__)
    theirs, ours = (list(latest_message(tmp_path / library.__name__).fields) for library in (lance, lance_core))
    for their, our in zip(theirs, ours, strict=True):
        if our.HasField("dictionary") and not their.HasField("dictionary"):
            our.ClearField("dictionary")  # which pylance up to 0.30 needs to read the column
        assert our == their, their.name

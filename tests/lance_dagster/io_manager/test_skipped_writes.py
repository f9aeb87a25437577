"""An output without rows that is skipped, or removes none: its event says what the table has; no row has changed."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy

PARTS = dg.StaticPartitionsDefinition(["a", "b"])
ROWS = pa.schema([("p", pa.string()), ("n", pa.int64())])


@pytest.fixture
def write(lake):
    """Materialize an asset without rows, or with the values given; the entries and the data version of its event."""

    def write(*values, partition=None, tags=None, metadata=None, **config):
        @dg.asset(partitions_def=PARTS if partition else None, metadata={"partition_expr": "p", **(metadata or {})})
        def events() -> pa.Table:
            return pa.table({"p": [partition or "x"] * len(values), "n": list(values)}, schema=ROWS)

        config = {"empty_output": "skip", "write_mode": "append" if not partition else "overwrite", **config}
        result = lake.run(events, partition=partition, tags=tags, **config)
        (event,) = result.asset_materializations_for_node("events")
        entries = {key: entry.value for key, entry in event.metadata.items()}
        return entries, event.tags["dagster/data_version"]

    return write


@pytest.mark.parametrize("partition", [None, "a"])
def test_the_data_version_stays_and_the_version_is_that_of_the_table(lake, write, partition):
    written, before = write(1, 2, partition=partition)
    if partition:
        write(3, partition="b")
    table = lake.table("events")
    skipped, after = write(partition=partition)
    assert after == before
    assert (skipped["lance/version"], skipped["lance/rows_written"]) == (table.version, 0)
    assert skipped["dagster/row_count"] == table.count_rows()
    assert skipped.get("dagster/partition_row_count") == (2 if partition else None)
    for key in ("dagster/size_bytes", "lance/deleted_fraction"):
        assert key in written
        assert key in skipped
    assert lake.table("events").version == table.version


@pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
@pytest.mark.parametrize("partition", [None, "a"])
def test_a_write_without_rows_that_removes_none_keeps_the_data_version(lake, write, mode, partition):
    metadata = {"lance/merge_on": ["p", "n"]} if mode == "merge" else None
    config = {"empty_output": "write", "write_mode": mode, "metadata": metadata}
    keeps = mode in ("append", "merge")
    written, before = write(*([1, 2] if keeps else []), partition=partition, **config)
    if partition:
        write(3, partition="b", **config)
    reported, after = write(partition=partition, **config)
    assert after == before
    table = lake.table("events")
    assert (reported["lance/version"], reported["dagster/row_count"]) == (table.version, table.count_rows())
    assert table.version > written["lance/version"]
    assert write(partition=partition, **{**config, "empty_output": "skip"})[1] == before
    assert write(5, partition=partition, **config)[1] != before


def test_a_write_without_rows_that_removes_rows_is_another_data_version(write):
    config = {"empty_output": "write", "write_mode": "overwrite"}
    _, before = write(1, **config)
    _, after = write(**config)
    assert (before.rpartition(":")[2], after.rpartition(":")[2]) == ("1", "2")
    assert write(**config)[1] == after


def test_a_change_of_others_is_another_data_version(lake, write):
    _, before = write(1)
    lance_core.write_dataset(pa.table({"p": ["x"], "n": [2]}, schema=ROWS), lake.uri("events"), mode="append")
    skipped, after = write()
    assert (before.rpartition(":")[2], after.rpartition(":")[2]) == ("1", "2")
    assert skipped["dagster/row_count"] == 2


def test_without_a_table_the_data_version_stays_the_same(lake, write):
    first, before = write()
    again, after = write()
    assert before == after
    assert "lance/version" not in first
    assert first == again


def test_on_a_branch_the_event_is_about_the_branch(lake, write):
    write(1)
    policy = {"branching": BranchPolicy.from_tag(), "tags": {"lance/branch": "b"}}
    _, before = write(2, **policy)
    skipped, after = write(**policy)
    assert before == after
    assert (skipped["lance/branch"], skipped["lance/published"], skipped["dagster/row_count"]) == ("b", False, 2)


def test_a_table_that_another_writer_creates_meanwhile_is_reported(lake):
    @dg.asset
    def events() -> pa.RecordBatchReader:
        def batches():
            lance_core.write_dataset(pa.table({"p": ["x"], "n": [2]}, schema=ROWS), lake.uri("events"))
            yield from pa.table({"p": [], "n": []}, schema=ROWS).to_batches()

        return pa.RecordBatchReader.from_batches(ROWS, batches())

    result = lake.run(events, empty_output="skip", write_mode="append")
    (event,) = result.asset_materializations_for_node("events")
    assert (event.metadata["lance/version"].value, event.metadata["dagster/row_count"].value) == (1, 1)
    assert event.tags["dagster/data_version"].endswith(":main:1")


@pytest.mark.parametrize("changed", ["a", "b"])
def test_a_change_of_others_in_a_partition_is_another_data_version(lake, write, changed):
    _, before = write(1, partition="a")
    rows = pa.table({"p": [changed], "n": [2]}, schema=ROWS)
    lance_core.write_dataset(rows, lake.uri("events"), mode="append")
    write(3, partition="b")
    skipped, after = write(partition="a")
    assert before.endswith(":main:1")
    assert after.endswith(":main:3")  # a commit of others does not say which partitions it has changed
    again, same = write(partition="a")
    assert (same, again["lance/version"]) == (after, skipped["lance/version"])


def test_a_table_that_others_make_meanwhile_has_their_data_version(lake):
    """The batches end without rows, and another writer has made the table since they began."""

    def batches():
        lance_core.write_dataset(pa.table({"p": ["x"], "n": [2]}, schema=ROWS), lake.uri("events"))
        yield from ()

    @dg.asset(metadata={"lance/merge_on": ["n"]})
    def events() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(ROWS, batches())

    (event,) = lake.run(events, write_mode="merge").asset_materializations_for_node("events")
    assert (event.metadata["dagster/row_count"].value, lake.table("events").count_rows()) == (1, 1)
    assert event.tags["dagster/data_version"].rpartition(":")[2] == "1"

"""Columns of a table that were null so far: a write that gives them types commits these together with its rows."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- annotations of assets

import lance_core
from lance_core.errors import SchemaError, UnsupportedError
from lance_dagster import BranchPolicy
from lance_dagster.io_manager.column_types import change_column_type
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
DAY = dt.date(2024, 1, 2)
MERGE = {"lance/write_mode": "merge", "lance/merge_on": "n"}
OPEN = pa.table({"day": [DAY, dt.date(2024, 1, 3)], "n": pa.nulls(2)})


def arrow(rows, metadata):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", **metadata})
    def events() -> pa.Table:
        return pa.table({"day": [day for day, _ in rows], "n": pa.array([n for _, n in rows], pa.int64())})

    return events


def on_spark(spark, rows, metadata):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", **metadata})
    def events() -> DataFrame:
        return spark.createDataFrame(rows, "day date, n long")

    return events


@pytest.fixture(params=["arrow", "spark"])
def run(request, lake):
    """Materialize a day of `events` from Arrow, or from Spark; the column `n` of its table is null so far."""
    lance_core.write_dataset(OPEN, lake.uri("events"))
    if request.param == "arrow":
        return lambda rows, fails=False, **metadata: lake.run(
            arrow(rows, metadata), partition="2024-01-02", fails=fails
        )
    session = request.getfixturevalue("spark")

    class Session(dg.ConfigurableResource):
        @property
        def spark_session(self):
            return session

    return lambda rows, fails=False, **metadata: lake.run(
        on_spark(session, rows, metadata), partition="2024-01-02", spark=Session(), fails=fails
    )


@pytest.mark.variants(1)
def test_a_write_gives_the_type_in_the_version_of_its_rows(run, lake):
    run([(DAY, 7)])
    table = lake.table("events")
    assert table.version == 2
    assert table.schema.field("n").type == pa.int64()
    assert lake.rows("events") == [(DAY, 7), (dt.date(2024, 1, 3), None)]
    found = lance.dataset(lake.uri("events")).to_table(filter="n = 7 or n is null")
    assert sorted(found.column("n").to_pylist(), key=str) == [7, None]


def test_a_row_of_another_day_changes_neither_rows_nor_types(run, lake):
    said = errors(run([(DAY, 7), (dt.date(2024, 1, 5), 8)], fails=True))
    assert "2024-01-05" in said
    table = lake.table("events")
    assert (table.version, table.schema) == (1, OPEN.schema)


def test_an_overwrite_gives_the_type_in_its_own_version(run, lake):
    run([(DAY, 7)], **{"lance/write_mode": "overwrite"})
    assert lake.table("events").version == 2
    assert lake.table("events").schema.field("n").type == pa.int64()


def test_a_merge_of_a_row_of_another_day_leaves_the_types(run, lake):
    assert "2024-01-05" in errors(run([(dt.date(2024, 1, 5), 8)], fails=True, **MERGE))
    table = lake.table("events")
    assert (table.version, table.schema) == (1, OPEN.schema)


def test_a_merge_that_has_a_key_twice_leaves_the_types(lake):
    lance_core.write_dataset(OPEN, lake.uri("events"))
    said = errors(lake.run(arrow([(DAY, 7), (DAY, 7)], MERGE), partition="2024-01-02", fails=True))
    assert "several rows with the key" in said
    table = lake.table("events")
    assert (table.version, table.schema) == (1, OPEN.schema)


def test_a_merge_gives_the_type_in_a_version_before(run, lake):
    run([(DAY, 7)], **MERGE)
    assert lake.table("events").version == 3
    assert lake.rows("events", columns=["n"], filter="n is not null") == [(7,)]


def test_a_job_that_fails_in_its_tasks_leaves_the_types(lake, spark):
    from pyspark.sql import functions

    lance_core.write_dataset(OPEN, lake.uri("events"))

    class Session(dg.ConfigurableResource):
        @property
        def spark_session(self):
            return spark

    @dg.asset(metadata={"lance/write_mode": "append"})
    def events() -> DataFrame:
        frame = spark.createDataFrame([(DAY, 7)], "day date, n long")
        return frame.withColumn("n", functions.when(functions.rand() < 0, 1).otherwise(functions.raise_error("boom")))

    assert "boom" in errors(lake.run(events, spark=Session(), fails=True))
    table = lake.table("events")
    assert (table.version, table.schema) == (1, OPEN.schema)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("columns", [["n"], ["n", "m"]])
def test_pylance_reads_and_changes_what_it_left(tmp_path, version, columns):
    old = pa.table({name: pa.nulls(3) for name in columns})
    table = lance_core.write_dataset(old, tmp_path / "t.lance", data_storage_version=version)
    rows = pa.table({name: pa.array([7]) if name == "n" else pa.nulls(1) for name in columns})
    writer = lance_core.FragmentWriter(
        table.uri,
        rows.schema,
        data_storage_version=version,
        dataset_schema=table.lance_schema_with([rows.schema.field("n")]),
    )
    writer.write(rows)
    lance_core.commit_fragments(table, writer.finish(), rows.schema, add_columns=True)
    other = lance.dataset(table.uri)
    assert other.to_table().to_pydict() == {name: [None] * 3 + [7 if name == "n" else None] for name in columns}
    other.update({"n": "n + 1"}, where="n = 7")
    other.optimize.compact_files()
    assert sorted(lance.dataset(table.uri).to_table(columns=["n"])["n"].to_pylist(), key=str) == [8, None, None, None]


def test_only_a_commit_gives_types(tmp_path):
    table = lance_core.write_dataset(OPEN, tmp_path / "t.lance")
    with pytest.raises(SchemaError, match="'n' exists already"):
        table.add_columns([pa.field("n", pa.int64())])
    with pytest.raises(SchemaError, match="'day' exists already"):
        table.lance_schema_with([pa.field("day", pa.int64())])
    old = lance_core.write_dataset(OPEN.select(["n"]), tmp_path / "old.lance", data_storage_version="0.1")
    with pytest.raises(UnsupportedError, match=r"0\.1"):
        old.lance_schema_with([pa.field("n", pa.int64())])
    assert table.version == old.version == 1


def test_a_branch_gives_no_type_that_a_promotion_could_not(lake):
    """The remedy of the message works; a column that only the branch has gets its type there."""
    on_branch = {"tags": {"lance/branch": "work"}, "branching": BranchPolicy.from_tag("lance/branch")}
    lance_core.write_dataset(OPEN, lake.uri("events"))
    metadata = {"lance/schema_mode": "add_columns"}

    def run(**columns):
        @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", **metadata})
        def events() -> pa.Table:
            return pa.table({"day": [DAY], **columns})

        return lake.run(events, partition="2024-01-02", fails=None, **on_branch)

    said = errors(run(n=[7]))
    assert "column 'n' has no type on main" in said
    assert f"lance-dagster change-type {lake.uri('events')} n int64; then discard branch work" in said
    assert lake.table("events").checkout_version(("work", None)).schema == OPEN.schema
    assert run(n=pa.nulls(1), extra=pa.nulls(1)).success
    assert run(n=pa.nulls(1), extra=["a"]).success
    lake.table("events").branches.promote("work")
    change_column_type(lake.table("events"), "n", pa.int64())
    lake.table("events").branches.discard("work")
    assert run(n=[7], extra=["b"]).success
    lake.table("events").branches.promote("work")
    assert lake.rows("events") == [(DAY, 7, "b"), (dt.date(2024, 1, 3), None, None)]

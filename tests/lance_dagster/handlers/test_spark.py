"""Spark DataFrames through the IO manager: one job, one commit, partitions, vectors, typed rejections."""

import datetime as dt
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame  # noqa: TID253 -- annotations of assets
from pyspark.sql import functions as F  # noqa: N812, TID253 -- the same

import lance_core
from lance_core.errors import InvalidInputError
from lance_dagster import BranchPolicy
from lance_dagster.handlers.spark import SparkHandler, _reject_twice
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")


@pytest.fixture
def run(lake, spark):
    """Materialize assets that Spark fills."""

    class Session(dg.ConfigurableResource):
        @property
        def spark_session(self):
            return spark

    def run(*assets, **options):
        return lake.run(*assets, spark=Session(), **options)

    return run


def daily(spark, rows, **arguments):
    @dg.asset(**{"partitions_def": DAYS, "metadata": {"partition_expr": "day"}} | arguments)
    def events(context) -> DataFrame:
        made = rows(context) if callable(rows) else rows
        return spark.createDataFrame(made, "day date, n long")

    return events


def of_days(context):
    days = [dt.date.fromisoformat(key) for key in context.partition_keys]
    return [(day, day.day) for day in days for _ in range(2)]


def date(day):
    return dt.date(2024, 1, day)


def test_a_range_is_one_commit_with_one_fragment_per_day(run, lake, spark):
    result = run(daily(spark, of_days), span=("2024-01-05", "2024-01-09"))
    table = lake.table("events")
    assert table.version == 1
    held = [set(f.to_table().column("day").to_pylist()) for f in table.get_fragments()]
    assert sorted(held, key=min) == [{date(n)} for n in range(5, 10)]
    events = result.asset_materializations_for_node("events")
    counts = {event.partition: event.metadata["dagster/partition_row_count"].value for event in events}
    assert counts == {f"2024-01-0{n}": 2 for n in range(5, 10)}
    assert {event.metadata["dagster/row_count"].value for event in events} == {10}
    assert events[0].metadata["lance/rows_written"].value == 2


def test_a_day_replaces_that_day(run, lake, spark):
    run(daily(spark, of_days), span=("2024-01-01", "2024-01-03"))
    run(daily(spark, [(date(2), 20)]), partition="2024-01-02")
    assert lake.rows("events") == [(date(1), 1)] * 2 + [(date(2), 20)] + [(date(3), 3)] * 2
    assert lake.table("events").version == 2


def test_an_empty_day_clears_the_day(run, lake, spark):
    run(daily(spark, of_days), span=("2024-01-01", "2024-01-02"))
    run(daily(spark, []), partition="2024-01-02")
    assert lake.rows("events") == [(date(1), 1)] * 2


def test_a_row_of_another_day_changes_nothing(run, lake, spark):
    run(daily(spark, of_days), span=("2024-01-01", "2024-01-03"))
    result = run(daily(spark, [(date(2), 20), (date(3), 30)]), partition="2024-01-02", fails=True)
    assert "InvalidInputError" in errors(result)
    assert lake.table("events").version == 1
    assert lake.rows("events") == [(date(n), n) for n in (1, 2, 3) for _ in range(2)]


def test_a_rejected_first_write_to_a_branch_makes_no_table(run, lake, spark):
    on_branch = {"tags": {"lance/branch": "b"}, "branching": BranchPolicy.from_tag("lance/branch")}
    run(daily(spark, [(date(3), 30)]), partition="2024-01-02", fails=True, **on_branch)
    assert not Path(lake.root).exists()
    run(daily(spark, [(date(2), 20)]), partition="2024-01-02", **on_branch)
    assert lake.table("events").checkout_version(("b", None)).count_rows() == 1


def test_without_an_exact_predicate_no_task_runs(run, lake, spark):
    ran = spark.sparkContext.accumulator(0)

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "n"})
    def events() -> DataFrame:
        def count(rows):
            ran.add(1)
            return rows

        return spark.createDataFrame([(1.5,)], "n double").mapInArrow(count, "n double")

    assert "column 'n' of type double does not go with" in errors(run(events, partition="2024-01-02", fails=True))
    assert ran.value == 0
    assert not Path(lake.root).exists()


def test_error_looks_again_for_rows_when_it_commits(run, lake, spark):
    run(daily(spark, of_days), partition="2024-01-01", write_mode="error")
    uri, schema = lake.uri("events"), lake.table("events").schema

    def meanwhile(batches):
        theirs = pa.table([[dt.date(2024, 1, 2)], [9]], schema=schema)
        lance_core.write_dataset(theirs, uri, mode="append")
        yield from batches

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events() -> DataFrame:
        ours = spark.createDataFrame([(date(2), 2)], "day date, n long").coalesce(1)
        return ours.mapInArrow(meanwhile, ours.schema)

    result = run(events, partition="2024-01-02", write_mode="error", fails=True)
    assert "DatasetExistsError" in errors(result)
    assert lake.rows("events") == [(date(1), 1)] * 2 + [(date(2), 9)]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_step_retry_replaces_the_earlier_attempt(run, lake, spark, mode):
    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
    def events(context):
        yield dg.Output(spark.range(3 - context.retry_number))
        if not context.retry_number:
            raise RuntimeError("after the output")

    result = run(events, write_mode=mode)
    assert lake.rows("events") == [(0,), (1,)]
    assert lake.table("events").version == 2
    metadata = result.asset_materializations_for_node("events")[-1].metadata
    assert metadata["lance/replaced_attempt"].value == {"run_id": result.run_id, "version": 1, "attempt": 0}
    assert metadata["lance/operation"].value == ("Update" if mode == "append" else "Overwrite")


def test_a_retried_merge_into_a_table_of_its_own_looks_at_its_keys(run, lake, spark):
    @dg.asset(metadata={"lance/write_mode": "merge", "lance/merge_on": "k"}, retry_policy=dg.RetryPolicy(max_retries=2))
    def merged(context):
        rows = ["(1, 'a')", "(2, 'b'), (2, 'c'), (null, 'd'), (null, 'e')", "(3, 'f')"][context.retry_number]
        yield dg.Output(spark.sql(f"select * from values {rows} as t(k, v)"))
        if context.retry_number < 2:
            raise RuntimeError("after the output")

    result = run(merged)
    attempts = [event for event in result.all_events if event.is_step_up_for_retry]
    assert "several rows with the key {'k': 2}" in str(attempts[1].event_specific_data.error)
    assert lake.rows("merged") == [(3, "f")]


@pytest.mark.parametrize("key", ["double('nan')", "struct(double('nan') as x).x", "0.0d"])
def test_keys_of_a_first_merge_are_equal_as_in_later_merges(spark, key):
    rows = spark.sql(f"select {key} as `a.k`, v from values (1), (2) as t(v)")
    if key == "0.0d":
        rows = rows.withColumn("a.k", F.when(rows.v == 1, -0.0).otherwise(0.0))
    with pytest.raises(InvalidInputError, match=r"several rows with the key {'a.k': (nan|-?0.0)}"):
        _reject_twice(rows, ["a.k"])
    _reject_twice(rows.withColumn("a.k", F.lit(None).cast("double")), ["a.k"])


def test_merges_in_one_commit(run, lake, spark):
    metadata = {"partition_expr": "day", "lance/write_mode": "merge", "lance/merge_on": ["day", "n"]}
    first = run(daily(spark, [(date(1), 1), (date(1), 2)], metadata=metadata), partition="2024-01-01")
    assert first.asset_materializations_for_node("events")[0].metadata["lance/commit"].value["rows_inserted"] == 2
    result = run(daily(spark, [(date(1), 2), (date(1), 3)], metadata=metadata), partition="2024-01-01")
    assert lake.rows("events") == [(date(1), 1), (date(1), 2), (date(1), 3)]
    said = result.asset_materializations_for_node("events")[0].metadata["lance/commit"].value
    assert (said["rows_inserted"], said["rows_updated"]) == (1, 1)
    assert lake.properties("events")[-1]["dagster.run_id"] == result.run_id
    clear = metadata | {"lance/when_not_matched_by_source": "delete"}
    run(daily(spark, [(date(1), 3)], metadata=clear), partition="2024-01-01")
    assert lake.rows("events") == [(date(1), 3)]
    wrong = run(daily(spark, [(date(2), 3)], metadata=metadata), partition="2024-01-01", fails=True)
    assert "outside of the run's 1 partitions" in errors(wrong)


CLAUSES = {
    "on": "k",
    "when_matched": [
        {"then": "delete", "condition": "source.op = 'D'"},
        {"then": "update", "set": {"v": "target.v + source.v"}},
    ],
    "when_not_matched": {
        "then": "insert",
        "condition": "source.op <> 'D'",
        "values": {"k": "source.k", "v": "source.v"},
    },
    "when_not_matched_by_source": {"then": "update", "condition": "target.v < 0", "set": {"v": "0"}},
}


def changing(spark, rows, clauses=CLAUSES, retries=0, **more):
    metadata = {"lance/write_mode": "merge", "lance/merge_on": clauses, **more}

    @dg.asset(name="changed", metadata=metadata, retry_policy=dg.RetryPolicy(max_retries=retries))
    def changed(context):
        yield dg.Output(spark.createDataFrame(rows, "k long, v long, op string"))
        if context.retry_number < retries:
            raise RuntimeError("after the output")

    return changed


def test_clauses_of_a_merge(run, lake, spark):
    """A column of the source says what happens to a row; the table does not have it."""
    first = run(changing(spark, [(1, 10, "I"), (2, 20, "I"), (3, -3, "I"), (4, 0, "D")]))
    assert lake.rows("changed") == [(1, 10), (2, 20), (3, -3)]
    assert first.asset_materializations_for_node("changed")[0].metadata["lance/commit"].value["rows_inserted"] == 3
    asset = changing(spark, [(1, 1, "U"), (2, 0, "D"), (5, 5, "U"), (6, 6, "D")], retries=1)
    assert "would be applied twice" in errors(run(asset, fails=True))
    assert lake.rows("changed") == [(1, 11), (3, 0), (5, 5)]
    adopting = changing(spark, [(1, 1, "U")], retries=1, **{"lance/on_earlier_attempt": "adopt"})
    result = run(adopting)
    assert lake.rows("changed") == [(1, 12), (3, 0), (5, 5)]
    assert lake.properties("changed")[-1]["dagster.run_id"] == result.run_id
    version = lake.table("changed").version
    for clauses, said in (
        ({"on": "k", "when_matched": "update"}, "has no columns ['op'], and no clause uses them"),
        ({"on": "k", "when_matched": {"then": "update", "condition": "source.op = 'U' and nope"}}, "nope"),
        ({"on": "k", "when_matched": {"then": "update", "set": {"nope": "source.op"}}}, "nope"),
    ):
        assert said in errors(run(changing(spark, [(1, 1, "U")], clauses), fails=True))
    assert lake.table("changed").version == version


def test_a_merge_of_a_key_of_another_partition_is_rejected(run, lake, spark, tmp_path):
    metadata = {"partition_expr": "day", "lance/write_mode": "merge", "lance/merge_on": ["n"]}
    run(daily(spark, [(date(1), 1), (date(2), 2)], metadata=metadata), span=("2024-01-01", "2024-01-02"))
    files = sorted(tmp_path.rglob("*.lance"))
    moving = daily(spark, [(date(2), 2), (date(2), 1)], metadata=metadata)
    found = errors(run(moving, partition="2024-01-02", fails=True))
    assert "the key n = 1 is in the table in a row with day = 2024-01-01" in found
    assert sorted(tmp_path.rglob("*.lance")) == files
    run(moving, span=("2024-01-01", "2024-01-02"))
    assert lake.rows("events") == [(date(2), 1), (date(2), 2)]


def test_vectors_and_times_come_back(run, lake, spark):
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)

    @dg.asset(metadata={"lance/vector_columns": {"v": 3}})
    def vectors() -> DataFrame:
        return spark.createDataFrame([(1, [1.0, 2.0, 3.0], noon)], "n int, v array<float>, at timestamp")

    got = []

    @dg.asset(ins={"vectors": dg.AssetIn(metadata={"columns": ["v", "at"]})})
    def reader(vectors: DataFrame) -> None:
        got.append((vectors.columns, vectors.toArrow().to_pylist()))

    run(vectors, reader)
    kinds = lake.table("vectors").schema
    assert kinds.field("v").type.list_size == 3
    assert kinds.field("at").type == pa.timestamp("us", "UTC")
    ((columns, rows),) = got
    assert columns == ["v", "at"]
    assert rows == [{"v": [1.0, 2.0, 3.0], "at": noon}]


def test_an_input_is_its_partitions_of_a_pinned_version(run, lake, spark):
    got = []

    source = daily(spark, of_days)
    run(source, span=("2024-01-01", "2024-01-04"))

    @dg.asset(partitions_def=DAYS)
    def reader(events: DataFrame) -> None:
        before = events.count()
        run(daily(spark, []), partition="2024-01-02")
        got.append((before, sorted(row.day for row in events.select("day").collect())))

    run(source, reader, select=[reader], span=("2024-01-02", "2024-01-03"))
    assert got == [(4, [date(2), date(2), date(3), date(3)])]


def test_the_default_type_of_an_input_is_a_spark_frame(run, lake, spark):
    got = []

    @dg.asset
    def numbers() -> pa.Table:
        return pa.table({"n": [1, 2]})

    @dg.asset
    def reader(numbers) -> None:
        got.append((isinstance(numbers, DataFrame), numbers.agg(F.sum("n")).first()[0]))

    run(numbers, reader)
    assert got == [(True, 3)]


def test_the_active_session_serves_when_none_is_configured(lake, spark):
    got = []

    @dg.asset
    def numbers() -> DataFrame:
        return spark.range(2)

    @dg.asset
    def reader(numbers: DataFrame) -> None:
        got.append(numbers.count())

    lake.run(numbers, reader)
    assert got == [2]


def test_a_spark_resource_without_a_session_is_rejected(lake, spark):
    class NoSession(dg.ConfigurableResource):
        pass

    @dg.asset
    def numbers() -> DataFrame:
        return spark.range(2)

    @dg.asset
    def reader(numbers: DataFrame) -> None: ...

    result = lake.run(numbers, reader, spark=NoSession(), fails=True)
    assert "a NoSession, has no spark_session" in errors(result)


def test_other_columns_are_rejected_before_any_task(run, lake, spark):
    @dg.asset(name="events")
    def other() -> DataFrame:
        return spark.createDataFrame([(date(1), "x")], "day date, n string")

    run(daily(spark, of_days), partition="2024-01-01")
    result = run(other, fails=True)
    assert "'n'" in errors(result)
    assert lake.table("events").version == 1


def test_columns_without_values_and_frames_without_rows_take_the_types_that_are_known(run, lake, spark):
    known = {"lance/schema": {"n": "int64", "s": "string"}}
    kind = dg.DagsterType(
        lambda _, value: isinstance(value, DataFrame), name="Known", typing_type=DataFrame, metadata=known
    )

    def stored(query, name="t", metadata=known, dagster_type=None):
        @dg.asset(name=name, metadata={**metadata, "lance/write_mode": "append"}, dagster_type=dagster_type)
        def t():
            return spark.sql(query)

        run(t)
        return lake.table(name)

    nothing, schema = "select null as n, null as s", pa.schema({"n": pa.int64(), "s": pa.string()})
    assert stored(nothing).schema == schema
    assert stored(nothing, "annotated", {}, kind).schema == schema
    assert stored(nothing, metadata={}).count_rows() == 2
    assert stored("select 'x' as n, 1 as s where false", metadata={}).schema == schema
    assert stored("select 1 as n, 2 as s where false", "empty").schema == schema
    assert stored(nothing, "open", {}).schema.types == [pa.null(), pa.null()]
    assert stored("select 1L as n, 'x' as s", "open", {}).schema == schema
    assert lake.rows("open", filter="n = 1") == [(1, "x")]


@pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
@pytest.mark.parametrize("column", ["array() AS xs", "struct(array() AS q) AS s"])
def test_an_empty_array_without_a_type_is_rejected_before_anything_is_written(run, lake, spark, mode, column):
    @dg.asset(metadata={"lance/merge_on": ["id"]} if mode == "merge" else {})
    def events() -> DataFrame:
        return spark.sql(f"SELECT 1 AS id, {column}")

    for _ in range(2):
        assert "the empty array() has no item type; cast it" in errors(run(events, write_mode=mode, fails=True))
    assert not Path(lake.root).exists()


def test_pylance_reads_appends_and_is_read_back(run, lake, spark):
    import lance

    run(daily(spark, of_days), span=("2024-01-01", "2024-01-03"))
    table = lance.dataset(lake.uri("events"))
    assert table.to_table(filter="n = 2").num_rows == 2
    lance.write_dataset(table.to_table(filter="n = 2"), lake.uri("events"), mode="append")
    run(daily(spark, [(date(2), 20)]), partition="2024-01-02")
    assert lake.rows("events") == [(date(1), 1)] * 2 + [(date(2), 20)] + [(date(3), 3)] * 2


def test_the_error_for_rows_of_another_day_names_asset_table_values_and_remedy(run, lake, spark):
    wrong = run(daily(spark, [(date(1), 1), (date(2), 2), (None, 3)]), partition="2024-01-01", fails=True)
    said = errors(wrong)
    for part in (
        "asset events, table ",
        "are outside of the run's 1 partitions ('2024-01-01')",
        "day = 2024-01-02",
        'Filter them out, or set out_of_partition (metadata lance/out_of_partition) to "allow"',
    ):
        assert part in said


def test_a_partition_column_of_another_type_is_called_what_it_is(run, lake, spark):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events() -> DataFrame:
        return spark.createDataFrame([([date(1)], 1)], "day array<date>, n long")

    said = errors(run(events, partition="2024-01-01", fails=True))
    assert "list<item: date32[day]>" in said
    assert "null" not in said.partition("list<")[0].rpartition("\n")[2]


@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_columns_are_cast_by_value_in_the_job(run, lake, spark, mode):
    settings = {"append": {"lance/write_mode": "append"}, "overwrite": {"partition_expr": "kind"}}
    settings["merge"] = {"lance/write_mode": "merge", "lance/merge_on": "n"}
    parts = dg.StaticPartitionsDefinition(["a"]) if mode == "overwrite" else None

    def wide(n, at="2024-01-02 00:00:00"):
        @dg.asset(name="wide", metadata=settings[mode], partitions_def=parts)
        def made() -> DataFrame:
            return spark.sql(f"select 'a' kind, {n} n, timestamp_ntz'{at}' day")

        return lake.run(made, partition=None if parts is None else "a", fails=None)

    table = pa.table({"kind": ["a"], "n": pa.array([1], pa.int32()), "day": [date(1)]})
    lance_core.write_dataset(table, lake.uri("wide"))
    (event,) = wide("double(7)").asset_materializations_for_node("wide")
    assert event.metadata["lance/casts"].value == {"n": "double -> int32", "day": "timestamp[us] -> date32[day]"}
    assert lake.table("wide").schema == table.schema
    assert ("a", 7, date(2)) in lake.rows("wide")
    for values, message in (
        (("3000000000L",), "column 'n' is of type int64, but the table has int32, and the value 3000000000 cannot"),
        (("double(7.5)",), "column 'n' is of type double, but the table has int32, and the value 7.5 cannot"),
        (
            ("7", "2024-01-02 03:00:00"),
            "column 'day' is of type timestamp[us], but the table has date32[day], and the value",
        ),
    ):
        said = errors(wide(*values))
        assert message in said
        assert "lance-dagster change-type" in said
    assert ("a", 7, date(2)) in lake.rows("wide")


def test_a_merge_that_creates_its_table_uses_the_settings_of_new_tables(run, lake, spark):
    metadata = {"partition_expr": "day", "lance/write_mode": "merge", "lance/merge_on": "n"}
    settings = {"stable_row_ids": True, "data_storage_version": "2.1", "table_config": {"k": "v"}}
    first = run(daily(spark, [(date(1), 1)], metadata=metadata), partition="2024-01-01", **settings)
    table = lake.table("events")
    assert (table.version, table.has_stable_row_ids, table.data_storage_version) == (1, True, "2.1")
    assert table.config()["k"] == "v"
    said = first.asset_materializations_for_node("events")[0].metadata["lance/commit"].value
    assert (said["rows_inserted"], said["rows_updated"]) == (1, 0)


def test_a_merge_whose_table_another_writer_creates_meanwhile_merges_into_it(run, lake, spark, monkeypatch):
    metadata = {"partition_expr": "day", "lance/write_mode": "merge", "lance/merge_on": "n"}
    write = SparkHandler._write

    def late(self, value, request):
        lance_core.write_dataset(pa.table({"day": pa.array([date(1)]), "n": [7]}), request.uri)
        return write(self, value, request)

    monkeypatch.setattr(SparkHandler, "_write", late)
    run(daily(spark, [(date(1), 1)], metadata=metadata), partition="2024-01-01")
    assert lake.rows("events") == [(date(1), 1), (date(1), 7)]

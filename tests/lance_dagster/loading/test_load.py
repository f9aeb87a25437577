"""Inputs are pinned versions, the right partitions, the right columns, in the annotated type."""

import datetime as dt

import dagster as dg
import pandas as pd  # noqa: TID253 -- in the parameters of tests
import polars as pl  # noqa: TID253 -- the same
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
from lance_dagster import lance_filter
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-11")
SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64()), ("s", pa.string())])


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    days = [dt.date.fromisoformat(key) for key in context.partition_keys]
    return pa.table([days, [day.day for day in days], [f"s{day.day}" for day in days]], schema=SCHEMA)


@dg.asset
def numbers(context) -> pa.Table:
    return pa.table({"n": [1, 2, 3], "s": ["a", "b", None]})


@pytest.fixture
def filled(lake):
    lake.run(events, span=("2024-01-01", "2024-01-10"))
    lake.run(numbers)
    return lake


def loaded(
    lake,
    kind,
    upstream=numbers,
    *,
    fails=False,
    partition=None,
    span=None,
    mapping=None,
    definition=None,
    metadata=None,
    **config,
):
    """What an asset with one input gets."""
    got = []
    arguments = {"key": upstream.key, "metadata": metadata}
    if mapping is not None:
        arguments["partition_mapping"] = mapping

    def downstream(up) -> None:
        got.append(up)

    downstream.__annotations__ = {"up": kind, "return": None} if kind else {"return": None}
    asset = dg.asset(ins={"up": dg.AssetIn(**arguments)}, partitions_def=definition)(downstream)
    result = lake.run(upstream, asset, select=[asset], partition=partition, span=span, fails=fails, **config)
    return errors(result) if fails else got[0]


def days_of(table):
    return sorted(value.day for value in table.column("day").to_pylist())


class TestTypes:
    @pytest.mark.variants(4)
    @pytest.mark.parametrize(
        "kind", [pa.Table, pa.RecordBatch, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame]
    )
    def test_the_annotation_decides(self, filled, kind):
        got = loaded(filled, kind)
        assert isinstance(got, kind)
        if kind is pa.RecordBatchReader:
            got = got.read_all()
        if kind is pl.LazyFrame:
            got = got.collect()
        values = got["n"].to_pylist() if hasattr(got["n"], "to_pylist") else list(got["n"])
        assert values == [1, 2, 3]

    def test_without_one_the_default_decides(self, filled):
        assert isinstance(loaded(filled, None, default_load_type="polars"), pl.DataFrame)

    def test_other_types_are_rejected(self, filled):
        assert "builtins.dict, which LanceIOManager cannot load" in loaded(filled, dict, fails=True)

    @pytest.mark.parametrize(
        "value",
        [
            pd.DataFrame({"n": [1, 2], "s": ["a", None]}),
            pl.DataFrame({"n": [1, 2], "s": ["a", None]}),
            pl.LazyFrame({"n": [1, 2], "s": ["a", None]}),
            pa.record_batch({"n": [1, 2], "s": ["a", None]}),
        ],
        ids=lambda value: type(value).__module__.partition(".")[0] + type(value).__name__,
    )
    def test_every_kind_is_stored(self, lake, value):
        def stored():
            return value

        stored.__annotations__ = {"return": type(value)}
        lake.run(dg.asset(stored))
        assert lake.table("stored").to_table().to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]

    def test_a_named_index_is_not_lost_silently(self, lake):
        @dg.asset
        def indexed() -> pd.DataFrame:
            return pd.DataFrame({"n": [1]}, index=pd.Index([5], name="id"))

        assert "index ['id'] would be lost" in errors(lake.run(indexed, fails=True))

    @pytest.mark.parametrize(
        "index", [["a", "b"], pd.to_datetime(["2024-01-01", "2024-01-02"]), [("a", 1), ("b", 2)], [0.5, 1.5]]
    )
    def test_an_index_of_values_is_not_lost_silently(self, lake, index):
        @dg.asset
        def indexed() -> pd.DataFrame:
            return pd.DataFrame({"n": [1, 2]}, index=index)

        assert "would be lost; make it a column with reset_index()" in errors(lake.run(indexed, fails=True))

    def test_an_index_of_numbers_of_rows_is_left_out(self, lake):
        @dg.asset
        def filtered() -> pd.DataFrame:
            frame = pd.DataFrame({"n": [1, 2, 3]})
            return frame[frame["n"] > 1]

        lake.run(filtered)
        assert lake.table("filtered").to_table().to_pydict() == {"n": [2, 3]}


class TestPartitions:
    def test_the_same_partition(self, filled):
        assert days_of(loaded(filled, pa.Table, events, definition=DAYS, partition="2024-01-03")) == [3]

    def test_a_range(self, filled):
        got = loaded(filled, pa.Table, events, definition=DAYS, span=("2024-01-03", "2024-01-05"))
        assert days_of(got) == [3, 4, 5]

    def test_all_partitions_of_an_asset_without_any(self, filled):
        assert days_of(loaded(filled, pa.Table, events)) == list(range(1, 11))

    def test_a_set_with_gaps(self, filled):
        mapping = dg.SpecificPartitionsPartitionMapping(["2024-01-02", "2024-01-03", "2024-01-09"])
        assert days_of(loaded(filled, pa.Table, events, mapping=mapping)) == [2, 3, 9]

    def test_the_day_before(self, filled):
        mapping = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
        got = loaded(filled, pa.Table, events, mapping=mapping, definition=DAYS, partition="2024-01-03")
        assert days_of(got) == [2]

    def test_a_week_of_days(self, filled):
        weeks = dg.WeeklyPartitionsDefinition("2024-01-03", end_date="2024-01-11", day_offset=3)
        got = loaded(filled, pa.Table, events, definition=weeks, partition="2024-01-03")
        assert days_of(got) == [3, 4, 5, 6, 7, 8, 9]


class TestMetadata:
    def test_columns(self, filled):
        assert loaded(filled, pa.Table, metadata={"columns": ["s", "n"]}).column_names == ["s", "n"]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [(["x"], "columns ['x'] are not among"), ("n", "must be a list"), ([], "must be a list")],
    )
    def test_columns_that_are_none(self, filled, columns, message):
        assert message in loaded(filled, pa.Table, metadata={"columns": columns}, fails=True)

    @pytest.mark.parametrize(
        "wanted", [lance_filter(pc.field("n") > 1), [["n", ">", 1]], [[["n", "==", 2]], [["n", "==", 3]]]]
    )
    def test_filter(self, filled, wanted):
        assert loaded(filled, pa.Table, metadata={"lance/filter": wanted}).column("n").to_pylist() == [2, 3]

    def test_a_filter_and_partitions(self, filled):
        metadata = {"lance/filter": lance_filter(pc.field("n") > 4), "columns": ["s"]}
        got = loaded(filled, pa.Table, events, definition=DAYS, span=("2024-01-03", "2024-01-06"), metadata=metadata)
        assert got.to_pydict() == {"s": ["s5", "s6"]}

    @pytest.mark.parametrize("sql", ["n > 1", "n BETWEEN 2 AND 3", "s = 'b' OR s IS NULL"])
    def test_a_filter_in_sql(self, filled, sql):
        assert loaded(filled, pa.Table, metadata={"lance/filter": sql}).column("n").to_pylist() == [2, 3]

    def test_a_filter_in_sql_and_partitions(self, filled):
        metadata = {"lance/filter": "n > 4", "columns": ["s"]}
        got = loaded(filled, pa.Table, events, definition=DAYS, span=("2024-01-03", "2024-01-06"), metadata=metadata)
        assert got.to_pydict() == {"s": ["s5", "s6"]}

    @pytest.mark.parametrize(
        ("value", "message"),
        [("n >", "cannot read SQL"), ("m > 1", "'m'"), ("n + 1", "boolean"), (7, "must be an SQL string")],
    )
    def test_filters_that_are_none(self, filled, value, message):
        text = loaded(filled, pa.Table, metadata={"lance/filter": value}, fails=True)
        assert "lance/filter" in text
        assert message in text

    @pytest.mark.variants(3)
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([["s", "=", None]], "no row compares with null; leave null out, or give an SQL string with s IS NULL"),
            ([["s", "!=", None]], "or s IS NOT NULL"),
            ([["n", "not in", [1, None]]], "no row compares with null"),
            ([[["n", "==", 2]], [["n", "in", [1, None]]]], "no row compares with null"),
            ([["s", "in", "ab"]], "needs a list of values, not 'ab'"),
            ([["n", "in", 1]], "needs a list of values, not 1"),
            (["n", ">", 1], "[column, operator, value], not 'n' among"),
            ([["n", ">"]], "[column, operator, value], not ['n', '>']"),
            ([[["n", "=", 1]], ["s", "=", "b"]], "[column, operator, value], not [['n', '=', 1]]"),
            ([], "[column, operator, value], not []"),
            ([["n", "like", 1]], "is not a valid operator"),
        ],
    )
    def test_lists_that_are_no_filters(self, filled, value, message):
        text = loaded(filled, pa.Table, metadata={"lance/filter": value}, fails=True)
        assert "metadata lance/filter" in text
        assert message in text

    def test_version_and_time(self, filled):
        @dg.asset(name="numbers")
        def newer() -> pa.Table:
            return pa.table({"n": [9], "s": ["z"]})

        filled.run(newer)
        table = filled.table("numbers")
        first = table.versions()[0]["timestamp"]
        between = dt.datetime.fromtimestamp(first.timestamp(), dt.UTC) + dt.timedelta(microseconds=1)
        assert loaded(filled, pa.Table).num_rows == 1
        assert loaded(filled, pa.Table, metadata={"lance/version": 1}).num_rows == 3
        for moment in (
            dg.MetadataValue.timestamp(between),
            between.isoformat(),
            between.replace(tzinfo=None).isoformat(),
        ):
            assert loaded(filled, pa.Table, metadata={"lance/as_of": moment}).num_rows == 3

    def test_tag(self, filled):
        import lance

        lance.dataset(filled.uri("numbers")).tags.create("good", 1)
        filled.run(numbers)
        assert loaded(filled, pa.Table, metadata={"lance/tag": "good"}).num_rows == 3
        assert "VersionNotFoundError" in loaded(filled, pa.Table, metadata={"lance/tag": "bad"}, fails=True)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"lance/version": 1, "lance/tag": "good"}, "cannot be combined"),
            ({"lance/version": "1"}, "must be the number of a version"),
            ({"lance/version": 9}, "VersionNotFoundError"),
            ({"lance/as_of": "yesterday"}, "yesterday"),
            ({"lance/branch": "dev"}, "'lance/branch' is not accepted"),
        ],
    )
    def test_pins_that_cannot_be_used(self, filled, metadata, message):
        assert message in loaded(filled, pa.Table, metadata=metadata, fails=True)


class TestVersions:
    def test_materialized_is_the_version_that_dagster_recorded(self, filled):
        import lance_core

        outside = pa.table({"n": [9], "s": ["z"]})
        lance_core.write_dataset(outside, filled.uri("numbers"), mode="append")
        assert loaded(filled, pa.Table, read="latest").num_rows == 4
        assert loaded(filled, pa.Table, read="materialized").num_rows == 3

    def test_materialized_of_partitions(self, filled):
        import lance_core

        stray = pa.table([[dt.date(2024, 1, 3)], [9], ["z"]], schema=SCHEMA)
        lance_core.write_dataset(stray, filled.uri("events"), mode="append")
        arguments = {"definition": DAYS, "partition": "2024-01-03"}
        assert loaded(filled, pa.Table, events, read="latest", **arguments).num_rows == 2
        assert loaded(filled, pa.Table, events, read="materialized", **arguments).num_rows == 1

    def test_a_table_that_is_not_there(self, lake):
        assert "DatasetNotFoundError" in loaded(lake, pa.Table, fails=True)
        assert "materialize it first" in loaded(lake, pa.Table, fails=True)


@pytest.mark.parametrize("has_instance", [True, False])
def test_a_value_that_is_loaded_outside_of_a_run(lake, has_instance):
    lake.run(events, partition="2024-01-01")
    defs = dg.Definitions([events], resources={"io_manager": lake.manager()})
    options = {"python_type": pa.Table, **({"instance": lake.instance} if has_instance else {})}
    assert defs.load_asset_value("events", partition_key="2024-01-01", **options).num_rows == 1
    with pytest.raises(lance_core.errors.DatasetNotFoundError, match="partition '2024-01-02' was never materialized"):
        defs.load_asset_value("events", partition_key="2024-01-02", **options)

"""Incremental inputs of which a filter, or a partition mapping, selects rows: no row is lost when these change."""

import datetime as dt
import json
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import build_lance_lag_checks, lance_filter
from lance_dagster.undo.plan import plan_undo
from tests.lance_dagster.lake import errors
from tests.lance_dagster.loading.copies import SINCE

KEYS = dg.DynamicPartitionsDefinition(name="keys")
REFRESH = {"lance/full_refresh": "true"}


def upstream_of(partitions=KEYS):
    return dg.asset(name="source", partitions_def=partitions, metadata={"partition_expr": "p"})(lambda: None)


class Reader:
    """An asset that appends what changed, and keeps which rows each run was given."""

    def __init__(self, mapping=None, partitions=None, upstream=KEYS, kind=pa.Table, fails=(), **metadata):
        self.given, self.fails = [], list(fails)
        of_input = {**SINCE, "lance/missing": "empty", **{f"lance/{name}": value for name, value in metadata.items()}}
        if kind != pa.Table:
            del of_input["lance/missing"]
        of_table = {"lance/write_mode": "append"} | ({"partition_expr": "part"} if partitions else {})

        @dg.asset(
            name="copy",
            ins={"source": dg.AssetIn(metadata=of_input, partition_mapping=mapping)},
            metadata=of_table,
            partitions_def=partitions,
            check_specs=[dg.AssetCheckSpec("fine", asset="copy", blocking=True)] if self.fails else None,
        )
        def copy(context, source: kind):
            ids = None if source is None else sorted(source["id"].to_pylist())
            self.given.append(ids)
            table = pa.table({"id": pa.array(ids or [], pa.int64())})
            if partitions is not None:
                is_day = isinstance(partitions, dg.TimeWindowPartitionsDefinition)
                key = dt.date.fromisoformat(context.partition_key) if is_day else context.partition_key
                part = pa.array([key] * len(table), pa.date32() if is_day else pa.string())
                table = table.append_column("part", part)
            yield dg.Output(table)
            if fails:
                yield dg.AssetCheckResult(passed=not self.fails.pop(0), check_name="fine", asset_key="copy")

        self.assets = [upstream_of(upstream), copy]

    def run(self, lake, **options):
        result = lake.run(*self.assets, select=["copy"], **options)
        return errors(result) if options.get("fails") else self.given[-1]

    def lag(self, lake):
        (check,) = build_lance_lag_checks([self.assets[1]], dt.timedelta(0))
        result = lake.run(*self.assets, check, select=dg.AssetSelection.checks(check))
        (evaluation,) = result.get_asset_check_evaluations()
        unread = evaluation.metadata.get("lance/rows_unread")
        assert evaluation.passed == (unread is not None and unread.value == 0)
        return evaluation.description if unread is None else unread.value


def append(lake, **ids):
    """Rows of partitions, by others."""
    rows = [(key.lstrip("_"), number) for key, numbers in ids.items() for number in numbers]
    table = pa.table({"p": [key for key, _ in rows], "id": pa.array([number for _, number in rows], pa.int64())})
    mode = "append" if Path(lake.uri("source")).exists() else "create"
    lance.write_dataset(table, lake.uri("source"), mode=mode, enable_stable_row_ids=True)


def define(lake, *keys):
    lake.instance.add_dynamic_partitions("keys", list(keys))


def ids(lake):
    return sorted(lake.table("copy").to_table()["id"].to_pylist())


class TestPartitionsThatAreDefinedLater:
    def test_their_rows_are_read_where_the_asset_reads_all_partitions(self, lake):
        define(lake, "a")
        append(lake, a=[1], b=[2])
        reader = Reader()
        assert reader.run(lake) == [1, 2]
        append(lake, b=[3])
        assert reader.lag(lake) == 1
        assert reader.run(lake) == [3]
        define(lake, "b")
        append(lake, b=[4])
        assert reader.run(lake) == [4]

    def test_none_is_defined_yet(self, lake):
        append(lake, a=[1])
        assert Reader().run(lake) == [1]

    def test_an_optional_input_is_none_only_if_there_is_no_row(self, lake):
        append(lake, a=[1])
        assert Reader(kind=pa.Table | None).run(lake) == [1]
        mapped = Reader(kind=pa.Table | None, mapping=dg.LastPartitionMapping())
        assert mapped.run(lake, tags=REFRESH) is None
        define(lake, "a")
        assert mapped.run(lake, tags=REFRESH) == [1]

    @pytest.mark.filterwarnings("ignore:Parameter .allow_nonexistent")
    def test_days_of_a_week_that_are_to_come(self, lake):
        """As if days had passed between the runs."""
        mapping = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
        weeks = dg.WeeklyPartitionsDefinition("2024-01-07")
        table = pa.table({"p": pa.array([dt.date(2024, 1, 7), dt.date(2024, 1, 9)], pa.date32()), "id": [1, 2]})
        lance.write_dataset(table, lake.uri("source"), enable_stable_row_ids=True)
        for end, expected in (("2024-01-09", [1]), ("2024-01-11", [2]), ("2024-01-11", [])):
            days = dg.DailyPartitionsDefinition("2024-01-07", end_date=end)
            reader = Reader(mapping, partitions=weeks, upstream=days)
            assert reader.run(lake, partition="2024-01-07") == expected


class TestPartitionMappings:
    def test_each_partition_is_read_from_where_it_was_consumed(self, lake):
        reader = Reader(dg.LastPartitionMapping())
        append(lake, a=[1], b=[2])
        define(lake, "a")
        assert reader.run(lake) == [1]
        append(lake, a=[3])
        define(lake, "b")
        assert reader.lag(lake) == 1
        assert reader.run(lake) == [2]
        lake.instance.delete_dynamic_partition("keys", "b")
        append(lake, b=[4])
        assert reader.lag(lake) == 1
        assert reader.run(lake) == [3]
        assert reader.run(lake) == []
        define(lake, "b")
        assert reader.run(lake) == [4]
        assert ids(lake) == [1, 2, 3, 4]

    def test_no_partition_is_consumed_where_none_is_read(self, lake):
        reader = Reader(dg.LastPartitionMapping())
        append(lake, a=[1])
        assert reader.run(lake) == []
        define(lake, "a")
        assert reader.run(lake) == [1]

    def test_a_full_refresh_forgets_what_other_partitions_consumed(self, lake):
        reader = Reader(dg.LastPartitionMapping())
        append(lake, a=[1], b=[2])
        define(lake, "a")
        reader.run(lake)
        define(lake, "b")
        assert reader.run(lake, tags=REFRESH) == [2]
        assert ids(lake) == [2]
        lake.instance.delete_dynamic_partition("keys", "b")
        assert reader.run(lake) == [1]
        assert ids(lake) == [1, 2]

    def test_an_undo_of_a_full_refresh_brings_back_what_was_consumed(self, lake):
        reader = Reader(dg.LastPartitionMapping())
        append(lake, a=[1], b=[2])
        define(lake, "a")
        reader.run(lake)
        define(lake, "b")
        refresh = lake.run(*reader.assets, select=["copy"], tags=REFRESH)
        plan_undo(lake.table("copy"), refresh.run_id).commit()
        assert ids(lake) == [1]
        assert reader.run(lake) == [2]
        lake.instance.delete_dynamic_partition("keys", "b")
        assert reader.run(lake) == []

    @pytest.mark.parametrize(
        ("before", "after"), [(None, dg.LastPartitionMapping()), (dg.LastPartitionMapping(), None)]
    )
    def test_from_all_partitions_to_some_and_back(self, lake, before, after):
        append(lake, a=[1], b=[2])
        define(lake, "a")
        Reader(before).run(lake)
        version = lake.table("copy").version
        reader = Reader(after)
        said = reader.run(lake, fails=True)
        assert "input 'source'" in said
        assert "run it with the tag lance/full_refresh=true" in said
        assert "partition mapping" in reader.lag(lake)
        assert lake.table("copy").version == version
        assert reader.run(lake, tags=REFRESH) == ([1] if before is None else [1, 2])
        assert reader.run(lake) == []
        assert reader.lag(lake) == 0

    def test_partitions_that_read_the_same_rows_have_each_their_own(self, lake):
        """Each of x and y reads a; the run of one does not consume the rows for the other."""
        mapping = dg.StaticPartitionMapping({"a": ["x", "y"], "b": ["y"]})
        few, parts = dg.StaticPartitionsDefinition(["a", "b"]), dg.StaticPartitionsDefinition(["x", "y"])
        reader = Reader(mapping, partitions=parts, upstream=few)
        append(lake, a=[1], b=[2])
        assert reader.run(lake, partition="x") == [1]
        append(lake, a=[3], b=[4])
        assert reader.run(lake, partition="y") == [1, 2, 3, 4]
        assert reader.run(lake, partition="x") == [3]
        wider = Reader(dg.StaticPartitionMapping({"a": ["x"], "b": ["x", "y"]}), partitions=parts, upstream=few)
        assert wider.run(lake, partition="x") == [2, 4]
        assert wider.run(lake, partition="x") == []

    def test_a_retry_for_another_partition_is_rejected(self, lake):
        """It would replace the earlier attempt, whose rows no run would be given again."""
        reader = Reader(dg.LastPartitionMapping(), fails=[True, False, False])
        append(lake, a=[1], b=[2])
        define(lake, "a")
        failed = lake.run(*reader.assets, select=["copy"], fails=True)
        assert ids(lake) == [1]
        define(lake, "b")
        again = {"dagster/parent_run_id": failed.run_id, "dagster/root_run_id": failed.run_id}
        assert "launch a new run instead of a retry" in reader.run(lake, tags=again, fails=True)
        assert reader.run(lake) == [2]
        assert ids(lake) == [1, 2]


class TestFilters:
    @pytest.mark.parametrize("after", ["id > 0", None, [["id", ">", 1]]])
    def test_another_filter_needs_a_full_refresh(self, lake, after):
        append(lake, a=[1, 2])
        assert Reader(filter="id > 1").run(lake) == [2]
        version = lake.table("copy").version
        reader = Reader() if after is None else Reader(filter=after)
        said = reader.run(lake, fails=True)
        assert "input 'source' (asset source): its lance/filter" in said
        assert "run it with the tag lance/full_refresh=true to read all rows" in said
        assert lake.table("copy").version == version
        assert "its lance/filter" in reader.lag(lake)
        expected = [2] if isinstance(after, list) else [1, 2]
        assert reader.run(lake, tags=REFRESH) == expected
        append(lake, a=[3])
        assert reader.lag(lake) == 1
        assert reader.run(lake) == [3]

    def test_expressions_of_many_values_differ(self, lake):
        append(lake, a=[1, 15, 99])
        import pyarrow.compute as pc

        values = list(range(30))
        within = lance_filter(pc.field("id").isin(values))
        assert Reader(filter=within).run(lake) == [1, 15]
        assert Reader(filter=lance_filter(pc.field("id").isin(values))).run(lake) == []
        values[15] = 99
        assert "its lance/filter" in Reader(filter=lance_filter(pc.field("id").isin(values))).run(lake, fails=True)

    def test_what_selects_the_rows_of_a_partition(self, lake):
        table = pa.table({"p": ["a", "b"], "q": ["b", "a"], "id": [1, 2]})
        lance.write_dataset(table, lake.uri("source"), enable_stable_row_ids=True)
        define(lake, "a")
        reader = Reader(dg.LastPartitionMapping())
        assert reader.run(lake) == [1]
        reader.assets[0] = dg.asset(name="source", partitions_def=KEYS, metadata={"partition_expr": "q"})(lambda: None)
        assert "partition_expr" in reader.run(lake, fails=True)
        assert reader.run(lake, tags=REFRESH) == [2]


class TestPositionsOfEarlierVersions:
    """They do not say which rows were consumed, and continue."""

    @pytest.mark.parametrize("mapping", [None, dg.LastPartitionMapping()])
    def test_they_continue(self, lake, mapping):
        append(lake, a=[1])
        define(lake, "a")
        reader = Reader(mapping)
        reader.run(lake)
        strip(lake)
        assert list(lake.table("copy").watermarks("source")) == ["all"]
        append(lake, a=[2])
        assert reader.lag(lake) == 1
        assert reader.run(lake) == [2]
        assert reader.run(lake) == []
        marks = lake.table("copy").watermarks("source")
        assert len(marks) == 1
        assert ("all" in marks) == (mapping is None)
        assert all("rows" in json.loads(mark.position) for mark in marks.values())


def strip(lake):
    """Record the positions of the reader as earlier versions did: one for all partitions, without its rows."""
    table = lake.table("copy")
    ((part, mark),) = table.watermarks("source").items()
    position = json.loads(mark.position)
    del position["rows"]
    moves = [
        lance_core.WatermarkMove(name="source", parts=(part,), before=mark.position, after=None),
        lance_core.WatermarkMove(name="source", parts=("all",), before=None, after=json.dumps(position)),
    ]
    if part == "all":
        moves = [
            lance_core.WatermarkMove(name="source", parts=("all",), before=mark.position, after=json.dumps(position))
        ]
    transaction = lance_core.Transaction(
        read_version=table.version,
        operation=lance_core.LanceOperation.UpdateConfig(),
        transaction_properties=lance_core.WatermarkMove.properties(moves),
    )
    lance_core.LanceDataset.commit(table, transaction)

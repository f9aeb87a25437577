"""Inputs of several values, inputs of which nothing was written, and inputs without a type."""

import sys
from typing import Optional

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster.handlers import default_load_type
from lance_dagster.tables.settings import TableSettings
from tests.lance_dagster.lake import QUIET, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def daily(context):
    return pa.table({"day": [context.partition_key], "n": [int(context.partition_key[-1])]})


class TestFanIn:
    @pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
    def test_a_list_of_frames_of_ops(self, lake, package):
        module = pytest.importorskip(package)
        frame = module.Table if package == "pyarrow" else module.DataFrame
        seen = []

        @dg.op(out=dg.DynamicOut())
        def numbers():
            for n in range(3):
                yield dg.DynamicOutput(n, mapping_key=str(n))

        @dg.op
        def one(n: int):
            return pa.table({"n": [n]})

        @dg.op
        def two(n: int) -> Optional[pa.Table]:  # noqa: UP045 - both spellings are in use
            return None if n == 1 else pa.table({"n": [n]})

        @dg.op
        def gather(frames: list[frame], more: list[frame | None], named: dict[str, int]) -> None:
            seen.extend([*frames, more])
            assert named == {"a": 1}

        @dg.op
        def names() -> dict[str, int]:
            return {"a": 1}

        @dg.job(resource_defs={"io_manager": lake.manager()})
        def fan_in():
            made = numbers()
            gather(made.map(one).collect(), made.map(two).collect(), names())

        assert fan_in.execute_in_process(instance=lake.instance, run_config=QUIET).success
        *frames, more = seen
        assert [type(one) for one in frames] == [frame] * 3
        assert [one["n"][0] if package != "pyarrow" else one["n"][0].as_py() for one in frames] == [0, 1, 2]
        assert [one is None for one in more] == [False, True, False]

    def test_assets_into_one_op_of_a_graph_are_rejected(self, lake):
        @dg.asset
        def first() -> pa.Table:
            return pa.table({"n": [1]})

        @dg.asset
        def second() -> pa.Table:
            return pa.table({"n": [2]})

        @dg.op
        def both(frames: list[pa.Table]) -> pa.Table:
            return pa.concat_tables(frames)

        @dg.graph_asset
        def merged(first, second):
            return both([first, second])

        message = errors(lake.run(first, second, merged, fails=True))
        assert "is a list of several assets, for each of which Dagster asks for the first asset" in message

    def test_a_list_of_partitions(self, lake):
        seen = []

        @dg.asset
        def taken(daily: list[pa.Table]) -> None:
            seen.extend(daily)

        for day in ("2024-01-01", "2024-01-03"):
            lake.run(daily, partition=day)
        lake.run(daily, taken, select=[taken])
        assert [one["n"].to_pylist() for one in seen] == [[1], [], [3]]

    def test_a_list_of_an_asset_without_partitions(self, lake):
        @dg.asset
        def whole() -> pa.Table:
            return pa.table({"n": [1]})

        @dg.asset
        def taken(whole: list[pa.Table]) -> None: ...

        message = "annotated as a list, one value per partition, but the asset has no partitions"
        assert message in errors(lake.run(whole, taken, fails=True))


class TestMissing:
    def last(self, annotation, seen, **metadata):
        @dg.asset(ins={"daily": dg.AssetIn(partition_mapping=dg.LastPartitionMapping(), metadata=metadata)})
        def taken(daily: annotation) -> None:
            seen.append(daily)

        return taken

    def test_a_partition_that_was_never_materialized_is_an_error(self, lake):
        lake.run(daily, partition="2024-01-01")
        taken = self.last(pa.Table, [])
        message = errors(lake.run(daily, taken, select=[taken], fails=True))
        assert "partition '2024-01-03' was never materialized" in message
        assert "annotate the input as Optional to get None, or give it the metadata lance/missing: empty" in message

    @pytest.mark.parametrize("metadata", [{}, {"lance/missing": "empty"}])
    def test_partitions_that_are_missing_beside_others_are_named(self, lake, metadata):
        seen = []

        @dg.asset(ins={"daily": dg.AssetIn(metadata=metadata)})
        def taken(daily: pa.Table) -> None:
            seen.append(daily.num_rows)

        lake.run(daily, partition="2024-01-02")
        run = lake.run(daily, taken, select=[taken])
        assert seen == [1]
        log = "\n".join(one.user_message for one in lake.instance.all_logs(run.run_id))
        named = "2 of 3 partitions were never materialized ('2024-01-01', '2024-01-03')" in log
        assert named is not bool(metadata)

    def test_rows_of_partitions_that_were_never_materialized(self, lake):
        """Such rows are loaded, whoever wrote them, and the log says nothing else."""
        seen = []

        @dg.asset
        def taken(daily: pa.Table) -> None:
            seen.append(daily.num_rows)

        lake.run(daily, partition="2024-01-02")
        lake.table("daily").insert(lake.table("daily").to_table().set_column(0, "day", pa.array(["2024-01-01"])))
        run = lake.run(daily, taken, select=[taken])
        assert seen == [2]
        log = "\n".join(entry.user_message for entry in lake.instance.all_logs(run.run_id))
        assert "rows of the others are loaded" not in log
        assert "rows that the table has of them are loaded, too" in log

    def test_an_asset_that_loads_its_own_day_before(self, lake):
        before = dg.TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
        seen = []

        @dg.asset(
            partitions_def=DAYS, metadata={"partition_expr": "day"}, ins={"me": dg.AssetIn(partition_mapping=before)}
        )
        def me(context, me: pa.Table | None) -> pa.Table:
            seen.append(me if me is None else me["n"].to_pylist())
            return pa.table({"day": [context.partition_key], "n": [1]})

        for day in ("2024-01-01", "2024-01-01", "2024-01-03", "2024-01-02"):
            lake.run(me, partition=day)
        assert seen == [None, None, None, [1]]

    def test_what_the_message_says(self, lake):
        lake.run(daily, partition="2024-01-01")
        for taken, wanted in (
            (self.last(pa.Table | None, seen := []), None),
            (self.last(pa.Table, empty := [], **{"lance/missing": "empty"}), 0),
        ):
            lake.run(daily, taken, select=[taken])
            (value,) = seen if wanted is None else empty
            assert value is None if wanted is None else (value.num_rows, value.column_names) == (0, ["day", "n"])
        lake.run(daily, partition="2024-01-03")
        lake.run(daily, taken, select=[taken])
        assert empty[1]["n"].to_pylist() == [3]

    def test_a_partition_that_was_materialized_without_rows_is_empty(self, lake):
        @dg.asset(name="daily", partitions_def=DAYS, metadata={"partition_expr": "day"})
        def nothing() -> pa.Table:
            return pa.table({"day": pa.array([], pa.string()), "n": pa.array([], pa.int64())})

        lake.run(nothing, partition="2024-01-03")
        taken = self.last(pa.Table, seen := [])
        lake.run(nothing, taken, select=[taken])
        assert seen[0].num_rows == 0

    def test_no_table(self, lake):
        taken = self.last(pa.Table, [])
        assert "has no table at" in errors(lake.run(daily, taken, select=[taken], fails=True))
        for annotation, metadata in ((pa.Table | None, {}), (pa.Table, {"lance/missing": "empty"})):
            taken = self.last(annotation, seen := [], **metadata)
            lake.run(daily, taken, select=[taken])
            assert seen[0] is None or seen[0].num_rows == 0

    def test_another_value_is_rejected(self, lake):
        taken = self.last(pa.Table, [], **{"lance/missing": "none"})
        message = errors(lake.run(daily, taken, select=[taken], fails=True))
        assert "metadata lance/missing must be one of error, empty, not 'none'" in message


class TestDefaultType:
    def test_it_is_what_is_there(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "pyspark.sql", raising=False)
        table = TableSettings(root_uri="/lake")
        assert default_load_type(table) == "pandas"
        missing = {"pandas"}
        found = lambda name: None if name in missing else object()  # noqa: E731 - one line each
        monkeypatch.setattr("importlib.util.find_spec", found)
        assert default_load_type(table) == "polars"
        missing.add("polars")
        assert default_load_type(table) == "pyarrow"
        assert default_load_type(TableSettings(root_uri="/lake", spark=object())) == "spark"
        assert default_load_type(TableSettings(root_uri="/lake", default_load_type="polars")) == "polars"

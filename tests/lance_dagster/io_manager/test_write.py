"""Outputs become commits: modes, schemas, partitions, and what the events say."""

import datetime as dt
import shutil
from inspect import signature
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_branch_jobs
from tests.lance_dagster.lake import QUIET, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64())])


def date(day):
    return dt.date(2024, 1, day)


def frame(*rows, schema=SCHEMA):
    return pa.table(list(zip(*rows, strict=True)) if rows else [[] for _ in schema], schema=schema)


def source(value, **arguments):
    """An asset `events` whose body gives what `value` holds when it runs."""

    @dg.asset(**{"key_prefix": "analytics", "name": "events"} | arguments)
    def events(context) -> pa.Table:
        return value(context) if callable(value) else value

    return events


def daily(value, **arguments):
    metadata = {"partition_expr": "day"} | arguments.pop("metadata", {})
    return source(value, partitions_def=DAYS, metadata=metadata, **arguments)


def streamed(value):
    """The asset of `daily` as a stream."""

    @dg.asset(key_prefix="analytics", name="events", partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events(context) -> pa.RecordBatchReader:
        return value(context)

    return events


def of_days(context):
    """One row per day of the run."""
    days = [dt.date.fromisoformat(key) for key in context.partition_keys]
    return pa.table([days, [day.day for day in days]], schema=SCHEMA)


class TestWholeTable:
    def test_a_second_run_overwrites_and_the_first_version_stays_readable(self, lake):
        for n in (1, 2):
            lake.run(source(frame((date(n), n))))
        assert lake.rows("analytics/events") == [(date(2), 2)]
        table = lake.table("analytics/events")
        assert table.version == 2
        assert table.checkout_version(1).to_table().column("n").to_pylist() == [1]

    def test_append_adds(self, lake):
        for n in (1, 2):
            lake.run(source(frame((date(n), n))), write_mode="append")
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 2)]

    @pytest.mark.parametrize("mode", ["error", "create_only"])
    def test_error_and_create_only_leave_what_is_there(self, lake, mode):
        lake.run(source(frame((date(1), 1))), write_mode=mode)
        result = lake.run(source(frame((date(2), 2))), write_mode=mode, fails=True)
        assert "DatasetExistsError" in errors(result)
        assert lake.rows("analytics/events") == [(date(1), 1)]
        assert lake.table("analytics/events").version == 1

    def test_metadata_of_the_asset_changes_the_mode(self, lake):
        for n in (1, 2):
            lake.run(
                source(frame((date(n), n)), metadata={"lance/write_mode": "append", "lance/commit_message": "hello"})
            )
        assert len(lake.rows("analytics/events")) == 2
        assert lake.properties("analytics/events")[-1]["__lance_commit_message"] == "hello"

    def test_metadata_of_the_output_changes_the_mode(self, lake):
        @dg.asset
        def events() -> dg.Output[pa.Table]:
            return dg.Output(frame((date(1), 1)), metadata={"lance/write_mode": "append"})

        lake.run(events)
        lake.run(events)
        assert len(lake.rows("events")) == 2

    def test_a_reader_is_written_as_a_stream(self, lake):
        @dg.asset
        def events() -> pa.RecordBatchReader:
            batches = (pa.record_batch([[date(1)], [n]], schema=SCHEMA) for n in range(5))
            return pa.RecordBatchReader.from_batches(SCHEMA, batches)

        lake.run(events)
        assert lake.rows("events") == [(date(1), n) for n in range(5)]

    def test_file_options_and_table_config_arrive(self, lake):
        config = {"max_rows_per_file": 2, "data_storage_version": "2.1", "table_config": {"owner": "me"}}
        lake.run(source(frame(*((date(1), n) for n in range(5)))), **config)
        table = lake.table("analytics/events")
        assert [fragment.physical_rows for fragment in table.get_fragments()] == [2, 2, 1]
        assert table.data_storage_version == "2.1"
        assert table.config()["owner"] == "me"

    def test_table_config_survives_writes_without_any(self, lake):
        lake.run(source(frame((date(1), 1))), table_config={"owner": "me"})
        lake.run(source(frame((date(1), 2))))
        assert lake.table("analytics/events").config()["owner"] == "me"


class TestPartitions:
    def test_a_day_replaces_that_day_in_one_commit(self, lake):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        lake.run(daily(frame((date(2), 20), (date(2), 21))), partition="2024-01-02")
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 20), (date(2), 21), (date(3), 3)]
        assert lake.table("analytics/events").version == 2

    def test_a_range_of_days_is_one_commit_and_one_fragment_per_day(self, lake):
        lake.run(daily(of_days), span=("2024-01-05", "2024-01-09"))
        table = lake.table("analytics/events")
        assert table.version == 1
        held = [set(f.to_table().column("day").to_pylist()) for f in table.get_fragments()]
        assert sorted(held, key=min) == [{date(n)} for n in range(5, 10)]

    def test_a_range_that_is_one_day(self, lake):
        lake.run(daily(of_days), span=("2024-01-05", "2024-01-05"))
        assert lake.rows("analytics/events") == [(date(5), 5)]

    def test_rows_in_any_order_are_sorted_into_their_days(self, lake):
        rows = [(date(1 + n % 3), n) for n in range(30)]
        lake.run(daily(frame(*rows)), span=("2024-01-01", "2024-01-03"))
        assert lake.rows("analytics/events") == sorted(rows)
        assert len(lake.table("analytics/events").get_fragments()) == 3

    def test_an_empty_day_clears_the_day(self, lake):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        result = lake.run(daily(frame()), partition="2024-01-02")
        assert lake.rows("analytics/events") == [(date(1), 1), (date(3), 3)]
        assert lake.table("analytics/events").version == 2
        metadata = result.asset_materializations_for_node("analytics__events")[0].metadata
        assert metadata["dagster/partition_row_count"].value == 0

    def test_an_empty_first_day_makes_an_empty_table(self, lake):
        lake.run(daily(frame()), partition="2024-01-02")
        assert lake.rows("analytics/events") == []
        assert lake.table("analytics/events").schema == SCHEMA

    def test_empty_output_can_be_skipped_or_rejected(self, lake):
        lake.run(daily(of_days), partition="2024-01-02")
        lake.run(daily(frame()), partition="2024-01-02", empty_output="skip")
        assert "no rows" in errors(lake.run(daily(frame()), partition="2024-01-02", empty_output="error", fails=True))
        assert lake.rows("analytics/events") == [(date(2), 2)]
        assert lake.table("analytics/events").version == 1

    def test_a_row_of_another_day_is_an_error_that_changes_nothing(self, lake, tmp_path):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        before = sorted(str(path) for path in tmp_path.rglob("*.lance") if path.is_file())
        result = lake.run(daily(frame((date(2), 20), (date(3), 30))), partition="2024-01-02", fails=True)
        assert "1 rows are outside of the run's 1 partitions" in errors(result)
        assert "datetime" not in errors(result), "a date is printed as one"
        assert max(line.count("asset analytics/events") for line in errors(result).splitlines()) == 1
        assert "day = 2024-01-03" in errors(result)
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 2), (date(3), 3)]
        assert lake.table("analytics/events").version == 1
        assert sorted(str(path) for path in tmp_path.rglob("*.lance") if path.is_file()) == before

    @pytest.mark.parametrize("mode", ["overwrite", "append", "merge"])
    def test_a_run_without_a_partition_is_rejected(self, lake, tmp_path, mode):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        before = sorted(path for path in tmp_path.rglob("*.lance") if path.is_file())
        metadata = {"lance/write_mode": mode} | ({"lance/merge_on": "day"} if mode == "merge" else {})
        result = lake.run(daily(frame((date(2), 20)), metadata=metadata), fails=True)
        assert "has partitions and its run names none" in errors(result)
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 2), (date(3), 3)]
        assert sorted(path for path in tmp_path.rglob("*.lance") if path.is_file()) == before

    def test_a_null_lies_in_no_partition(self, lake):
        assert "outside" in errors(lake.run(daily(frame((None, 1))), partition="2024-01-02", fails=True))

    def test_rows_of_other_days_can_be_allowed(self, lake):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        lake.run(daily(frame((date(2), 20), (date(9), 90))), partition="2024-01-02", out_of_partition="allow")
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 20), (date(3), 3), (date(9), 90)]

    def test_append_adds_to_the_day_and_still_rejects_other_days(self, lake):
        lake.run(daily(of_days), partition="2024-01-02", write_mode="append")
        lake.run(daily(of_days), partition="2024-01-02", write_mode="append")
        assert lake.rows("analytics/events") == [(date(2), 2)] * 2
        lake.run(daily(frame((date(3), 3))), partition="2024-01-02", write_mode="append", fails=True)
        assert lake.table("analytics/events").version == 2

    def test_error_fills_new_days_and_rejects_filled_ones(self, lake):
        lake.run(daily(of_days), partition="2024-01-01", write_mode="error")
        lake.run(daily(of_days), partition="2024-01-02", write_mode="error")
        result = lake.run(daily(of_days), span=("2024-01-02", "2024-01-03"), write_mode="error", fails=True)
        assert "has 1 rows in the run's partitions" in errors(result)
        assert lake.rows("analytics/events") == [(date(1), 1), (date(2), 2)]

    @pytest.mark.parametrize("before", [(), (1,)], ids=["new", "old"])
    @pytest.mark.parametrize("other", [2, 3])
    @pytest.mark.parametrize("how", ["append", "replace"])
    def test_error_looks_again_for_rows_when_it_commits(self, lake, tmp_path, before, other, how):
        for day in before:
            lake.run(daily(of_days), partition=f"2024-01-{day:02}", write_mode="error")
        day = lance_core.Slice(name="day", conditions={"day": lance_core.Equals(date(other))})

        def rows(context):
            def batches():
                uri, theirs = lake.uri("analytics/events"), frame((date(other), other))
                lance_core.commit_fragments(  # by a run that was created before this one
                    uri,
                    lance_core.write_fragments(theirs, uri, schema=SCHEMA),
                    SCHEMA,
                    mode=how,
                    slices=lance_core.Slices([day]) if how == "replace" else None,
                    commit=lance_core.Commit(
                        write_attempt=lance_core.WriteAttempt(token=("dagster.write_token", "another"))
                    ),
                )
                yield from of_days(context).to_batches()

            return pa.RecordBatchReader.from_batches(SCHEMA, batches())

        result = lake.run(streamed(rows), partition="2024-01-02", write_mode="error", fails=None)
        assert result.success is (other == 3)
        assert ("DatasetExistsError" in errors(result)) is (other == 2)
        kept = {*before, 2, other}
        assert lake.rows("analytics/events") == [(date(day), day) for day in sorted(kept)]
        assert len([path for path in tmp_path.rglob("*.lance") if path.is_file()]) == len(kept)

    @pytest.mark.parametrize("own", [False, True], ids=["another", "retry"])
    def test_error_takes_rows_of_an_earlier_attempt_alone_for_its_own(self, lake, own):
        attempts = []

        @dg.asset(
            name="events",
            key_prefix="analytics",
            partitions_def=DAYS,
            metadata={"partition_expr": "day"},
            retry_policy=dg.RetryPolicy(max_retries=1),
            check_specs=[dg.AssetCheckSpec("late", asset=dg.AssetKey(["analytics", "events"]))],
        )
        def events(context):
            attempts.append(context.retry_number)
            yield dg.Output(frame((date(2), context.retry_number)))
            if not own and not context.retry_number:
                lance_core.write_dataset(frame((date(2), 9)), lake.uri("analytics/events"), mode="append")
            if not context.retry_number:
                raise dg.RetryRequested(max_retries=1)
            yield dg.AssetCheckResult(passed=True)

        result = lake.run(events, partition="2024-01-02", write_mode="error", fails=not own)
        assert attempts == [0, 1]
        assert lake.rows("analytics/events") == ([(date(2), 1)] if own else [(date(2), 0), (date(2), 9)])
        assert own or "DatasetExistsError" in errors(result)

    def test_create_only_rejects_a_second_day(self, lake):
        lake.run(daily(of_days), partition="2024-01-01", write_mode="create_only")
        lake.run(daily(of_days), partition="2024-01-02", write_mode="create_only", fails=True)
        assert lake.rows("analytics/events") == [(date(1), 1)]

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"partition_expr": None}, "must name the partition column"),
            ({"partition_expr": "dya"}, "not among the table's columns"),
        ],
    )
    def test_without_an_exact_predicate_nothing_is_written(self, lake, tmp_path, metadata, message):
        asset = source(of_days, partitions_def=DAYS, metadata={k: v for k, v in metadata.items() if v})
        assert message in errors(lake.run(asset, partition="2024-01-02", fails=True))
        assert not (tmp_path / "lake").exists()

    def test_a_table_with_compacted_days_still_replaces_one(self, lake):
        """Fragments that hold several days, as after a compaction: only the day's rows go."""
        import lance_core

        lance_core.write_dataset(frame(*((date(n), n) for n in range(1, 10))), lake.uri("analytics/events"))
        lake.run(daily(frame((date(4), 40))), partition="2024-01-04")
        assert lake.rows("analytics/events") == sorted((date(n), 40 if n == 4 else n) for n in range(1, 10))


class TestSchemes:
    """Each partition scheme, from Dagster's run to the table and back."""

    def replaced(self, lake, definition, kind, rows, again, key, partition_expr="p", schema=None):
        """Write rows of all keys in one run; then `again` for one key; the rows that are there now."""
        schema = schema or pa.schema([("p", kind), ("n", pa.int64())])

        def asset(value):
            return source(
                frame(*value, schema=schema),
                partitions_def=definition,
                metadata={"partition_expr": partition_expr},
            )

        keys = definition.get_partition_keys(dynamic_partitions_store=lake.instance)
        lake.run(asset(rows), span=(keys[0], keys[-1]))
        lake.run(asset(again), partition=key)
        return lake.rows("analytics/events")

    def test_static_keys_with_quotes(self, lake):
        keys = ["eu", "O'Brien", "x') OR 1=1 --"]
        rows = [(key, n) for n, key in enumerate(keys)]
        for key in keys[1:]:
            found = self.replaced(lake, dg.StaticPartitionsDefinition(keys), pa.string(), rows, [(key, 9)], key)
            assert found == sorted((k, 9 if k == key else n) for k, n in rows)

    def test_static_range_keeps_the_rest(self, lake):
        definition = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])
        schema = pa.schema([("p", pa.string()), ("n", pa.int64())])

        def asset(*rows):
            return source(
                frame(*rows, schema=schema),
                partitions_def=definition,
                metadata={"partition_expr": "p"},
            )

        lake.run(asset(*((key, 0) for key in "abcd")), span=("a", "d"))
        lake.run(asset(("b", 1), ("c", 1)), span=("b", "c"))
        assert lake.rows("analytics/events") == [("a", 0), ("b", 1), ("c", 1), ("d", 0)]

    def test_integer_keys(self, lake):
        found = self.replaced(
            lake, dg.StaticPartitionsDefinition(["1", "2", "3"]), pa.int32(), [(n, n) for n in (1, 2, 3)], [(2, 9)], "2"
        )
        assert found == [(1, 1), (2, 9), (3, 3)]

    def test_dynamic_keys(self, lake):
        lake.instance.add_dynamic_partitions("customers", ["a'b", "c"])
        definition = dg.DynamicPartitionsDefinition(name="customers")
        found = self.replaced(lake, definition, pa.string(), [("a'b", 1), ("c", 2)], [("a'b", 9)], "a'b")
        assert found == [("a'b", 9), ("c", 2)]

    def test_hours_with_a_zone_on_the_day_that_the_clocks_go_back(self, lake):
        hours = dg.HourlyPartitionsDefinition(
            "2024-11-03-00:00", end_date="2024-11-03-03:00", timezone="America/New_York"
        )
        utc = [dt.datetime(2024, 11, 3, hour, 30, tzinfo=dt.UTC) for hour in (4, 5, 6, 7)]
        kind = pa.timestamp("us", "UTC")
        rows = [(moment, n) for n, moment in enumerate(utc)]
        found = self.replaced(lake, hours, kind, rows, [(utc[2], 9)], "2024-11-03-01:00-0500")
        assert [n for _, n in found] == [0, 1, 9, 3]

    def test_days_without_a_zone(self, lake):
        days = dg.DailyPartitionsDefinition("2024-11-02", end_date="2024-11-05", timezone="America/New_York")
        rows = [(dt.datetime(2024, 11, day, hour), day) for day in (2, 3, 4) for hour in (0, 1, 23)]
        again = [(dt.datetime(2024, 11, 3, 23), 9)]
        found = self.replaced(lake, days, pa.timestamp("us"), rows, again, "2024-11-03")
        assert [n for _, n in found] == [2, 2, 2, 9, 4, 4, 4]

    @pytest.mark.parametrize(
        ("definition", "key", "days", "left"),
        [
            (
                dg.WeeklyPartitionsDefinition("2024-01-07", end_date="2024-01-28"),
                "2024-01-14",
                (13, 14, 20, 21),
                (13, 21),
            ),
            (dg.MonthlyPartitionsDefinition("2024-01-01", end_date="2024-03-01"), "2024-01-01", (1, 31), ()),
        ],
    )
    def test_weeks_and_months(self, lake, definition, key, days, left):
        rows = [(date(day), 0) for day in days]
        found = self.replaced(lake, definition, pa.date32(), rows, [(date(days[1]), 9)], key)
        assert found == sorted([*((date(day), 0) for day in left), (date(days[1]), 9)])

    def test_time_keys_on_a_string_column(self, lake):
        days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")
        rows = [("2024-01-01", 1), ("2024-01-02", 2)]
        found = self.replaced(lake, days, pa.string(), rows, [("2024-01-02", 9)], "2024-01-02")
        assert found == [("2024-01-01", 1), ("2024-01-02", 9)]

    def test_two_dimensions(self, lake):
        both = dg.MultiPartitionsDefinition(
            {
                "day": dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03"),
                "region": dg.StaticPartitionsDefinition(["eu", "us"]),
            }
        )
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("where", pa.string()), ("n", pa.int64())])
        noon = [dt.datetime(2024, 1, day, 12, tzinfo=dt.UTC) for day in (1, 2)]
        rows = [(moment, region, 0) for moment in noon for region in ("eu", "us")]
        found = self.replaced(
            lake,
            both,
            None,
            rows,
            [(noon[1], "eu", 9)],
            dg.MultiPartitionKey({"day": "2024-01-02", "region": "eu"}),
            partition_expr={"day": "at", "region": "where"},
            schema=schema,
        )
        assert [n for _, _, n in found] == [0, 0, 9, 0]


class TestSchema:
    def test_order_nullability_and_offset_width_do_not_matter(self, lake):
        first = pa.schema([("day", pa.date32()), ("s", pa.string())])
        second = pa.schema([pa.field("s", pa.large_string(), nullable=False), ("day", pa.date32())])
        lake.run(source(frame((date(1), "a"), schema=first)))
        lake.run(source(frame(("b", date(2)), schema=second)))
        assert lake.table("analytics/events").schema == first
        assert lake.rows("analytics/events") == [(date(2), "b")]

    @pytest.mark.parametrize(
        ("schema", "row", "message"),
        [
            (pa.schema([("day", pa.date32())]), (date(1),), r"columns ['n'] of the table are missing"),
            (pa.schema([("day", pa.date32()), ("n", pa.string())]), (date(1), "1"), "column 'n' is of type string"),
            (pa.schema([*SCHEMA, ("x", pa.int64())]), (date(1), 1, 1), "columns ['x'] are not in the table"),
            (pa.schema([*SCHEMA, ("N", pa.int64())]), (date(1), 1, 1), "differs from 'n' only by case"),
            (pa.schema([*SCHEMA, ("n", pa.int64())]), (date(1), 1, 1), "column 'n' appears twice"),
        ],
    )
    @pytest.mark.parametrize("mode", ["overwrite", "append"])
    def test_other_columns_are_rejected_by_name_and_change_nothing(self, lake, schema, row, message, mode):
        lake.run(source(frame((date(1), 1))))
        result = lake.run(source(frame(row, schema=schema)), write_mode=mode, fails=True)
        assert message in errors(result)
        assert lake.table("analytics/events").version == 1

    def test_overwrite_takes_any_columns(self, lake):
        lake.run(source(frame((date(1), 1))))
        other = pa.schema([("n", pa.string())])
        lake.run(source(frame(("a",), schema=other)), schema_mode="overwrite")
        assert lake.table("analytics/events").schema == other

    def test_overwrite_of_the_schema_needs_an_overwrite_of_the_table(self, lake):
        result = lake.run(daily(of_days), partition="2024-01-01", schema_mode="overwrite", fails=True)
        assert "schema_mode overwrite needs a write that overwrites the whole table" in errors(result)
        lake.run(source(frame()), write_mode="append", schema_mode="overwrite", fails=True)

    def test_add_columns_with_the_whole_table(self, lake):
        lake.run(source(frame((date(1), 1))))
        wider = pa.schema([*SCHEMA, ("x", pa.int64())])
        lake.run(source(frame((date(1), 1, 7), schema=wider)), schema_mode="add_columns")
        assert lake.table("analytics/events").schema == wider

    def test_add_columns_fills_what_is_missing(self, lake):
        lake.run(source(frame((date(1), 1))))
        lake.run(
            source(frame((2,), schema=pa.schema([("n", pa.int64())]))), schema_mode="add_columns", write_mode="append"
        )
        assert lake.table("analytics/events").to_table().to_pylist() == [
            {"day": date(1), "n": 1},
            {"day": None, "n": 2},
        ]

    def test_add_columns_beside_rows_that_stay(self, lake):
        lake.run(source(frame((date(1), 1))))
        wider = frame((date(1), 1, 7), schema=pa.schema([*SCHEMA, ("x", pa.int64())]))
        lake.run(source(wider), schema_mode="add_columns", write_mode="append")
        assert lake.table("analytics/events").to_table()["x"].to_pylist() == [None, 7]
        strict = frame((date(1), 1, 7), schema=pa.schema([*SCHEMA, pa.field("y", pa.int64(), nullable=False)]))
        result = lake.run(source(strict), schema_mode="add_columns", write_mode="append", fails=True)
        assert "['y'] must be nullable" in errors(result)

    def test_vectors(self, lake):
        schema = pa.schema([("v", pa.list_(pa.float32()))])
        metadata = {"lance/vector_columns": {"v": 2}}
        lake.run(source(frame(([1.0, 2.0],), schema=schema), metadata=metadata))
        assert lake.table("analytics/events").schema.field("v").type == pa.list_(pa.field("item", pa.float32()), 2)
        lake.run(source(frame(([3.0, 4.0],), schema=schema)))
        assert lake.rows("analytics/events") == [([3.0, 4.0],)]
        result = lake.run(source(frame(([1.0],), schema=schema)), fails=True)
        assert "column 'v' is of type list<item: float>" in errors(result)
        assert "the value [1.0] cannot be cast" in errors(result)


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # Dagster warns of its own bounds checks
class TestEvents:
    def test_what_an_event_says(self, lake):
        lake.run(daily(of_days), span=("2024-01-01", "2024-01-03"))
        result = lake.run(daily(frame((date(2), 20), (date(2), 21))), partition="2024-01-02")
        found = result.asset_materializations_for_node("analytics__events")[0].metadata
        values = {key: entry.value for key, entry in found.items()}
        table = lake.table("analytics/events")
        transaction = table.read_transaction(2)
        size = sum(f.file_size_bytes for fragment in table.get_fragments() for f in fragment.data_files())
        columns = values.pop("dagster/column_schema").columns
        assert [(c.name, c.type, c.constraints.nullable) for c in columns] == [
            ("day", "date32[day]", True),
            ("n", "int64", True),
        ]
        assert "| 2 | " in values["lance/table_log"]
        assert "### Versions" in values.pop("lance/table_log")
        commit = values.pop("lance/commit")
        assert commit.pop("bytes_written") > 0
        assert values == {
            "dagster/row_count": 4,
            "dagster/partition_row_count": 2,
            "lance/rows_written": 2,
            "dagster/size_bytes": size,
            "lance/deleted_fraction": 0.0,
            "dagster/uri": lake.uri("analytics/events"),
            "lance/version": 2,
            "lance/operation": "Update",
        }
        assert commit == {
            "transaction_uuid": transaction.uuid,
            "read_version": 1,
            "rows_deleted": 1,
            "fragments": 3,
            "fragments_added": 1,
            "fragments_removed": 1,
            "small_fragments": 3,
            "table_name": "analytics.events",
            "attempts": 1,
        }

    def test_ten_entries_at_the_top_in_any_event(self, lake):
        frames = [frame((date(1), 1)), pa.table({"n": pa.array([2], pa.int32()), "day": [date(1)]})]
        for value in frames:
            for options in ({}, {"branching": BranchPolicy.from_tag()}):
                result = lake.run(daily(value), partition="2024-01-01", tags={"lance/branch": "trial"}, **options)
                (event,) = result.asset_materializations_for_node("analytics__events")
                assert len(event.metadata) <= 11
                assert "lance/commit" in event.metadata

    def test_dagsters_bounds_checks_find_their_numbers_in_any_event(self, lake):
        """Also where more than ten entries apply: an event on a branch, with inputs and lineage, and its promotion."""
        on_branch = {"branching": BranchPolicy.from_tag(), "tags": {"lance/branch": "trial"}}

        @dg.asset(metadata={"lance/write_mode": "append"})
        def raw() -> pa.Table:
            return frame((date(1), 1), (date(1), 2))

        lineage = {"n": [dg.TableColumnDep(asset_key=raw.key, column_name="n")]}

        @dg.asset(
            partitions_def=DAYS,
            metadata={"partition_expr": "day", "lance/column_lineage": dg.TableColumnLineage(lineage)},
        )
        def clean(raw: pa.Table) -> pa.Table:
            return raw.slice(0, 1)

        def check(**bounds):
            checks = [
                one
                for key in ("lance/deleted_fraction", "lance/rows_written", "dagster/size_bytes")
                for one in dg.build_metadata_bounds_checks(assets=[raw], metadata_key=key, **bounds)
            ]
            return [one.passed for one in lake.run(raw, *checks).get_asset_check_evaluations()]

        assert all(check(min_value=0))
        lake.table("raw").delete("n = 2")
        assert check(max_value=0.2) == [False, False, False]
        numbers = {"lance/deleted_fraction", "dagster/row_count", "dagster/size_bytes", "lance/version"}
        lake.run(raw, clean, partition="2024-01-01", **on_branch)
        promote, _ = build_branch_jobs([clean])
        job = dg.Definitions(assets=[raw, clean], jobs=[promote], resources={"io_manager": lake.manager()})
        promoted = job.resolve_job_def("lance_promote").execute_in_process(
            instance=lake.instance, tags={"lance/branch": "trial"}, run_config=QUIET
        )
        written = lake.run(raw, clean, partition="2024-01-01", select=[clean], **on_branch)
        for result, node, most in (
            (promoted, "lance_promote_op", 11),
            (written, "clean", 12),
        ):  # that of a branch: published
            (event,) = (one.materialization for one in result.events_for_node(node) if one.is_step_materialization)
            assert len(event.metadata) <= most
            assert {"dagster/partition_row_count", *numbers} < set(event.metadata)
        assert {"lance/branch", "lance/inputs", "dagster/column_lineage", "lance/table_log"} < set(event.metadata)

    def test_a_long_run_stores_the_long_entries_once(self, lake):
        days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-10")

        @dg.asset(partitions_def=days, metadata={"partition_expr": "day"})
        def long(context) -> pa.Table:
            return of_days(context)

        result = lake.run(long, span=("2024-01-01", "2024-02-09"))
        events = result.asset_materializations_for_node("long")
        assert len(events) == 40
        for key in ("lance/table_log", "dagster/column_schema"):
            assert [event.partition for event in events if key in event.metadata] == ["2024-02-09"]
        assert events[-1].partition == "2024-02-09"
        assert all(event.metadata["dagster/partition_row_count"].value == 1 for event in events)

    def test_what_the_asset_says_itself_stays(self, lake):
        own = dg.TableSchema(columns=[dg.TableColumn(name="mine")])

        @dg.asset
        def added(context) -> pa.Table:
            context.add_output_metadata({"dagster/row_count": 7})
            return frame((date(1), 1))

        @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
        def returned(context):
            context.add_asset_metadata({"lance/version": 70}, partition_key="2024-01-01")
            metadata = {"dagster/row_count": 7, "dagster/column_schema": own, "lance/rows_written": 9}
            return dg.Output(frame((date(1), 1)), metadata=metadata)

        def events(asset, **run):
            return lake.run(asset, **run).asset_materializations_for_node(asset.op.name)

        (event,) = events(added)
        assert event.metadata["dagster/row_count"].value == 7
        for event in events(returned, span=("2024-01-01", "2024-01-02")):
            assert event.metadata["dagster/row_count"].value == 7
            assert event.metadata["dagster/column_schema"].value == own
            assert event.metadata["lance/rows_written"].value == 9
            assert event.metadata["lance/version"].value == (70 if event.partition == "2024-01-01" else 1)

    def test_a_first_write_is_called_create(self, lake):
        for said in ("Create", "Overwrite"):
            (event,) = lake.run(source(frame((date(1), 1)))).asset_materializations_for_node("analytics__events")
            assert event.metadata["lance/operation"].value == said

    def test_each_partition_has_its_own_row_count(self, lake):
        rows = [(date(1), 1), (date(3), 3), (date(3), 4)]
        result = lake.run(daily(frame(*rows)), span=("2024-01-01", "2024-01-03"))
        events = result.asset_materializations_for_node("analytics__events")
        assert {e.partition: e.metadata["dagster/partition_row_count"].value for e in events} == {
            "2024-01-01": 1,
            "2024-01-02": 0,
            "2024-01-03": 2,
        }
        for event in events:
            assert list(event.metadata)[:2] == ["dagster/partition_row_count", "dagster/row_count"]
        counts = {e.partition: e.metadata["dagster/partition_row_count"].value for e in events}
        assert counts == {"2024-01-01": 1, "2024-01-02": 0, "2024-01-03": 2}
        assert {e.metadata["dagster/row_count"].value for e in events} == {3}

    def test_rows_that_others_appended_to_the_partition_meanwhile_count(self, lake):
        lake.run(daily(frame((date(1), 1))), partition="2024-01-01")

        def during_an_append(_):
            lance.write_dataset(frame((date(1), 7), (date(2), 8)), lake.uri("analytics/events"), mode="append")
            yield from frame((date(1), 2)).to_batches()

        stream = streamed(lambda context: pa.RecordBatchReader.from_batches(SCHEMA, during_an_append(context)))
        (event,) = lake.run(stream, partition="2024-01-01").asset_materializations_for_node("analytics__events")
        assert sorted(n for _, n in lake.rows("analytics/events")) == [2, 7, 8]
        assert event.metadata["dagster/partition_row_count"].value == 2
        assert event.metadata["dagster/row_count"].value == 3

    def test_the_data_version_is_the_table_version(self, lake):
        lake.run(source(frame((date(1), 1))))
        result = lake.run(source(frame((date(1), 2))))
        tags = result.asset_materializations_for_node("analytics__events")[0].tags
        assert tags["dagster/data_version"].endswith(":main:2")

    def test_the_commit_names_the_run(self, lake):
        result = lake.run(daily(of_days), span=("2024-01-01", "2024-01-02"), tags={"dagster/backfill": "bf1"})
        (found,) = lake.properties("analytics/events")
        assert found["dagster.run_id"] == found["dagster.root_run_id"] == result.run_id
        assert found["dagster.asset_key"] == "analytics/events"
        assert found["dagster.partition_keys"] == '["2024-01-01", "2024-01-02"]'
        assert found["dagster.backfill_id"] == "bf1"
        assert found["dagster.step_key"] == "analytics__events"
        assert found["dagster.attempt"] == "0"
        assert len(found["dagster.write_token"]) == 64

    def test_pylance_reads_the_rows_and_the_run(self, lake):
        import lance

        result = lake.run(daily(of_days), span=("2024-01-01", "2024-01-02"))
        table = lance.dataset(lake.uri("analytics/events"))
        assert table.to_table().column("n").to_pylist() == [1, 2]
        assert table.read_transaction(1).transaction_properties["dagster.run_id"] == result.run_id


class TestWithoutARun:
    """Contexts that users build for their own unit tests."""

    def test_write_and_load(self, lake):
        manager = lake.manager(default_load_type="pyarrow").create_io_manager(dg.build_init_resource_context())
        key = dg.AssetKey("events")
        output = dg.build_output_context(asset_key=key)
        manager.handle_output(output, frame((date(1), 1)))
        assert output.get_logged_metadata()["lance/version"].value == 1
        loaded = manager.load_input(dg.build_input_context(asset_key=key, upstream_output=output))
        assert loaded.to_pylist() == [{"day": date(1), "n": 1}]
        assert list(lake.properties("events")[0]) == ["dagster.asset_key"]

    @pytest.mark.skipif(
        "asset_partitions_def" not in signature(dg.build_output_context).parameters,
        reason="this Dagster cannot build such a context",
    )
    def test_a_partition(self, lake):
        manager = lake.manager(default_load_type="pyarrow").create_io_manager(dg.build_init_resource_context())
        arguments = {"asset_key": dg.AssetKey("events"), "asset_partitions_def": DAYS, "partition_key": "2024-01-02"}
        output = dg.build_output_context(definition_metadata={"partition_expr": "day"}, **arguments)
        manager.handle_output(output, frame((date(2), 1)))
        assert lake.rows("events") == [(date(2), 1)]


class TestRejections:
    def test_values_that_are_no_frames_are_rejected(self, lake):
        @dg.asset
        def number():
            return 1

        @dg.asset
        def nothing():
            return None

        assert "builtins.int, which LanceIOManager cannot store; it can store pyspark" in errors(
            lake.run(number, fails=True)
        )
        assert "annotate the asset `-> None`" in errors(lake.run(nothing, fails=True))

    def test_an_unknown_entry_is_rejected(self, lake):
        result = lake.run(source(frame(), metadata={"lance/branch": "dev"}), fails=True)
        assert "metadata 'lance/branch' is not accepted" in errors(result)

    def test_a_body_that_fails_writes_nothing(self, lake, tmp_path):
        def broken():
            yield pa.record_batch([[date(1)], [1]], schema=SCHEMA)
            raise RuntimeError("no more")

        @dg.asset
        def events() -> pa.RecordBatchReader:
            return pa.RecordBatchReader.from_batches(SCHEMA, broken())

        assert "no more" in errors(lake.run(events, fails=True))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("write_mode", ["append", "overwrite"])
@pytest.mark.parametrize("before", [0, 500_000])
def test_a_table_that_is_made_again_during_a_run_is_left_alone(lake, write_mode, before):
    lake.run(source(frame((date(1), 1))))
    uri = lake.uri("analytics/events")

    def batches():
        yield pa.record_batch([[date(2)] * before, range(before)], schema=SCHEMA)
        shutil.rmtree(uri)
        lance_core.write_dataset(frame((date(3), 3)), uri)
        yield from frame((date(2), 2)).to_batches()

    @dg.asset(key_prefix="analytics", metadata={"lance/write_mode": write_mode})
    def events() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, batches())

    result = lake.run(events, fails=True)
    assert "dropped and made again" in errors(result)
    table = lake.table("analytics/events")
    assert (table.version, table.to_table()) == (1, frame((date(3), 3)))
    assert sum(1 for _ in Path(uri, "data").iterdir()) == 1


def test_a_partition_column_that_the_table_lacks_is_added_with_the_values_of_its_rows(lake):
    def table(**metadata):
        metadata = {"partition_expr": {"d": "d", "z": "z"}, **metadata}
        parts = {"d": dg.StaticPartitionsDefinition(["a", "b"]), "z": dg.StaticPartitionsDefinition(["u", "v"])}

        @dg.asset(partitions_def=dg.MultiPartitionsDefinition(parts), metadata=metadata)
        def parted(context) -> pa.Table:
            cell = context.partition_key.keys_by_dimension
            return pa.table({"d": [cell["d"]], "n": [2], "z": [cell["z"]]})

        return parted

    uri = lake.uri("parted")
    lance_core.write_dataset({"d": ["a", "b"], "n": [1, 1]}, uri)
    for mode in ("strict", "add_columns"):
        said = errors(lake.run(table(**{"lance/schema_mode": mode}), partition="a|u", fails=True))
        assert f"partition_expr names 'z', which the output has and the table {uri} lacks" in said
        assert "Add the column with the values of these rows first" in said
    lake.table("parted").add_columns({"z": "'u'"})
    for cell in ("a|u", "a|v"):
        lake.run(table(), partition=cell)
    assert lake.rows("parted") == [("a", 2, "u"), ("a", 2, "v"), ("b", 1, "u")]

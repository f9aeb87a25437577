"""The table holds the rows of the last attempt, once: retries, crashes, re-executions, two attempts at a time."""

import os
import queue
import sys
import threading
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceIOManager
from lance_dagster.undo.plan import plan_undo
from tests import processes
from tests.lance_dagster.lake import QUIET, Lake, errors
from tests.support.parallel_runs import in_parallel

ROOT = Path(__file__).parents[3]
STATIC = dg.StaticPartitionsDefinition(["a", "b", "c"])
SCHEMA = pa.schema([("p", pa.string()), ("n", pa.int64())])
RETRY = dg.RetryPolicy(max_retries=1)


class FailsAfterCommit(LanceIOManager):
    """Commits, and then fails as if the storage's answer were lost; `failures` times in all."""

    failures: int = 1

    def create_io_manager(self, context):
        manager = super().create_io_manager(context)
        handle, left = manager.handle_output, [self.failures]

        def fail_after(context, obj):
            handle(context, obj)
            if left[0]:
                left[0] -= 1
                raise TimeoutError("no answer")

        manager.handle_output = fail_after
        return manager


def frame(partition, n=1):
    return pa.table([[partition], [n]], schema=SCHEMA)


def replaced(metadata):
    """What the event says of the earlier attempt."""
    return metadata["lance/replaced_attempt"].value


class TestStepRetry:
    @pytest.mark.parametrize("mode", ["append", "overwrite", "error", "create_only"])
    @pytest.mark.parametrize("partition", [None, "a"])
    def test_the_last_attempt_counts(self, lake, mode, partition):
        definition = STATIC if partition else None

        @dg.asset(partitions_def=definition, metadata={"partition_expr": "p"}, retry_policy=RETRY)
        def events(context) -> pa.Table:
            return frame("a", n=10 + context.retry_number)

        result = lake.run(
            events, partition=partition, resources={"io_manager": FailsAfterCommit(root_uri=lake.root, write_mode=mode)}
        )
        assert lake.rows("events") == [("a", 11)]
        first, second = lake.properties("events")
        assert first["dagster.write_token"] == second["dagster.write_token"]
        metadata = result.asset_materializations_for_node("events")[0].metadata
        assert next(iter(metadata)) == "lance/replaced_attempt"
        assert replaced(metadata) == {"run_id": result.run_id, "version": 1, "attempt": 0}
        assert "lance/deduplicated" not in metadata
        assert metadata["lance/version"].value == 2
        assert metadata["lance/rows_written"].value == metadata["dagster/row_count"].value == 1

    def test_an_append_is_one_update(self, lake):
        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            return frame("a", n=10 + context.retry_number)

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        manager = FailsAfterCommit(root_uri=lake.root, write_mode="append")
        result = lake.run(events, resources={"io_manager": manager})
        assert lake.rows("events") == [("a", 1), ("a", 11)]
        metadata = result.asset_materializations_for_node("events")[0].metadata
        assert (metadata["lance/operation"].value, metadata["lance/version"].value) == ("Update", 3)
        assert metadata["lance/commit"].value["rows_deleted"] == 1

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_of_a_body_that_fails_after_its_output(self, lake, mode):
        @dg.asset(retry_policy=RETRY)
        def events(context):
            yield dg.Output(frame("a", n=context.retry_number))
            if not context.retry_number:
                raise dg.Failure("after the output")

        lake.run(events, write_mode=mode)
        assert lake.rows("events") == [("a", 1)]

    @pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "batch", "reader"])
    def test_of_every_kind_of_frame(self, lake, kind):
        pl = pytest.importorskip("polars")

        @dg.asset(retry_policy=RETRY)
        def events(context):
            table = frame("a", n=10 + context.retry_number)
            return {
                "pandas": table.to_pandas,
                "polars": lambda: pl.from_arrow(table),
                "lazy": lambda: pl.from_arrow(table).lazy(),
                "batch": lambda: table.to_batches()[0],
                "reader": table.to_reader,
            }[kind]()

        lake.run(events, resources={"io_manager": FailsAfterCommit(root_uri=lake.root, write_mode="append")})
        assert lake.rows("events") == [("a", 11)]

    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    def test_all_outputs_are_of_one_attempt(self, lake, mode):
        @dg.multi_asset(outs={"x": dg.AssetOut(), "y": dg.AssetOut()}, retry_policy=RETRY)
        def both(context):
            yield dg.Output(frame("x", n=context.retry_number), output_name="x")
            if not context.retry_number:
                raise RuntimeError("between the outputs")
            yield dg.Output(frame("y", n=context.retry_number), output_name="y")

        lake.run(both, write_mode=mode)
        assert (lake.rows("x"), lake.rows("y")) == ([("x", 1)], [("y", 1)])

    def test_with_other_columns(self, lake):
        """The first attempt made the table: its columns bind nobody."""

        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            return pa.table({"x": [1.5]}) if context.retry_number else frame("a")

        for mode in ("append", "overwrite"):
            resources = {"io_manager": FailsAfterCommit(root_uri=lake.root, write_mode=mode, schema=mode)}
            lake.run(events, resources=resources)
            assert lake.rows(f"{mode}/events") == [(1.5,)]

    def test_without_rows_takes_out_what_was_appended(self, lake):
        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            return frame("a").slice(context.retry_number)

        lance_core.write_dataset(frame("a", n=0), lake.uri("events"))
        for empty in ("write", "skip"):
            manager = FailsAfterCommit(root_uri=lake.root, write_mode="append", empty_output=empty)
            lake.run(events, resources={"io_manager": manager})
            assert lake.rows("events") == [("a", 0)]

    @pytest.mark.parametrize(
        ("mode", "others"), [("append", 0), ("append", 1), ("error", 0), ("error", 1), ("create_only", 0)]
    )
    def test_without_rows_takes_out_what_replaced_nothing(self, lake, mode, others):
        @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"}, retry_policy=RETRY)
        def events(context) -> pa.Table:
            return frame("a").slice(context.retry_number)

        if others:
            lance_core.write_dataset(frame("b"), lake.uri("events"))
        manager = FailsAfterCommit(root_uri=lake.root, write_mode=mode, empty_output="skip")
        lake.run(events, partition="a", resources={"io_manager": manager})
        assert lake.rows("events") == [("b", 1)] * others

    def test_a_retry_replaces_its_partition_and_not_the_table(self, lake):
        """So that a branch of another partition, which began between the attempts, can be promoted."""

        @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"}, retry_policy=RETRY)
        def events(context) -> pa.Table:
            if context.retry_number:
                lake.table("events").create_branch("others").insert(frame("b"))
            return frame("a", context.retry_number)

        manager = FailsAfterCommit(root_uri=lake.root, write_mode="error")
        lake.run(events, partition="a", resources={"io_manager": manager})
        lake.table("events").branches.promote("others")
        assert lake.rows("events") == [("a", 1), ("b", 1)]

    def test_a_retry_that_skips_its_write_reports_the_earlier_rows(self, lake):
        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            return frame("a").slice(context.retry_number)

        manager = FailsAfterCommit(root_uri=lake.root, empty_output="skip")
        result = lake.run(events, resources={"io_manager": manager}, fails=True)
        assert "Set empty_output to write, which removes these rows\n" in errors(result)
        manager = FailsAfterCommit(root_uri=lake.root, empty_output="skip")
        result = lake.run(events, resources={"io_manager": manager}, fails=True)
        assert "removes these rows, or restore version 1 and start a new run" in errors(result)

    @pytest.mark.parametrize(("policy", "rows"), [("replace", [1, 10]), ("adopt", [1, 10]), ("append", [1, 2, 10])])
    def test_of_rows_that_cannot_be_identified(self, lake, policy, rows):
        """Somebody has changed a row of the first attempt, so that it is in another fragment."""

        @dg.asset(retry_policy=RETRY, metadata={"lance/on_earlier_attempt": policy})
        def events(context) -> pa.Table:
            if context.retry_number:
                lake.table("events").update({"n": "10"}, where="n = 0")
                return frame("a", n=2)
            return pa.concat_tables([frame("a", n=0), frame("a", n=1)])

        manager = FailsAfterCommit(root_uri=lake.root, write_mode="append", stable_row_ids=False)
        result = lake.run(events, resources={"io_manager": manager}, fails=None)
        assert [n for _, n in lake.rows("events")] == rows
        assert result.success is (policy != "replace")
        if policy == "replace":
            assert "EarlierAttemptError" in errors(result)
            assert "version 1" in errors(result)
        if policy == "adopt":
            metadata = result.asset_materializations_for_node("events")[0].metadata
            assert metadata["lance/deduplicated"].value is True
            assert metadata["lance/version"].value == 1

    @pytest.mark.parametrize("policy", ["replace", "adopt", "append"])
    def test_of_rows_that_were_changed_but_have_stable_ids(self, lake, policy):
        @dg.asset(retry_policy=RETRY, metadata={"lance/on_earlier_attempt": policy})
        def events(context) -> pa.Table:
            if context.retry_number:
                lake.table("events").update({"n": "10"}, where="n = 0")
                return frame("a", n=2)
            return pa.concat_tables([frame("a", n=0), frame("a", n=1)])

        manager = FailsAfterCommit(root_uri=lake.root, write_mode="append")
        assert lake.run(events, resources={"io_manager": manager}).success
        assert [n for _, n in lake.rows("events")] == [2]

    def test_after_its_rows_were_compacted_with_others(self, lake):
        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            if context.retry_number:
                lake.table("events").optimize.compact_files()
            return frame("a", n=context.retry_number + 5)

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        lake.run(events, resources={"io_manager": FailsAfterCommit(root_uri=lake.root, write_mode="append")})
        assert lake.rows("events") == [("a", 1), ("a", 6)]

    @pytest.mark.parametrize(("policy", "rows"), [("replace", [1, 5, 6]), ("append", [1, 5, 6, 7])])
    @pytest.mark.parametrize("compacts", [False, True])
    def test_after_its_version_was_cleaned_up(self, lake, policy, rows, compacts):
        """The table itself knows which rows they are, unless they were moved."""

        @dg.asset(retry_policy=RETRY, metadata={"lance/on_earlier_attempt": policy})
        def events(context) -> pa.Table:
            if context.retry_number:
                lance_core.write_dataset(frame("a", n=5), lake.uri("events"), mode="append")
                if compacts:
                    lake.table("events").optimize.compact_files()
                lake.table("events").cleanup_old_versions(timedelta(0), delete_unverified=True)
            return frame("a", n=6 + context.retry_number)

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        manager = FailsAfterCommit(root_uri=lake.root, write_mode="append")
        result = lake.run(events, resources={"io_manager": manager}, fails=None)
        assert [n for _, n in lake.rows("events")] == (rows if compacts else [1, 5, 7])
        assert result.success is not (compacts and policy == "replace")
        if not result.success:
            assert "EarlierAttemptError" in errors(result)
            assert "version 2 was cleaned up, and no record shows where they are now" in errors(result)
        elif not compacts:
            metadata = result.asset_materializations_for_node("events")[0].metadata
            assert replaced(metadata)["version"] == 2
            assert metadata["dagster/row_count"].value == 3

    @pytest.mark.parametrize(
        ("mode", "other"), [("append", True), ("append", False), ("merge", True), ("merge", False)]
    )
    def test_rows_that_are_added_beside_are_not_called_replaced(self, lake, mode, other):
        key = {"lance/merge_on": "n"} if mode == "merge" else {}

        @dg.asset(retry_policy=RETRY, metadata={"lance/on_earlier_attempt": "append", **key})
        def events(context) -> pa.Table:
            if context.retry_number and other and mode == "append":
                lake.table("events").update({"n": "100"})
            return frame("a", n=6 + (context.retry_number if other else 0))

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        manager = FailsAfterCommit(root_uri=lake.root, write_mode=mode)
        (event,) = lake.run(events, resources={"io_manager": manager}).asset_materializations_for_node("events")
        said, unsaid = ("lance/kept_attempt", "lance/replaced_attempt")[:: 1 if other else -1]
        assert event.metadata[said].value["version"] == 2
        assert unsaid not in event.metadata
        assert lake.table("events").count_rows() == (3 if other else 2)

    @pytest.mark.parametrize("policy", ["replace", "append"])
    def test_of_a_merge_after_its_version_was_cleaned_up(self, lake, policy):
        @dg.asset(retry_policy=RETRY, metadata={"lance/on_earlier_attempt": policy, "lance/merge_on": "n"})
        def events(context) -> pa.Table:
            if context.retry_number:
                lance_core.write_dataset(frame("a", n=5), lake.uri("events"), mode="append")
                lake.table("events").cleanup_old_versions(timedelta(0), delete_unverified=True)
            return frame("a", n=6 + context.retry_number)

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        manager = FailsAfterCommit(root_uri=lake.root, write_mode="merge")
        result = lake.run(events, resources={"io_manager": manager}, fails=None)
        assert [n for _, n in lake.rows("events")] == ([1, 5, 6] if policy == "replace" else [1, 5, 6, 7])
        assert result.success is (policy == "append")
        for event in result.asset_materializations_for_node("events"):
            assert event.metadata["lance/kept_attempt"].value["version"] == 2
            assert "lance/replaced_attempt" not in event.metadata
        if policy == "replace":
            assert "version 2, which was cleaned up" in errors(result)

    def test_of_an_attempt_that_may_have_been_committed_in_a_deleted_version(self, lake):
        """The table took no note of attempts then: nobody knows."""

        @dg.asset(retry_policy=RETRY)
        def events(context) -> pa.Table:
            if not context.retry_number:
                for n in (2, 3):
                    lance_core.write_dataset(frame("a", n=n), lake.uri("events"), mode="append")
                lake.table("events").cleanup_old_versions(timedelta(0), delete_unverified=True)
                raise RuntimeError("before the output")
            return frame("a", n=6)

        lance_core.write_dataset(frame("a", n=1), lake.uri("events"))
        result = lake.run(events, write_mode="append", fails=True)
        assert "version 2 of" in errors(result)
        assert [n for _, n in lake.rows("events")] == [1, 2, 3]

    def test_of_a_body_that_fails_before_its_output_writes(self, lake):
        attempts = []

        @dg.asset(retry_policy=RETRY)
        def events() -> pa.Table:
            attempts.append(1)
            if len(attempts) == 1:
                raise RuntimeError("before the output")
            return frame("a")

        lake.run(events, write_mode="append")
        (properties,) = lake.properties("events")
        assert properties["dagster.attempt"] == "1"

    def test_does_not_adopt_another_partition_of_the_run_before(self, lake):
        @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"}, retry_policy=RETRY)
        def events(context) -> pa.Table:
            if context.retry_number == 0 and context.partition_key == "b":
                raise RuntimeError("before the output")
            return frame(context.partition_key)

        lake.run(events, partition="a")
        lake.run(events, partition="b")
        assert lake.rows("events") == [("a", 1), ("b", 1)]


# A job that other processes run, with what it is to do in the environment.


@dg.asset
def counted(context) -> pa.Table:
    return frame("a", n=int(os.environ.get("LANCE_TEST_N", "1")))


class CrashesAfterCommit(LanceIOManager):
    """The process ends right after the commit, while LANCE_TEST_CRASH is set."""

    def create_io_manager(self, context):
        manager = super().create_io_manager(context)
        handle = manager.handle_output

        def crash_after(context, obj):
            handle(context, obj)
            if os.environ.get("LANCE_TEST_CRASH"):
                os._exit(9)

        manager.handle_output = crash_after
        return manager


@dg.asset
def after(counted: pa.Table) -> None:
    if os.environ.get("LANCE_TEST_FAIL_AFTER"):
        raise RuntimeError("downstream")


def counting_job():
    manager = CrashesAfterCommit(
        root_uri=dg.EnvVar("LANCE_TEST_ROOT"), write_mode="append", default_load_type="pyarrow"
    )
    defs = dg.Definitions(
        assets=[counted, after],
        jobs=[dg.define_asset_job("counting", executor_def=dg.in_process_executor)],
        resources={"io_manager": manager},
    )
    return defs.resolve_job_def("counting")


def execute(instance, parent=None):
    """Run the job, as a re-execution of the run `parent` if given; the id of the run."""
    options = dg.ReexecutionOptions(parent_run_id=parent) if parent else None
    job = dg.reconstructable(counting_job)
    with dg.execute_job(job, instance=instance, reexecution_options=options, run_config=QUIET) as result:
        return result.run_id


CRASH = """
import sys
import dagster as dg
from tests.lance_dagster.io_manager.test_retries import execute
with dg.DagsterInstance.get() as instance:
    execute(instance, *sys.argv[1:])
"""


def crash(instance, *parent):
    """Run the job in a process that dies after the commit; the run, which Dagster takes for failed then."""
    before = {run.run_id for run in instance.get_runs()}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LANCE_TEST_CRASH": "1"}
    done = processes.run([sys.executable, "-c", CRASH, *parent], env=environment)
    assert done.returncode == 9, done.stdout + done.stderr
    (run,) = [run for run in instance.get_runs() if run.run_id not in before]
    instance.report_run_failed(run)
    return run.run_id


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A lake with a Dagster instance on disk, that other processes use too."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("LANCE_TEST_ROOT", str(tmp_path / "lake"))
    with dg.DagsterInstance.get() as instance:
        yield Lake(root=str(tmp_path / "lake"), instance=instance)


class TestReExecution:
    def test_of_a_crashed_run_replaces_its_rows(self, stored, monkeypatch):
        crashed = crash(stored.instance)
        monkeypatch.setenv("LANCE_TEST_N", "2")
        again = execute(stored.instance, crashed)
        assert [p["dagster.run_id"] for p in stored.properties("counted")] == [crashed, again]
        assert stored.rows("counted") == [("a", 2)]
        event = stored.instance.get_latest_materialization_event(dg.AssetKey("counted"))
        assert event.run_id == again
        assert replaced(event.asset_materialization.metadata) == {"run_id": crashed, "version": 1, "attempt": 0}

    def test_of_a_re_execution_that_crashed_too(self, stored):
        execute(stored.instance, crash(stored.instance, crash(stored.instance)))
        assert len(stored.properties("counted")) == 3
        assert stored.rows("counted") == [("a", 1)]

    def test_of_a_finished_run_writes_again(self, stored, monkeypatch):
        first = execute(stored.instance)
        monkeypatch.setenv("LANCE_TEST_N", "2")
        second = execute(stored.instance, first)
        assert [p["dagster.run_id"] for p in stored.properties("counted")] == [first, second]
        assert {p["dagster.root_run_id"] for p in stored.properties("counted")} == {first}
        assert stored.rows("counted") == [("a", 1), ("a", 2)]

    def test_of_a_run_whose_later_step_failed_replaces_its_rows(self, stored, monkeypatch):
        monkeypatch.setenv("LANCE_TEST_FAIL_AFTER", "1")
        first = execute(stored.instance)
        monkeypatch.setenv("LANCE_TEST_N", "2")
        execute(stored.instance, first)
        assert stored.rows("counted") == [("a", 2)]

    def test_of_a_run_that_was_undone_and_cleaned_up_writes(self, stored, monkeypatch):
        execute(stored.instance)
        monkeypatch.setenv("LANCE_TEST_FAIL_AFTER", "1")
        failed = execute(stored.instance)
        plan_undo(stored.table("counted"), failed).commit()
        stored.table("counted").cleanup_old_versions(timedelta(0), delete_unverified=True)
        monkeypatch.setenv("LANCE_TEST_N", "3")
        execute(stored.instance, failed)
        assert stored.rows("counted") == [("a", 1), ("a", 3)]

    def test_a_new_run_always_writes(self, stored):
        execute(stored.instance)
        execute(stored.instance)
        assert len(stored.properties("counted")) == 2


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("partition", [None, "a"])
class TestFromFailure:
    """ "Re-execute from failure" in the process of the test; the source is mended in between."""

    def asset(self, partition, source):
        @dg.asset(
            partitions_def=STATIC if partition else None,
            metadata={"partition_expr": "p"},
            check_specs=[dg.AssetCheckSpec("good", asset="events", blocking=True)],
        )
        def events():
            yield dg.Output(frame("a", n=source["n"]))
            yield dg.AssetCheckResult(passed=source["n"] > 0)

        @dg.asset(partitions_def=STATIC if partition else None)
        def after(events: pa.Table) -> None:
            source["read"] = sorted(events.column("n").to_pylist())

        return [events, after]

    def job(self, lake, assets, mode):
        manager = lake.manager(write_mode=mode, read="materialized")
        defs = dg.Definitions(assets=assets, jobs=[dg.define_asset_job("all")], resources={"io_manager": manager})
        return defs.resolve_job_def("all")

    def run(self, lake, job, partition, parent=None):
        tags = {"dagster/partition": partition} if partition else {}
        if parent is not None:
            tags |= {"dagster/parent_run_id": parent, "dagster/root_run_id": parent}
        return job.execute_in_process(
            instance=lake.instance, partition_key=partition, tags=tags, raise_on_error=False, run_config=QUIET
        )

    def test_after_a_blocking_check(self, lake, mode, partition):
        source = {"n": 0}
        job = self.job(lake, self.asset(partition, source), mode)
        failed = self.run(lake, job, partition)
        assert not failed.success
        source["n"] = 5
        again = self.run(lake, job, partition, parent=failed.run_id)
        assert again.success
        assert lake.rows("events") == [("a", 5)]
        assert source["read"] == [5]
        assert replaced(again.asset_materializations_for_node("events")[0].metadata)["run_id"] == failed.run_id

    def test_after_another_run_has_rewritten_it(self, lake, mode, partition):
        source = {"n": 0}
        job = self.job(lake, self.asset(partition, source), mode)
        failed = self.run(lake, job, partition)
        source["n"] = 7
        assert self.run(lake, job, partition).success
        source["n"] = 5
        assert self.run(lake, job, partition, parent=failed.run_id).success
        assert lake.rows("events") == ([("a", 5)] if mode == "overwrite" else [("a", 5), ("a", 7)])
        assert source["read"] == ([5] if mode == "overwrite" else [5, 7])


def waiting(schema, rows, barrier):
    """A stream that holds its writer until all others have begun theirs too."""

    def batches():
        barrier.wait(timeout=100)
        yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def partitioned(barrier, value=1):
    @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"})
    def events(context) -> pa.RecordBatchReader:
        return waiting(SCHEMA, [{"p": context.partition_key, "n": value}], barrier)

    return events


def ready(*rows):
    @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"})
    def events() -> pa.Table:
        return pa.Table.from_pylist([{"p": p, "n": n} for p, n in rows], schema=SCHEMA)

    return events


class TestTwoAtOnce:
    @pytest.mark.parametrize("there", [False, True])
    def test_disjoint_partitions_both_commit(self, lake, there):
        if there:
            lake.run(ready(("a", 0), ("b", 0), ("c", 0)), span=("a", "c"))
        asset = partitioned(threading.Barrier(2))
        in_parallel(lake, lambda own: own.run(asset, partition="a"), lambda own: own.run(asset, partition="b"))
        assert lake.rows("events") == [("a", 1), ("b", 1), *([("c", 0)] if there else [])]
        assert lake.table("events").version == (3 if there else 2)

    def test_disjoint_partitions_in_one_fragment_both_commit(self, lake):
        rows = [{"p": p, "n": 0} for p in "abc"]
        lance_core.write_dataset(pa.Table.from_pylist(rows, schema=SCHEMA), lake.uri("events"))
        asset = partitioned(threading.Barrier(2))
        in_parallel(lake, lambda own: own.run(asset, partition="a"), lambda own: own.run(asset, partition="b"))
        assert lake.rows("events") == [("a", 1), ("b", 1), ("c", 0)]

    def run_both(self, lake, older_commits, *, rows=1, **options):
        """Two runs that write partition a at the same time, the value 1 and some of 2, and which commits first."""
        begun, written = threading.Barrier(2), threading.Event()

        def run(own, value, first):
            @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"})
            def events() -> pa.RecordBatchReader:
                def batches():
                    begun.wait(timeout=100)
                    assert first or written.wait(timeout=100)
                    count = rows if value == 2 else 1
                    yield pa.RecordBatch.from_pylist([{"p": "a", "n": value}] * count, schema=SCHEMA)

                return pa.RecordBatchReader.from_batches(SCHEMA, batches())

            if value == 2:
                self.count_up(own)
            result = own.run(events, partition="a", fails=None, **options)
            if first:
                written.set()
            return result

        return in_parallel(lake, lambda own: run(own, 1, older_commits), lambda own: run(own, 2, not older_commits))

    @pytest.mark.parametrize("there", [False, True])
    @pytest.mark.parametrize("older_commits", [False, True])
    def test_the_later_run_wins_a_partition(self, lake, there, older_commits):
        if there:
            lake.run(ready(("a", 0), ("c", 0)), span=("a", "c"))
        older, newer = self.run_both(lake, older_commits)
        assert newer.success, errors(newer)
        assert older.success is older_commits
        assert lake.rows("events") == [("a", 2), *([("c", 0)] if there else [])]
        if not older_commits:
            said = errors(older)
            assert "SupersededError" in said
            assert "asset events, partition 'a', table" in said
            assert f'was committed by run {newer.run_id} (partitions ["a"])' in said

    @pytest.mark.variants(2)
    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    @pytest.mark.parametrize("there", [False, True])
    @pytest.mark.parametrize("older_commits", [False, True])
    def test_two_live_attempts_of_one_write(self, lake, mode, there, older_commits):
        """A run that was taken for dead and its re-execution: whichever commits first, the later one's rows stay."""
        if there:
            lake.run(ready(("a", 0), ("c", 0)), span=("a", "c"))
        before = lake.table("events") if there else None
        tags = {"dagster/root_run_id": "root", "dagster/parent_run_id": "root"}
        older, newer = self.run_both(lake, older_commits, tags=tags, write_mode=mode)
        assert newer.success, errors(newer)
        assert older.success is older_commits
        if not older_commits:
            assert "SupersededError" in errors(older)
        kept = [("c", 0)] if there else []
        kept += [("a", 0)] if there and mode == "append" else []
        assert lake.rows("events") == sorted([("a", 2), *kept])
        files = {path.name for path in Path(lake.uri("events"), "data").iterdir()}
        versions = [lake.table("events").checkout_version(v["version"]) for v in lake.table("events").versions()]
        tables = [*versions, *([before] if before else [])]
        assert files == {file.path for table in tables for f in table.get_fragments() for file in f.data_files()}

    def test_a_first_attempt_that_commits_meanwhile_is_not_kept_by_a_retry_that_is_skipped(self, lake):
        tags = {"dagster/root_run_id": "root", "dagster/parent_run_id": "root"}
        older, newer = self.run_both(lake, True, rows=0, tags=tags, empty_output="skip")
        assert older.success
        assert "has rows of an earlier attempt of this write. Set empty_output to write" in errors(newer)

    @pytest.mark.parametrize(("mode", "rows"), [("error", 1), ("create_only", 1), ("append", 1), ("append", 0)])
    def test_a_first_attempt_that_comes_late_is_superseded(self, lake, mode, rows):
        """Its re-execution has committed before its body ends, so that its rows are there."""
        begun, written = queue.Queue(), threading.Event()
        config = {"partition": "a", "write_mode": mode, "empty_output": "skip"}

        @dg.asset(partitions_def=STATIC, metadata={"partition_expr": "p"})
        def events(context) -> pa.Table:
            begun.put(context.run_id)
            assert written.wait(timeout=100)
            return frame("a", n=1).slice(0, rows)

        def again(own):
            self.count_up(own)
            root = begun.get(timeout=100)
            tags = {"dagster/root_run_id": root, "dagster/parent_run_id": root}
            own.run(ready(("a", 2)), partition="a", tags=tags, write_mode=mode)
            written.set()

        first, _ = in_parallel(lake, lambda own: own.run(events, fails=True, **config), again)
        assert "SupersededError" in errors(first)
        assert lake.rows("events") == [("a", 2)]

    def count_up(self, own):
        """Let the next run of an instance be a later one than the first of another instance."""

        @dg.asset
        def nothing() -> None: ...

        for _ in range(3):
            own.run(nothing)


def test_a_retried_append_counts_the_rows_of_the_partition_and_not_its_own(lake):
    parts = dg.StaticPartitionsDefinition(["x"])
    metadata = {"partition_expr": "part", "lance/write_mode": "append"}

    @dg.asset(name="t", partitions_def=parts, metadata=metadata, retry_policy=dg.RetryPolicy(max_retries=1))
    def t(context):
        yield dg.Output(pa.table({"part": ["x"] * 4}))
        if "fail" in context.run.tags and not context.retry_number:
            raise RuntimeError("after the write")

    for tags, rows in (({}, 4), ({"fail": "idempotency_key"}, 8)):
        event = lake.run(t, partition="x", tags=tags).asset_materializations_for_node("t")[-1]
        assert event.metadata["lance/rows_written"].value == 4
        assert event.metadata["dagster/partition_row_count"].value == rows
    assert lake.table("t").count_rows() == 8


def test_the_retry_policy_of_a_step_does_not_repeat_its_failed_check(lake):
    calls = []

    @dg.asset(check_specs=[dg.AssetCheckSpec("ok", asset="events", blocking=True)], retry_policy=RETRY)
    def events():
        calls.append(1)
        yield dg.Output(frame("a", n=len(calls)))
        yield dg.AssetCheckResult(passed=len(calls) > 1, check_name="ok")

    lake.run(events, fails=True)
    assert lake.rows("events") == [("a", 1)]
    assert calls == [1]

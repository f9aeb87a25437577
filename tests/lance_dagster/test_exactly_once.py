"""One write is one commit: retries, crashes and re-executions adopt what has landed; deliberate second runs do not."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceIOManager
from tests import processes
from tests.lance_dagster.lake import QUIET, Lake, errors

ROOT = Path(__file__).parents[2]
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


class TestStepRetry:
    @pytest.mark.parametrize("mode", ["append", "overwrite"])
    @pytest.mark.parametrize("partition", [None, "a"])
    def test_after_a_commit_whose_answer_was_lost(self, lake, mode, partition):
        definition = STATIC if partition else None

        @dg.asset(partitions_def=definition, metadata={"partition_expr": "p"}, retry_policy=RETRY)
        def events() -> pa.Table:
            return frame("a")

        result = lake.run(
            events, partition=partition, resources={"io_manager": FailsAfterCommit(root_uri=lake.root, write_mode=mode)}
        )
        assert len(lake.properties("events")) == 1
        assert lake.rows("events") == [("a", 1)]
        metadata = result.asset_materializations_for_node("events")[0].metadata
        assert metadata["lance/deduplicated"].value is True
        assert metadata["lance/version"].value == 1
        assert metadata["dagster/row_count"].value == 1
        assert "lance/rows_written" not in metadata

    def test_of_a_body_that_fails_after_its_output(self, lake):
        tries = []

        @dg.asset(retry_policy=RETRY)
        def events():
            tries.append(1)
            yield dg.Output(frame("a"))
            if len(tries) == 1:
                raise RuntimeError("after the output")

        lake.run(events, write_mode="append")
        assert len(tries) == 2
        assert len(lake.properties("events")) == 1
        assert lake.rows("events") == [("a", 1)]

    def test_of_a_body_that_fails_before_its_output_writes(self, lake):
        tries = []

        @dg.asset(retry_policy=RETRY)
        def events() -> pa.Table:
            tries.append(1)
            if len(tries) == 1:
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
    """The process is gone right after the commit, while LANCE_TEST_CRASH is set."""

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
from tests.lance_dagster.test_exactly_once import execute
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
    def test_of_a_crashed_run_adopts_its_commit(self, stored):
        crashed = crash(stored.instance)
        again = execute(stored.instance, crashed)
        (properties,) = stored.properties("counted")
        assert properties["dagster.run_id"] == crashed
        assert stored.rows("counted") == [("a", 1)]
        event = stored.instance.get_latest_materialization_event(dg.AssetKey("counted"))
        assert event.run_id == again
        assert event.asset_materialization.metadata["lance/deduplicated"].value is True
        assert event.asset_materialization.metadata["lance/version"].value == 1

    def test_of_a_re_execution_that_crashed_too_adopts_the_first_commit(self, stored):
        execute(stored.instance, crash(stored.instance, crash(stored.instance)))
        assert len(stored.properties("counted")) == 1

    def test_of_a_finished_run_writes_again(self, stored, monkeypatch):
        first = execute(stored.instance)
        monkeypatch.setenv("LANCE_TEST_N", "2")
        second = execute(stored.instance, first)
        assert [p["dagster.run_id"] for p in stored.properties("counted")] == [first, second]
        assert {p["dagster.root_run_id"] for p in stored.properties("counted")} == {first}
        assert stored.rows("counted") == [("a", 1), ("a", 2)]

    def test_of_a_run_whose_later_step_failed_writes_again(self, stored, monkeypatch):
        monkeypatch.setenv("LANCE_TEST_FAIL_AFTER", "1")
        first = execute(stored.instance)
        monkeypatch.setenv("LANCE_TEST_N", "2")
        execute(stored.instance, first)
        assert stored.rows("counted") == [("a", 1), ("a", 2)]

    def test_a_new_run_always_writes(self, stored):
        execute(stored.instance)
        execute(stored.instance)
        assert len(stored.properties("counted")) == 2


def waiting(schema, rows, barrier):
    """A stream that holds its writer until all others have begun theirs too."""

    def batches():
        barrier.wait(timeout=30)
        yield pa.RecordBatch.from_pylist(rows, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def side_by_side(lake, *calls):
    """Call functions of a lake in threads; what they return. Each has a Dagster instance of its own."""

    def call(function):
        with dg.DagsterInstance.ephemeral() as instance:
            return function(replace(lake, instance=instance))

    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(call, function) for function in calls]]


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
    def test_disjoint_partitions_both_land(self, lake, there):
        if there:
            lake.run(ready(("a", 0), ("b", 0), ("c", 0)), span=("a", "c"))
        asset = partitioned(threading.Barrier(2))
        side_by_side(lake, lambda own: own.run(asset, partition="a"), lambda own: own.run(asset, partition="b"))
        assert lake.rows("events") == [("a", 1), ("b", 1), *([("c", 0)] if there else [])]
        assert lake.table("events").version == (3 if there else 2)

    def test_disjoint_partitions_in_one_fragment_both_land(self, lake):
        rows = [{"p": p, "n": 0} for p in "abc"]
        lance_core.write_dataset(pa.Table.from_pylist(rows, schema=SCHEMA), lake.uri("events"))
        asset = partitioned(threading.Barrier(2))
        side_by_side(lake, lambda own: own.run(asset, partition="a"), lambda own: own.run(asset, partition="b"))
        assert lake.rows("events") == [("a", 1), ("b", 1), ("c", 0)]

    @pytest.mark.parametrize("there", [False, True])
    def test_the_same_partition_lands_once_and_the_loser_fails_by_name(self, lake, there):
        if there:
            lake.run(ready(("a", 0), ("c", 0)), span=("a", "c"))
        barrier = threading.Barrier(2)

        def run(own, n):
            return own.run(partitioned(barrier, n), partition="a", fails=None)

        results = side_by_side(lake, lambda own: run(own, 1), lambda own: run(own, 2))
        (lost,) = [result for result in results if not result.success]
        assert "RetryableConflictError" in errors(lost)
        assert lake.rows("events") == [("a", 2 if lost is results[0] else 1), *([("c", 0)] if there else [])]

    def test_two_live_attempts_of_one_write_leave_one_commit(self, lake):
        lake.run(ready(("a", 0), ("c", 0)), span=("a", "c"))
        self.attempts(lake)
        assert lake.rows("events") == [("a", 1), ("c", 0)]

    def test_two_live_attempts_that_create_the_table(self, lake):
        self.attempts(lake)
        assert lake.rows("events") == [("a", 1)]

    def test_two_live_attempts_that_append(self, lake):
        lake.run(ready(("c", 0)), partition="c")
        self.attempts(lake, write_mode="append")
        assert lake.rows("events") == [("a", 1), ("c", 0)]

    def attempts(self, lake, **config):
        """A run that was taken for dead and its re-execution, both writing at the same time."""
        before = lake.table("events") if Path(lake.uri("events")).exists() else None
        tags = {"dagster/root_run_id": "root", "dagster/parent_run_id": "root"}
        asset = partitioned(threading.Barrier(2))

        def run(own):
            return own.run(asset, partition="a", tags=tags, **config)

        results = side_by_side(lake, run, run)
        version = 1 if before is None else before.version + 1
        assert lake.table("events").version == version
        said = [result.asset_materializations_for_node("events")[0].metadata for result in results]
        assert sorted(metadata["lance/deduplicated"].value for metadata in said) == [False, True]
        assert {metadata["lance/version"].value for metadata in said} == {version}
        files = {path.name for path in Path(lake.uri("events"), "data").iterdir()}
        tables = [lake.table("events"), *([before] if before else [])]
        assert files == {file.path for table in tables for f in table.get_fragments() for file in f.data_files()}

"""Outputs of ops are removed long after their run has ended, and never before."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from lance_dagster._context import runs
from tests.lance_dagster.lake import QUIET

NOW = timedelta(microseconds=1)


@dg.op
def begin() -> pa.Table:
    return pa.table({"n": [1, 2]})


@dg.op
def double(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows])


@dg.asset
def numbers() -> pa.Table:
    return pa.table({"n": [1]})


def make_outputs(lake):
    @dg.job(resource_defs={"io_manager": lake.manager()})
    def plain():
        double(begin())

    return plain.execute_in_process(instance=lake.instance, run_config=QUIET).run_id


def outputs(lake):
    return lance_core.list_tables(f"{lake.root}/_ops")


def clean(lake, policy, config=None, **options):
    job = build_maintenance_job([numbers], policy, **options)
    defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config={**QUIET, **(config or {})}
    )
    (logged,) = [event for event in result.all_events if event.is_successful_output and event.step_key == "op_outputs"]
    numbers_logged = {key: entry.value for key, entry in logged.event_specific_data.metadata.items()}
    assert {
        f"lance/{key}": n for key, n in result.output_for_node("op_outputs").items()
    }.items() <= numbers_logged.items()
    return result.output_for_node("op_outputs")


def add_run(lake, run_id, status, **chain):
    lake.instance.add_run(dg.DagsterRun("plain", run_id=run_id, status=status, **chain))


def test_outputs_of_finished_runs_go_with_the_age(lake):
    run_id = make_outputs(lake)
    both = [f"{run_id}/begin/result.lance", f"{run_id}/double/result.lance"]
    assert outputs(lake) == both
    kept = {"op_output_runs_removed": 0, "op_output_tables_removed": 0, "op_output_bytes_removed": 0}
    assert clean(lake, None) == {**kept, "op_output_runs_kept": 1}  # seven days
    clean(lake, LanceMaintenancePolicy(cleanup_older_than=None))
    assert outputs(lake) == both
    size = sum(lance_core.dataset(f"{lake.root}/_ops/{name}").total_bytes for name in both)
    assert clean(lake, LanceMaintenancePolicy(cleanup_older_than=NOW)) == {
        "op_output_runs_removed": 1,
        "op_output_tables_removed": 2,
        "op_output_bytes_removed": size,
        "op_output_runs_kept": 0,
    }
    assert not Path(f"{lake.root}/_ops").exists() or not list(Path(f"{lake.root}/_ops").iterdir())


@pytest.mark.parametrize("by", ["policy", "launchpad"])
def test_a_dry_run_counts_only(lake, by):
    make_outputs(lake)
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW, dry_run=by == "policy")
    config = {} if by == "policy" else {"ops": {"plan": {"config": {"dry_run": True}}}}
    found = clean(lake, policy, config)
    assert (found["op_output_runs_due"], found["op_output_tables_due"]) == (1, 2)
    assert found["op_output_bytes_due"] > 0
    assert len(outputs(lake)) == 2


def test_outputs_stay_while_a_run_may_read_them(lake):
    open_, done = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE
    ids = {
        name: f"00000000-0000-0000-0000-00000000000{i}" for i, name in enumerate(["runs", "was", "again", "unknown"])
    }
    for run_id in ids.values():
        lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/_ops/{run_id}/begin/result.lance")
    add_run(lake, ids["runs"], open_)
    add_run(lake, ids["was"], done)  # its re-execution is at work, and may load what it gave
    add_run(lake, ids["again"], open_, root_run_id=ids["was"], parent_run_id=ids["was"])
    found = clean(lake, LanceMaintenancePolicy(cleanup_older_than=NOW))
    assert (found["op_output_runs_removed"], found["op_output_runs_kept"]) == (0, 4)
    assert {name.split("/")[0] for name in outputs(lake)} == set(ids.values())


def test_outputs_of_a_killed_run_go_in_the_end(lake, monkeypatch):
    run_id = "00000000-0000-0000-0000-000000000001"
    lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/_ops/{run_id}/begin/result.lance")
    add_run(lake, run_id, dg.DagsterRunStatus.STARTED)
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW)
    monkeypatch.setattr(runs, "_now", lambda: datetime.now(UTC) + timedelta(hours=23))
    assert clean(lake, policy)["op_output_runs_kept"] == 1
    monkeypatch.setattr(runs, "_now", lambda: datetime.now(UTC) + timedelta(hours=25))
    assert clean(lake, policy)["op_output_runs_removed"] == 1


def test_what_a_killed_op_began_goes_with_its_run(lake):
    """Files without a version: of a run that ended, of one that the instance does not know, of one at work."""
    ended, at_work = make_outputs(lake), "00000000-0000-0000-0000-000000000001"
    add_run(lake, at_work, dg.DagsterRunStatus.STARTED)
    for run_id in (ended, at_work, "unknown"):
        lance_core.write_fragments(pa.table({"n": [1]}), f"{lake.root}/_ops/{run_id}/killed/result.lance")
    found = clean(lake, LanceMaintenancePolicy(cleanup_older_than=NOW), unknown_runs=True)
    assert (found["op_output_runs_removed"], found["op_output_tables_removed"]) == (1, 3)
    assert found["op_output_runs_kept"] == 2
    assert sorted(path.name for path in Path(f"{lake.root}/_ops").iterdir()) == [at_work, "unknown"]
    assert lance_core.list_tables(f"{lake.root}/_ops", unfinished=True) == [
        f"{run_id}/killed/result.lance" for run_id in (at_work, "unknown")
    ]
    assert outputs(lake) == []


def test_outputs_of_unknown_runs_go_by_their_own_age(lake):
    lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/_ops/who=20knows/begin/result.lance")
    assert clean(lake, LanceMaintenancePolicy(), unknown_runs=True)["op_output_runs_kept"] == 1
    assert (
        clean(lake, LanceMaintenancePolicy(cleanup_older_than=NOW), unknown_runs=True)["op_output_tables_removed"] == 1
    )
    assert outputs(lake) == []


def test_outputs_of_another_instance_stay(lake):
    """A run of an instance that shares the root, such as staging beside production."""
    other_run = "00000000-0000-0000-0000-000000000001"
    lance_core.write_dataset(pa.table({"n": [1]}), f"{lake.root}/_ops/{other_run}/begin/result.lance")
    make_outputs(lake)
    found = clean(lake, LanceMaintenancePolicy(cleanup_older_than=NOW))
    assert (found["op_output_runs_removed"], found["op_output_runs_kept"]) == (1, 1)
    assert outputs(lake) == [f"{other_run}/begin/result.lance"]


def test_only_a_run_that_began_and_has_not_ended_can_be_silent(lake):
    statuses = ["STARTED", "SUCCESS", "FAILURE", "CANCELED"]
    add_run(lake, "00000000-0000-0000-0000-000000000001", dg.DagsterRunStatus.STARTED)
    (begun,) = lake.instance.get_run_records()
    silent = []
    for status in statuses:
        run = begun.dagster_run.with_status(dg.DagsterRunStatus(status))
        record = SimpleNamespace(dagster_run=run, create_timestamp=begun.create_timestamp)
        silent += [status] if runs.is_silent(lake.instance, record, timedelta(0)) else []
    queued = SimpleNamespace(run_id=run.run_id, status=dg.DagsterRunStatus.QUEUED, is_finished=False)
    record = SimpleNamespace(dagster_run=queued, create_timestamp=begun.create_timestamp)
    assert not runs.is_silent(lake.instance, record, timedelta(0))
    assert silent == ["STARTED"]

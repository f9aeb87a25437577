"""A variable of the environment names the branch of every job, check, sensor and resource; main only if it names main."""

import json
import time
from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    BranchPolicy,
    LanceMaintenancePolicy,
    LanceTableResource,
    build_audited_job,
    build_branch_jobs,
    build_branch_sensor,
    build_change_type_job,
    build_erasure_job,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_lance_observation_sensor,
    build_lance_overdue_checks,
    build_maintenance_job,
    build_maintenance_sensor,
    build_undo_job,
)
from tests.lance_dagster.lake import QUIET, errors

ENV = {"branching": BranchPolicy.env("LANCE_BRANCH")}
BUSY = LanceMaintenancePolicy(cleanup_older_than=None, retain_versions=1, max_small_fragments=2, max_versions=3)


@dg.asset(metadata={"lance/write_mode": "append"})
def orders(context) -> pa.Table:
    return pa.table({"id": [int(context.run.tags.get("n", 0))]})


@dg.asset
def untouched() -> pa.Table:
    return pa.table({"id": [1]})


@pytest.fixture
def staging(lake, monkeypatch):
    """Five versions of small fragments on production's main, and five more on staging's branch."""
    monkeypatch.setenv("LANCE_BRANCH", "main")
    lake.run(untouched, **ENV)
    for n in range(5):
        lake.run(orders, tags={"n": str(n)}, **ENV)
    monkeypatch.setenv("LANCE_BRANCH", "staging")
    for n in range(5, 10):
        lake.run(orders, tags={"n": str(n)}, **ENV)
    return lake


def state(lake, name="orders", branch=None):
    """What a verb could change of a branch."""
    table = lake.table(name).checkout_version((branch, None))
    versions = [one["version"] for one in table.versions()]
    return versions, len(table.get_fragments()), sorted(table.to_table()["id"].to_pylist())


def branches(lake, name="orders"):
    return sorted(lake.table(name).branches.list())


def run(lake, job, *, assets=(orders, untouched), tags=None, config=None, op=None, fails=False):
    defs = dg.Definitions(assets=list(assets), jobs=[job], resources={"io_manager": lake.manager(**ENV)})
    run_config = {**QUIET, **({"ops": {op or f"{job.name}_op": {"config": config}}} if config else {})}
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags=tags, run_config=run_config, raise_on_error=False
    )
    assert result.success is not fails, errors(result)
    return result


def checked(lake, *checks):
    """The results of checks that run by themselves, by name."""
    defs = dg.Definitions([orders, untouched], asset_checks=list(checks), resources={"io_manager": lake.manager(**ENV)})
    job = dg.define_asset_job("checked", selection=dg.AssetSelection.checks(*checks))
    defs = dg.Definitions.merge(defs, dg.Definitions(jobs=[job]))
    result = defs.resolve_job_def("checked").execute_in_process(
        instance=lake.instance, run_config=QUIET, raise_on_error=False
    )
    return {one.check_name: one for one in result.get_asset_check_evaluations()}


class TestMaintenance:
    @pytest.mark.parametrize("root", [None, True])
    def test_it_keeps_the_branch_small_and_leaves_main(self, staging, root):
        main, others = state(staging), state(staging, "untouched")
        job = build_maintenance_job([orders, untouched], BUSY, root=root)
        result = run(staging, job)
        assert (state(staging), state(staging, "untouched")) == (main, others)
        assert branches(staging, "untouched") == []
        versions, fragments, rows = state(staging, branch="staging")
        assert (len(versions), fragments, rows) == (1, 1, list(range(10)))
        seen = [
            e.asset_observation_data.asset_observation for e in result.all_events if "OBSERVATION" in e.event_type_value
        ]
        (about,) = [one for one in seen if one.asset_key == orders.key]
        assert about.metadata["lance/branch"].value == "staging"
        assert staging.table("orders").branches.promote("staging").version == 6
        assert state(staging)[2] == list(range(10))

    def test_production(self, staging, monkeypatch):
        branch = state(staging, branch="staging")
        monkeypatch.setenv("LANCE_BRANCH", "main")
        run(staging, build_maintenance_job([orders], BUSY))
        assert state(staging)[1] == 1
        assert state(staging, branch="staging") == branch

    @pytest.mark.parametrize(("value", "said"), [(None, "is not set"), ("", "is empty"), ("auto", "name a branch")])
    def test_without_a_name(self, staging, monkeypatch, value, said):
        main = state(staging)
        monkeypatch.delenv("LANCE_BRANCH") if value is None else monkeypatch.setenv("LANCE_BRANCH", value)
        for job in (build_maintenance_job([orders], BUSY), build_change_type_job([orders])):
            config = {"column": "id", "type": "int32"} if job.name == "lance_change_type" else None
            assert said in errors(run(staging, job, config=config, fails=True))
        assert state(staging) == main

    def test_the_sensor(self, staging, monkeypatch):
        policy = replace(BUSY, max_versions=100)
        job = build_maintenance_job([orders, untouched], policy)

        def tick():
            sensor = build_maintenance_sensor(job, [orders, untouched], policy)
            with dg.build_sensor_context(
                instance=staging.instance, resources={"io_manager": staging.manager(**ENV)}
            ) as context:
                requests = getattr(sensor(context), "run_requests", None) or []
                return [json.loads(one.tags["lance/tables"]) for one in requests]

        assert tick() == [["orders"]]
        run(staging, job)
        assert tick() == []
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert tick() == [["orders"]]

    def test_a_dry_run(self, staging):
        before = state(staging), state(staging, branch="staging")
        run(staging, build_maintenance_job([orders], BUSY), config={"dry_run": True}, op="plan")
        assert (state(staging), state(staging, branch="staging")) == before

    def test_a_run_tag_names_the_branch(self, staging):
        """With a policy of tags, as for writes."""
        main = state(staging)
        job = build_maintenance_job([orders], BUSY)
        defs = dg.Definitions(
            [orders], jobs=[job], resources={"io_manager": staging.manager(branching=BranchPolicy.from_tag())}
        )
        assert (
            defs.resolve_job_def(job.name)
            .execute_in_process(instance=staging.instance, tags={"lance/branch": "staging"}, run_config=QUIET)
            .success
        )
        assert (state(staging), state(staging, branch="staging")[1]) == (main, 1)


class TestChecks:
    def test_health(self, staging, monkeypatch):
        run(staging, build_maintenance_job([orders], BUSY))
        checks = build_lance_health_checks([orders, untouched], BUSY)
        good = checked(staging, *checks)
        assert good["lance_small_fragments"].passed
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert not checked(staging, *build_lance_health_checks([orders], BUSY))["lance_small_fragments"].passed

    def test_integrity(self, staging):
        found = checked(staging, *build_lance_integrity_checks([orders]))
        assert found["lance_integrity"].metadata["lance/rows"].value == 10

    def test_overdue(self, staging, monkeypatch):
        check = build_lance_overdue_checks([orders], "1h")
        run(staging, build_maintenance_job([orders], BUSY))
        assert checked(staging, *check)["lance_maintenance_overdue"].passed
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert not checked(staging, *build_lance_overdue_checks([orders], "1h"))["lance_maintenance_overdue"].passed


class TestJobs:
    def test_an_erasure_is_of_the_whole_table(self, staging, monkeypatch):
        before = state(staging), state(staging, branch="staging")
        config = {"where": {"plain": "id = 1"}}
        said = errors(run(staging, build_erasure_job([orders]), config=config, fails=True))
        assert "environment variable LANCE_BRANCH is staging" in said
        assert "LANCE_BRANCH=main" in said
        assert (state(staging), state(staging, branch="staging")) == before
        run(staging, build_erasure_job([orders]), config={**config, "dry_run": True, "release_branches": True})
        assert (state(staging), state(staging, branch="staging")) == before
        monkeypatch.setenv("LANCE_BRANCH", "main")
        staging.table("orders").branches.discard("staging")
        run(staging, build_erasure_job([orders]), config=config)
        assert 1 not in state(staging)[2]

    def test_an_undo_changes_the_branch_alone(self, staging, monkeypatch):
        runs = [one.run_id for one in staging.instance.get_runs()][::-1]
        main = state(staging)
        on_main, on_branch = runs[5], runs[-1]
        result = run(staging, build_undo_job([orders]), config={"run_id": on_branch})
        assert (state(staging), state(staging, branch="staging")[2]) == (main, list(range(9)))
        tags = staging.instance.get_run_by_id(result.run_id).tags
        assert (tags.get("lance/branch"), tags.get("lance/publishes")) == ("staging", None)
        said = errors(run(staging, build_undo_job([orders]), config={"run_id": on_main}, fails=True))
        assert "changed no rows" in said or "no run" in said
        assert state(staging) == main
        monkeypatch.setenv("LANCE_BRANCH", "main")
        result = run(staging, build_undo_job([orders]), config={"run_id": on_main})
        assert state(staging)[2] == [0, 1, 2, 3]
        assert staging.instance.get_run_by_id(result.run_id).tags["lance/publishes"] == "true"

    def test_a_change_of_a_type(self, staging):
        main = state(staging)
        result = run(staging, build_change_type_job([orders]), config={"column": "id", "type": "int32"})
        assert state(staging) == main
        assert staging.table("orders").schema.field("id").type == pa.int64()
        branch = staging.table("orders").checkout_version(("staging", None))
        assert branch.schema.field("id").type == pa.int32()
        (seen,) = [e.asset_observation_data for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]
        assert seen.asset_observation.metadata["lance/branch"].value == "staging"

    def test_a_write_audit_publish_job_publishes_to_main(self, staging, monkeypatch):
        @dg.asset_check(asset=orders, blocking=True)
        def fine(orders: pa.Table) -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=orders.num_rows > 0)

        main = state(staging)
        job = build_audited_job([orders, fine], name="audited", resources={"io_manager": staging.manager(**ENV)})
        defs = dg.Definitions(
            [orders], asset_checks=[fine], jobs=[job], resources={"io_manager": staging.manager(**ENV)}
        )
        result = defs.resolve_job_def("audited").execute_in_process(
            instance=staging.instance, run_config=QUIET, raise_on_error=False
        )
        assert "a write-audit-publish job publishes to main" in errors(result)
        assert (state(staging), branches(staging)) == (main, ["staging"])
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert defs.resolve_job_def("audited").execute_in_process(instance=staging.instance, run_config=QUIET).success
        assert len(state(staging)[2]) == 6

    def test_branches_of_production_are_left_alone(self, staging, monkeypatch):
        staging.table("orders").create_branch("dagster/backfill/b7")
        promote, discard = build_branch_jobs([orders])
        for job in (promote, discard):
            said = errors(run(staging, job, tags={"lance/branch": "dagster/backfill/b7"}, fails=True))
            assert "environment variable LANCE_BRANCH is staging" in said
        assert branches(staging) == ["dagster/backfill/b7", "staging"]

        def tick():
            sensor = build_branch_sensor([orders], (promote, discard), ttl=timedelta(0))
            with dg.build_sensor_context(
                instance=staging.instance, resources={"io_manager": staging.manager(**ENV)}
            ) as context:
                return sorted(one.tags["lance/branch"] for one in sensor(context).run_requests)

        assert tick() == ["staging"]
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert tick() == ["dagster/backfill/b7", "staging"]
        run(staging, discard, tags={"lance/branch": "staging"})
        assert branches(staging) == ["dagster/backfill/b7"]


class TestOutsideOfRuns:
    def test_the_observation_sensor(self, staging, monkeypatch):
        lance_core.write_dataset(pa.table({"id": [77]}), staging.uri("orders"), mode="append")
        staging.table("orders").checkout_version(("staging", None)).insert(pa.table({"id": [78]}))

        def seen():
            sensor = build_lance_observation_sensor([orders])
            with dg.build_sensor_context(
                instance=staging.instance, resources={"io_manager": staging.manager(**ENV)}
            ) as context:
                return [one.metadata["dagster/row_count"].value for one in sensor(context).asset_events]

        assert seen() == [11]
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert seen() == [6]

    def test_a_resource(self, staging, monkeypatch):
        lake = LanceTableResource(root_uri=staging.root, **ENV)
        assert lake.open("public/orders").count_rows() == 10
        assert lake.uri("public/orders").endswith("tree/staging")
        assert lake.open("public/untouched").branch is None
        monkeypatch.setenv("LANCE_BRANCH", "main")
        assert lake.open("public/orders").count_rows() == 5
        monkeypatch.delenv("LANCE_BRANCH")
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="LANCE_BRANCH is not set"):
            lake.open("public/orders")

    def test_op_outputs_of_other_instances_are_kept(self, staging, monkeypatch):
        folder = f"{staging.root}/_ops/5c7d3e0a-0000-4000-8000-000000000000/op/result.lance"
        lance_core.write_dataset(pa.table({"a": [1]}), folder)
        time.sleep(1.1)
        job = build_maintenance_job([orders], LanceMaintenancePolicy(cleanup_older_than="1s"))
        run(staging, job)
        assert lance_core.dataset(folder).count_rows() == 1
        monkeypatch.setenv("LANCE_BRANCH", "main")
        run(staging, job)
        assert lance_core.dataset(folder).count_rows() == 1
        policy = LanceMaintenancePolicy(cleanup_older_than="1s")
        run(staging, build_maintenance_job([orders], policy, unknown_runs=True))
        assert lance_core.list_tables(f"{staging.root}/_ops") == []

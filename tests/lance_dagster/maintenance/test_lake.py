"""Maintenance of whole roots: whatever table lies there, each once, each with the policy of its place."""

import shutil
from datetime import timedelta
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_core.maintenance.routine import steps
from lance_core.store.s3_client import S3Client
from lance_dagster import (
    LanceMaintenancePolicy,
    build_lance_health_checks,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
    lance_external_assets,
)
from lance_dagster.components import LanceMaintenanceComponent
from tests.lance_dagster.lake import QUIET, Lake
from tests.lance_dagster.maintenance.test_maintenance import failures, fill, flights, observations, run


@pytest.fixture
def run_with(monkeypatch, lake):
    """Run a job as the daemon does: a run in the process of a test does not know its code location."""

    def run_in_location(job, assets):
        repository = dg.Definitions(assets=assets, resources={"io_manager": lake.manager()}).get_repository_def()
        monkeypatch.setattr(dg.OpExecutionContext, "repository_def", repository)
        return run(lake, job, assets=assets)

    return run_in_location


ROWS = pa.table({"n": [0, 1]})


def fragments(lake, path):
    """The fragments of a table as pylance reads them."""
    uri = f"{lake.root}/{path}.lance"
    return len(lance.dataset(uri, storage_options=lake.storage_options or None).get_fragments())


def fill_foreign(lake, path, pieces=6):
    for _ in range(pieces):
        uri = f"{lake.root}/{path}.lance"
        lance.write_dataset(ROWS, uri, mode="append", storage_options=lake.storage_options or None)


def test_all_tables_below_the_root_whoever_wrote_them(lake):
    fill(lake, "nyc/flights")
    fill_foreign(lake, "sea/far/ships")
    fill_foreign(lake, "top level")
    job = build_maintenance_job([flights], root=True)
    result = run(lake, job, assets=[flights])
    assert result.success, failures(result)
    assert [fragments(lake, path) for path in ("nyc/flights", "sea/far/ships", "top level")] == [1, 1, 1]
    assert result.output_for_node("summarize")["done"] == ["nyc/flights", "sea/far/ships", "top level"]
    assert set(observations(result)) == {"nyc/flights", "sea/far/ships", "top level"}
    fill_foreign(lake, "new/tomorrow")
    result = run(lake, job, assets=[flights])
    assert result.output_for_node("summarize")["done"] == ["new/tomorrow"]
    assert result.output_for_node("summarize")["healthy"] == ["nyc/flights", "sea/far/ships", "top level"]


def test_a_root_by_its_uri_with_another_resource(lake, tmp_path):
    other = Lake(root=str(tmp_path / "other"), instance=lake.instance)
    fill_foreign(other, "sea/ships")
    fill(lake, "nyc/flights")
    assert run(lake, build_maintenance_job(root=other.root)).success
    assert [fragments(other, "sea/ships"), fragments(lake, "nyc/flights")] == [1, 6]


def test_an_asset_is_done_once_under_its_own_name_and_with_its_metadata(lake, run_with):
    placed = dg.AssetSpec("boats", metadata={"schema": "sea", "table": "ships", "lance/maintenance": False})

    @dg.asset(metadata={"lance/maintenance": {"target_rows_per_fragment": 2}})
    def orders() -> pa.Table:
        return ROWS

    for name in ("sea/ships", "public/orders", "nyc/flights"):
        fill(lake, name)
    job = build_maintenance_job([flights, "nyc/flights"], root=True)
    result = run_with(job, [flights, placed, orders])
    assert result.success
    found = result.output_for_node("summarize")
    assert (found["done"], found["healthy"], found["left_alone"]) == (["nyc/flights"], ["orders"], ["boats"])
    assert fragments(lake, "sea/ships") == 6


def test_a_table_that_shares_the_name_of_an_asset_elsewhere_keeps_apart(lake, run_with):
    placed = dg.AssetSpec(["sea", "ships"], metadata={"schema": "nyc", "table": "flights"})
    fill(lake, "nyc/flights")
    fill_foreign(lake, "sea/ships")
    result = run_with(build_maintenance_job(root=True), [placed])
    assert result.output_for_node("summarize")["done"] == ["sea/ships", "sea/ships.lance"]
    assert [fragments(lake, "nyc/flights"), fragments(lake, "sea/ships")] == [1, 1]


def test_a_healthy_asset_is_observed_again_when_its_facts_change(lake, run_with):
    fill(lake, "nyc/flights", fragments=1)
    job = build_maintenance_job([flights], root=True)
    observed = [run_with(job, [flights]) for _ in range(2)]
    assert ["nyc/flights" in observations(one) for one in observed] == [True, False]
    assert observed[1].output_for_node("summarize")["healthy"] == ["nyc/flights"]
    lance.write_dataset(ROWS, lake.uri("nyc/flights"), mode="overwrite")
    assert observations(run_with(job, [flights]))["nyc/flights"]["lance/version"] == 2
    assert not observations(run_with(job, [flights]))
    lake.instance.report_runless_asset_event(dg.AssetObservation(["nyc", "flights"], metadata={"from": "elsewhere"}))
    assert set(observations(run_with(job, [flights]))) == {"nyc/flights"}
    asked = run(lake, job, {"ops": {"plan": {"config": {"tables": ["nyc/flights"]}}}}, assets=[flights])
    assert set(observations(asked)) == {"nyc/flights"}  # the sensor looks for it in the run that it asked for


def test_a_table_that_a_link_leads_to_is_done_once(lake):
    fill_foreign(lake, "b/ships")
    Path(lake.root, "a.lance").symlink_to(Path(lake.root, "b/ships.lance"))
    Path(lake.root, "c").symlink_to(Path(lake.root, "b"))
    result = run(lake, build_maintenance_job(root=True))
    found = result.output_for_node("summarize")
    assert (found["done"], found["healthy"]) == (["b/ships"], [])
    log = lance.dataset(f"{lake.root}/_maintenance/log.lance").to_table(filter="step = 'table'")
    assert log["table"].to_pylist() == ["b/ships"]


def test_globs_choose_tables(lake):
    paths = ["nyc/flights", "nyc/tmp/a", "sea/ships", "top"]
    for path in paths:
        fill_foreign(lake, path)
    job = build_maintenance_job(root=True, include=["nyc/*", "t*.lance"], exclude="*/tmp/*")
    assert run(lake, job).success
    assert [fragments(lake, path) for path in paths] == [1, 6, 6, 1]


def test_a_glob_that_chooses_nothing_is_named(lake):
    fill_foreign(lake, "nyc/flights")
    result = run(lake, build_maintenance_job(root=True, include=["nyc/*", "nyc"]))
    said = [event.user_message or "" for event in lake.instance.all_logs(result.run_id)]
    assert [one for one in said if "matches no table" in one] == [
        "include 'nyc' matches no table below the root; 'a/*' matches the tables in folder a"
    ]


def test_policies_go_from_the_outside_in(lake, run_with):
    for path in ("a/one", "a/b/two", "a/b/three", "a/b/four", "c/five", "c/six"):
        fill_foreign(lake, path)
    policies = {
        "a": {"target_rows_per_fragment": 4},
        "a/b": {"target_rows_per_fragment": 6},
        "a/b/two": LanceMaintenancePolicy(target_rows_per_fragment=2),
        "c": False,
        "/c/six.lance": True,
        "nobody": {},
    }
    four = dg.AssetSpec(["a", "b", "four"], metadata={"lance/maintenance": {"target_rows_per_fragment": 100}})
    job = build_maintenance_job(root=True, policies=policies)
    result = run_with(job, [four])
    assert result.success
    found = {path: fragments(lake, path) for path in ("a/one", "a/b/two", "a/b/three", "a/b/four", "c/five", "c/six")}
    assert found == {"a/one": 3, "a/b/two": 6, "a/b/three": 2, "a/b/four": 1, "c/five": 6, "c/six": 1}
    assert any("'nobody'" in (event.user_message or "") for event in lake.instance.all_logs(result.run_id))


def test_a_broken_one_is_named_and_the_others_are_finished(lake):
    fill_foreign(lake, "nyc/flights")
    fill_foreign(lake, "nyc/broken")
    for manifest in Path(lake.root, "nyc/broken.lance/_versions").iterdir():
        manifest.write_bytes(b"nothing")
    result = run(lake, build_maintenance_job(root=True))
    assert not result.success
    assert fragments(lake, "nyc/flights") == 1
    assert "nyc/broken: plan:" in failures(result)["summarize"]


@pytest.mark.parametrize("step", ["run_here", "materialize_deletions", "clean_up"])
def test_one_that_is_dropped_during_the_run_is_no_failure(lake, monkeypatch, step):
    fill_foreign(lake, "nyc/flights")
    fill_foreign(lake, "sea/doomed")
    real = getattr(steps, step)

    def dropped(dataset, *given, **options):
        if dataset.uri.endswith("doomed.lance"):
            shutil.rmtree(f"{lake.root}/sea/doomed.lance", ignore_errors=True)
        return real(dataset, *given, **options)

    monkeypatch.setattr(steps, step, dropped)
    result = run(lake, build_maintenance_job(root=True, policy=LanceMaintenancePolicy(retain_versions=1)))
    assert result.success, failures(result)
    found = result.output_for_node("summarize")
    assert (found["done"], found["failed"]) == (["nyc/flights"], {})
    assert (found["absent"], list(found["partly_done"])) == (
        (["sea/doomed"], []) if step == "run_here" else ([], ["sea/doomed"])
    )


def test_one_run_for_some_tables(lake):
    fill_foreign(lake, "nyc/flights")
    fill_foreign(lake, "nyc/ships")
    job = build_maintenance_job(root=True)
    assert run(lake, job, {"ops": {"plan": {"config": {"tables": ["nyc/ships"]}}}}).success
    assert [fragments(lake, "nyc/flights"), fragments(lake, "nyc/ships")] == [6, 1]
    result = run(lake, job, {"ops": {"plan": {"config": {"tables": ["nyc/none"]}}}})
    assert "nyc/none: no table of this job; it has nyc/flights, nyc/ships" in failures(result)["plan"]


def test_arguments_that_mean_nothing_are_rejected():
    rejected = dg.DagsterInvalidDefinitionError
    with pytest.raises(rejected, match="include choose among the tables below a root, and there is none"):
        build_maintenance_job(["t"], include="a/*")
    with pytest.raises(rejected, match=r"neither tables nor a root; pass assets, or root=True"):
        build_maintenance_job()
    with pytest.raises(rejected, match=r"policies\['nyc'\].*'retain' is not a field"):
        build_maintenance_job(root=True, policies={"nyc": {"retain": 3}})
    with pytest.raises(rejected, match="root_uri is empty"):
        build_maintenance_job(root="")
    with pytest.raises(rejected, match="lists no tables below a root"):
        build_maintenance_sensor(build_maintenance_job(["t"]), root=True)
    with pytest.raises(ValueError, match="jitter cannot spread them"):
        build_maintenance_schedule(build_maintenance_job(root=True), jitter=timedelta(minutes=5))


class TestSensor:
    def tick(self, lake, sensor, cursor=None):
        resources = {"io_manager": lake.manager()}
        with dg.build_sensor_context(instance=lake.instance, cursor=cursor, resources=resources) as context:
            return sensor(context)

    def test_it_asks_for_those_that_need_it_and_waits_for_open_runs(self, lake):
        fill_foreign(lake, "nyc/flights")
        fill_foreign(lake, "nyc/healthy", pieces=1)
        job = build_maintenance_job(root=True)
        sensor = build_maintenance_sensor(job, root=True)
        tick = self.tick(lake, sensor)
        (request,) = tick.run_requests
        assert request.run_config == {"ops": {"plan": {"config": {"tables": ["nyc/flights"]}}}}
        fill_foreign(lake, "sea/ships")
        tick = self.tick(lake, sensor, tick.cursor)
        assert [one.run_config["ops"]["plan"]["config"]["tables"] for one in tick.run_requests] == [["sea/ships"]]
        resolved = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()}).resolve_job_def(job.name)
        lake.instance.create_run_for_job(resolved, status=dg.DagsterRunStatus.STARTED)  # of all tables
        fill_foreign(lake, "sea/boats")
        assert isinstance(self.tick(lake, sensor, tick.cursor), dg.SkipReason)


class TestS3:
    @pytest.fixture
    def remote(self, s3):
        with dg.DagsterInstance.ephemeral() as instance:
            yield Lake(root=f"s3://{s3.new_bucket()}/lake", instance=instance, storage_options=s3.storage_options)

    def test_a_healthy_table_costs_three_requests(self, remote, monkeypatch):
        for number in range(20):
            fill_foreign(remote, f"a/t{number}", pieces=1 + number % 3)
        real, made = S3Client._once, []

        async def request_once(self, method, parameters):
            made.append(method)
            return await real(self, method, parameters)

        job = build_maintenance_job(root=True)
        run(remote, job)  # proves conditional puts, once for a process
        monkeypatch.setattr(S3Client, "_once", request_once)
        result = run(remote, job)
        assert len(result.output_for_node("summarize")["healthy"]) == 20
        assert len(made) <= 3 * 20
        assert made.count("get_object") <= 2 * 20

    def test_fragments_become_one(self, remote):
        fill_foreign(remote, "nyc/flights")
        assert run(remote, build_maintenance_job(root=True)).success
        assert fragments(remote, "nyc/flights") == 1


class TestCatalogue:
    def test_undeclared_tables_are_external_assets_that_a_job_of_the_root_maintains(self, lake, run_with):
        fill(lake, "nyc/flights")
        fill_foreign(lake, "sea/ships")
        fill_foreign(lake, "tmp/a")
        specs = lance_external_assets(lake.root, exclude="tmp/*", known=[flights], group_name="sea")
        assert [(spec.key.path, spec.group_name) for spec in specs] == [(["sea", "ships"], "sea")]
        assert specs[0].metadata["dagster/uri"] == f"{lake.root}/sea/ships.lance"
        result = run_with(build_maintenance_job(root=True), [flights, *specs])
        assert result.output_for_node("summarize")["done"] == ["nyc/flights", "sea/ships", "tmp/a"]
        fill_foreign(lake, "sea/ships")
        assert run_with(build_maintenance_job(specs), [flights, *specs]).success
        assert fragments(lake, "sea/ships") == 7  # named as an asset it is that of others

    def test_its_inputs_are_loaded_from_where_it_is(self, lake):
        fill_foreign(lake, "sea/ships", pieces=1)

        @dg.asset(ins={"ships": dg.AssetIn(["sea", "ships"])})
        def report(ships: pa.Table) -> pa.Table:
            return ships

        specs = lance_external_assets(lake.root)
        lake.run(*specs, report, select=[report])
        assert lake.rows("report") == [(0,), (1,)]

    def test_health_checks_of_a_root(self, lake):
        fill_foreign(lake, "sea/ships")
        fill(lake, "nyc/flights", fragments=1)
        checks = build_lance_health_checks([flights], root=lake.root, include=["sea/*", "nyc/*"])
        keys = {(key.asset_key.to_user_string(), key.name) for check in checks for key in check.check_keys}
        assert {asset for asset, _ in keys} == {"nyc/flights", "sea/ships"}
        assert len(keys) == 8
        defs = dg.Definitions(
            assets=[flights, *lance_external_assets(lake.root, known=[flights])],
            asset_checks=checks,
            jobs=[dg.define_asset_job("check", dg.AssetSelection.all_asset_checks())],
            resources={"io_manager": lake.manager()},
        )
        result = defs.resolve_job_def("check").execute_in_process(instance=lake.instance, run_config=QUIET)
        failed = {
            (one.asset_key.to_user_string(), one.check_name)
            for one in result.get_asset_check_evaluations()
            if not one.passed
        }
        assert failed == {("sea/ships", "lance_small_fragments")}

    def test_a_component_of_a_root(self, lake):
        fill_foreign(lake, "sea/ships")
        fill_foreign(lake, "tmp/a")
        text = (
            "root: true\nexclude: ['tmp/*']\npolicies:\n  sea: {cleanup_older_than: 30d}\nmaintenance: {sensor: true}"
        )
        made = LanceMaintenanceComponent.resolve_from_yaml(text).build_defs(None)
        assert [sensor.name for sensor in made.sensors] == ["lance_maintenance_sensor"]
        defs = dg.Definitions(jobs=made.jobs, resources={"io_manager": lake.manager()})
        job = defs.resolve_job_def("lance_maintenance")
        assert job.execute_in_process(instance=lake.instance, run_config=QUIET).success
        assert [fragments(lake, "sea/ships"), fragments(lake, "tmp/a")] == [1, 6]

    def test_a_component_with_a_budget(self, lake):
        for path in ("sea/ships", "sea/boats"):
            fill_foreign(lake, path)
        text = "root: true\nmaintenance: {budget: {max_tables: 1, max_duration: 2h}, delete_rate_limit: 100}"
        made = LanceMaintenanceComponent.resolve_from_yaml(text).build_defs(None)
        job = dg.Definitions(jobs=made.jobs, resources={"io_manager": lake.manager()}).resolve_job_def(
            "lance_maintenance"
        )
        result = job.execute_in_process(instance=lake.instance, run_config=QUIET)
        assert list(result.output_for_node("summarize")["put_off"].values()) == ["max_tables: 1 tables come first"]
        wrong = "root: true\nmaintenance: {budget: {max_tables: 0}}"
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="max_tables must be a positive number"):
            LanceMaintenanceComponent.resolve_from_yaml(wrong).build_defs(None)

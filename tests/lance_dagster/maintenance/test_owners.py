"""Tables of assets that a run of maintenance does not know: their own commits name the owner and what it wants."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job, build_maintenance_sensor
from lance_dagster._context.runs import find_observations
from tests.lance_dagster.lake import errors
from tests.lance_dagster.maintenance.test_lake import fill_foreign
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, observations, run

PARTS = dg.StaticPartitionsDefinition(["a", "b"])


def asset(key, **metadata):
    @dg.asset(key=key.split("/"), metadata={"lance/write_mode": "append", **metadata})
    def made() -> pa.Table:
        return pa.table({"n": [1]})

    return made


def write(lake, made, times=6):
    for _ in range(times):
        lake.run(made)


def summary(result):
    assert result.success, failures(result)
    return result.output_for_node("summarize")


@pytest.mark.parametrize("given", [{"root": True}, {"tables": ["public/events"]}])
def test_the_asset_writes_after_maintenance_by_a_location_without_it(lake, given):
    events = asset("events")
    write(lake, events)
    result = run(lake, build_maintenance_job(**given))
    assert summary(result)["done"] == ["public/events"]
    assert {one["dagster.asset_key"] for one in lake.properties("events")} == {"events"}
    assert set(observations(result)) == {"events"}
    assert observations(result)["events"]["lance/maintained"] == "public/events"
    write(lake, events, 1)
    assert len(lake.rows("events")) == 7


def test_a_dry_run_observes_the_asset(lake):
    write(lake, asset("events"))
    write(lake, asset("healthy"), 1)
    result = run(lake, build_maintenance_job(root=True), {"ops": {"plan": {"config": {"dry_run": True}}}})
    assert summary(result)["dry_run"] == ["public/healthy", "public/events"]
    assert set(observations(result)) == {"events"}


def test_a_table_that_no_asset_wrote_has_no_owner(lake):
    fill_foreign(lake, "sea/ships")
    result = run(lake, build_maintenance_job(root=True))
    assert set(observations(result)) == {"sea/ships"}
    assert not any("dagster.asset_key" in one for one in lake.properties("sea/ships"))
    lake.run(asset("boats", schema="sea", table="ships", **{"lance/write_mode": "overwrite"}))


def test_a_commit_of_maintenance_with_a_wrong_key_is_passed_over(lake):
    events = asset("events")
    write(lake, events, 2)
    wrong = {"dagster.asset_key": "public/events", "dagster.maintenance": "true"}
    table = lake.table("events")
    lance_core.LanceDataset.commit(
        table,
        lance_core.Transaction(
            read_version=table.version,
            operation=lance_core.LanceOperation.UpdateConfig(),
            transaction_properties=wrong,
        ),
    )
    write(lake, events, 1)
    assert len(lake.rows("events")) == 3


def test_the_owner_stays_where_its_own_commits_are_cleaned_up(lake):
    events = asset("events", **{"lance/maintenance": {"target_rows_per_fragment": 1000}})
    write(lake, events)
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW, retain_versions=1)
    lake.instance.wipe_assets([events.key])  # no event keeps a version
    assert summary(run(lake, build_maintenance_job(root=True, policy=policy)))["done"] == ["public/events"]
    (left,) = lake.properties("events")
    assert left["dagster.maintenance"] == "true"
    assert left["dagster.maintenance_metadata"] == '{"target_rows_per_fragment": 1000}'
    other = asset("other", schema="public", table="events")
    assert "belongs to asset events" in errors(lake.run(other, fails=True))
    write(lake, events, 1)
    assert len(lake.rows("events")) == 7


def test_the_wishes_of_the_owner_count(lake):
    write(lake, asset("archive", **{"lance/maintenance": False}))
    write(lake, asset("small", **{"lance/maintenance": {"target_rows_per_fragment": 2}}))
    whole = LanceMaintenancePolicy(target_rows_per_fragment=3)
    write(lake, asset("whole", **{"lance/maintenance": whole}))
    before = lake.table("archive").version
    job = build_maintenance_job(root=True)
    found = summary(run(lake, job))
    assert (found["left_alone"], found["done"]) == (["public/archive"], ["public/small", "public/whole"])
    assert lake.table("archive").version == before
    assert [len(lake.table(name).get_fragments()) for name in ("small", "whole")] == [3, 2]


def test_a_sensor_does_not_ask_for_a_table_whose_owner_wants_it_left_alone(lake):
    write(lake, asset("archive", **{"lance/maintenance": False}))
    write(lake, asset("events"))
    job = build_maintenance_job(root=True)
    sensor = build_maintenance_sensor(job, root=True)
    with dg.build_sensor_context(instance=lake.instance, resources={"io_manager": lake.manager()}) as context:
        (request,) = sensor(context).run_requests
    assert request.run_config == {"ops": {"plan": {"config": {"tables": ["public/events"]}}}}


def test_what_a_run_finished_is_known_by_the_name_of_the_table(lake):
    write(lake, asset("events"))
    result = run(lake, build_maintenance_job(root=True))
    assert set(find_observations(lake.instance, result.run_id)) == {"public/events"}


@pytest.mark.parametrize("read", ["latest", "materialized"])
def test_versions_that_events_of_the_owner_name_are_kept(lake, read):
    @dg.asset(metadata={"partition_expr": "day"}, partitions_def=PARTS)
    def events(context) -> pa.Table:
        return pa.table({"day": [context.partition_key], "n": [1]})

    @dg.asset(metadata={"partition_expr": "day"}, partitions_def=PARTS)
    def down(events: pa.Table) -> pa.Table:
        return events

    for day in ("a", "b", "b", "b"):
        lake.run(events, partition=day)
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW, retain_versions=1, max_small_fragments=1)
    job = build_maintenance_job(root=True, policy=policy)
    assert summary(run(lake, job, resources={"io_manager": lake.manager(read=read)}))["done"] == ["public/events"]
    kept = {one["version"] for one in lake.table("events").versions()}
    assert {1, 4} <= kept
    lake.run(events, down, select=[down], partition="a", read="materialized")
    assert lake.rows("down") == [("a", 1)]

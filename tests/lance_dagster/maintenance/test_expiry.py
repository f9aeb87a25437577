"""Rows expire in a maintenance job: partitions that have no rows any more say so, and nothing downstream moves."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import LanceMaintenancePolicy, build_lance_freshness_checks, build_maintenance_job
from tests.lance_dagster.lake import QUIET

TODAY = dt.datetime.now(dt.UTC).date()
OLD, MIXED, YOUNG = (str(TODAY - dt.timedelta(days=days)) for days in (500, 402, 20))
PARTITIONS = dg.DailyPartitionsDefinition(start_date=str(TODAY - dt.timedelta(days=600)))
POLICY = LanceMaintenancePolicy(expire_rows_older_than="400d", expire_by="day")


@dg.asset(
    key_prefix="shop", partitions_def=PARTITIONS, metadata={"partition_expr": "day", "lance/stable_row_ids": True}
)
def orders(context) -> pa.Table:
    day = dt.date.fromisoformat(context.partition_key)
    return pa.table({"id": [1, 2], "day": pa.array([day] * 2)})


@dg.asset(
    key_prefix="shop", partitions_def=PARTITIONS, metadata={"partition_expr": "day", "lance/out_of_partition": "allow"}
)
def visits(context) -> pa.Table:
    """A partition of which one row is dated later than its key, by another column."""
    day = dt.date.fromisoformat(context.partition_key)
    seen = [day, TODAY] if context.partition_key == MIXED else [day, day]
    return pa.table({"id": [1, 2], "day": pa.array([day] * 2), "seen": pa.array(seen)})


@dg.asset(ins={"orders": dg.AssetIn(["shop", "orders"])}, automation_condition=dg.AutomationCondition.eager())
def late(orders: pa.Table) -> pa.Table:
    return orders


def fill(lake, asset):
    for day in (OLD, MIXED, YOUNG):
        lake.run(asset, partition=day)


def run(lake, job, *assets, config=None):
    defs = dg.Definitions(assets=list(assets), jobs=[job], resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config={**QUIET, **(config or {})}, raise_on_error=False
    )
    events = [e.asset_observation_data.asset_observation for e in result.all_events if e.is_asset_observation]
    assert not result.get_asset_materialization_events()
    return result, events


def entries(observation):
    return {key: entry.value for key, entry in observation.metadata.items()}


@pytest.mark.parametrize("by_root", [False, True])
def test_partitions_that_are_empty_say_so(lake, by_root):
    fill(lake, orders)
    job = build_maintenance_job([orders], POLICY, root=by_root or None)
    result, events = run(lake, job, orders)
    assert result.success
    assert lance.dataset(lake.uri("shop/orders")).to_table()["day"].unique().to_pylist() == [
        dt.date.fromisoformat(YOUNG)
    ]
    whole = entries(next(event for event in events if event.partition is None))
    assert (whole["lance/maintenance"], whole["lance/rows_expired"]) == ("done", 4)
    assert whole["lance/expired_partitions"] == {"shop/orders": [OLD, MIXED]}
    parts = {event.partition: entries(event) for event in events if event.partition is not None}
    assert sorted(parts) == [OLD, MIXED]
    for part in parts.values():
        assert (part["lance/maintenance"], part["dagster/partition_row_count"]) == ("expired", 0)
    version = next(
        v["version"] for v in lake.table("shop/orders").versions() if v["version"] == parts[OLD]["lance/version"]
    )
    assert lake.table("shop/orders").read_transaction(version).operation.name == "Delete"
    again, events = run(lake, job, orders)
    assert [entries(event)["lance/maintenance"] for event in events] == ["healthy"]
    assert "lance/expired_partitions" not in entries(events[0])
    assert again.success


def test_partitions_that_keep_rows_say_nothing(lake):
    fill(lake, visits)
    job = build_maintenance_job([visits], POLICY.changed({"expire_by": "seen"}, where="test"))
    result, events = run(lake, job, visits)
    assert result.success
    assert entries(events[0])["lance/expired_partitions"] == {"shop/visits": [OLD]}
    assert [event.partition for event in events[1:]] == [OLD]


def test_dry_run_of_one_run_and_its_configuration(lake):
    fill(lake, orders)
    job, policy = build_maintenance_job([orders]), {"expire_rows_older_than": "400d", "expire_by": "day"}
    version = lake.table("shop/orders").version
    config = {"ops": {"plan": {"config": {"dry_run": True, "policy": policy}}}}
    result, events = run(lake, job, orders, config=config)
    assert result.success
    assert (entries(events[0])["lance/maintenance"], entries(events[0])["lance/rows_expired"]) == ("dry run", 4)
    assert lake.table("shop/orders").version == version
    config["ops"]["plan"]["config"]["dry_run"] = False
    result, events = run(lake, job, orders, config=config)
    assert entries(events[0])["lance/rows_expired"] == 4
    del policy["expire_by"]
    result, events = run(lake, job, orders, config=config)
    assert not result.success


def test_a_column_of_strings_is_rejected(lake):
    @dg.asset(key_prefix="shop", metadata={"lance/maintenance": {"expire_by": "kind", "expire_rows_older_than": "1d"}})
    def words() -> pa.Table:
        return pa.table({"kind": ["a"], "at": pa.array([TODAY])})

    lake.run(words)
    result, _ = run(lake, build_maintenance_job([words]), words)
    assert not result.success
    failed = "".join(event.event_specific_data.error.message for event in result.all_events if event.is_step_failure)
    assert "expire_by 'kind' is a column of type string, which has no order of time" in failed
    assert lake.table("shop/words").version == 1


def test_expiry_is_no_news(lake):
    """A table is as fresh as its last write, and the commit does not claim that all rows are the same."""

    @dg.asset(metadata={"lance/maintenance": {"expire_by": "day", "expire_rows_older_than": "1d"}})
    def days() -> pa.Table:
        return pa.table({"day": pa.array([TODAY, TODAY - dt.timedelta(days=9)])})

    def freshest():
        result = lake.run(days, *checks, select=dg.AssetSelection.checks_for_assets(days))
        (check,) = result.get_asset_check_evaluations()
        return check.passed, check.metadata["lance/version"].value

    checks = build_lance_freshness_checks(days, "1d")
    lake.run(days)
    result, events = run(lake, build_maintenance_job([days]), days)
    assert entries(events[0])["lance/rows_expired"] == 1
    assert lake.table("days").version > 1
    expired = lake.properties("days")[1]
    assert expired["dagster.run_id"] == result.run_id
    assert "dagster.data_version" not in expired
    assert freshest() == (True, 1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"expire_rows_older_than": "400d"},
            "expire_rows_older_than and expire_by go together: give expire_by as well",
        ),
        ({"expire_by": "day"}, "give expire_rows_older_than as well"),
        ({"expire_rows_older_than": "400d", "expire_by": ""}, "expire_by must be a name or None, not ''"),
        ({"expire_rows_older_than": "often", "expire_by": "day"}, "'often' is not a duration"),
    ],
)
def test_policies_that_are_rejected(fields, problem):
    with pytest.raises(ValueError, match=problem):
        LanceMaintenancePolicy(**fields)
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=problem):
        LanceMaintenancePolicy().changed(fields, where="here")

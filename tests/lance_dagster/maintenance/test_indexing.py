"""Zone maps on partition columns: kept by the IO manager, and never in the way of a write."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa

from lance_core.errors import StoreError
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import QUIET

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
SCHEMA = pa.schema([("day", pa.date32()), ("n", pa.int64())])


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    days = [dt.date.fromisoformat(key) for key in context.partition_keys]
    return pa.table([days, [day.day for day in days]], schema=SCHEMA)


def days(first, count):
    start = dt.date(2024, 1, first)
    return [(start + dt.timedelta(days=i)).isoformat() for i in range(count)]


def run(lake, keys, **settings):
    for key in keys:
        lake.run(events, partition=key, **settings)
    return lake.table("events")


def test_a_zone_map_is_made_and_refreshed_as_the_table_grows(lake):
    assert not run(lake, days(1, 3), max_unindexed_fragments=3).has_index
    table = run(lake, days(4, 1), max_unindexed_fragments=3)
    assert table.version == 5
    assert table.stats.index_stats("day_idx")["num_indexed_fragments"] == 4
    table = run(lake, days(5, 3), max_unindexed_fragments=3)
    assert table.stats.index_stats("day_idx")["num_unindexed_fragments"] == 3
    table = run(lake, days(8, 1), max_unindexed_fragments=3)
    assert table.stats.index_stats("day_idx")["num_unindexed_fragments"] == 0
    assert table.version == 10
    assert "@day_idx(ZoneMap)" in lance.dataset(table.uri).scanner(filter="day = date '2024-01-02'").explain_plan()
    run(lake, days(2, 1), max_unindexed_fragments=3)
    assert sorted(n for _, n in lake.rows("events")) == list(range(1, 9))


def maintain(lake, **settings):
    """Run a maintenance job that merges no fragments."""
    job = build_maintenance_job([events], LanceMaintenancePolicy(target_rows_per_fragment=1))
    defs = dg.Definitions(assets=[events], jobs=[job], resources={"io_manager": lake.manager(**settings)})
    assert defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET).success
    return lake.table("events")


def test_maintenance_makes_and_refreshes_it_too(lake):
    run(lake, days(1, 5), index_partitions=False)
    assert not maintain(lake, index_partitions=False, max_unindexed_fragments=3).has_index
    assert not maintain(lake, max_unindexed_fragments=5).has_index
    table = maintain(lake, max_unindexed_fragments=4)
    assert table.stats.index_stats("day_idx")["num_indexed_fragments"] == 5
    assert {"dagster.run_id", "dagster.asset_key"} <= set(table.read_transaction(6).transaction_properties)
    assert maintain(lake, max_unindexed_fragments=4).version == 6
    run(lake, days(6, 1))
    assert maintain(lake, max_unindexed_fragments=4).stats.index_stats("day_idx")["num_unindexed_fragments"] == 0


def test_it_can_be_left_off(lake):
    assert not run(lake, days(1, 3), index_partitions=False, max_unindexed_fragments=1).has_index


def test_the_version_of_the_write_is_what_events_report(lake):
    run(lake, days(1, 2), max_unindexed_fragments=2)
    result = lake.run(events, partition="2024-01-03", max_unindexed_fragments=2)
    (event,) = result.asset_materializations_for_node("events")
    table = lake.table("events")
    assert (event.metadata["lance/version"].value, table.version) == (3, 4)
    index = table.read_transaction(4)
    assert index.operation.name == "CreateIndex"
    write, made = table.read_transaction(3).transaction_properties, index.transaction_properties
    assert made == {key: write[key] for key in made}
    assert {"dagster.run_id", "dagster.asset_key"} <= set(made)
    assert "dagster.write_token" not in made


def test_a_zone_map_that_cannot_be_made_does_not_fail_the_write(lake, monkeypatch):
    def fail(*_, **__):
        raise StoreError("the disk is full")

    monkeypatch.setattr("lance_dagster.io_manager.manager.index_partitions", fail)
    table = run(lake, days(1, 2), max_unindexed_fragments=0)
    assert (table.version, table.count_rows()) == (2, 2)

"""Files of old rows move to a base path in a maintenance job, with numbers in its observation and in the log."""

import datetime as dt

import dagster as dg
import lance
import pyarrow as pa

import lance_core
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import QUIET

TODAY = dt.datetime.now(dt.UTC).date()
DAYS = [str(TODAY - dt.timedelta(days=days)) for days in (300, 299, 2, 1)]
PARTITIONS = dg.DailyPartitionsDefinition(start_date=DAYS[0])


@dg.asset(key_prefix="shop", partitions_def=PARTITIONS, metadata={"partition_expr": "day"})
def orders(context) -> pa.Table:
    return pa.table({"id": [1, 2], "day": pa.array([dt.date.fromisoformat(context.partition_key)] * 2)})


def run(lake, policy, *, fails=False):
    job = build_maintenance_job([orders], policy)
    defs = dg.Definitions(assets=[orders], jobs=[job], resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config=QUIET, raise_on_error=False
    )
    assert result.success is not fails
    events = [e.asset_observation_data.asset_observation for e in result.all_events if e.is_asset_observation]
    return [{key: entry.value for key, entry in event.metadata.items()} for event in events]


def test_a_job_moves_files(lake, tmp_path):
    for day in DAYS:
        lake.run(orders, partition=day)
    fields = {"move_older_than": "90d", "move_by": "day", "move_to": "cold", "cleanup_older_than": None}
    run(lake, LanceMaintenancePolicy(**fields), fails=True)  # the table has no such base path yet
    lake.table("shop/orders").add_bases([lance_core.DatasetBasePath(str(tmp_path / "cold"), name="cold")])
    (planned,) = run(lake, LanceMaintenancePolicy(**fields, dry_run=True))
    assert (planned["lance/maintenance"], planned["lance/files_moved"]) == ("dry run", 2)
    (done,) = run(lake, LanceMaintenancePolicy(**fields))
    assert (done["lance/maintenance"], done["lance/files_moved"]) == ("done", 1), "both days were merged before"
    assert done["lance/bytes_moved"] > 0
    files = [file.base_id for fragment in lance.dataset(lake.uri("shop/orders")).get_fragments()
             for file in fragment.data_files()]  # fmt: skip
    assert sorted(files, key=str) == [1, None]
    assert lake.rows("shop/orders", columns=["id"]) == [(1,), (1,), (1,), (1,), (2,), (2,), (2,), (2,)]
    log = lance_core.dataset(f"{lake.root}/_maintenance/log.lance").to_table(filter="step = 'move_files'").to_pylist()
    assert [row["bytes_written"] for row in log] == [done["lance/bytes_moved"]]
    assert log[0]["seconds"] > 0
    (again,) = run(lake, LanceMaintenancePolicy(**fields))
    assert again["lance/maintenance"] == "healthy"
    lake.run(orders, partition=DAYS[0])  # a partition is written again: its old rows leave the base path
    assert lake.rows("shop/orders", columns=["id"]) == [(1,), (1,), (1,), (1,), (2,), (2,), (2,), (2,)]
    (done,) = run(lake, LanceMaintenancePolicy(**{**fields, "retain_versions": 1}))
    assert done["lance/files_moved"] == 3, "the rows that stay and the new ones, and then what both are merged into"
    (again,) = run(lake, LanceMaintenancePolicy(**{**fields, "retain_versions": 1}))
    assert again["lance/maintenance"] == "healthy"

"""The code location that the UI tests show: one partitioned table, in the folder that LANCE_TEST_ROOT names."""

import datetime as dt
import os

import dagster as dg
import pyarrow as pa

from lance_dagster import LanceIOManager, stamp_lance_metadata

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-08")
SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("passengers", pa.int64()),
        pa.field("embedding", pa.list_(pa.float32(), 4)),
    ]
)


@dg.asset(
    key_prefix="analytics",
    kinds={"arrow"},
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    metadata={"partition_expr": "day"},
)
def departures(context: dg.AssetExecutionContext) -> pa.Table:
    """1,500 rows per day."""
    days = [dt.date.fromisoformat(key) for key in context.partition_keys for _ in range(1500)]
    numbers = list(range(len(days)))
    return pa.table([days, numbers, [[float(n)] * 4 for n in numbers]], schema=SCHEMA)


defs = stamp_lance_metadata(
    dg.Definitions(
        assets=[departures], resources={"io_manager": LanceIOManager(root_uri=os.environ["LANCE_TEST_ROOT"])}
    )
)

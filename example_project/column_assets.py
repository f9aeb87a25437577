"""Columns of shared tables, and a table that is updated by the changes of another one.

flight_vectors                                 a row per flight
  '-- time_of_day                              one more column of its rows, by month; no row is rewritten
flights
  |-- captions                                 one more column, of which a run computes the rows that are due
  '-- cancellations                            a run reads the changes since the last run, and merges them
"""

from datetime import date

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame  # noqa: TID253 - this project has it
from pyspark.sql import functions as F  # noqa: N812, TID253 - this project has it

from example_project.assets import MONTHS, flight_vectors, flights
from lance_dagster import computed_columns, lance_filter

__all__ = ["cancellations", "captions", "time_of_day"]

_NAMES_A_FLIGHT = ["time_hour", "carrier", "flight"]


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"pyspark"},
    partitions_def=MONTHS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    metadata={"partition_expr": "date", "lance/write_mode": "columns", "lance/table": "nyc/flight_vectors"},
    # The output keeps the row addresses, so that neither a key nor a join is needed.
    ins={"vectors": dg.AssetIn(flight_vectors.key, metadata={"columns": ["_rowaddr", "sched_dep_time"]})},
)
def time_of_day(vectors: DataFrame) -> DataFrame:
    """The part of the day for which a flight is scheduled, as a column of `flight_vectors`."""
    part = F.expr(
        "CASE WHEN sched_dep_time < 1200 THEN 'morning' WHEN sched_dep_time < 1800 THEN 'afternoon' ELSE 'evening' END"
    )
    return vectors.select("_rowaddr", part.alias("time_of_day"))


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"pyspark"},
    metadata={"lance/write_mode": "merge", "lance/merge_on": _NAMES_A_FLIGHT},
    ins={
        "changed": dg.AssetIn(
            flights.key,
            metadata={
                "lance/changes": "since_last_run",
                "lance/filter": lance_filter(pc.field("dep_delay").is_null()),
                "columns": [*_NAMES_A_FLIGHT, "date", "origin", "dest"],
            },
        )
    },
)
def cancellations(changed: DataFrame) -> DataFrame:
    """Flights that did not leave; if a flight leaves after all, the next run deletes it here."""
    return changed


@computed_columns(
    table=flights,
    inputs=["carrier", "flight", "origin", "dest", "date", "dep_delay"],
    columns=pa.schema([("caption", pa.string())]),
    code_version="1",
    batch_size=8192,
    key_prefix="nyc",
    group_name="captions",
    kinds={"arrow"},
)
def captions(batch: pa.RecordBatch) -> pa.Array:
    """A sentence about each flight, such as models for texts read."""
    return pa.array([_describe(**row) for row in batch.to_pylist()], pa.string())


def _describe(carrier: str, flight: int, origin: str, dest: str, date: date, dep_delay: float | None) -> str:
    left = "did not leave" if dep_delay is None else f"left {max(dep_delay, 0):.0f} minutes late"
    return f"{carrier} {flight} from {origin} to {dest} on {date:%A, %d %B} {left}."

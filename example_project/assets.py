"""The tables of the example.

    airlines  airports  planes  weather            whole tables, each written by another library
    calendar                                       a whole table, written by a process without Dagster
    flights                                        one partition per day of 2013, read by Spark
      |-- delays                                   per day and carrier, aggregated by Spark
      |-- flight_vectors                           32 floats per flight, one partition per month
      |     '-- time_of_day                          one more column of these rows (`column_assets.py`)
      |-- cancellations                            flights that did not leave; reads changes (`column_assets.py`)
      |-- carriers                                 counts by SQL (`sql_assets.py`)
      |-- routes                                   the number of flights of each route; automation materializes it
      '-- aircraft                                 one row per aircraft; runs merge by tail number

    notices                                        a table that others write: it is only observed

A run of `flights` replaces one day, or any range of days.
"""

import sys
from pathlib import Path

import dagster as dg
import pandas as pd  # noqa: TID253 - this project has it
import polars as pl  # noqa: TID253 - this project has it
import pyarrow as pa
import pyarrow.csv as pa_csv
from pyspark.sql import DataFrame  # noqa: TID253 - this project has it
from pyspark.sql import functions as F  # noqa: N812, TID253 - this project has it

from example_project.features import WIDTH, flight_vector
from example_project.home import notices_uri
from example_project.sources import FLIGHTS_SCHEMA, MISSING, WEATHER_SCHEMA, flights_csv, source_file
from lance_dagster import LanceSparkResource, LanceTableResource, lance_eager, observable_lance_asset

__all__ = [
    "DAYS",
    "MONTHS",
    "aircraft",
    "airlines",
    "airports",
    "calendar",
    "delays",
    "flight_vectors",
    "flights",
    "local_spark",
    "notices",
    "planes",
    "routes",
    "weather",
]

DAYS = dg.DailyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01", timezone="America/New_York")
MONTHS = dg.MonthlyPartitionsDefinition(start_date="2013-01-01", end_date="2014-01-01", timezone="America/New_York")

_BY_DATE = {"partition_expr": "date"}
_ONE_RUN = dg.BackfillPolicy.single_run()
_LOG4J = Path(__file__).with_name("log4j2.properties")


def local_spark(master: str = "local[2]") -> LanceSparkResource:
    """Spark in this process's JVM, started on first use and shared by all steps."""
    config = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    }
    return LanceSparkResource(master=master, app_name="example", config=config)


notices = observable_lance_asset(
    ["nyc", "notices"],
    notices_uri(),
    group_name="others",
    description="Days with weather warnings; the weather office commits to this table without Dagster.",
)


@dg.asset(key_prefix="nyc", group_name="reference", kinds={"pandas"})
def airlines() -> pd.DataFrame:
    """Carrier codes and names."""
    return pd.read_csv(source_file("airlines.csv"))


@dg.asset(
    key_prefix="nyc",
    group_name="reference",
    kinds={"polars"},
    metadata={"lance/indices": {"name": "FTS"}, "lance/index_on_write": True},
)
def airports() -> pl.DataFrame:
    """Airports with their positions and time zones; each write indexes the words of their names."""
    return pl.read_csv(source_file("airports.csv"), null_values=MISSING)


@dg.asset(key_prefix="nyc", group_name="reference", kinds={"arrow"})
def planes() -> pa.Table:
    """Aircraft by tail number."""
    options = pa_csv.ConvertOptions(null_values=[MISSING], strings_can_be_null=True)
    return pa_csv.read_csv(source_file("planes.csv"), convert_options=options)


@dg.asset(key_prefix="nyc", group_name="reference", kinds={"pyspark"})
def weather(spark: LanceSparkResource) -> DataFrame:
    """Hourly weather at the three airports."""
    return spark.spark_session.read.csv(
        str(source_file("weather.csv")), header=True, schema=WEATHER_SCHEMA, nullValue=MISSING
    )


@dg.asset(key_prefix="nyc", group_name="reference", kinds={"arrow"})
def calendar(
    context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, lake: LanceTableResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster's own generic parameter
    """The days of the year, and whether each is on a weekend; written through Dagster Pipes."""
    command = [sys.executable, "-m", "example_project.calendar_job"]
    extras = {"uri": lake.uri(context.asset_key), "storage_options": lake.storage_options}
    return pipes.run(command=command, context=context, extras=extras).get_materialize_result()


@dg.asset(
    key_prefix="nyc",
    group_name="flights",
    kinds={"pyspark"},
    partitions_def=DAYS,
    backfill_policy=_ONE_RUN,
    metadata=_BY_DATE,
)
def flights(context: dg.AssetExecutionContext, spark: LanceSparkResource) -> DataFrame:
    """Every departure from New York, with its local calendar day as a date."""
    window = context.partition_time_window
    rows = spark.spark_session.read.csv(str(flights_csv()), header=True, schema=FLIGHTS_SCHEMA, nullValue=MISSING)
    days = rows.withColumn("date", F.make_date("year", "month", "day"))
    return days.where((F.col("date") >= F.lit(window.start.date())) & (F.col("date") < F.lit(window.end.date())))


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"pyspark"},
    metadata={
        "lance/column_lineage": {
            "date": "nyc/flights.date",
            "carrier": "nyc/flights.carrier",
            "cancelled": "nyc/flights.dep_delay",
            "mean_dep_delay": "nyc/flights.dep_delay",
            "mean_arr_delay": "nyc/flights.arr_delay",
            "max_dep_delay": "nyc/flights.dep_delay",
        }
    },
    ins={
        "flights": dg.AssetIn(["nyc", "flights"], metadata={"columns": ["date", "carrier", "dep_delay", "arr_delay"]})
    },
)
def delays(flights: DataFrame) -> DataFrame:
    """Flights, cancellations and mean delays per day and carrier, over all days."""
    return flights.groupBy("date", "carrier").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
        F.avg("dep_delay").alias("mean_dep_delay"),
        F.avg("arr_delay").alias("mean_arr_delay"),
        F.max("dep_delay").alias("max_dep_delay"),
    )


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"pyspark"},
    partitions_def=MONTHS,
    backfill_policy=_ONE_RUN,
    metadata={
        **_BY_DATE,
        "lance/vector_columns": {"features": WIDTH},
        "lance/indices": {"features": {"kind": "IVF_FLAT", "min_recall": 0.9}},
    },
    ins={"flights": dg.AssetIn(["nyc", "flights"])},
)
def flight_vectors(flights: DataFrame) -> DataFrame:
    """A feature vector per flight, a fixed-size list, with the columns that name it; maintenance indexes it."""
    return flights.select("date", "carrier", "flight", "origin", "sched_dep_time", flight_vector().alias("features"))


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"pyspark"},
    metadata={"lance/write_mode": "merge", "lance/merge_on": "tailnum"},
    ins={"flights": dg.AssetIn(["nyc", "flights"], metadata={"columns": ["date", "tailnum"]})},
)
def aircraft(flights: DataFrame) -> DataFrame:
    """Aircraft and the day on which each was last seen; a run updates known aircraft and adds new ones."""
    seen = flights.where("tailnum IS NOT NULL").groupBy("tailnum")
    return seen.agg(F.max("date").alias("last_seen"), F.count(F.lit(1)).alias("departures"))


@dg.asset(
    key_prefix="nyc",
    group_name="derived",
    kinds={"arrow"},
    io_manager_key="reports",
    deps=[flights],
    # Days of the year that are not materialized yet do not delay it.
    automation_condition=lance_eager(allow_missing_deps=True),
)
def routes(lake: LanceTableResource) -> pa.Table:
    """The number of flights of each route; automation materializes it again when `flights` has new rows on main."""
    flown = lake.open(flights.key).to_table(columns=["origin", "dest"])
    return flown.group_by(["origin", "dest"]).aggregate([([], "count_all")])

"""A table made by SQL from other tables: the query names them, and the commit records the versions that it read."""

import dagster as dg
from pyspark.sql import DataFrame  # noqa: TID253 - this project has it

import pyspark_lance
from example_project.assets import airlines, flights
from lance_dagster import LanceSparkResource, LanceTableResource

__all__ = ["carriers"]

_CARRIERS = """
    SELECT a.carrier, a.name, count(*) AS flights, count_if(f.dep_delay > :late) AS late
    FROM lake.nyc.flights AS f JOIN lake.nyc.airlines AS a ON f.carrier = a.carrier
    WHERE f.dep_delay IS NOT NULL
    GROUP BY a.carrier, a.name
"""


@dg.asset(key_prefix="nyc", group_name="derived", kinds={"sql"}, deps=[flights, airlines])
def carriers(spark: LanceSparkResource, lake: LanceTableResource) -> DataFrame:
    """The number of flights that left, and of those that were an hour late, by carrier."""
    session = spark.spark_session
    pyspark_lance.register_catalog(session, "lake", lake.root_uri, storage_options=lake.storage_options)
    return pyspark_lance.sql(session, _CARRIERS, late=60)

"""The code location of the story about columns: images, columns of them by two assets, and a reader of what changes.

images                day by day, by Spark
  |-- embeddings      a column of them, by Spark
  |-- labels          a column of them, by Arrow; the run tag `label` is its value
  '-- captions        a table of its own: a run writes those of the images that have changed since
"""

import json
import os

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame  # noqa: TID253 - these assets are for Spark
from pyspark.sql import functions as F  # noqa: N812, TID253 - the usual name

from example_project.assets import local_spark
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    LanceSparkResource,
    build_branch_jobs,
    build_lance_lag_checks,
    build_lance_missing_values_checks,
    build_maintenance_job,
)

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
DAY = {"partition_expr": "day"}
COLUMNS = {**DAY, "lance/write_mode": "columns", "lance/table": "images"}
ROWS = dg.AssetIn(metadata={"columns": ["_rowaddr", "id"]})  # rows keep their addresses: no key, and no join
days = {"partitions_def": DAYS, "backfill_policy": dg.BackfillPolicy.single_run()}
spark = local_spark("local[2]")


@dg.asset(metadata={**DAY, "lance/stable_row_ids": True}, **days)
def images(context: dg.AssetExecutionContext, spark: dg.ResourceParam[LanceSparkResource]) -> DataFrame:
    """A hundred images of 10 kB per day."""
    dates = ", ".join(f"date '{key}'" for key in sorted(context.partition_keys))
    rows = spark.spark_session.range(100).selectExpr("id as n", f"explode(array({dates})) as day")
    return rows.select(
        F.expr("1000 * day(day) + n").alias("id"), "day", F.expr("cast(repeat('x', 10000) as binary)").alias("image")
    )


@dg.asset(ins={"images": ROWS}, metadata={**COLUMNS, "lance/vector_columns": {"vector": 8}}, **days)
def embeddings(images: DataFrame) -> DataFrame:
    """The id, eight times, as a vector."""
    return images.select("_rowaddr", F.expr("array_repeat(cast(id as float), 8)").alias("vector"))


@dg.asset(ins={"images": ROWS}, metadata=COLUMNS, **days)
def labels(context: dg.AssetExecutionContext, images: pa.Table) -> pa.Table:
    """What the run's tag says."""
    named = pa.array([context.run.tags.get("label", "none")] * len(images))
    return images.select(["_rowaddr"]).append_column("label", named)


@dg.asset(
    deps=[labels],
    ins={"images": dg.AssetIn(metadata={"lance/changes": "since_last_run", "columns": ["id", "label"]})},
    metadata={"lance/write_mode": "merge", "lance/merge_on": "id"},
)
def captions(images: DataFrame) -> DataFrame:
    """A caption per image."""
    return images.select("id", F.concat(F.lit("a "), "label").alias("caption"), "_change_type")


assets = [images, embeddings, labels, captions]

defs = dg.Definitions(
    assets=assets,
    asset_checks=[*build_lance_missing_values_checks([embeddings, labels]), *build_lance_lag_checks([captions], "0s")],
    jobs=[
        dg.define_asset_job("caption", selection=[captions]),
        dg.define_asset_job("audit", selection=dg.AssetSelection.all_asset_checks()),
        *build_branch_jobs([images, labels]),
        build_maintenance_job(assets, LanceMaintenancePolicy(max_small_fragments=2, cleanup_older_than="1s")),
    ],
    resources={
        "spark": spark,
        "io_manager": LanceIOManager(
            root_uri=os.environ["LANCE_TEST_ROOT"],
            storage_options=json.loads(os.environ.get("LANCE_TEST_STORAGE", "{}")),
            spark=spark,
            branching=BranchPolicy.from_tag("lance/branch"),
        ),
    },
    executor=dg.in_process_executor,
)

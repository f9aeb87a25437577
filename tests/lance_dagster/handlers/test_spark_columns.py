"""Column assets whose values are Spark frames."""

import dagster as dg
import pytest
from pyspark.sql import DataFrame, functions  # noqa: TID253 -- annotations of assets

import lance_core
from tests.lance_dagster.io_manager.test_column_assets import (
    BLOB,
    DAYS,
    ROWS,
    assert_vectors,
    ids_of,
    images_asset,
)

NAMED = {"lance/write_mode": "columns", "lance/table": "images", "partition_expr": "day", "lance/key": "id"}


def embeddings_asset(columns=("id",), name="embeddings", **metadata):
    @dg.asset(
        name=name,
        partitions_def=DAYS,
        ins={"images": dg.AssetIn(metadata={"columns": list(columns)})},
        metadata={**NAMED, "lance/vector_columns": {"vector": 8}, **metadata},
    )
    def embeddings(images: DataFrame) -> DataFrame:
        items = [functions.col("id") + functions.lit(float(k)) for k in range(8)]
        made = images.withColumn("vector", functions.array(*items).cast("array<float>"))
        return made if "_rowaddr" not in columns else made.drop("id")

    return embeddings


@pytest.mark.parametrize("columns", [("id",), ("id", "_rowaddr")])
def test_executors_write_the_cells_of_partitions(lake, spark, columns):
    images, embeddings = images_asset(), embeddings_asset(columns)
    lake.run(images, span=("2024-01-01", "2024-01-03"))
    before = lake.table("images")
    result = lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-02"))
    assert lake.table("images").version == before.version + 1
    assert_vectors(lake, "2024-01-01", "2024-01-02")
    field = lake.table("images").schema.field("vector")
    assert field.metadata[b"dagster.asset_key"] == b"embeddings"
    assert field.type.list_size == 8
    event = result.asset_materializations_for_node("embeddings")[0]
    assert event.metadata["lance/commit"].value["rows_updated"] == 2 * ROWS
    lake.run(images, partition="2024-01-02")
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-02")
    assert_vectors(lake, "2024-01-01", "2024-01-02")


def test_spark_writes_rows_beside_the_column(lake, spark):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def images(context) -> DataFrame:
        rows = [(i, BLOB) for i in ids_of(context.partition_key)]
        made = spark.createDataFrame(rows, "id long, blob binary")
        return made.select("id", functions.lit(context.partition_key).cast("date").alias("day"), "blob")

    embeddings = embeddings_asset()
    lake.run(images, embeddings, partition="2024-01-01")
    lake.run(images, partition="2024-01-02")
    assert_vectors(lake, "2024-01-01")
    lake.run(images, partition="2024-01-01")
    assert_vectors(lake)


@pytest.mark.parametrize("kind", ["blob v2", "marked"])
def test_executors_write_blobs(lake, spark, kind):
    """The column is one of blobs already, or the frame marks it as one."""

    @dg.asset(partitions_def=DAYS, ins={"images": dg.AssetIn(metadata={"columns": ["id"]})}, metadata=NAMED)
    def thumbs(images: DataFrame) -> DataFrame:
        made = images.withColumn("thumb", functions.expr("cast(repeat(cast(id as string), 30000) as binary)"))
        return made if kind == "blob v2" else made.withMetadata("thumb", {"lance-encoding:blob": "true"})

    images = images_asset()
    lake.run(images, partition="2024-01-01")
    lake.run(images, partition="2024-01-02")
    if kind == "blob v2":
        field = lance_core.blob_field("thumb")
        owned = field.with_metadata({**(field.metadata or {}), b"dagster.asset_key": b"thumbs"})
        lake.table("images").add_columns(owned)
    for day in ("2024-01-01", "2024-01-01", "2024-01-02"):
        lake.run(images, thumbs, select=[thumbs], partition=day)
    rows = lake.table("images").to_table(["id", "thumb"], blob_handling="all_binary").to_pylist()
    assert all(row["thumb"] == str(row["id"]).encode() * 30000 for row in rows)
    assert len(rows) == 2 * ROWS

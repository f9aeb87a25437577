"""Column assets whose values are Spark frames."""

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, functions  # noqa: TID253 -- annotations of assets

import lance_core
from lance_dagster.handlers import spark as spark_handler
from tests.lance_dagster.lake import errors
from tests.support.column_assets import (
    BLOB,
    DAYS,
    ROWS,
    assert_vectors,
    cells,
    ids_of,
    images_asset,
    logged,
    losing_the_event,
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


@pytest.mark.parametrize("most", [0, 100])
def test_rows_that_were_deleted_since_the_input_was_loaded_are_left_out(lake, spark, monkeypatch, most):
    monkeypatch.setattr(spark_handler, "_MOST_BROADCAST", most)
    images, days = images_asset(), ["2024-01-01", "2024-01-02"]
    lake.run(images, span=(days[0], days[1]))
    first, *others = ids_of(days[0])
    more = [[], [77]]

    @dg.asset(partitions_def=DAYS, ins={"images": dg.AssetIn(metadata={"columns": ["id"]})}, metadata=NAMED)
    def scores(images: DataFrame) -> DataFrame:
        lake.table("images").delete(f"id = {first if len(more) == 2 else others[0]}")
        added = spark.createDataFrame([(i,) for i in more.pop(0)], "id long")
        return images.union(added).withColumn("score", functions.col("id"))

    result = lake.run(images, scores, select=[scores], partition=days[0])
    assert cells(lake, "score") == {i: i for i in others} | dict.fromkeys(ids_of(days[1]))
    (found,) = (one for one in logged(lake, result) if "rows deleted since version" in one)
    assert found.endswith("are left out (at most 1 keys)")
    failed = lake.run(images, scores, select=[scores], partition=days[0], fails=True)
    assert "the key id = 77 names no row" in errors(failed)


def test_a_retry_replaces_cells_beside_those_that_it_keeps(lake, spark, monkeypatch):
    lance_core.write_dataset({"id": [1, 2, 3]}, lake.uri("images"), enable_stable_row_ids=True)
    attempts, rows = [], [[1, 2], [2], [1, 2], [1, 2, 3]]

    @dg.asset(
        metadata={**{key: value for key, value in NAMED.items() if key != "partition_expr"}, "lance/missing": "keep"},
        retry_policy=dg.RetryPolicy(max_retries=1),
    )
    def scores() -> DataFrame:
        attempts.append(1)
        values = [(i, 10 * i + len(attempts)) for i in rows.pop(0)]
        return spark.createDataFrame(values, "id long, score long")

    losing_the_event(monkeypatch, attempts)
    asset = dg.AssetSpec("images")
    failed = lake.run(asset, scores, select=["scores"], fails=True)
    assert "would stay, in 1 rows" in errors(failed)
    attempts.clear()
    lake.run(asset, scores, select=["scores"])
    assert cells(lake, "score") == {1: 12, 2: 22, 3: 32}


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


def test_rows_that_the_step_has_not_loaded_stay(lake, spark):
    rows = pa.table({"id": [1, 2, 3], "score": [11, 12, 13]})
    lance_core.write_dataset(rows, lake.uri("images"))
    images = dg.AssetSpec("images")

    @dg.asset(
        ins={"images": dg.AssetIn(metadata={"columns": ["id"], "lance/filter": "id >= 2"})},
        metadata={
            "lance/write_mode": "columns",
            "lance/table": "images",
            "lance/key": "id",
            "lance/shared_table": True,
        },
    )
    def scores(images: DataFrame) -> DataFrame:
        loaded = images.where("id < 3") if images.count() == 2 else images.sparkSession.range(1, 2)
        return loaded.withColumn("score", functions.col("id") + functions.lit(100))

    lake.run(images, scores, select=[scores])
    assert cells(lake, "score") == {1: 11, 2: 102, 3: None}
    lake.table("images").delete("id = 2")
    failed = lake.run(images, scores, select=[scores], fails=True)
    assert "lance/missing: keep to set other rows, too" in errors(failed)

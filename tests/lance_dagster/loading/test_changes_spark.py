"""Incremental inputs as Spark frames: read on executors, merged in one commit, on branches, and on object storage."""

import dagster as dg
import lance
import pyarrow as pa
import pytest

import pyspark_lance
from lance_dagster.handlers import changes
from tests.lance_dagster.loading.copies import ALL, CHANGED, DAYS, ONE, SINCE, TWO, Copy, change, rows, source


@pytest.fixture
def frames(spark):
    from pyspark.sql import DataFrame

    return DataFrame


def test_changes_are_merged_in_one_commit(lake, frames):
    lance.write_dataset(rows(1, 2, 3), lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy(frames)
    assert copy.run(lake)[0] == ALL
    change(lake)
    lance.dataset(lake.uri("source")).update({"id": "30"}, where="id = 3")
    version = lake.table("copy").version
    given, result = copy.run(lake)
    assert given == sorted([*CHANGED, (3, 0, "delete"), (30, 0, "insert")])
    assert lake.rows("copy") == [(2, 10), (4, 0), (30, 0)]
    assert lake.table("copy").version == version + 1
    (event,) = result.asset_materializations_for_node("copy")
    assert event.metadata["lance/changes"].value[0]["from_version"] == 1
    assert counts(result) == {"rows_inserted": 2, "rows_updated": 1, "rows_deleted": 2}
    assert copy.run(lake)[0] == []


def counts(result):
    """The rows by kind of change, as the first event of a run has them."""
    event, *_ = result.asset_materializations_for_node("copy")
    (read,) = event.metadata["lance/changes"].value
    return {key: number for key, number in read.items() if key.startswith("rows_")}


def test_partitions(lake, frames, monkeypatch):
    table = pa.concat_tables([rows(1, 2, day=ONE), rows(3, day=TWO)])
    lance.write_dataset(table, lake.uri("source"), enable_stable_row_ids=True)
    copy = Copy(frames, partitions=DAYS)
    result = copy.run(lake, span=("2024-01-01", "2024-01-02"))[1]
    assert counts(result) == {"rows_inserted": 3, "rows_updated": 0, "rows_deleted": 0}
    lance.dataset(lake.uri("source")).update({"day": "date '2024-01-02'"}, where="id = 1")
    lance.dataset(lake.uri("source")).update({"n": "8"}, where="id = 3")
    given, result = copy.run(lake, partition="2024-01-01")
    assert given == [(1, 0, "delete")]
    assert counts(result) == {"rows_inserted": 0, "rows_updated": 0, "rows_deleted": 1}
    monkeypatch.setattr(changes, "_MOST_COUNTED", 1)
    given, result = copy.run(lake, partition="2024-01-02")
    assert given == [(1, 0, "insert"), (3, 8, "update")]
    assert counts(result) == {}  # two rows changed: only Spark's job knows
    assert [row[:2] for row in lake.rows("copy")] == [(1, 0), (2, 0), (3, 8)]


def test_a_key_that_the_asset_computes_leaves_no_row_behind(lake, frames, spark):
    from pyspark.sql import functions

    lance.write_dataset(rows(1, 2, 3), lake.uri("source"), enable_stable_row_ids=True)
    given = []

    @dg.asset(
        name="copy",
        ins={"source": dg.AssetIn(metadata={**SINCE, "lance/filter": "n < 100"})},
        metadata={"lance/write_mode": "merge", "lance/merge_on": ["high", "id"]},
    )
    def copy(source: frames) -> frames:
        found = source.toArrow().to_pylist()
        given.append(sorted((row["id"], row["n"], row["_change_type"][:6]) for row in found))
        return source.withColumn("high", functions.col("n") >= 10)

    def run():
        result = lake.run(source, copy, select=["copy"])
        return (
            given[-1],
            sorted(map(tuple, (row.values() for row in lake.table("copy").to_table(["id", "n"]).to_pylist()))),
            counts(result),
        )

    assert run()[:2] == (ALL, [(1, 0), (2, 0), (3, 0)])
    lance.dataset(lake.uri("source")).update({"n": "id * 10 + 80"}, where="id < 3")
    lance.dataset(lake.uri("source")).update({"n": "1"}, where="id = 3")
    lance.dataset(lake.uri("source")).insert(rows(4))
    split = [
        (1, 0, "delete"),
        (1, 90, "insert"),
        (2, 0, "delete"),
        (3, 0, "delete"),
        (3, 1, "insert"),
        (4, 0, "insert"),
    ]
    found = {"rows_inserted": 1, "rows_updated": 2, "rows_deleted": 1}
    assert run() == (split, [(1, 90), (3, 1), (4, 0)], found)
    assert run()[0] == []


def test_a_merge_with_deletes_of_other_keys(spark, uri_of):
    uri = uri_of("t")
    lance.write_dataset(rows(1, 2, 3), uri)
    new, deleted = (
        spark.createDataFrame([(2, 9), (5, 9)], "id long, n long"),
        spark.createDataFrame([(3,), (7,)], "id long"),
    )
    done = pyspark_lance.merge(new, uri, on="id", deletes=deleted)
    assert (done.rows_inserted, done.rows_updated, done.rows_deleted) == (1, 1, 1)
    assert sorted(map(tuple, (row.values() for row in lance.dataset(uri).to_table().to_pylist()))) == [
        (1, 0),
        (2, 9),
        (5, 9),
    ]
    assert lance.dataset(uri).version == 2


@pytest.fixture
def uri_of(tmp_path):
    return lambda name: str(tmp_path / f"{name}.lance")

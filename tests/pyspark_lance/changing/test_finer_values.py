"""Nanoseconds, which Spark does not have, stay in rows that a change rewrites; pylance looks at what became of them."""

import pyarrow as pa
import pytest

import pyspark_lance
from pyspark_lance import LanceTable

N = 1_700_000_000_123_456_789
NANOSECONDS = pa.timestamp("ns")
ROWS = pa.table({
    "id": [1, 2, 3],
    "v": [0, 0, 0],
    "at": pa.array([N, -1, None], NANOSECONDS),
    "zone": pa.array([N, -1, None], pa.timestamp("ns", "UTC")),
    "took": pa.array([N, -1, None], pa.duration("ns")),
    "inside": pa.array([{"a": N, "b": 1}, {"a": -1, "b": 2}, None], pa.struct([("a", NANOSECONDS), ("b", pa.int64())])),
    "listed": pa.array([[N, None, -1], [], None], pa.list_(NANOSECONDS)),
    "keyed": pa.array([[("k", N)], [("k", -1)], None], pa.map_(pa.string(), NANOSECONDS)),
})  # fmt: skip
KEPT = ROWS.schema.names[2:]


def changes(spark):
    return spark.sql("SELECT id, 7 AS v FROM range(1, 4)")


def statement(words):
    return lambda spark, uri: pyspark_lance.sql(spark, words.format(f"lance.`{uri}`"))


def merged(spark, uri):
    table = LanceTable.forPath(spark, uri).alias("t")
    table.merge(changes(spark).alias("s"), "t.id = s.id").whenMatchedUpdate(set={"v": "s.v"}).execute()


def written_back(spark, uri):
    """What Spark has read comes back with another value of one column."""
    from pyspark.sql import functions

    rows = pyspark_lance.read(spark, uri).withColumns({"v": functions.lit(7).cast("long")})
    rows.write.format("lance").mode("append").option("merge_on", "id").save(uri)


CHANGES = {
    "UPDATE": statement("UPDATE {} SET v = 7"),
    "MERGE": statement(
        "MERGE INTO {} t USING (SELECT id FROM range(1, 4)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 7"
    ),
    "table.update": lambda spark, uri: LanceTable.forPath(spark, uri).update(set={"v": "7"}),
    "table.merge": merged,
    "update": lambda spark, uri: pyspark_lance.update(uri, {"v": "7"}, spark=spark),
    "merge": lambda spark, uri: pyspark_lance.merge(changes(spark), uri, on="id"),
    "merge_on": written_back,
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_columns_that_a_change_does_not_name_stay_as_they_are(spark, uri, lance, change, stable):
    lance.write_dataset(ROWS, uri, enable_stable_row_ids=stable, max_rows_per_file=2)
    lance.dataset(uri).delete("id = 3")
    lance.write_dataset(ROWS.slice(2), uri, mode="append")
    change(spark, uri)
    found = lance.dataset(uri).to_table().sort_by("id")
    assert found["v"].to_pylist() == [7, 7, 7]
    assert found.select(KEPT).equals(ROWS.select(KEPT))


def test_new_values_are_those_of_the_change(spark, uri, lance):
    lance.write_dataset(ROWS, uri)
    pyspark_lance.sql(
        spark,
        f"UPDATE lance.`{uri}` SET at = at + INTERVAL 1 SECOND, inside = named_struct('a', inside.a, 'b', 5L), listed = array(at), keyed = NULL"
        " WHERE id < 3",
    )
    found = lance.dataset(uri).to_table().sort_by("id")
    assert found["at"].cast(pa.int64()).to_pylist() == [1_700_000_001_123_456_000, 1_000_000_000, None]
    assert found["inside"].combine_chunks().field("a").cast(pa.int64()).to_pylist()[:2] == [N, -1]
    assert found["inside"].combine_chunks().field("b").to_pylist()[:2] == [5, 5]
    assert [[one.value for one in row] for row in found["listed"].to_pylist()[:2]] == [[1_700_000_000_123_456_000], [0]]
    assert found["keyed"].null_count == 3
    assert found["zone"].equals(ROWS["zone"])

"""Extension types below the top level on Spark: conditions, updates, deletes and merges keep the values and the type."""

import pyarrow as pa
import pytest

import pyspark_lance

IDS = pa.array(range(4))
UUIDS = pa.array([bytes([n] * 16) for n in range(4)], pa.uuid())
ROWS = pa.table({"id": IDS, "u": UUIDS, "x": pa.StructArray.from_arrays([UUIDS, IDS], ["value", "n"])})


@pytest.fixture
def table(lance, uri):
    lance.write_dataset(ROWS, uri)
    return uri


def stored(lance, uri):
    return lance.dataset(uri).to_table().sort_by("id")


@pytest.mark.parametrize("where", ["id > 2", "x.n > 2", f"u = X'{'03' * 16}'", f"x.value = X'{'03' * 16}'"])
def test_conditions(spark, lance, table, where):
    assert [row.id for row in pyspark_lance.read(spark, table, filter=where).collect()] == [3]
    assert pyspark_lance.update(table, {"id": "id + 10"}, where, spark=spark).rows_updated == 1
    assert stored(lance, table)["id"].to_pylist() == [0, 1, 2, 13]
    assert stored(lance, table).drop_columns(["id"]).equals(ROWS.drop_columns(["id"]))
    assert pyspark_lance.delete(table, where.replace("id > 2", "id = 13"), spark=spark).rows_deleted == 1
    assert stored(lance, table).equals(ROWS.slice(0, 3))


def test_replace_where_and_merge(spark, lance, table):
    rows = spark.read.format("lance").load(table).where("id > 1")
    rows.write.format("lance").mode("overwrite").option("replaceWhere", "x.n > 1").save(table)
    pyspark_lance.merge(rows, table, on="id")
    assert stored(lance, table).equals(ROWS)

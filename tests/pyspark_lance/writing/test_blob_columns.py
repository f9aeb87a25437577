"""Columns of blobs in Spark: descriptions unless payloads are asked for, and verbs that keep the payloads."""

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError

FIELD = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
SCHEMA = pa.schema([pa.field("id", pa.int64()), FIELD])
PAYLOADS = [b"a" * 10, None, b"", b"q" * 5000]


@pytest.fixture(params=["2.0", "2.2"])
def table(request, uri):
    rows = pa.table([pa.array(range(4)), pa.array(PAYLOADS, pa.large_binary())], schema=SCHEMA)
    lance_core.write_dataset(rows, uri, data_storage_version=request.param)
    return uri


def sizes(frame):
    return [None if row["b"] is None else int(row["b"]["size"]) for row in frame.orderBy("id").collect()]


def payloads(frame):
    return [None if row["b"] is None else bytes(row["b"]) for row in frame.orderBy("id").collect()]


def test_frames_hold_descriptions_of_blobs_by_default(spark, table):
    pyspark_lance.register(spark)
    source = spark.read.format("lance")
    for frame in (pyspark_lance.read(spark, table), source.load(table)):
        described = lance_core.dataset(table).to_table()["b"].type
        assert frame.schema["b"].dataType.fieldNames() == [field.name for field in described]
        assert sizes(frame) == [10, None, 0, 5000]
        assert sizes(frame.where("b IS NOT NULL")) == [10, 0, 5000]
        assert [row.id for row in frame.where("b.size > 5").orderBy("id").collect()] == [0, 3]
        assert frame.select("id").count() == 4
    assert sizes(pyspark_lance.read(spark, table, filter="b.size > 5")) == [10, 5000]
    binary = [
        pyspark_lance.read(spark, table, blob_handling="all_binary"),
        source.option("blobHandling", "all_binary").load(table),
        spark.read.format("lance").option("blob_handling", "all_binary").load(table),
    ]
    for frame in binary:
        assert frame.schema["b"].dataType.simpleString() == "binary"
        assert payloads(frame) == PAYLOADS
        assert payloads(frame.where("id > 1")) == PAYLOADS[2:]
    with pytest.raises(InvalidInputError, match="blob_handling"):
        pyspark_lance.read(spark, table, blob_handling="nope")


def test_changes_keep_the_payloads_of_blobs(spark, table):
    changes = spark.createDataFrame([(2, 7), (3, 8)], "id long, n long")
    lance_core.dataset(table).add_columns({"n": "id"})
    pyspark_lance.merge(changes, table, on="id", when_not_matched=None)
    pyspark_lance.update(table, {"id": "id + 100"}, "id < 2", spark=spark)
    more = pyspark_lance.read(spark, table, filter="id < 100", blob_handling="all_binary")
    pyspark_lance.write(more.selectExpr("id + 200 as id", "b", "n"), table, mode="append")
    found = lance_core.dataset(table).to_table(blob_handling="all_binary")
    rows = {row["id"]: (row["b"], row["n"]) for row in found.to_pylist()}
    assert rows == {
        100: (PAYLOADS[0], 0),
        101: (None, 1),
        2: (b"", 7),
        3: (PAYLOADS[3], 8),
        202: (b"", 7),
        203: (PAYLOADS[3], 8),
    }

"""Columns of blobs in Spark: descriptions unless payloads are asked for, and verbs that keep the payloads."""

from decimal import Decimal

import lance
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


@pytest.mark.variants(1)
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
        source.option("blobs", "bytes").load(table),
        spark.read.format("lance").option("BLOBS", "bytes").load(table),
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


def test_blobs_in_files_of_their_own_and_by_uri(spark, uri, tmp_path):
    """Written from bytes and from URIs, merged, updated and compacted; pylance reads them."""
    from pyspark.errors import AnalysisException

    pyspark_lance.register(spark)
    limits = {"inline_size_threshold": 10, "dedicated_size_threshold": 1000}
    schema = pa.schema([pa.field("id", pa.int64()), lance_core.blob_field("b", **limits)])
    lance_core.write_dataset(pa.table([[0], lance_core.blob_array([b"small"])], schema=schema), uri)
    given = {1: b"m" * 500, 2: b"l" * 5000, 3: None}
    frame = spark.createDataFrame(
        [(i, None if b is None else bytearray(b)) for i, b in given.items()], "id long, b binary"
    )
    frame.write.format("lance").mode("append").save(uri)
    photo = tmp_path / "photo.bin"
    photo.write_bytes(b"0123456789")
    away = spark.createDataFrame([(4, photo.as_uri()), (5, None)], "id long, b string")
    with pytest.raises(InvalidInputError, match="outside of the dataset's base paths"):
        pyspark_lance.write(away, uri, mode="append")
    away.write.format("lance").mode("append").option("allow_external_blob_outside_bases", "true").save(uri)
    lance_core.dataset(uri).add_bases([lance_core.DatasetBasePath(str(tmp_path), "photos")])
    part = "id long, b struct<data:binary,uri:string,position:decimal(20,0),size:decimal(20,0)>"
    sliced = spark.createDataFrame([(6, (None, str(photo), Decimal(2), Decimal(3)))], part)
    pyspark_lance.write(sliced, uri, mode="append")
    expected = {0: b"small", **given, 4: b"0123456789", 5: None, 6: b"234"}

    def check():
        source = spark.read.format("lance").option("blobs", "bytes").load(uri)
        found = {row.id: None if row.b is None else bytes(row.b) for row in source.collect()}
        rows = lance.dataset(uri).to_table(blob_handling="all_binary").to_pylist()
        assert found == {row["id"]: row["b"] for row in rows} == expected
        kinds = lance.dataset(uri).to_table(columns=["id", "b"]).to_pylist()
        return {row["id"]: row["b"] and row["b"]["kind"] for row in kinds}

    assert check() == {0: 0, 1: 1, 2: 2, 3: None, 4: 3, 5: None, 6: 3}
    lance_core.dataset(uri).add_columns({"n": "id"})
    pyspark_lance.merge(spark.createDataFrame([(i, i + 10) for i in expected], "id long, n long"), uri, on="id")
    pyspark_lance.update(uri, {"n": "n + 1"}, "id in (1, 4)", spark=spark)
    assert check() == {0: 0, 1: 1, 2: 2, 3: None, 4: 3, 5: None, 6: 3}
    pyspark_lance.compact(spark, uri)
    assert check() == {0: 0, 1: 1, 2: 2, 3: None, 4: 3, 5: None, 6: 3}
    with pytest.raises(AnalysisException, match="option blobs: 'nope' is none of descriptions, bytes"):
        spark.read.format("lance").option("blobs", "nope").load(uri)


def test_parquet_gets_the_payloads(spark, table, tmp_path):
    target = str(tmp_path / "folder")
    assert pyspark_lance.to_parquet(table, target, spark=spark) == 4
    assert payloads(spark.read.parquet(target)) == PAYLOADS


INSIDE = [
    ("s", "struct<b: binary, n: bigint>", pa.struct([FIELD, pa.field("n", pa.int64())]), {"b": b"a", "n": 1}),
    ("l", "array<binary>", pa.list_(FIELD), [b"a", None, b"q" * 70_000]),
    ("d", "array<struct<b: binary>>", pa.list_(pa.struct([FIELD])), [{"b": b"a"}, None, {"b": None}]),
]


def test_blobs_inside_of_structs_and_arrays(spark, uri):
    """Read as descriptions and as bytes, appended, merged and updated from bytes; pylance reads them."""
    columns = [pa.array([value, None], kind) for _, _, kind, value in INSIDE]
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, _, kind, _ in INSIDE)])
    lance_core.write_dataset(pa.table([pa.array([0, 1]), *columns], schema=schema), uri)
    described = pyspark_lance.read(spark, uri)
    assert [row.size for row in described.selectExpr("s.b.size").collect()] == [1, None]
    assert described.selectExpr("l[2].size as size").first().size == 70_000
    binary = pyspark_lance.read(spark, uri, blob_handling="all_binary")
    assert [binary.schema[name].dataType.simpleString().replace(" ", "") for name, *_ in INSIDE] == [
        kind.replace(" ", "") for _, kind, _, _ in INSIDE
    ]
    pyspark_lance.write(binary.selectExpr("id + 2 as id", "s", "l", "d"), uri, mode="append")
    changed = binary.where("id = 0").selectExpr("3 as id", "s", "l", "d")
    pyspark_lance.merge(changed, uri, on="id")
    pyspark_lance.merge(changed.selectExpr("4 as id", "s", "l", "d"), uri, on="id")
    pyspark_lance.update(uri, {"s": "named_struct('b', X'62', 'n', 9)", "l": "array(X'63')"}, "id = 2", spark=spark)
    pyspark_lance.compact(spark, uri)
    full = {name: value for name, _, _, value in INSIDE}
    empty = dict.fromkeys(full)
    expected = {0: full, 1: empty, 2: {**full, "s": {"b": b"b", "n": 9}, "l": [b"c"]}, 3: full, 4: full}
    for library in (lance, lance_core):
        rows = library.dataset(uri).to_table(blob_handling="all_binary").to_pylist()
        assert {row.pop("id"): row for row in rows} == expected

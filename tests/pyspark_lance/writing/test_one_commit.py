"""One version for each write, or none: schema and rows change together."""

import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError


def by_source(frame, uri, mode="append", **options):
    frame.write.format("lance").mode(mode).options(**options).save(uri)


@pytest.mark.parametrize("way", ["function", pytest.param("source", marks=pytest.mark.slow)])
def test_new_columns_and_rows_are_one_version(spark, uri, lance, way):
    pyspark_lance.write(spark.sql("select 1 as id, struct(1 as a) as s"), uri)
    wider = spark.sql("select 2 as id, struct(2 as a, 'x' as b) as s, 3D as new")
    boom = wider.selectExpr("id", "s", "raise_error('boom') as new")
    if way == "function":
        with pytest.raises(Exception, match="boom"):
            pyspark_lance.write(boom, uri, schema_mode="add_columns")
        assert lance.dataset(uri).version == 1
        result = pyspark_lance.write(wider, uri, schema_mode="add_columns")
        assert (result.version, result.rows_added) == (2, 1)
    else:
        with pytest.raises(Exception, match="boom"):
            by_source(boom, uri, mergeSchema="true")
        assert lance.dataset(uri).schema.names == ["id", "s"]
        by_source(wider, uri, mergeSchema="true")
    found = lance.dataset(uri)
    assert found.version == 2
    assert found.to_table().to_pylist() == [
        {"id": 1, "s": {"a": 1, "b": None}, "new": None},
        {"id": 2, "s": {"a": 2, "b": "x"}, "new": 3.0},
    ]
    assert pyspark_lance.read(spark, uri).orderBy("id").select("new").collect() == [(None,), (3.0,)]


@pytest.mark.slow
def test_a_stream_gets_the_rows_that_came_with_a_column(spark, uri, tmp_path):
    pyspark_lance.write(spark.sql("select 1 as id"), uri)
    pyspark_lance.write(spark.sql("select 2 as id, 3 as new"), uri, schema_mode="add_columns")
    target = str(tmp_path / "copy.lance")
    stream = spark.readStream.format("lance").option("startingVersion", 2).load(uri)
    query = stream.writeStream.format("lance").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start(target).awaitTermination()
    assert lance_core.dataset(target).to_table().to_pylist() == [{"id": 2, "new": 3}]


@pytest.mark.slow
def test_every_write_is_one_version(spark, uri):
    frame = spark.sql("select id, cast(id % 2 as int) as day from range(4)")
    table = lance_core.dataset
    writes = [
        lambda: pyspark_lance.write(frame, uri),
        lambda: pyspark_lance.write(frame, uri),
        lambda: by_source(frame, uri),
        lambda: pyspark_lance.write(frame, uri, mode="overwrite"),
        lambda: by_source(frame, uri, "overwrite"),
        lambda: by_source(frame.selectExpr("*", "1 as a"), uri, "overwrite", overwriteSchema="true"),
        lambda: by_source(frame.selectExpr("*", "1 as a", "2 as b"), uri, mergeSchema="true"),
        lambda: by_source(frame.selectExpr("*", "1 as a", "2 as b", "3 as c"), uri, "overwrite", mergeSchema="true"),
        lambda: by_source(frame, uri, mergeSchema="true"),
        lambda: by_source(frame.where("day = 1"), uri, "overwrite", replaceWhere="day = 1", mergeSchema="true"),
        lambda: by_source(frame, uri, "overwrite", partition_by="day", partitionOverwriteMode="dynamic", mergeSchema="true"),
        lambda: pyspark_lance.merge(frame.selectExpr("id + 100 as id", "day"), uri, on="id"),
        lambda: by_source(frame.selectExpr("id + 200 as id", "day", "1 as a", "2 as b", "3 as c"), uri, merge_on="id"),
        lambda: pyspark_lance.update(uri, {"day": "day + 1"}, "id = 1", spark=spark),
        lambda: pyspark_lance.delete(uri, "id = 1", spark=spark),
        lambda: pyspark_lance.delete(uri, frame, on="id"),
    ]  # fmt: skip
    for number, write in enumerate(writes):
        write()
        assert table(uri).version == number + 1, number
    with pytest.raises(InvalidInputError):
        pyspark_lance.write(
            frame.where("day = 0"), uri, mode="overwrite", replace_where="day = 1", schema_mode="add_columns"
        )
    assert table(uri).version == len(writes)


def test_a_struct_gets_a_field_beside_a_nested_struct_that_gets_none(spark, uri, lance):
    pyspark_lance.write(spark.sql("SELECT 1 AS id, named_struct('a', 1, 'n', named_struct('x', 1)) AS s"), uri)
    more = spark.sql("SELECT 2 AS id, named_struct('a', 2, 'n', named_struct('x', 2), 'c', 6L) AS s")
    pyspark_lance.write(more, uri, schema_mode="add_columns")
    stored = lance.dataset(uri).to_table().sort_by("id")["s"].to_pylist()
    assert stored == [{"a": 1, "n": {"x": 1}, "c": None}, {"a": 2, "n": {"x": 2}, "c": 6}]
    again = spark.sql("SELECT 3 AS id, named_struct('a', 2, 'n', named_struct('x', 2), 'c', 6L) AS s")
    pyspark_lance.write(again, uri, schema_mode="add_columns")
    assert lance.dataset(uri).count_rows() == 3

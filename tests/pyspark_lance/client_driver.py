"""The whole public API of `pyspark_lance` where only `pyspark-client` is installed: `python client_driver.py URL FOLDER`.

Prints the public names that it has used, as JSON.
"""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance_core
import pyspark_lance


def error_of(call: Callable[[], object]) -> str:
    """Class and message of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is is looked at
        return f"{type(error).__name__}: {error}"
    raise AssertionError("there was no error")


def statements(spark: Any) -> None:
    """Statements of each kind, whose catalog `lake` has the table `a.t` with the ids 0 to 4 but for 2."""

    def sql(statement: str, **params: object) -> list[tuple[object, ...]]:
        return [tuple(row) for row in pyspark_lance.sql(spark, statement, **params).collect()]

    read: list[int] = []
    pyspark_lance.on_read(lambda table: read.append(table.version))
    sql(
        "CREATE TABLE lake.a.u PARTITIONED BY (day) AS SELECT id, cast(id % 2 AS int) AS day, 'it''s' AS s FROM range(6)"
    )
    assert sql("UPDATE lake.a.u SET s = :s WHERE day = 1", s="o'clock") == [(3,)]
    assert sql("DELETE FROM lake.a.u WHERE id IN (SELECT id FROM lake.a.t WHERE id > 3)") == [(1,)]
    assert sql(
        """MERGE INTO lake.a.u AS u USING (SELECT id, 7 AS day, 'new' AS s FROM range(5, 9)) AS n ON u.id = n.id
        WHEN MATCHED AND u.day = 1 THEN UPDATE SET s = u.s || n.s WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED AND n.id < 8 THEN INSERT * WHEN NOT MATCHED BY SOURCE AND u.id = 0 THEN DELETE"""
    ) == [(4, 1, 1, 2)]
    assert sql("SELECT s FROM lake.a.u WHERE id = 5") == [("o'clocknew",)]
    sql("INSERT INTO lake.a.u REPLACE WHERE day = 7 VALUES (10, 7, 'r')")
    sql("ALTER TABLE lake.a.u ADD COLUMNS (extra STRING)")
    sql("CALL lake.system.create_branch('a.u', 'dev')")
    sql("INSERT INTO lake.a.u@dev (id) VALUES (11)")
    assert sql("SELECT count(*) FROM lake.a.u@dev") == [(6,)]
    sql("CALL lake.system.promote_branch('a.u', 'dev')")
    sql("CALL lake.system.create_tag('a.u', 'kept')")
    sql("CALL lake.system.compact('a.u')")
    sql("CALL lake.system.create_scalar_index('a.u', 'day', 'BITMAP')")
    assert [row[0] for row in sql("SHOW INDEXES IN lake.a.u")] == ["day_idx"]
    sql("CALL lake.system.restore('a.u@v1')")
    sql("CALL lake.system.cleanup_old_versions('a.u', INTERVAL 0 DAYS, error_if_tagged_old_versions => false)")
    assert sql("SELECT count(*) FROM lake.a.u") == [(6,)]
    assert sql("SELECT q.id FROM lake.a.u AS q(day, id, s) WHERE q.id = 1") == [(1,)] * 3
    pyspark_lance.sql(spark, "CREATE TEMPORARY VIEW v AS SELECT * FROM lake.a.u")
    assert spark.table("v").count() == 6
    assert "CALL lake.system.compact" in error_of(lambda: sql("OPTIMIZE lake.a.u ZORDER BY (id)"))
    assert ("a", "u", False) in sql("SHOW TABLES IN lake")
    sql("DROP TABLE lake.a.u")
    assert read


def main() -> None:
    assert importlib.util.find_spec("py4j") is None, "this environment has a classic pyspark"
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    url, folder = sys.argv[1], Path(sys.argv[2])
    spark = SparkSession.builder.remote(url).getOrCreate()
    uri = str(folder / "t.lance")

    def rows(of=uri):
        return lance_core.dataset(of).count_rows()

    frame = spark.sql("select id, cast(id % 3 as int) as day, concat('s', id) as s from range(100)")
    result = pyspark_lance.write(frame, uri)
    assert isinstance(result, pyspark_lance.WriteResult)
    assert (result.version, result.rows_written) == (1, 100)
    pyspark_lance.register(spark, "lance")
    assert pyspark_lance.DefaultSource.name() == "lance"

    read = pyspark_lance.read(spark, uri)
    assert read.count() == 100
    assert not read.isEmpty()
    assert read.select(F.col("id"), F.col("day") + 1).where("id = 5").collect() == [(5, 3)]
    assert read.select("*").limit(3).count() == 3
    assert read.select("id", "day").where(F.col("id") > 97).count() == 2
    assert read.select(read.id).where(read.id == 4).collect() == [(4,)]
    assert read.selectExpr("id * 2 as double").agg(F.max("double")).collect() == [(198,)]
    assert read.agg({"id": "max"}).collect() == [(99,)]
    assert read.agg(F.sum("id"), F.count("*")).collect() == [(4950, 100)]
    assert read.drop("s").sort(F.desc("id")).limit(1).collect() == [(99, 0)]
    assert read.where("id < 5").orderBy("day", "id").count() == 5
    assert read.filter(read.day == 1).groupBy("day").count().collect() == [(1, 33)]
    assert read.join(read.select("id"), "id").count() == 100
    assert read.cache().selectExpr("count(*)").collect() == [(100,)]
    read.unpersist()
    assert pyspark_lance.read(spark, uri, columns=["ID"], filter="day = 1").count() == 33
    read.explain()

    merged = pyspark_lance.merge(spark.sql("select id, 9 as day, 'm' as s from range(95, 105)"), uri, on="id")
    assert isinstance(merged, pyspark_lance.ChangeResult)
    assert (merged.rows_inserted, merged.rows_updated) == (5, 5)
    assert pyspark_lance.update(uri, {"day": "day + 1L"}, "id < 5", spark=spark).rows_updated == 5
    assert pyspark_lance.delete(uri, "id >= 100", spark=spark).rows_deleted == 5
    assert pyspark_lance.delete(uri, spark.range(2), on="id").rows_deleted == 2
    pyspark_lance.write(frame.where("day = 1"), uri, mode="overwrite", replace_where="day = 1", partition_by=["day"])
    pyspark_lance.write(frame.selectExpr("*", "1 as new").limit(1), uri, schema_mode="add_columns")

    frame.write.format("lance").mode("append").option("mergeSchema", "true").save(uri)
    assert spark.read.format("lance").load(uri).count() == rows()

    pyspark_lance.create_scalar_index(spark, uri, "day", "BITMAP")
    report = pyspark_lance.compact(spark, uri)
    assert isinstance(report, pyspark_lance.CompactionReport)
    assert not report.failures

    clone = str(folder / "clone.lance")
    pyspark_lance.deep_clone(spark, uri, clone)
    assert rows(clone) == rows()

    parquet = str(folder / "parquet")
    frame.write.parquet(parquet)
    converted = pyspark_lance.convert(parquet, str(folder / "converted.lance"), partition_expr="day", spark=spark)
    assert isinstance(converted, pyspark_lance.ConvertResult)
    assert converted.rows == 100
    pyspark_lance.to_parquet(str(folder / "converted.lance"), str(folder / "back"), partition_by=["day"], spark=spark)
    assert spark.read.parquet(str(folder / "back")).count() == 100

    pyspark_lance.register_catalog(spark, "lake", folder / "lake")
    pyspark_lance.sql(spark, "CREATE TABLE lake.a.t (id bigint, x struct<a: int>)")
    pyspark_lance.sql(spark, "INSERT INTO lake.a.t (id) SELECT id FROM range(5) WHERE id > :least", least=1)
    few = pyspark_lance.sql(spark, "SELECT count(*) FROM lake.a.t WHERE id IN (SELECT max(id) FROM lake.a.t@v2)")
    assert few.collect() == [(1,)]
    target = pyspark_lance.LanceTable.forName(spark, "lake.a.t").alias("t")
    clauses = target.merge(spark.range(3).alias("s"), "t.id = s.id").whenMatchedDelete()
    assert isinstance(clauses, pyspark_lance.LanceMergeBuilder)
    assert clauses.whenNotMatchedInsert(values={"id": "s.id"}).execute().rows_inserted == 2

    statements(spark)
    stream = spark.readStream.format("lance").load(uri).select("id", "day")
    query = stream.writeStream.format("lance").option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start(str(folder / "copy.lance")).awaitTermination()
    assert rows(str(folder / "copy.lance")) == rows()

    other = frame.withColumnRenamed("s", "other")
    assert "SchemaError: merge: " in error_of(lambda: pyspark_lance.merge(other, uri, on="id"))
    large = spark.sql("select 3000000000L as id, 3000000000L as day, 's' as s, 1 as new")
    assert "InvalidInputError: column 'day': the value 3000000000" in error_of(lambda: pyspark_lance.write(large, uri))
    assert "lance-dagster[spark]" in error_of(lambda: pyspark_lance.local_session("local[2]"))
    print(json.dumps(dir(pyspark_lance)))
    spark.stop()


if __name__ == "__main__":
    main()

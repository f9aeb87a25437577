"""Strings of conditions mean the same at every entrance: what they mean in Spark SQL."""

import pathlib

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError, UnsupportedError
from pyspark_lance import LanceTable
from pyspark_lance.engine.lexing import string_value

VALUES = ["a\\b", "a\bx", "it's", "a\tx", "a%", "ab", "A", "\\", "C:\\new", 'say "x"', "plain"]
CONDITIONS = [
    r"s = 'a\\b'",
    r"s = 'a\bx'",
    r"s IN ('it''s', 'it\'s', 'a\tx')",
    r"s LIKE 'a\\%'",
    r"s LIKE 'a\%'",
    r"s LIKE '%\\\\b'",
    r"s = r'C:\new'",
    r"s = 'C:\\new' OR s = '\u0041' OR s = '\101b'",
    r"s <> '\\' AND s > '\''",
    r's = "say \"x\""',
    "s = 'plain'",
]


@pytest.fixture
def table(uri):
    rows = pa.table({"id": range(len(VALUES)), "s": VALUES, "x": [0] * len(VALUES)})
    lance_core.write_dataset(rows, uri, enable_stable_row_ids=True)
    return uri


def ids(frame):
    return sorted(row["id"] for row in frame.select("id").collect())


def left(uri):
    return set(lance_core.dataset(uri).to_table()["id"].to_pylist())


def of_source(spark, uri, condition):
    return ids(spark.read.format("lance").option("filter", condition).load(uri))


def of_read(spark, uri, condition):
    return ids(pyspark_lance.read(spark, uri, filter=condition))


def of_feed(spark, uri, condition):
    return ids(pyspark_lance.read_changes(spark, uri, begin_version=0, filter=condition))


def deleted(spark, uri, condition):
    pyspark_lance.delete(uri, condition, spark=spark)
    return sorted(set(range(len(VALUES))) - left(uri))


def deleted_by_table(spark, uri, condition):
    LanceTable.forPath(spark, uri).delete(condition)
    return sorted(set(range(len(VALUES))) - left(uri))


def updated(spark, uri, condition):
    pyspark_lance.update(uri, {"x": "1"}, condition, spark=spark)
    return sorted(lance_core.dataset(uri).to_table(filter="x = 1")["id"].to_pylist())


def of_columns(spark, uri, condition):
    values = pyspark_lance.read(spark, uri).where(condition).selectExpr("id", "1L AS x")
    pyspark_lance.write_columns(values, uri, on="id", where=condition)
    return sorted(lance_core.dataset(uri).to_table(filter="x = 1")["id"].to_pylist())


def replaced(spark, uri, condition):
    pyspark_lance.write(pyspark_lance.read(spark, uri).limit(0), uri, mode="overwrite", replace_where=condition)
    return sorted(set(range(len(VALUES))) - left(uri))


def replaced_by_source(spark, uri, condition):
    none = pyspark_lance.read(spark, uri).limit(0)
    none.write.format("lance").mode("overwrite").option("replaceWhere", condition).save(uri)
    return sorted(set(range(len(VALUES))) - left(uri))


ENTRANCES = (
    of_source, of_read, of_feed, deleted, deleted_by_table, updated, of_columns, replaced, replaced_by_source,
)  # fmt: skip


@pytest.mark.variants(3)
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_an_entrance(spark, uri, table, entrance):
    rows = pyspark_lance.read(spark, table).cache()
    conditions = CONDITIONS[1:4] if entrance not in (of_read, deleted) else CONDITIONS
    for number, condition in enumerate(conditions):
        copy = f"{uri}-{number}"
        lance_core.write_dataset(lance_core.dataset(table), copy, enable_stable_row_ids=True)
        assert entrance(spark, copy, condition) == ids(rows.where(condition)), condition
    rows.unpersist()


def test_a_session_without_escapes(spark, table):
    condition = r"s = 'a\b'"
    spark.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    try:
        assert of_read(spark, table, condition) == ids(pyspark_lance.read(spark, table).where(condition)) == [0]
        assert deleted(spark, table, condition) == [0]
    finally:
        spark.conf.unset("spark.sql.parser.escapedStringLiterals")


@pytest.mark.parametrize("condition", [r"s = 'it''s'", r"s = 'it\'s'", r"s IN ('a\\b', 'C:\\new')", r"s = r'C:\new'"])
def test_replace_where_of_statements(spark, table, condition):
    pyspark_lance.register_catalog(spark, "strings", pathlib.Path(table).parent)
    expected = ids(pyspark_lance.read(spark, table).where(condition))
    pyspark_lance.sql(spark, f"INSERT INTO strings.table REPLACE WHERE {condition} SELECT * FROM strings.table LIMIT 0")
    assert sorted(set(range(len(VALUES))) - left(table)) == expected


def test_replace_where_binds_strings_with_backslashes(spark, table):
    pyspark_lance.register_catalog(spark, "strings", pathlib.Path(table).parent)
    statement = "INSERT INTO strings.table REPLACE WHERE s = :s SELECT * FROM strings.table LIMIT 0"
    pyspark_lance.sql(spark, statement, s="a\\b")
    assert sorted(set(range(len(VALUES))) - left(table)) == [0]
    with pytest.raises(InvalidInputError, match="REPLACE WHERE"):
        pyspark_lance.sql(spark, statement.replace(":s", '"plain"'))


def test_values_of_strings(spark):
    for text in (
        r"'a\nb'",
        r"'\q\\'",
        r"'\u00e4\U0001F600\065'",
        r"'\%\_'",
        r"'it''s'",
        r'"a""b\"c"',
        r"r'\n'",
        r"'\0x'",
    ):
        assert string_value(text) == spark.sql(f"SELECT {text} AS s").collect()[0]["s"], text


@pytest.mark.parametrize("kind", ["CHAR(4)", "VARCHAR(4)", "STRUCT<c: VARCHAR(4)>"])
def test_strings_with_a_length_are_rejected(spark, uri, kind):
    spark.sql("DROP TABLE IF EXISTS with_a_length")
    spark.sql(f"CREATE TABLE with_a_length (id INT, c {kind}) USING parquet")
    frame = spark.table("with_a_length")
    for write in (
        lambda: pyspark_lance.write(frame, uri),
        lambda: frame.write.format("lance").mode("append").save(uri),
        lambda: pyspark_lance.merge(frame, uri, on="id"),
    ):
        with pytest.raises(Exception, match=r"column 'c': strings have no length here, and .*char\(4\)"):
            write()
    assert not pathlib.Path(uri).exists()
    if not kind.startswith("STRUCT"):
        spark.sql("INSERT INTO with_a_length VALUES (1, 'ab')")
        plain = "rtrim(c)" if kind.startswith("CHAR") else "cast(c AS STRING)"
        pyspark_lance.write(frame.selectExpr("id", f"{plain} AS c"), uri)
        with pytest.raises(UnsupportedError, match=r"column 'c': strings have no length here"):
            pyspark_lance.sql(
                spark,
                f"MERGE INTO lance.`{uri}` t USING with_a_length s ON t.id = s.id WHEN MATCHED THEN UPDATE SET c = s.c",
            )
        assert lance_core.dataset(uri).to_table().to_pylist() == [{"id": 1, "c": "ab"}]
    spark.sql("DROP TABLE with_a_length")

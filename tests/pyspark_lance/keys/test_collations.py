"""Columns with a collation: one meaning of a condition, or an error before anything is read or written."""

import threading

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_core
import pyspark_lance
from lance_core import Equals, Slice, Slices
from lance_core.errors import InvalidInputError, UnsupportedError
from pyspark_lance.keys.collations import check_condition
from pyspark_lance.types.arrow_types import SPARK_TYPE

LOWER = {SPARK_TYPE: b"string collate UTF8_LCASE"}
SCHEMA = pa.schema(
    [
        pa.field("s", pa.string(), metadata=LOWER),
        pa.field("plain", pa.string()),
        pa.field("st", pa.struct([pa.field("x", pa.string(), metadata=LOWER), pa.field("y", pa.int64())])),
        pa.field("list", pa.list_(pa.struct([pa.field("x", pa.string(), metadata=LOWER)]))),
    ]
)
COMPARED = {
    "s": ["s = 'a'", "s in ('a', 'b')", "s like 'a%'", "lower(s) = 'a'", "s || 'b' = 'ab'", "plain = 'a' or s > 'b'"],
    r"list\[\].x": ["array_contains(list, named_struct('x', 'a'))"],
    "st.x": ["st.x = 'a'", "plain = 'a' and upper(st.x) = 'A'", "st.x between 'a' and 'b'"],
}
NOT_COMPARED = [
    "s is null",
    "plain = 'a' and s is not null",
    "st.y = 1",
    "st.x is null",
    "st is not null",
    "list is null",
]


def test_conditions_that_compare_by_a_collation():
    table = lance_core.write_dataset(SCHEMA.empty_table(), "memory://collations")
    for column, conditions in COMPARED.items():
        for text in conditions:
            with pytest.raises(
                UnsupportedError, match=f"^filter: column '{column}' has the collation UTF8_LCASE.*; use"
            ):
                check_condition("filter", table.parse_filter(text), SCHEMA, "use another")
    for text in NOT_COMPARED:
        check_condition("filter", table.parse_filter(text), SCHEMA, "use another")
    with pytest.raises(UnsupportedError, match="column 's'"):
        check_condition("filter", pc.field("s") == "a", SCHEMA, "use another")


@pytest.fixture
def rows(spark, uri):
    """A table of 'a', 'B' and 'A'."""
    frame = spark.sql("select s collate UTF8_LCASE as s, v from values ('a', 1), ('B', 2), ('A', 3) as t(s, v)")
    pyspark_lance.write(frame.coalesce(1), uri)
    return lambda: sorted(lance_core.dataset(uri).to_table().column("v").to_pylist())


def test_every_condition_is_rejected_or_means_what_it_means_in_spark(spark, uri, rows):
    new = spark.sql("select 'a' collate UTF8_LCASE as s, 9 as v").coalesce(1)
    writer = new.write.format("lance").mode("overwrite")
    equal = "s = 'a'"
    some = Slices([Slice(name="a", conditions={"s": Equals("a")})])
    by_key = spark.createDataFrame([(1, 5)], "v int, x int")
    for name, verb in {
        "option filter": lambda: spark.read.format("lance").option("filter", equal).load(uri).collect(),
        "filter": lambda: pyspark_lance.read(spark, uri, filter=equal),
        "replaceWhere": lambda: writer.option("replaceWhere", equal).save(uri),
        "delete: where": lambda: pyspark_lance.delete(uri, equal, spark=spark),
        "update: where": lambda: pyspark_lance.update(uri, {"v": "v + 1"}, equal, spark=spark),
        "slices": lambda: pyspark_lance.write(new, uri, mode="replace", slices=some),
        "within": lambda: pyspark_lance.merge(new, uri, on="v", within=some),
        "where": lambda: pyspark_lance.write_columns(by_key, uri, on="v", where=equal),
        "^where": lambda: pyspark_lance.write_columns(by_key, uri, on="v", where=pc.field("s") == "a"),
        "^filter": lambda: pyspark_lance.read_changes(spark, uri, begin_version=0, filter=equal),
        "^filter:": lambda: pyspark_lance.read_changes(spark, uri, begin_version=0, filter=pc.field("s") == "a"),
        "partitionOverwriteMode dynamic": lambda: pyspark_lance.write(
            new, uri, mode="overwrite", partition_by=["s"], partition_overwrite="dynamic"
        ),
    }.items():
        with pytest.raises(
            Exception, match=f"{name.rstrip(':')}: column 's' has the collation UTF8_LCASE, by which only Spark"
        ):
            verb()
    assert rows() == [1, 2, 3]
    assert lance_core.dataset(uri).version == 1
    known = "v > 1 and s is not null"
    assert pyspark_lance.read(spark, uri, filter=known).count() == 2
    assert pyspark_lance.read_changes(spark, uri, begin_version=0, filter=known).count() == 2
    assert pyspark_lance.write_columns(by_key, uri, on="v", where="s is not null").rows_updated == 1


def test_functions_of_datafusion_are_left_to_the_frame(spark, uri, rows):
    """Tasks have the dependencies of lance_core alone."""
    padded = "lpad(cast(v as string), 2, '0') = '02'"
    by_key = spark.createDataFrame([(1, 5)], "v int, x int")
    writer = spark.createDataFrame([("a", 9)], "s string, v int").write.format("lance").mode("overwrite")
    for verb in (
        lambda: spark.read.format("lance").option("filter", padded).load(uri).collect(),
        lambda: pyspark_lance.read(spark, uri, filter=padded),
        lambda: writer.option("replaceWhere", padded).save(uri),
        lambda: pyspark_lance.delete(uri, padded, spark=spark),
        lambda: pyspark_lance.update(uri, {"v": "v + 1"}, padded, spark=spark),
        lambda: pyspark_lance.write_columns(by_key, uri, on="v", where=padded),
        lambda: pyspark_lance.read_changes(spark, uri, begin_version=0, filter=padded),
    ):
        with pytest.raises(Exception, match="tasks of Spark do not compute lpad, which needs DataFusion; "):
            verb()
    assert rows() == [1, 2, 3]
    assert pyspark_lance.read(spark, uri).where("lpad(cast(v as string), 2, '0') = '02'").count() == 1


def test_conditions_that_do_not_fit_are_rejected_before_a_job_runs(spark, uri, rows):
    by_key = spark.createDataFrame([(1, 5)], "v int, x int")
    for given, message in ((7, "Lance's SQL or an Arrow expression, not 7"), (pc.field("v") == "x", "no kernel")):
        with pytest.raises(InvalidInputError, match=f"^filter .*{message}"):
            pyspark_lance.read_changes(spark, uri, begin_version=0, filter=given)
        with pytest.raises(InvalidInputError, match=f"^where .*{message}"):
            pyspark_lance.write_columns(by_key, uri, on="v", where=given)


def test_columns_are_written_by_a_key_with_a_collation(spark, uri, rows):
    given = spark.createDataFrame([("b", 5)], "s string, x int")
    assert pyspark_lance.write_columns(given, uri, on="s").rows_updated == 1
    table = lance_core.dataset(uri).to_table(columns=["s", "x"]).to_pylist()
    assert {row["s"]: row["x"] for row in table} == {"a": None, "B": 5, "A": None}
    with pytest.raises(InvalidInputError, match="names several rows"):
        pyspark_lance.write_columns(given.replace("b", "a"), uri, on="s")


@pytest.mark.slow
def test_remedies_compare_by_the_collation(spark, uri, rows):
    assert pyspark_lance.read(spark, uri).where("s = 'a'").count() == 2
    assert pyspark_lance.read_changes(spark, uri, begin_version=0, split_updates=True).where("s = 'a'").count() == 2
    some = pyspark_lance.read(spark, uri).where("s = 'a'")
    pyspark_lance.merge(
        some.selectExpr("s", "v", "v + 10 as w").drop("w").where("v = 1"), uri, on="v", when_not_matched=None
    )
    pyspark_lance.delete(uri, spark.sql("select 'a' as s"), on="s")
    assert rows() == [2]


def test_another_thread_takes_the_session_of_the_process(spark, uri):
    pyspark_lance.write(spark.range(5), uri)
    done = []

    def work():
        done.append(pyspark_lance.delete(uri, "id = 1").rows_deleted)
        done.append(pyspark_lance.update(uri, {"id": "id + 10"}, "id = 2").rows_updated)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1, 1]
    assert sorted(lance_core.dataset(uri).to_table()["id"].to_pylist()) == [0, 3, 4, 12]


def test_errors_say_what_to_do(spark, uri, tmp_path):
    pyspark_lance.write(spark.range(2), uri)
    more = spark.sql("select 1L as id, 'x' as more").coalesce(1)
    merging = more.write.format("lance").mode("append").option("merge_on", "id")
    with pytest.raises(Exception, match=r"pyspark_lance.write\(df.limit\(0\), uri, schema_mode='add_columns'\)"):
        merging.option("mergeSchema", "true").save(uri)
    pyspark_lance.write(more.limit(0), uri, schema_mode="add_columns")
    merging.option("mergeSchema", "false").save(uri)
    assert lance_core.dataset(uri).to_table(filter="id = 1")["more"].to_pylist() == ["x"]
    with pytest.raises(
        Exception, match="mode 'apend' is none of append, overwrite, create, error, errorifexists, ignore"
    ):
        pyspark_lance.write(more, uri, mode="apend")
    with pytest.raises(Exception, match=r"lance_core\.errors\.InvalidInputError: Invalid user input") as raised:
        spark.read.format("lance").option("filter", "id = 'x'").load(uri).collect()
    assert "LocatedError" not in str(raised.value)

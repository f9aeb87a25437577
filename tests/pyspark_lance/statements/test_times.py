"""Columns of TIME, with nulls, in a session that does not allow casts to TIME, as Spark's sessions are by default."""

import datetime as dt

import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import InvalidInputError

ENABLED = "spark.sql.timeType.enabled"
ELEVEN = dt.time(11)
NESTED = pa.struct({"a": pa.time64("us"), "b": pa.list_(pa.time64("us")), "n": pa.int32()})
PAIRS = pa.map_(pa.string(), pa.time64("us"))


@pytest.fixture(autouse=True)
def _no_casts(spark):
    spark.conf.set(ENABLED, "false")
    yield
    spark.conf.set(ENABLED, "true")


@pytest.fixture
def times(lake):
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "t": pa.array([ELEVEN, None], pa.time64("us")),
            "v": pa.array([{"a": ELEVEN, "b": [ELEVEN], "n": 1}, None], NESTED),
            "m": pa.array([[("a", ELEVEN)], None], PAIRS),
        }
    )
    lance_core.write_dataset(rows, f"{lake}/t.lance")
    return f"{lake}/t.lance"


def _row(uri, number):
    return lance_core.dataset(uri).to_table(filter=f"id = {number}").drop_columns(["id"]).to_pylist()


NOTHING = [{"t": None, "v": None, "m": None}]


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO lake.t (id) VALUES (9)",
        "INSERT INTO lake.t BY NAME SELECT 9L AS id",
        "INSERT INTO lake.t VALUES (9, null, null, null)",
        "MERGE INTO lake.t USING (SELECT 9L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        (
            "MERGE INTO lake.t USING (SELECT 9L AS k) s ON t.id = s.k WHEN MATCHED THEN DELETE"
            " WHEN NOT MATCHED THEN INSERT (id, t) VALUES (s.k, null)"
        ),
        (
            "MERGE INTO lake.t USING (SELECT 9L AS k) s ON t.id = s.k WHEN MATCHED THEN UPDATE SET t = null"
            " WHEN NOT MATCHED THEN INSERT (id) VALUES (s.k) WHEN NOT MATCHED BY SOURCE THEN UPDATE SET m = null"
        ),
    ],
)
def test_an_insert_stores_null_in_columns_of_times(times, sql, statement):
    sql(statement)
    assert _row(times, 9) == NOTHING
    assert _row(times, 1)[0]["t"] == ELEVEN


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lake.t SET t = null, v = null, m = null WHERE id = 1",
        "MERGE INTO lake.t USING (SELECT 1L AS k) s ON t.id = s.k WHEN MATCHED THEN UPDATE SET t = null, v = null, m = null",
    ],
)
def test_an_update_stores_null_in_columns_of_times(times, sql, statement):
    sql(statement)
    assert _row(times, 1) == NOTHING


def test_a_field_of_a_struct_that_is_a_time_may_be_null(times, sql):
    sql("UPDATE lake.t SET v = named_struct('a', null, 'b', array(null), 'n', 3), m = map('a', null) WHERE id = 2")
    assert _row(times, 2) == [{"t": None, "v": {"a": None, "b": [None], "n": 3}, "m": [("a", None)]}]


@pytest.mark.parametrize("precision", [0, 3, 6])
def test_a_column_of_times_that_was_added_takes_null(times, sql, precision):
    sql(f"ALTER TABLE lake.t ADD COLUMNS (t2 time({precision}))")
    sql("INSERT INTO lake.t VALUES (9, null, null, null, null)")
    sql("INSERT INTO lake.t VALUES (8, null, null, null, time'10:00:00')")
    sql(
        "MERGE INTO lake.t USING (SELECT 7L AS k) s ON t.id = s.k WHEN NOT MATCHED THEN INSERT (id, t2) VALUES (k, null)"
    )
    assert _row(times, 9) == _row(times, 7) == [{**NOTHING[0], "t2": None}]
    assert _row(times, 8) == [{**NOTHING[0], "t2": dt.time(10)}]


@pytest.mark.parametrize("deletes", [False, True])
def test_a_merge_keeps_times_that_its_source_lacks(times, spark, deletes):
    source = spark.sql("SELECT explode(array(1L, 9L)) AS id")
    job = {"when_not_matched_by_source": "delete"} if deletes else {}
    pyspark_lance.merge(source, times, on="id", **job)
    assert _row(times, 9) == NOTHING
    assert _row(times, 1)[0]["t"] == ELEVEN
    assert lance_core.dataset(times).count_rows() == (2 if deletes else 3)


def test_an_insert_only_merge_stores_null_in_times(times, spark):
    pyspark_lance.merge(spark.sql("SELECT 9L AS id"), times, on="id", when_matched=None)
    assert _row(times, 9) == NOTHING


@pytest.mark.parametrize("condition", [None, "source.id > 0 and hour(target.t) = 11"])
def test_a_merge_of_filtered_times(times, spark, condition):
    source = pyspark_lance.read(spark, times).selectExpr("id + 7 as id", "t", "v", "m").where("id > 8").repartition(1)
    pyspark_lance.merge(source, times, on="id", condition=condition)
    assert _row(times, 9) == _row(times, 2)
    pyspark_lance.merge(source.selectExpr("1L as id", "t", "v", "m"), times, on="id", condition=condition)
    assert _row(times, 1) == NOTHING
    assert spark.conf.get(ENABLED) == "false"


def test_a_table_that_is_merged_by_clauses(times, spark):
    source = pyspark_lance.read(spark, times).where("id = 1").alias("s")
    merge = pyspark_lance.LanceTable.forPath(spark, times).alias("t").merge(source, "t.id = s.id + 1")
    merge.whenMatchedUpdate("t.t is null and hour(s.t) = 11", {"t": "s.t"}).whenNotMatchedInsertAll().execute()
    assert _row(times, 2)[0]["t"] == ELEVEN


def test_conditions_and_columns_of_times(times, spark):
    table = pyspark_lance.LanceTable.forPath(spark, times)
    table.update("hour(t) = 11", {"v": "null"})
    assert _row(times, 1)[0]["v"] is None
    pyspark_lance.write_columns(
        pyspark_lance.read(spark, times).where("id = 2").repartition(1), times, on="id", missing="keep"
    )
    assert table.delete("minute(t) = 0").rows_deleted == 1


def test_times_are_written_to_parquet(times, spark, tmp_path):
    assert pyspark_lance.to_parquet(times, tmp_path / "parquet", spark=spark) == 2
    assert spark.conf.get(ENABLED) == "false"


def test_a_type_that_parquet_lacks_is_named_with_a_remedy(lake, spark, tmp_path):
    lance_core.write_dataset(pa.table({"id": [1], "e": pa.array([{}], pa.struct([]))}), f"{lake}/e.lance")
    with pytest.raises(InvalidInputError, match=r"empty schemas.* drop or cast columns that it cannot write"):
        pyspark_lance.to_parquet(f"{lake}/e.lance", tmp_path / "parquet", spark=spark)

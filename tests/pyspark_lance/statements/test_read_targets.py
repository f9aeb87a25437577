"""Statements that read the table that they change lose nothing that others commit while they run."""

from pathlib import Path

import pytest

import lance_core
from lance_core.errors import RetryableConflictError
from pyspark_lance.statements import run

SELF_READS = {
    "overwrite": "INSERT OVERWRITE lake.nyc.t SELECT meanwhile(id), x + 1, s FROM lake.nyc.t",
    "path": "INSERT OVERWRITE lance.`{table}` SELECT meanwhile(id), x + 1, s FROM lake.nyc.t WHERE id IN (SELECT id"
    " FROM lake.nyc.t)",
    "condition": "INSERT INTO lake.nyc.t REPLACE WHERE id < 5 SELECT meanwhile(id), x + 1, s FROM lake.nyc.t WHERE id < 5",
    "replace": "CREATE OR REPLACE TABLE lake.nyc.t AS SELECT meanwhile(id) AS id, x + 1 AS x, s FROM lake.nyc.t",
    "merge": "MERGE INTO lake.nyc.t t USING (SELECT meanwhile(id) AS id, x + 1 AS x FROM lake.nyc.t WHERE id < 5) n"
    " ON t.id = n.id WHEN MATCHED THEN UPDATE SET x = n.x",
    "update": "UPDATE lake.nyc.t SET x = 1 + (SELECT max(meanwhile(x)) FROM lake.nyc.t) WHERE id = 2",
}


@pytest.fixture
def meanwhile(spark, table, tmp_path):
    """A function of SQL that returns its argument; when it runs first, somebody else sets x of row 2 to 1000."""

    def change(value):
        try:
            Path(tmp_path, "once").mkdir()
        except FileExistsError:
            return value
        lance_core.dataset(table).update({"x": "1000"}, where="id = 2")
        return value

    spark.udf.register("meanwhile", change, "long")
    yield tmp_path
    spark.sql("DROP TEMPORARY FUNCTION meanwhile")


def x_by_id(lance, table):
    return {row["id"]: row["x"] for row in lance.dataset(table).to_table().to_pylist()}


@pytest.mark.variants(2)
@pytest.mark.parametrize("form", SELF_READS)
def test_an_update_that_the_statement_did_not_read_stays(sql, table, lance, meanwhile, form):
    sql(SELF_READS[form].format(table=table))
    rows = x_by_id(lance, table)
    assert (meanwhile / "once").exists()
    assert (len(rows), rows[2]) == (10, 1001)


def test_a_dynamic_overwrite(spark, sql, table, lance, meanwhile):
    sql("CREATE OR REPLACE TABLE lake.nyc.t PARTITIONED BY (s) AS SELECT * FROM lake.nyc.t")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sql("INSERT OVERWRITE lake.nyc.t SELECT meanwhile(id), x + 1, s FROM lake.nyc.t WHERE id < 5")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    rows = x_by_id(lance, table)
    assert (len(rows), rows[1], rows[2], rows[9]) == (10, 11, 1001, 90)


def test_the_last_conflict_says_what_to_do(sql, table, lance, meanwhile, monkeypatch):
    monkeypatch.setattr(run, "_REPEATS", 0)
    with pytest.raises(RetryableConflictError, match=r"reads the table that it changes, .* run the statement again"):
        sql(SELF_READS["overwrite"])
    assert x_by_id(lance, table) == {i: 1000 if i == 2 else i * 10 for i in range(10)}


def test_a_version_that_is_named_is_not_the_one_that_is_changed(sql, table, lance, meanwhile):
    """Nor does it matter to an insert, which takes nothing away, that others change the table."""
    sql("INSERT INTO lake.nyc.t SELECT meanwhile(id) + 100, x, s FROM lake.nyc.t WHERE id < 1")
    rows = x_by_id(lance, table)
    assert (len(rows), rows[2], rows[100]) == (11, 1000, 0)
    (meanwhile / "once").rmdir()
    sql("INSERT OVERWRITE lake.nyc.t SELECT meanwhile(id), x, s FROM lake.nyc.t VERSION AS OF 1")
    assert x_by_id(lance, table) == {i: i * 10 for i in range(10)}

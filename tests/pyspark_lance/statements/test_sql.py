"""Statements of SQL over Lance tables, with pylance looking at what became of them."""

import datetime as dt
import operator
import re

import numpy as np
import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    LanceError,
    SchemaError,
    VersionNotFoundError,
)
from pyspark_lance.engine.sessions import is_connect
from pyspark_lance.reading import read as reading
from pyspark_lance.releases import is_at_least


@pytest.fixture
def plans(monkeypatch):
    """The columns and the filter of each read."""
    found = []
    whole = reading.plan_read

    def kept(dataset, schema, **more):
        found.append((tuple(schema.names), str(more.get("filter")), dataset.version))
        return whole(dataset, schema, **more)

    monkeypatch.setattr(reading, "plan_read", kept)
    return found


def test_names_are_those_of_dagster_s_tables(sql, lake, table):
    assert sql("SELECT count(*) FROM lake.nyc.t") == [(10,)]
    assert sql("SELECT t.id, lake.nyc.t.s FROM LAKE.Nyc.T WHERE lake.nyc.t.id = 3") == [(3, "s3")]
    assert sql(f"SELECT max(id) FROM lance.`{table}`") == [(9,)]
    lance_core.write_dataset(pa.table({"a": [1]}), f"{lake}/deep/er/u.lance")
    lance_core.write_dataset(pa.table({"a": [2]}), f"{lake}/top.lance")
    assert sql("SELECT a FROM lake.deep.er.u UNION ALL SELECT a FROM lake.top ORDER BY a") == [(1,), (2,)]
    assert sql("SHOW TABLES IN lake") == [("deep.er", "u", False), ("nyc", "t", False), ("", "top", False)]
    assert sql("SHOW TABLES IN lake.nyc LIKE 't*|u'") == [("nyc", "t", False)]
    assert sql("SHOW NAMESPACES IN lake") == [("deep",), ("nyc",)]
    with pytest.raises(DatasetNotFoundError, match=r"line 1, column 15: there is no table lake.nyc.nope"):
        sql("SELECT * FROM lake.nyc.nope")


def test_case_counts_if_the_session_says_so(spark, sql, table):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(DatasetNotFoundError):
            sql("SELECT * FROM lake.NYC.t")
        assert sql("SELECT count(*) FROM lake.nyc.t") == [(10,)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_tables_of_a_directory_catalog_are_found_and_dropped(sql, lake, lance):
    lance_core.write_dataset(pa.table({"a": [7]}), f"{lake}/a1b2_ns$u")
    rows = {
        "object_id": ["ns$u", "ns"],
        "object_type": ["table", "namespace"],
        "location": ["a1b2_ns$u", None],
        "metadata": pa.array([None, None], pa.string()),
    }
    lance.write_dataset(pa.table(rows), f"{lake}/__manifest")
    assert sql("SELECT a FROM lake.ns.u") == [(7,)]
    assert sql("SELECT a FROM lake.NS.U") == [(7,)]
    assert sql("SHOW TABLES IN lake.ns") == [("ns", "u", False)]
    sql("DROP TABLE lake.ns.u")
    assert lance.dataset(f"{lake}/__manifest").count_rows() == 1
    with pytest.raises(DatasetNotFoundError):
        sql("SELECT a FROM lake.ns.u")


def test_deregistered_tables_are_not_found(sql, lake, table):
    from lance.namespace import DirectoryNamespace
    from lance_namespace import DeclareTableRequest, DeregisterTableRequest

    lance_core.write_dataset(pa.table({"a": [1]}), f"{lake}/nyc/old.lance")
    namespace = DirectoryNamespace(root=f"{lake}/nyc", manifest_enabled="false")
    namespace.deregister_table(DeregisterTableRequest(id=["old"]))
    namespace.declare_table(DeclareTableRequest(id=["declared"]))
    assert sql("SHOW TABLES IN lake.nyc") == [("nyc", "t", False)]
    for statement in ("SELECT * FROM lake.nyc.old", "DELETE FROM lake.nyc.old", "SELECT * FROM lake.nyc.OLD"):
        with pytest.raises(DatasetNotFoundError, match=r"there is no table lake\.nyc\.(old: it was deregistered|OLD)"):
            sql(statement)
    assert sql(f"SELECT a FROM lance.`{lake}/nyc/old.lance`") == [(1,)]
    sql("CREATE TABLE lake.nyc.declared (a INT)")
    assert sql("SHOW TABLES IN lake.nyc") == [("nyc", "declared", False), ("nyc", "t", False)]


def test_a_query_reads_one_version_its_columns_and_its_rows(spark, sql, table, plans):
    frame = pyspark_lance.sql(spark, "SELECT a.s FROM lake.nyc.t a WHERE a.id > :least AND a.s LIKE 's%'", least=7)
    assert plans[0] == (("id", "s"), "(id > 7)", 1)
    lance_core.write_dataset(pa.table({"id": [99], "x": [0], "s": ["new"]}), table, mode="append")
    assert sorted(frame.collect()) == [("s8",), ("s9",)]
    plans.clear()
    two = "SELECT count(*) FROM lake.nyc.t a JOIN lake.nyc.t b ON a.id = b.id LEFT JOIN lake.nyc.t c ON c.id = a.id WHERE b.id < 3 AND c.x IS NULL"
    assert sql(two) == [(0,)]
    assert {filter_ for _, filter_, _ in plans} == {"None", "(id < 3)"}
    assert {version for _, _, version in plans} == {2}


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT count(*) FROM lake.nyc.t", ("_rowaddr",)),
        ("SELECT * FROM lake.nyc.t", ("id", "x", "s")),
        ("SELECT s FROM (SELECT * FROM lake.nyc.t)", ("id", "x", "s")),
        ("SELECT count(1) FROM lake.nyc.t WHERE EXISTS (SELECT * FROM range(3) r WHERE r.id = t.id)", ("id",)),
        ("SELECT max(ID) FROM lake.nyc.t", ("id",)),
        ("SELECT _rowid, `x` FROM lake.nyc.t", ("x", "_rowid")),
        ("SELECT struct(t.*) FROM lake.nyc.t", ("id", "x", "s")),
        ("SELECT a.id FROM lake.nyc.t a NATURAL JOIN range(3)", ("id", "x", "s")),
        ("SELECT IDENTIFIER('x') FROM lake.nyc.t", ("id", "x", "s")),
        ("SELECT * FROM lake.nyc.t UNPIVOT (v FOR k IN (id, x))", ("id", "x", "s")),
        ("WITH c AS (SELECT x FROM lake.nyc.t) SELECT * FROM c", ("x",)),
    ],
)
def test_columns_that_no_part_of_a_query_needs_are_not_read(spark, table, plans, query, columns):
    pyspark_lance.sql(spark, query).collect()
    assert plans[0][0] == columns


@pytest.mark.parametrize(
    ("setting", "query"),
    [
        ("spark.sql.parser.quotedRegexColumnNames", "SELECT `(id)?+.+` FROM {t} ORDER BY id"),
        ("spark.sql.preserveCharVarcharTypeInfo", "SELECT id FROM {t} WHERE s = cast('s1' as char(2))"),
        ("spark.sql.legacy.consecutiveStringLiterals.enabled", "SELECT id FROM {t} WHERE s = 's''1'"),
        ("spark.sql.caseSensitive", "SELECT q.id FROM {t} q JOIN {t} Q ON q.id = Q.id - 1 WHERE Q.id = 1"),
        ("spark.sql.caseSensitive", "SELECT 1 FROM range(3) AS o(ID) WHERE EXISTS (SELECT 1 FROM {t} WHERE ID = id)"),
    ],
)
def test_a_setting_that_changes_names_or_constants_changes_no_answer(spark, sql, table, setting, query):
    spark.createDataFrame(lance_core.dataset(table).to_table()).createOrReplaceTempView("same_rows")
    spark.conf.set(setting, "true")
    try:
        expected = [tuple(row) for row in spark.sql(query.replace("{t}", "same_rows")).collect()]
        assert sql(query.replace("{t}", "lake.nyc.t")) == expected
    finally:
        spark.conf.unset(setting)


def test_variables_of_the_session_are_read_by_spark(spark, sql, table):
    spark.conf.set("lance.test.wanted", "s3")
    try:
        assert sql("SELECT id FROM lake.nyc.t WHERE s = '${lance.test.wanted}'") == [(3,)]
        with pytest.raises(InvalidInputError, match="REPLACE WHERE"):
            sql("INSERT INTO lake.nyc.t REPLACE WHERE s = '${lance.test.wanted}' SELECT 3, 3, 's3'")
        for change in ("DELETE FROM lake.nyc.t WHERE x = 1", "UPDATE lake.nyc.t SET x = 1 WHERE x = 1"):
            with pytest.raises(InvalidInputError, match=r"line 1, column \d+: .* into a parameter"):
                sql(change + " OR s = '${lance.test.wanted}'")
    finally:
        spark.conf.unset("lance.test.wanted")


def test_a_where_that_is_piped_is_evaluated_where_it_stands(spark, sql, table):
    spark.createDataFrame(lance_core.dataset(table).to_table()).createOrReplaceTempView("same_rows")
    for query in (
        "FROM {t} |> ORDER BY id |> LIMIT 1 |> WHERE id = 3 |> SELECT id",
        "SELECT id, row_number() OVER (ORDER BY id DESC) AS x FROM {t} |> WHERE x = 1",
        "SELECT x AS id, id AS x FROM {t} |> WHERE x = 3",
    ):
        assert sql(query.replace("{t}", "lake.nyc.t")) == sql(query.replace("{t}", "same_rows"))
    assert sql("DELETE FROM lake.nyc.t WHERE EXISTS (FROM lake.nyc.t z |> ORDER BY id |> LIMIT 1 |> WHERE id = 3)") == [
        (0,)
    ]


def test_a_delete_finds_the_floats_that_a_select_finds(sql, lake):
    for condition in ("f > 0.1", "NOT (f > 0.1)", "NOT (f NOT BETWEEN 0.0 AND 0.1)"):
        floats = pa.table({"f": pa.array([0.1, 0.5, None], pa.float32())})
        lance_core.write_dataset(floats, f"{lake}/floats.lance", mode="overwrite")
        selected = sql(f"SELECT count(*) FROM lake.floats WHERE {condition}")
        assert sql(f"DELETE FROM lake.floats WHERE {condition}") == selected


def test_a_delete_ends_its_comments_where_spark_does(sql, table):
    assert sql("DELETE FROM lake.nyc.t -- old rows\rWHERE id = 1 -- and\rAND x > 0") == [(1,)]
    assert sql("DELETE FROM lake.nyc.t /* /*+ a */ WHERE id = 2 /* b */ -- */") == [(1,)]
    assert sql("SELECT count(*) FROM lake.nyc.t") == [(8,)]


@pytest.mark.variants(1)
@pytest.mark.parametrize("type_", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_a_time_as_a_parameter_is_one_time_in_each_statement(spark, sql, lake, type_):
    """A time without a zone is in the zone of the process, which the session's need not be."""
    hours = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=hour) for hour in range(48)]
    rows = {"id": range(48), "t": pa.array(hours, pa.timestamp("us", "UTC")), "n": pa.array(hours, pa.timestamp("us"))}
    values = [dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=-3)))]
    if is_connect(spark) and not is_at_least((4, 1)) and type_ == "TIMESTAMP_NTZ":
        del values[1]  # this client drops the zone of a query's parameter
    spark.conf.set("spark.sql.timestampType", type_)
    try:
        for value in values:
            for column in ("t", "n"):
                lance_core.write_dataset(pa.table(rows), f"{lake}/times.lance", mode="overwrite")
                selected = sql(f"SELECT id FROM lake.times WHERE {column} = :p", p=value)
                assert len(selected) == 1
                assert sql(f"DELETE FROM lake.times WHERE {column} = :p", p=value) == [(1,)]
                assert sql("SELECT count(*) FROM lake.times WHERE id = :id", id=selected[0][0]) == [(0,)]
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_listeners_are_called_once_a_read_until_they_are_stopped(sql, table):
    read = []
    stops = [pyspark_lance.on_read(read.append) for _ in range(2)]
    sql("SELECT id FROM lake.nyc.t")
    assert [(dataset.version, dataset.root_uri) for dataset in read] == [(1, table)]
    for stop in stops:
        stop()
    sql("SELECT id FROM lake.nyc.t")
    assert len(read) == 1


def test_time_travel_branches_and_tags(spark, sql, table):
    latest = lance_core.dataset(table)
    latest.delete("id > 4")
    latest.tags.create("small")
    latest.create_branch("dev").delete("id > 0")
    assert sql("SELECT count(*) FROM lake.nyc.t VERSION AS OF 1") == [(10,)]
    assert sql("SELECT count(*) FROM lake.nyc.t FOR VERSION AS OF :v AS q WHERE q.id >= 0", v=1) == [(10,)]
    assert sql("SELECT count(*) FROM lake.nyc.t VERSION AS OF 'small'") == [(5,)]
    assert sql("SELECT count(*) FROM lake.nyc.t@small") == [(5,)]
    assert sql("SELECT (SELECT count(*) FROM lake.nyc.t@dev), (SELECT count(*) FROM lake.nyc.t@v1)") == [(1, 10)]
    first = latest.checkout_version(1).timestamp
    zone = spark.conf.get("spark.sql.session.timeZone")
    local = spark.sql(f"SELECT cast(from_utc_timestamp('{first.isoformat()[:26]}', '{zone}') AS string)").collect()[0][
        0
    ]
    assert sql(f"SELECT count(*) FROM lake.nyc.t TIMESTAMP AS OF '{local}'") == [(10,)]
    assert sql("SELECT count(*) FROM lake.nyc.t TIMESTAMP AS OF current_timestamp() + INTERVAL 1 HOUR t") == [(5,)]
    assert sql(
        "DELETE FROM lake.nyc.t WHERE id IN (SELECT max(id) FROM lake.nyc.t VERSION AS OF :v) AND id < :n", v=2, n=9
    ) == [(1,)]
    for query in ("lake.nyc.t@nope", "lake.nyc.t VERSION AS OF 17", "lake.nyc.t TIMESTAMP AS OF '1999-01-01'"):
        with pytest.raises(VersionNotFoundError):
            sql(f"SELECT 1 FROM {query}")


def test_insert_update_and_delete(sql, table, lance):
    assert sql("INSERT INTO lake.nyc.t VALUES (20, 1, 'a'), (21, 2, 'b')") == [(2, 2)]
    assert sql("INSERT INTO lake.nyc.t (s, ID) SELECT :s, 22", s='it\'s \\ "so"') == [(1, 1)]
    assert sql("INSERT INTO lake.nyc.t BY NAME SELECT 'n' AS S, 23L AS id") == [(1, 1)]
    rows = {row["id"]: row for row in lance.dataset(table).to_table().to_pylist()}
    assert rows[22] == {"id": 22, "x": None, "s": 'it\'s \\ "so"'}
    assert rows[23]["s"] == "n"
    assert sql(
        "UPDATE lake.nyc.t AS q SET x = q.x + 1, s = concat(s, :end) WHERE q.id IN (SELECT id FROM lake.nyc.t WHERE id > 20) OR q.id = 0",
        end="'",
    ) == [(4,)]
    assert sql("DELETE FROM lake.nyc.t WHERE s RLIKE '^s[5-9]$' AND id > (SELECT avg(id) - 5 FROM lake.nyc.t@v1)") == [
        (5,)
    ]
    rows = {row["id"]: (row["x"], row["s"]) for row in lance.dataset(table).to_table().to_pylist()}
    assert rows[0] == (1, "s0'")
    assert rows[21] == (3, "b'")
    assert sorted(rows) == [0, 1, 2, 3, 4, 20, 21, 22, 23]
    assert sql("INSERT INTO lake.nyc.t REPLACE WHERE id >= 20 SELECT 20, 0, 'only'") == [(1, 1)]
    assert sql("INSERT OVERWRITE lake.nyc.t SELECT id + 100, x, s FROM lake.nyc.t WHERE id < 2") == [(2, 2)]
    assert sorted(lance.dataset(table).to_table()["id"].to_pylist()) == [100, 101]
    assert sql("DELETE FROM lake.nyc.t") == [(2,)]
    assert sql("TRUNCATE TABLE lake.nyc.t") == []


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("INSERT INTO lake.nyc.t VALUES (1, 2)", SchemaError, "2 columns"),
        ("INSERT INTO lake.nyc.t (id, nope) VALUES (1, 2)", SchemaError, "no columns \\['nope'\\]"),
        ("INSERT INTO lake.nyc.t VALUES ('a', 1, 's')", SchemaError, "'id'"),
        ("UPDATE lake.nyc.t SET x = 1, nope = 1", SchemaError, "line 1, column 30: SET: there are no columns .'nope'"),
        ("UPDATE lake.nyc.t SET t.x.a = 1", SchemaError, "line 1, column 23: .*'x.a' is not a field of a struct"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) s ON t.id = s.id\nWHEN MATCHED THEN UPDATE SET x.a = 1", SchemaError, "line 2, column 30"),
        ("UPDATE lake.nyc.t SET x = 'a'", SchemaError, "'x'"),
        ("UPDATE lake.nyc.t SET x = nope", InvalidInputError, "nope"),
        ("DELETE FROM lake.nyc.t WHERE nope = 1", InvalidInputError, "nope"),
        ("DELETE FROM lake.nyc.t WHERE id = :id", InvalidInputError, "parameter :id"),
        ("DELETE FROM lake.nyc.t WHERE id IN (SELEC id FROM lake.nyc.t)", InvalidInputError, "line 1, column"),
        ("SELECT id FROM lake.nyc.t WHERE", InvalidInputError, "line 1"),
        ("SELECT a.id FROM lake.nyc.t, lake.nyc.t", InvalidInputError, "two tables are called t"),
        ("WITH w AS (SELECT 1) INSERT INTO lake.nyc.t SELECT 1, 1, '' FROM w", InvalidInputError, "line 1, column 34"),
        ("CREATE TABLE lake.nyc.t (a int)", DatasetExistsError, "already exists"),
        ("CREATE TABLE lake.nyc.e (id INT, ID STRING)", SchemaError, r"\['id', 'ID'\] differ only in case"),
        ("CREATE TABLE lake.nyc.e AS SELECT 1 id, 2 ID", SchemaError, "'id' and 'ID' differ only in case"),
        ("ALTER TABLE lake.nyc.t ADD COLUMNS (n INT, N INT)", SchemaError, r"\['n', 'N'\] differ only in case"),
        ("INSERT INTO lake.nyc.t@v1 VALUES (1, 2, 'a')", InvalidInputError, "only branches can be changed"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) s ON t.id > s.id WHEN MATCHED THEN DELETE", InvalidInputError, "no equality"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *", SchemaError, "lacks the columns"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) s ON t.id = s.id WHEN NOT MATCHED BY SOURCE AND s.id = 1 THEN DELETE", InvalidInputError, "s.*id"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN MATCHED THEN UPDATE SET x = 1", InvalidInputError, "only the last"),
    ],
)  # fmt: skip
def test_mistakes_change_nothing(sql, table, statement, error, message):
    with pytest.raises(error, match=message) as raised:
        sql(statement)
    assert not re.search(
        r"sqlglot|\bpos \d", str(raised.value)
    )  # a position in what Spark got is none of the statement
    assert lance_core.dataset(table).version == 1


def test_merge_with_all_its_clauses(sql, table, lance):
    merge = """
        MERGE INTO lake.nyc.t USING (SELECT id, id * 100 AS x, 'new' AS s FROM range(5, 13)) AS n ON t.id = n.id AND t.x >= 60
        WHEN MATCHED AND n.id = 7 THEN DELETE
        WHEN MATCHED AND t.s = 's8' THEN UPDATE SET x = t.x + n.x, s = concat(t.s, n.s)
        WHEN MATCHED THEN UPDATE SET *
        WHEN NOT MATCHED AND n.id > 11 THEN INSERT *
        WHEN NOT MATCHED AND n.id = 5 THEN INSERT (id, s) VALUES (n.id + 1000, 'five')
        WHEN NOT MATCHED BY SOURCE AND id = 0 THEN DELETE
        WHEN NOT MATCHED BY SOURCE AND id < 3 THEN UPDATE SET s = upper(s)
    """
    assert sql(merge) == [(9, 5, 2, 2)]
    assert lance_core.dataset(table).version == 2
    rows = {row["id"]: (row["x"], row["s"]) for row in lance.dataset(table).to_table().to_pylist()}
    assert rows == {
        1: (10, "S1"), 2: (20, "S2"), 3: (30, "s3"), 4: (40, "s4"), 5: (50, "s5"), 6: (600, "new"),
        8: (880, "s8new"), 9: (900, "new"), 12: (1200, "new"), 1005: (None, "five"),
    }  # fmt: skip


def test_several_rows_of_the_source_for_one_row(sql, table):
    twice = "(SELECT 3L AS id, 1L AS x UNION ALL SELECT 3L, 2L UNION ALL SELECT 50L, 1L UNION ALL SELECT 50L, 2L) s ON t.id = s.id"
    with pytest.raises(
        InvalidInputError,
        match="Ambiguous change, which changes one row several times: several rows of the source have the key",
    ):
        sql(f"MERGE INTO lake.nyc.t USING {twice} WHEN MATCHED THEN UPDATE SET x = s.x")
    assert lance_core.dataset(table).version == 1
    # One of the two changes the row, and rows without a partner are inserted as often as they are there.
    assert sql(
        f"MERGE INTO lake.nyc.t USING {twice} WHEN MATCHED AND s.x = 2 THEN UPDATE SET x = s.x WHEN NOT MATCHED THEN INSERT (id, x) VALUES (id, x)"
    ) == [(3, 1, 0, 2)]
    assert sql(f"MERGE INTO lake.nyc.t USING {twice} WHEN MATCHED THEN DELETE") == [(3, 0, 3, 0)]


def test_tables_are_created_changed_and_dropped(sql, lake, lance):
    sql(
        "CREATE TABLE lake.a.t (id bigint NOT NULL, v array<float> COMMENT 'a vector', s string) USING lance PARTITIONED BY (s) TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2', 'owner' = 'me')"
    )
    assert lance.dataset(f"{lake}/a/t.lance").version == 1
    schema = lance.dataset(f"{lake}/a/t.lance").schema
    assert not schema.field("id").nullable
    assert schema.field("v").type == pa.list_(pa.float32(), 2)
    assert sql("DESCRIBE lake.a.t")[1] == ("v", "array<float>", "a vector")
    sql("INSERT INTO lake.a.t SELECT id, array(1, 2), concat('p', id % 2) FROM range(6)")
    assert len(lance_core.dataset(f"{lake}/a/t.lance").get_fragments()) == 2  # one for each value of s
    made = sql("SHOW CREATE TABLE lake.a.t")[0][0]
    sql("DROP TABLE lake.a.t")
    sql(made)
    assert lance.dataset(f"{lake}/a/t.lance").schema.equals(schema)
    assert sql("SHOW CREATE TABLE lake.a.t")[0][0] == made
    sql("ALTER TABLE lake.a.t ADD COLUMNS (n int, m struct<a: int>)")
    sql("ALTER TABLE lake.a.t RENAME COLUMN N TO number")
    sql("ALTER TABLE lake.a.t ALTER COLUMN number TYPE bigint")
    for change in ("DROP COLUMN m, S", "RENAME COLUMN S TO u"):
        with pytest.raises(InvalidInputError, match=r"PARTITIONED BY s: .* UNSET TBLPROPERTIES"):
            sql(f"ALTER TABLE lake.a.t {change}")
    sql("ALTER TABLE lake.a.t UNSET TBLPROPERTIES ('lance-dagster.partitioned_by')")
    sql("ALTER TABLE lake.a.t DROP COLUMN m, s")
    sql("ALTER TABLE lake.a.t SET TBLPROPERTIES ('k' = 'w')")
    sql("ALTER TABLE lake.a.t UNSET TBLPROPERTIES ('owner')")
    assert [row[:2] for row in sql("DESCRIBE lake.a.t")] == [
        ("id", "bigint"),
        ("v", "array<float>"),
        ("number", "bigint"),
    ]
    assert sql("SHOW TBLPROPERTIES lake.a.t") == [("k", "w")]
    assert sql("CREATE OR REPLACE TABLE lake.a.t AS SELECT 'x' AS y") == [(1, 1)]
    assert sql("CREATE TABLE IF NOT EXISTS lake.a.t (z int)") == []
    assert sql("SELECT * FROM lake.a.t") == [("x",)]
    sql("DROP TABLE lake.a.t")
    sql("DROP TABLE IF EXISTS lake.a.t")
    assert lance_core.list_tables(lake) == []


@pytest.mark.parametrize("columns", ["(a int, b int)", "as select 0 as a, 0 as b where false"])
def test_a_table_that_replaces_another_has_what_the_statement_says(spark, sql, lake, lance, columns):
    sql(
        "create table lake.a.r (a int, b int) partitioned by (A) comment 'old' tblproperties ('owner' = 'x', 'k' = 'v')"
    )
    assert lance.dataset(f"{lake}/a/r.lance").config()["lance-dagster.partitioned_by"] == "a"
    lance_core.dataset(f"{lake}/a/r.lance").update_config({"lance-dagster.changes.days": "3"})
    head, _, query = columns.partition("as ")
    sql(f"create or replace table lake.a.r {head} tblproperties ('k' = 'w') {'as ' * bool(query)}{query}")
    config = lance.dataset(f"{lake}/a/r.lance").config()
    assert config == {"k": "w", "lance-dagster.changes.days": "3"}
    assert "PARTITIONED BY" not in sql("show create table lake.a.r")[0][0]
    replaced = lance.dataset(f"{lake}/a/r.lance").version - 1
    assert lance.dataset(f"{lake}/a/r.lance", version=replaced).config()["lance-dagster.partitioned_by"] == ""
    sql("insert into lake.a.r values (1, 1), (2, 2)")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sql("insert overwrite lake.a.r values (1, 9)")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sql("select * from lake.a.r") == [(1, 9)]
    before = lance.dataset(f"{lake}/a/r.lance").version
    sql("create or replace table lake.a.r (a int) tblproperties ('k' = 'w')")
    assert lance.dataset(f"{lake}/a/r.lance").version == before + 1
    assert len(sql("describe history lake.a.r")) == before + 1


@pytest.mark.parametrize("kind", ["STRUCT<a: INT>", "ARRAY<INT>", "MAP<STRING, INT>"])
def test_columns_that_no_insert_can_partition_by_are_rejected(sql, lake, kind):
    for statement in ("CREATE TABLE lake.a.q", "CREATE OR REPLACE TABLE lake.a.q"):
        with pytest.raises(SchemaError, match=r"PARTITIONED BY: the values of column 's' .* cannot be compared"):
            sql(f"{statement} (id INT, s {kind}) PARTITIONED BY (s)")
        assert sql("SHOW TABLES IN lake.a LIKE 'q'") == []


def test_a_type_that_a_column_cannot_get_is_named_as_a_whole(sql, table):
    with pytest.raises(
        SchemaError, match=r"to map<string, int32>: ADD COLUMN of the new type, UPDATE lake\.nyc\.t SET"
    ):
        sql("ALTER TABLE lake.nyc.t ALTER COLUMN id TYPE MAP<STRING, INT>")


def test_an_overwrite_of_partitions_needs_their_columns(spark, sql, lake, lance):
    sql("CREATE TABLE lake.a.p PARTITIONED BY (day) AS SELECT id, cast(id AS int) AS day FROM range(3)")
    lance.dataset(f"{lake}/a/p.lance").alter_columns({"path": "day", "name": "d"})
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with pytest.raises(SchemaError, match="PARTITIONED BY day, and no longer has these columns"):
            sql("INSERT OVERWRITE lake.a.p SELECT 30L, 2")
        sql("ALTER TABLE lake.a.p SET TBLPROPERTIES ('lance-dagster.partitioned_by' = 'd')")
        assert sql("INSERT OVERWRITE lake.a.p SELECT 30L, 2") == [(1, 1)]
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sql("SELECT * FROM lake.a.p ORDER BY d") == [(0, 0), (1, 1), (30, 2)]


def test_indices_without_a_name_are_named_as_pylance_does(sql, table, lance):
    assert sql("CALL lake.system.create_scalar_index('nyc.t', column => 'ID', index_type => 'btree')") == [(2,)]
    sql("CALL lake.system.create_scalar_index('nyc.t', 'ID', 'btree')")
    with pytest.raises(InvalidInputError, match="an index 'id_idx' already; replace => true replaces it"):
        sql("CALL lake.system.create_scalar_index('nyc.t', 'ID', 'btree', 'id_idx', replace => false)")
    sql("CALL lake.system.create_scalar_index('nyc.t', 'id', 'bitmap')")
    sql("CALL lake.system.create_scalar_index('nyc.t', 'id', 'bitmap', replace => true)")
    found = lance.dataset(table).describe_indices()
    assert sorted((one.name, one.index_type) for one in found) == [("id_idx", "BTree"), ("id_idx_2", "Bitmap")]


def test_maintenance_indices_branches_and_clones(spark, sql, lake, table, lance):
    for number in range(3):
        sql(f"INSERT INTO lake.nyc.t VALUES ({number + 50}, 0, 'more')")
    (compacted,) = pyspark_lance.sql(spark, "CALL lake.system.compact('nyc.t')").collect()
    assert (compacted.metrics.fragments_removed, compacted.metrics.fragments_added) == (6, 1)
    assert (compacted.dataset.version, compacted.failures) == (6, [])
    assert sql("CALL lake.system.create_scalar_index('nyc.t', 'id', 'BTREE', name => 'by_id')") == [(7,)]
    assert sql("SHOW INDEXES IN lake.nyc.t") == [("by_id", ["id"], "btree", 13)]
    sql("CALL lake.system.drop_index(table => 'nyc.t', name => 'by_id')")
    assert lance.dataset(table).list_indices() == []
    sql("CALL lake.system.create_tag('nyc.t', 'before')")
    sql("CALL lake.system.create_branch('nyc.t', 'dev')")
    sql("UPDATE lake.nyc.t@dev SET s = 'dev' WHERE id = 1")
    assert sql("SELECT s FROM lake.nyc.t WHERE id = 1") == [("s1",)]
    dry = pyspark_lance.sql(spark, "CALL lake.system.promote_branch('nyc.t', 'dev', dry_run => true)").first()
    assert (dry.rows_added, lance.dataset(table).version) == (1, 8)
    promoted = pyspark_lance.sql(spark, "CALL lake.system.promote_branch('nyc.t', name => 'dev')").first()
    assert (promoted.branch, promoted.version, promoted.rows_added) == ("dev", 9, 1)
    assert sql("SELECT s FROM lake.nyc.t WHERE id = 1") == [("dev",)]
    sql("CALL lake.system.delete_branch('nyc.t', 'dev')")
    assert sql("SHOW BRANCHES IN lake.nyc.t") == []
    assert sql("CALL lake.system.deep_clone('nyc.t VERSION AS OF 1', target => 'copy')") == [(1,)]
    sql("CALL lake.system.shallow_clone(lake.nyc.t@before, target_path => 'shallow')")
    assert sql("SELECT (SELECT count(*) FROM lake.copy), (SELECT count(*) FROM lake.shallow)") == [(10, 13)]
    assert sql("CALL lake.system.restore(lake.nyc.t VERSION AS OF 1)") == [(10,)]
    assert lance.dataset(table).count_rows() == 10
    assert sql("DESCRIBE HISTORY lake.nyc.t")[0][2] == "Restore"
    (migrated,) = pyspark_lance.sql(spark, "CALL lake.system.migrate_to_stable_row_ids('nyc.t')").collect()
    assert (migrated.version, migrated.is_new) == (lance.dataset(table).version, True)
    assert lance.dataset(table).has_stable_row_ids
    (cleaned,) = pyspark_lance.sql(
        spark, "CALL lake.system.cleanup_old_versions('copy', older_than => INTERVAL 0 DAYS)"
    ).collect()
    assert (cleaned.old_versions, cleaned.failures) == (0, [])
    sql("CALL lake.system.delete_tag('nyc.t', 'before')")


def test_a_call_takes_the_arguments_of_the_python_function(spark, sql, table, lance):
    """By position, by name, from parameters and from queries, of the types that Python has."""
    import inspect

    from pyspark_lance.statements.procedures import _ON_TABLE, _VERBS

    dataset = lance_core.dataset(table)
    for verb in _VERBS:
        with pytest.raises(LanceError, match=r"nope|missing a required"):
            sql(f"CALL lake.system.{verb}('nyc.t', nope => 1)")
        if verb in _ON_TABLE:
            function = operator.attrgetter(_ON_TABLE[verb])(dataset)
            accepted = [name for name in inspect.signature(function).parameters if not name.endswith("options")]
            with pytest.raises(InvalidInputError, match="it takes table") as raised:
                sql(f"CALL lake.system.{verb}('nyc.t', 1, 2, 3, 4, 5, 6, 7, 8)")
            listed = str(raised.value).partition("it takes table")[2]
            assert all(name in listed for name in accepted if (verb, name) != ("shallow_clone", "reference"))
    sql(
        "CALL lake.system.create_branch(:t, :b, reference => named_struct('branch', null, 'version', 1))",
        t="nyc.t",
        b="b",
    )
    sql("CALL lake.system.create_tag('nyc.t', (SELECT max(s) FROM lake.nyc.t), reference => struct('b', 1))")
    assert lance.dataset(table).tags.list()["s9"]["version"] == 1
    sql(
        "CALL lake.system.compact('nyc.t', materialize_deletions_threshold => 0.5, excluded_fragment_ids => array(0),"
        " transaction_properties => map('by', 'me'))"
    )
    compacted = lance_core.dataset(table)
    assert dict(compacted.read_transaction(compacted.version).transaction_properties)["by"] == "me"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "compact('nyc.t', nope => 1)",
            "got an unexpected keyword argument 'nope'; it takes table, target_rows_per_fragment, .*repair_pages",
        ),
        (
            "compact('nyc.t', storage_options => map('a', 'b'))",
            "'storage_options'; it takes table, target_rows",
        ),
        ("compact('nyc.t@v1')", "'v1' is not a branch"),
        ("compact('nyc.t VERSION AS OF 1')", "line 1, column 26: compact takes the latest version"),
        ("compact(5)", "5 is not the name of a table"),
        ("compact('nyc.t; DROP TABLE x')", "';' is not understood"),
        ("compact('')", "a part of a name"),
        ("compact('nyc.t', target_rows_per_fragment => 'x')", "must be a number, not 'x'"),
        ("compact('nyc.t' FROM x)", "Syntax error at or near 'FROM'"),
        ("compact('nyc.t', 5)", "too many positional arguments"),
        ("create_tag('nyc.t', explode(array('a', 'b')))", "generator is not supported"),
        ("create_tag('nyc.t')", "missing a required argument: 'tag'; it takes table, tag, reference"),
        ("create_tag('nyc.t', '${spark.app.name}')", r"column 39: Spark puts the value of a setting"),
        ("create_tag('nyc.t', :missing)", "parameter :missing, which has no value"),
        ("drop_index('nyc.t', NAME => 5)", "name must be a string, not 5"),
        ("cleanup_old_versions('nyc.t', 'x')", "older_than must be a timedelta"),
        ("cleanup_old_versions('nyc.t', INTERVAL 1 MONTH)", "NOT_IMPLEMENTED|older_than must be a timedelta"),
        ("cleanup_old_versions('nyc.t', retain_versions => 'x')", "retain_versions must be a whole number"),
        ("deep_clone('nyc.t', target => 'copy@dev')", "a table has no branches before it exists"),
        ("deep_clone('nyc.t', target => 'nyc.t')", "lake.nyc.t already exists"),
        ("deep_clone('nyc.t', target => 'copy VERSION AS OF 1')", "lake.copy is a new table"),
        (
            "deep_clone('nyc.t', version => 1, target => 'copy')",
            "no argument 'version'|unexpected keyword argument 'version'",
        ),
        ("restore('nyc.t@july')", "this one is of branch dev"),
        ("restore('nyc.t VERSION AS OF \\'july\\'')", "this one is of branch dev"),
    ],
)
def test_a_call_that_is_not_understood_does_nothing(sql, lake, table, call, message):
    dev = lance_core.dataset(table).create_branch("dev")
    dev.tags.create("july")
    with pytest.raises(LanceError, match=message):
        sql(f"CALL lake.system.{call}")
    assert lance_core.dataset(table).version == 1
    assert lance_core.list_tables(lake) == ["nyc/t.lance"]


def test_views_and_spark_s_own_tables(spark, sql, table):
    spark.range(3).createOrReplaceTempView("plain")
    assert sql("SELECT count(*) FROM plain p JOIN lake.nyc.t USING (id)") == [(3,)]
    sql("CREATE OR REPLACE TEMP VIEW kept (number) AS SELECT id FROM lake.nyc.t WHERE id < 4")
    sql("DELETE FROM lake.nyc.t")
    assert sql("SELECT count(number) FROM kept") == [(4,)]
    assert sql(
        "MERGE INTO lake.nyc.t USING plain ON t.id = plain.id WHEN NOT MATCHED THEN INSERT (id) VALUES (plain.id)"
    ) == [(3, 0, 0, 3)]
    assert "MapInArrow lance" in sql("EXPLAIN SELECT id FROM lake.nyc.t WHERE id = 1")[0][0]
    assert not [view.name for view in spark.catalog.listTables() if view.name.startswith(("lance_", "_pyspark"))]
    spark.catalog.dropTempView("plain")
    spark.catalog.dropTempView("kept")


def test_storage_options_stay_out_of_plans_and_answers(spark, sql, tmp_path):
    secret = "s3cr3t-value"
    pyspark_lance.register_catalog(spark, "safe", tmp_path, storage_options={"aws_secret_access_key": secret})
    sql("CREATE TABLE safe.t AS SELECT 1 AS id")
    answers = [
        sql(f"{one} safe.t")
        for one in (
            "DESCRIBE EXTENDED",
            "DESCRIBE HISTORY",
            "DESCRIBE DETAIL",
            "SHOW CREATE TABLE",
            "EXPLAIN EXTENDED SELECT * FROM",
        )
    ]
    assert secret not in repr(answers)
    with pytest.raises(Exception) as raised:
        sql("SELECT nope FROM safe.t").collect()
    assert secret not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "root"),
    [("lance", "x"), ("a.b", "x"), ("", "x"), ("ok", " "), ("ok", "memory://x"), ("ok", "s3://user:word@host/x")],
)
def test_catalogs_that_cannot_be_are_rejected(spark, name, root):
    with pytest.raises(InvalidInputError) as raised:
        pyspark_lance.register_catalog(spark, name, root)
    assert not re.search("word@", str(raised.value))


@pytest.mark.parametrize(
    "condition",
    [
        "x / 20 > 1",
        "upper(s) = 'S1'",
        "x = '10'",
        "s LIKE 's%'",
        "id IN (SELECT 1)",
        "x > id",
        's = "s1"',
        "nope = 1",
        "s = 1",
    ],
)
def test_conditions_that_lance_would_read_in_another_way_replace_nothing(sql, table, condition):
    with pytest.raises(InvalidInputError, match=r"REPLACE WHERE .* Nothing was done"):
        sql(f"INSERT INTO lake.nyc.t REPLACE WHERE {condition} SELECT 20, 0, 'only'")
    assert lance_core.dataset(table).version == 1


def test_rows_that_meet_a_condition_are_replaced(sql, table):
    sql(
        "INSERT INTO lake.nyc.t REPLACE WHERE (X BETWEEN :low AND 60 AND NOT s = 's4') OR (ID < 1 AND s IS NOT NULL)"
        " SELECT 3, 50, 'new'",
        low=30,
    )
    assert sql("SELECT id, s FROM lake.nyc.t ORDER BY id, s") == [
        (1, "s1"), (2, "s2"), (3, "new"), (4, "s4"), (7, "s7"), (8, "s8"), (9, "s9"),
    ]  # fmt: skip


def test_names_and_values_are_no_part_of_a_statement(sql, lake, table, lance):
    sql("CREATE TABLE lake.a.p (`d,1` INT, d INT, `[x` INT) PARTITIONED BY (`d,1`, `[x`)")
    assert "PARTITIONED BY (`d,1`, `[x`)" in sql("SHOW CREATE TABLE lake.a.p")[0][0]
    word = "O'Brien \\ ' OR 1 = 1 --"
    sql("UPDATE lake.nyc.t SET s = :word WHERE x < :most", word=word, most=np.float64(20))
    rows = sql("INSERT INTO lake.nyc.t REPLACE WHERE s = :word AND x = :x SELECT 0, 0, :word", word=word, x=0)
    assert rows == [(1, 1)]
    assert sql("SELECT id, s FROM lake.nyc.t WHERE s = :word ORDER BY id", word=word) == [(0, word), (1, word)]


def test_show_create_table_makes_the_same_table(sql, lake, lance):
    sql(
        "CREATE TABLE lake.a.`t-1` (`camelCase` struct<`innerName`: int NOT NULL COMMENT 'it\\'s', `a b`: array<struct<`X y`: string>>,"
        " `tick``ed`: struct<`x<y`: int>> NOT NULL, m map<string, struct<`Key`: bigint NOT NULL>>, `d,1` decimal(10, 2),"
        " v array<float> COMMENT 'a \\\\ and \\'quote\\'', c string COLLATE UTF8_LCASE)"
        " TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2', 'd,1.lance.compression' = 'zstd',"
        " 'data_storage_version' = '2.1', 'enable_stable_row_ids' = 'TRUE')"
    )
    before = lance.dataset(f"{lake}/a/t-1.lance")
    names = [field.name for field in before.schema.field("camelCase").type]
    assert names == ["innerName", "a b", "tick`ed"]
    assert not before.schema.field("camelCase").type.field("innerName").nullable
    made = sql("SHOW CREATE TABLE lake.a.`t-1`")[0][0]
    sql("DROP TABLE lake.a.`t-1`")
    sql(made)
    after = lance.dataset(f"{lake}/a/t-1.lance")
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.data_storage_version == before.data_storage_version == "2.1"
    assert after.has_stable_row_ids
    assert sql("SHOW CREATE TABLE lake.a.`t-1`")[0][0] == made


def test_fields_of_structs_that_are_never_null(sql, lake, lance):
    sql("CREATE TABLE lake.a.t (s struct<x: int NOT NULL, y: int>)")
    sql("INSERT INTO lake.a.t VALUES (named_struct('x', 1, 'y', NULL)), (NULL)")
    assert lance.dataset(f"{lake}/a/t.lance").to_table()["s"].to_pylist() == [{"x": 1, "y": None}, None]
    with pytest.raises(SchemaError, match="field 'x' is not nullable"):
        sql("INSERT INTO lake.a.t VALUES (named_struct('x', NULL, 'y', 1))")
    sql("UPDATE lake.a.t SET s = named_struct('x', 2, 'y', 3) WHERE s.x = 1")
    assert sql("SELECT s.x, s.y FROM lake.a.t WHERE s IS NOT NULL") == [(2, 3)]
    sql("ALTER TABLE lake.a.t ADD COLUMNS (z struct<q: int NOT NULL>)")
    assert lance.dataset(f"{lake}/a/t.lance").to_table()["z"].to_pylist() == [None, None]


def structs(sql):
    sql("CREATE TABLE lake.a.s (id int, `S t` struct<a: int, `in`: struct<b: int, c: string>>, d int)")
    sql("INSERT INTO lake.a.s VALUES (1, named_struct('a', 1, 'in', named_struct('b', 2, 'c', 'x')), 5), (2, NULL, 6)")


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("`s t`.a = `s t`.a + d", [{"a": 6, "in": {"b": 2, "c": "x"}}, {"a": None, "in": None}]),
        ("s.`S T`.IN.b = id * 2L", [{"a": 1, "in": {"b": 2, "c": "x"}}, {"a": None, "in": {"b": 4, "c": None}}]),
        (
            "`S t`.in.c = 'y', d = 0, lake.a.s.`S t`.a = NULL",
            [{"a": None, "in": {"b": 2, "c": "y"}}, {"a": None, "in": {"b": None, "c": "y"}}],
        ),
    ],
)
@pytest.mark.parametrize("verb", ["UPDATE", "MERGE"])
def test_fields_of_structs_get_values(sql, lake, lance, verb, values, expected):
    """As in Delta: other fields keep their values, and a struct that is null becomes one."""
    structs(sql)
    merge = "MERGE INTO lake.a.s USING (SELECT * FROM lake.a.s) AS n ON s.id = n.id WHEN MATCHED THEN UPDATE SET "
    if verb == "UPDATE":
        sql(f"UPDATE lake.a.s SET {values}")
    else:
        values = values.replace("+ d", "+ n.d").replace("= `s t`", "= n.`s t`").replace("= id", "= n.id")
        sql(merge + values)
    rows = lance.dataset(f"{lake}/a/s.lance").to_table().sort_by("id").to_pylist()
    assert [row["S t"] for row in rows] == expected
    assert [row["d"] for row in rows] == ([0, 0] if "d = 0" in values else [5, 6])


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("`S t`.z = 1", r"no columns \['z'\].*\['a', 'in'\]"),
        ("`S t`.in.b.q = 1", r"'b' is of type int32, and 'b\.q' is not a field of a struct"),
        ("`S t` = NULL, `S t`.a = 1", "'S t' and its field 'a' both have a value"),
        ("`S t`.a = 1, `s t`.A = 2", "both column 'a'|two values"),
        ("`S t`.a = 'x'", r"column 'S t\.a' is of type int, its value of type string: write cast"),
    ],
)
def test_fields_of_structs_that_cannot_get_values(sql, lake, values, message):
    structs(sql)
    with pytest.raises(SchemaError, match=message):
        sql(f"UPDATE lake.a.s SET {values}")
    assert lance_core.dataset(f"{lake}/a/s.lance").version == 2


@pytest.mark.parametrize("statement", ["(id, id) VALUES (1, 2)", "BY NAME SELECT 1 AS id, 2 AS id"])
def test_an_insert_names_each_column_once(sql, table, statement):
    with pytest.raises(SchemaError, match=r"\['id'\] are named more than once"):
        sql(f"INSERT INTO lake.nyc.t {statement}")
    assert lance_core.dataset(table).version == 1


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("'enable_stable_row_ids' = 'yes'", "enable_stable_row_ids is 'yes', and must be true or false"),
        ("'enable_stable_row_ids' = 1", "enable_stable_row_ids is '1', and must be true or false"),
        (
            "'data_storage_version' = '2.1', 'file_format_version' = '2.2'",
            "data_storage_version = '2.1' and file_format_version = '2.2' both name the version of the file format",
        ),
        ("'x.lance.compression' = 'zip'", "x.lance.compression is 'zip', and must be none, lz4, zstd or fsst"),
        ("'x.lance.compression-level' = 'high'", "must be a whole number, such as 3"),
        ("'x.lance.rle-threshold' = 'low'", "must be a number, such as 0.5"),
    ],
)
def test_properties_that_a_table_cannot_have(sql, lake, properties, message):
    with pytest.raises(InvalidInputError, match=message):
        sql(f"CREATE TABLE lake.a.t (x int) TBLPROPERTIES ({properties})")
    assert lance_core.list_tables(lake) == []


def test_both_names_of_the_file_version(sql, lake):
    sql(
        "CREATE TABLE lake.a.t (x int) TBLPROPERTIES ('data_storage_version' = '2.1', 'file_format_version' = '2.1',"
        " 'enable_stable_row_ids' = false)"
    )
    assert lance_core.dataset(f"{lake}/a/t.lance").data_storage_version == "2.1"


@pytest.mark.variants(1)
@pytest.mark.parametrize("stable", [True, False])
def test_clauses_of_a_merge_name_row_columns_of_the_table(sql, lake, stable):
    rows = {"id": list(range(6)), "x": [0] * 6}
    lance_core.write_dataset(rows, f"{lake}/nyc/r.lance", max_rows_per_file=4, enable_stable_row_ids=stable)
    ids = dict(sql("SELECT id, _rowid FROM lake.nyc.r"))
    source = f"(SELECT {ids[5]} AS r, 50 AS x UNION ALL SELECT {ids[1]}, 10 UNION ALL SELECT 12345, 20)"
    merge = f"MERGE INTO lake.nyc.r t USING {source} u ON t._rowid = u.r"
    done = sql(
        f"{merge} WHEN MATCHED AND t._rowid > {ids[3]} THEN UPDATE SET x = u.x + t._rowid WHEN MATCHED THEN DELETE"
        f" WHEN NOT MATCHED THEN INSERT (id, x) VALUES (6, u.x)"
        f" WHEN NOT MATCHED BY SOURCE AND t._rowid = {ids[0]} THEN UPDATE SET x = 7"
    )
    assert done == [(4, 2, 1, 1)]
    expected = [(0, 7), (2, 0), (3, 0), (4, 0), (5, 50 + ids[5]), (6, 20)]
    assert sorted(sql("SELECT id, x FROM lake.nyc.r")) == expected
    assert sql(
        "MERGE INTO lake.nyc.r t USING (SELECT _rowaddr AS a FROM lake.nyc.r WHERE id = 3) u ON _rowaddr = u.a WHEN MATCHED THEN DELETE"
    ) == [(1, 0, 1, 0)]
    sql(
        "MERGE INTO lake.nyc.r t USING (SELECT _rowid, id FROM lake.nyc.r) u ON t.id = u.id AND t._rowid = u._rowid WHEN MATCHED THEN UPDATE SET x = 1"
    )
    assert sorted(sql("SELECT id, x FROM lake.nyc.r")) == [(id_, 1) for id_ in (0, 2, 4, 5, 6)]
    with pytest.raises(InvalidInputError, match=r"`t`.`_rowid` cannot be resolved"):
        sql(f"{merge} WHEN NOT MATCHED THEN INSERT (id, x) VALUES (t._rowid, 1)")

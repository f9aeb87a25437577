"""Spellings of Delta and Spark, and messages that whoever writes SQL understands; pylance looks at what is stored."""

import re

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, NotFoundError, SchemaError, UnsupportedError


@pytest.fixture
def source(lake, table):
    lance_core.write_dataset(
        pa.table({"id": pa.array([1, 2, 30], pa.int64()), "x": [7, 8, 9], "s": ["a", "b", "c"]}),
        f"{lake}/nyc/src.lance",
    )
    return f"{lake}/nyc/src.lance"


def test_the_history_is_limited(sql, table):
    for number in range(3):
        sql(f"DELETE FROM lake.nyc.t WHERE id = {number}")
    assert [row[0] for row in sql("DESCRIBE HISTORY lake.nyc.t LIMIT 2")] == [4, 3]
    assert sql("DESC HISTORY lake.nyc.t LIMIT 0") == []
    assert len(sql("DESCRIBE HISTORY lake.nyc.t LIMIT 99")) == 4


def test_one_property_is_shown(sql, table):
    sql("ALTER TABLE lake.nyc.t SET TBLPROPERTIES ('owner' = 'me', a.b = 5)")
    assert sql("SHOW TBLPROPERTIES lake.nyc.t ('owner')") == [("owner", "me")]
    assert sql("SHOW TBLPROPERTIES lake.nyc.t (a.b)") == [("a.b", "5")]
    assert sql("SHOW TBLPROPERTIES lake.nyc.t ('nope')") == [("nope", "Table lake.nyc.t does not have property: nope")]
    sql("ALTER TABLE lake.nyc.t UNSET TBLPROPERTIES (a.b)")
    assert sql("SHOW TBLPROPERTIES lake.nyc.t") == [("owner", "me")]
    lance_core.dataset(table).update_config({"lance-dagster.kept": "1"})
    [(_, answer)] = sql("SHOW TBLPROPERTIES lake.nyc.t ('lance-dagster.kept')")
    assert answer == "Table lake.nyc.t does not have property: lance-dagster.kept"


def test_names_are_listed_by_the_patterns_of_spark(spark, sql, lake, table):
    """Spark's own tables of the same names are the oracle."""
    names = ("t1", "t2", "taxi", "Zones")
    for name in names:
        sql(f"CREATE TABLE lake.nyc.{name} (id INT)")
    spark.sql("CREATE DATABASE patterns")
    try:
        for name in names:
            spark.sql(f"CREATE TABLE patterns.{name} (id INT) USING parquet")
        for pattern in ("t*", "t.", "t[12]", "T1|zones", "t?1", "*x*", "t", " t1 "):
            rows = spark.sql(f"SHOW TABLES IN patterns LIKE '{pattern}'").collect()
            expected = {row.tableName for row in rows if not row.isTemporary}
            found = {row[1].lower() for row in sql(f"SHOW TABLES IN lake.nyc LIKE '{pattern}'")} - {"t"}
            assert found == expected, pattern
    finally:
        spark.sql("DROP DATABASE patterns CASCADE")
    with pytest.raises(InvalidInputError, match="not a pattern"):
        sql("SHOW TABLES IN lake.nyc LIKE '[t'")


def test_a_branch_with_branches_names_them(sql, table):
    sql("CALL lake.system.create_branch('nyc.t', 'dev')")
    sql("CALL lake.system.create_branch('nyc.t@dev', 'child')")
    with pytest.raises(
        InvalidInputError,
        match=r"the branches child, .*; CALL lake\.system\.delete_branch\('lake\.nyc\.t', 'child'\) deletes",
    ):
        sql("CALL lake.system.delete_branch('nyc.t', 'dev')")
    sql("CALL lake.system.create_tag('nyc.t@child', 'july')")
    with pytest.raises(
        InvalidInputError, match=r"the tags july, .*; CALL lake\.system\.delete_tag\('lake\.nyc\.t', 'july'\) deletes"
    ):
        sql("CALL lake.system.delete_branch('nyc.t', 'child')")


def test_comments_of_columns_and_tables_are_kept(sql, lake, table, lance):
    sql(
        "CREATE TABLE lake.nyc.c (id INT COMMENT 'first', st STRUCT<a: INT, b: STRING>) TBLPROPERTIES ('id.lance.compression' = 'zstd')"
    )
    sql("ALTER TABLE lake.nyc.c ALTER COLUMN ID COMMENT 'the \\'key\\''")
    sql("ALTER TABLE lake.nyc.c CHANGE COLUMN st.a COMMENT 'inner'")
    sql("ALTER TABLE lake.nyc.c ALTER COLUMN st COMMENT 'outer'")
    for change in (
        "INSERT INTO lake.nyc.c VALUES (1, named_struct('a', 1, 'b', 'x'))",
        "UPDATE lake.nyc.c SET id = 2",
        "INSERT OVERWRITE lake.nyc.c VALUES (3, named_struct('a', 3, 'b', 'x'))",
        "ALTER TABLE lake.nyc.c ADD COLUMN more INT",
        "ALTER TABLE lake.nyc.c RENAME COLUMN id TO number",
        "ALTER TABLE lake.nyc.c ALTER COLUMN number TYPE BIGINT",
        "INSERT INTO lake.nyc.c VALUES (4, NULL, 4)",
        "CALL lake.system.compact('nyc.c')",
    ):
        sql(change)
        assert [row[2] for row in sql("DESCRIBE lake.nyc.c")][:2] == ["the 'key'", "outer"], change
    opened = lance.dataset(f"{lake}/nyc/c.lance")
    opened.add_columns({"made": "number + 1"})
    schema = opened.schema
    assert schema.field("number").metadata[b"comment"] == b"the 'key'"
    assert schema.field("number").metadata[b"lance-encoding:compression"] == b"zstd"
    assert schema.field("st").type.field("a").metadata == {b"comment": b"inner"}
    made = sql("SHOW CREATE TABLE lake.nyc.c")[0][0]
    assert "COMMENT 'outer'" in made
    assert "COMMENT 'inner'" in made
    sql("COMMENT ON TABLE lake.nyc.c IS 'numbers'")
    assert sql("SHOW TBLPROPERTIES lake.nyc.c") == [("comment", "numbers")]
    sql("COMMENT ON TABLE lake.nyc.c IS NULL")
    assert sql("SHOW TBLPROPERTIES lake.nyc.c") == []
    with pytest.raises(SchemaError, match="nope"):
        sql("ALTER TABLE lake.nyc.c ALTER COLUMN nope COMMENT 'x'")


def test_the_statement_table_is_a_query(spark, sql, source):
    rows = [(1, 7, "a"), (2, 8, "b"), (30, 9, "c")]
    assert sorted(sql("TABLE lake.nyc.src")) == rows
    assert sorted(sql("TABLE lake.nyc.src UNION ALL TABLE lake.nyc.src@v1")) == sorted([*rows, *rows])
    assert sql("WITH c AS (TABLE lake.nyc.src) SELECT count(*) FROM c") == [(3,)]
    assert sql("SELECT count(*) FROM lake.nyc.t WHERE EXISTS (TABLE lake.nyc.src)") == [(10,)]
    assert sql("INSERT INTO lake.nyc.t TABLE lake.nyc.src") == [(3, 3)]
    assert sql("INSERT INTO TABLE lake.nyc.t BY NAME TABLE lake.nyc.src") == [(3, 3)]
    assert sql("CREATE TABLE lake.nyc.copy AS TABLE lake.nyc.src") == [(3, 3)]
    assert sql(
        "MERGE INTO lake.nyc.copy USING (TABLE lake.nyc.src) s ON copy.id = s.id WHEN MATCHED THEN UPDATE SET x = s.x + 1"
    ) == [(3, 3, 0, 0)]
    spark.range(2).selectExpr("id", "id AS x", "'p' AS s").createOrReplaceTempView("plain")
    assert sql("INSERT OVERWRITE lake.nyc.t TABLE plain") == [(2, 2)]
    assert sql("EXPLAIN TABLE lake.nyc.src")
    assert "MapInArrow lance" in sql("EXPLAIN TABLE lake.nyc.src")[0][0]
    spark.catalog.dropTempView("plain")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lake.nyc.t SET x = DEFAULT",
        "UPDATE lake.nyc.t SET s = 'a', x = default WHERE id = 1",
        "MERGE INTO lake.nyc.t USING lake.nyc.src s ON t.id = s.id WHEN MATCHED THEN UPDATE SET x = DEFAULT",
        "MERGE INTO lake.nyc.t USING lake.nyc.src s ON t.id = s.id WHEN NOT MATCHED THEN INSERT (id, x) VALUES (s.id, DEFAULT)",
        "INSERT INTO lake.nyc.t VALUES (1, 2, 'a'), (1, DEFAULT, 'a')",
        "INSERT INTO lake.nyc.t (id) VALUES DEFAULT",
    ],
)
def test_there_are_no_default_values(sql, source, table, statement):
    column = re.search("default", statement, re.IGNORECASE).start() + 1
    with pytest.raises(InvalidInputError, match=f"line 1, column {column}: .*no default values, so write NULL"):
        sql(statement)
    assert lance_core.dataset(table).version == 1


@pytest.mark.variants(2)
@pytest.mark.parametrize("condition", ["NULL", "(NULL)", "coalesce(NULL, NULL)", "NULL AND id > 0", "id = NULL"])
def test_a_condition_that_is_null_selects_no_row(sql, table, condition):
    assert sql(f"DELETE FROM lake.nyc.t WHERE {condition}") == [(0,)]
    assert sql(f"UPDATE lake.nyc.t SET x = 1 WHERE {condition}") == [(0,)]
    assert sql(
        f"MERGE INTO lake.nyc.t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED AND {condition.replace('id', 't.id')} THEN DELETE"
    ) == [(0, 0, 0, 0)]
    assert lance_core.dataset(table).count_rows() == 10


def test_a_condition_of_another_type_is_rejected(sql, table):
    for condition in ("1", "'a'", "id", "date'2026-01-01'"):
        with pytest.raises(InvalidInputError, match="is not a boolean"):
            sql(f"DELETE FROM lake.nyc.t WHERE {condition}")


def test_subqueries_give_versions_and_times(sql, table):
    opened = lance_core.dataset(table)
    opened.tags.create("july")
    opened.delete("id > 4")
    sql("CREATE TABLE lake.nyc.reads AS SELECT 1 AS version, current_timestamp() AS at, 'july' AS tag")
    count = "SELECT count(*) FROM lake.nyc.t"
    assert sql(f"{count} VERSION AS OF (SELECT max(version) FROM lake.nyc.reads)") == [(10,)]
    assert sql(f"{count} VERSION AS OF (SELECT tag FROM lake.nyc.reads) AS q WHERE q.id < 7") == [(7,)]
    assert sql(f"{count} TIMESTAMP AS OF (SELECT max(at) FROM lake.nyc.reads WHERE version = :v)", v=1) == [(5,)]
    sql("CALL lake.system.restore(lake.nyc.t VERSION AS OF (SELECT version FROM lake.nyc.reads))")
    assert sql(count) == [(10,)]
    for clause in (
        "VERSION AS OF (SELECT max(version) FROM lake.nyc.reads WHERE false)",
        "TIMESTAMP AS OF (SELECT null)",
    ):
        with pytest.raises(InvalidInputError, match=r"AS OF \(SELECT .*\) is (null|not a time)"):
            sql(f"{count} {clause}")
    with pytest.raises(InvalidInputError, match=r"VERSION AS OF \(SELECT nope.*`nope`"):
        sql(f"{count} VERSION AS OF (SELECT nope FROM lake.nyc.reads)")


def test_a_time_after_the_latest_version_is_that_version_in_each_read(spark, sql, table):
    """As for `pyspark_lance.read` and pylance, and as in Iceberg; Delta rejects it."""
    import pyspark_lance

    assert sql("SELECT count(*) FROM lake.nyc.t TIMESTAMP AS OF '2099-01-01'") == [(10,)]
    assert pyspark_lance.read(spark, table, asof="2099-01-01").count() == 10


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO lake.nyc.t SET spark.sql.shuffle.partitions = 7",
        "INSERT INTO lake.nyc.t DROP VIEW kept",
        "INSERT INTO lake.nyc.t WITH c AS (SELECT 1 AS id) INSERT INTO other SELECT * FROM c",
        "INSERT INTO lake.nyc.t FROM kept INSERT INTO other SELECT id",
        "CREATE TABLE lake.nyc.u AS DROP VIEW kept",
        "CREATE TEMP VIEW w AS WITH c AS (SELECT id FROM lake.nyc.t) INSERT INTO other SELECT * FROM c",
        "MERGE INTO lake.nyc.t USING (DROP VIEW kept) s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ],
)
def test_another_statement_in_the_place_of_a_query_is_not_run(spark, sql, table, statement):
    spark.range(3).createOrReplaceTempView("kept")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    with pytest.raises(InvalidInputError, match=r"line 1, column \d+: .* expected (a query|the end of the query)"):
        sql(statement)
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
    assert spark.catalog.dropTempView("kept")


@pytest.mark.variants(8)
@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("ALTER TABLE lake.nyc.t ADD COLUMN n INT FIRST", InvalidInputError, "column 41: 'FIRST'.*new columns come last"),
        ("ALTER TABLE lake.nyc.t ADD COLUMNS (n INT AFTER id)", InvalidInputError, "'AFTER'.*new columns come last"),
        ("ALTER TABLE lake.nyc.t ALTER COLUMN s FIRST", InvalidInputError, "'FIRST'.*columns keep their order"),
        ("ALTER TABLE lake.nyc.t ALTER COLUMN s SET DEFAULT 'a'", InvalidInputError, "no default values"),
        ("ALTER TABLE lake.nyc.t RENAME TO lake.nyc.u", InvalidInputError, r"CALL lake.system.deep_clone\(...\) copies it"),
        ("CREATE TABLE lake.nyc.u (c CHAR(3))", UnsupportedError, "'c': strings have no length here.*STRING"),
        ("ALTER TABLE lake.nyc.t ADD COLUMN c VARCHAR(3)", UnsupportedError, "strings have no length here"),
        ("CREATE TABLE lake.nyc.u (s STRUCT<c: VARCHAR(3)>)", UnsupportedError, "strings have no length here"),
        ("CREATE TABLE lake.nyc.u (id INT) PARTITIONED BY (bucket(4, id))", InvalidInputError, r"'bucket' is not.*not by bucket\(...\)"),
        ("CREATE TABLE lake.nyc.u (id INT, d DATE) PARTITIONED BY (id, years(d))", InvalidInputError, "'years' is not.*fill it"),
        ("CREATE TABLE lake.nyc.u (id INT) PARTITIONED BY (d DATE)", InvalidInputError, "'DATE'.*declared among the columns"),
        ("CREATE TABLE lake.nyc.u (id INT) CLUSTER BY (id)", InvalidInputError, "'CLUSTER'.*create_scalar_index"),
        ("CREATE TABLE lake.nyc.u (id INT PRIMARY KEY)", InvalidInputError, "'PRIMARY'.*no constraints"),
        ("CREATE TABLE lake.nyc.u (id INT, CONSTRAINT c CHECK (id > 0))", InvalidInputError, "'CONSTRAINT'.*no constraints"),
        ("CREATE SCHEMA lake.x", InvalidInputError, "a namespace is there once it has a table"),
        ("CREATE TABLE lake.nyc.u CLONE plain", InvalidInputError, "expected CALL lake.system.deep_clone"),
        ("CREATE TABLE lake.nyc.u (id INT) TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '3')", SchemaError, "^TBLPROPERTIES: there is no column 'v'"),
        ("CALL lake.system.cleanup_old_versions('nyc.t', INTERVAL 1e300 HOURS)", InvalidInputError, "Syntax error at or near '1e300'"),
        ("CALL lake.system.create_branch('nyc.t@dev VERSION AS OF 99', 'b')", NotFoundError, "branch dev of lake.nyc.t"),
        ("CALL lake.system.create_tag('nyc.t', 'july')", InvalidInputError, "CALL lake.system.update_tag moves it"),
        ("CALL lake.system.delete_tag('nyc.t', 'nope')", NotFoundError, "SHOW TAGS IN lake.nyc.t lists those that do"),
        ("CALL lake.system.promote_branch('nyc.t', 'nope')", NotFoundError, "SHOW BRANCHES IN lake.nyc.t lists those that do"),
        ("SELECT * FROM lake.nyc.t VERSION AS OF 99", NotFoundError, "version 99 .*DESCRIBE HISTORY lake.nyc.t lists those that do"),
        ("SELECT * FROM lake.nyc.t@dev VERSION AS OF 99", NotFoundError, "branch dev of lake.nyc.t; DESCRIBE HISTORY lake.nyc.t@dev lists"),
        ("CALL lake.system.restore(lake.nyc.t VERSION AS OF nope)", NotFoundError, "SHOW TAGS IN lake.nyc.t lists"),
        ("CALL lake.system.restore(lake.nyc.t TIMESTAMP AS OF '1999-01-01')", NotFoundError, "DESCRIBE HISTORY lake.nyc.t lists the versions"),
        ("INSERT INTO lake.nyc.t VALUES ('a', 1, 's')", SchemaError, "^INSERT INTO lake.nyc.t: column 'id' is of type bigint"),
        ("MERGE INTO lake.nyc.t USING (SELECT 'a' AS id, 1 AS x, 's' AS s) z ON t.s = z.s WHEN NOT MATCHED THEN INSERT *", SchemaError, "^WHEN NOT MATCHED THEN INSERT: column 'id'"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) z ON t.id = z.id WHEN NOT MATCHED THEN INSERT (x) VALUES (t.x)", InvalidInputError, r"\[`z`.`id`\]"),
        ("MERGE INTO lake.nyc.t USING (SELECT 1 AS id) z ON t.id = z.id WHEN MATCHED AND max(z.id) = 1 THEN DELETE", InvalidInputError, "^merge: .*GROUP BY"),
        ("MERGE INTO lake.nyc.t USING nope ON t.id = nope.id WHEN MATCHED THEN DELETE", InvalidInputError, "line 1, column 29: .*`nope` cannot be found"),
        ("UPDATE lake.nyc.t SET x = (SELECT max(nope) FROM lake.nyc.src)", InvalidInputError, r"SELECT max\(nope\) FROM lake.nyc.src\).*`x`.*\]\. SQLSTATE"),
        ("UPDATE lake.nyc.t SET x = nope", InvalidInputError, r"following\? \[`id`, `s`, `x`\]"),
        ("DELETE FROM lake.nyc.t WHERE id IN (SELECT z.nope FROM lake.nyc.src z)", InvalidInputError, "FROM lake.nyc.src z"),
        ("SELECT idd FROM lake.nyc.t", InvalidInputError, r"following\? \[`id`, "),
        ("UPDATE lake.nyc.t SET x = explode(array(1, 2))", InvalidInputError, "changes one row several times"),
        ("INSERT INTO lake.nyc.t REPLACE WHERE id = 1 SELECT 5, 5, 'a'", InvalidInputError, "^REPLACE WHERE 'id = 1' does not hold"),
    ],
)  # fmt: skip
def test_messages_are_in_words_of_sql(sql, source, table, statement, error, message):
    opened = lance_core.dataset(table)
    opened.tags.create("july")
    opened.create_branch("dev")
    with pytest.raises(error, match=message) as raised:
        sql(statement)
    said = str(raised.value)
    assert not re.search(r"__lance_|_rowaddr|_pyspark_|lance_[0-9a-f]{32}|\b\w+\.(list|delete|update)\b|\w+\(\) ", said)
    assert lance_core.dataset(table).version == 1


def test_constraint_words_are_names_of_columns(sql, lake):
    sql("CREATE TABLE lake.nyc.w (check INT, primary STRING, constraint INT, unique INT)")
    assert [row[0] for row in sql("DESCRIBE lake.nyc.w")] == ["check", "primary", "constraint", "unique"]


def test_a_column_is_not_renamed_to_a_name_that_stands_for_another_one(spark, sql, table):
    with pytest.raises(SchemaError, match="'x' and 'X' differ only in case"):
        sql("ALTER TABLE lake.nyc.t RENAME COLUMN id TO X")
    sql("ALTER TABLE lake.nyc.t RENAME COLUMN id TO ID")
    assert sql("SELECT max(id) FROM lake.nyc.t") == [(9,)]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        sql("ALTER TABLE lake.nyc.t RENAME COLUMN ID TO X")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_the_last_field_of_a_struct_is_not_dropped_alone(sql, table):
    sql("CREATE TABLE lake.nyc.n (id INT, s STRUCT<a: INT, b: INT>, n STRUCT<m: STRUCT<z: INT>, k: INT>)")
    for columns, struct in (("s.a, s.b", "s"), ("n.m.z", "n.m")):
        with pytest.raises(SchemaError, match=rf"no field of {struct} would be left; DROP COLUMN {struct} drops"):
            sql(f"ALTER TABLE lake.nyc.n DROP COLUMNS ({columns})")
    sql("ALTER TABLE lake.nyc.n DROP COLUMNS (s.a, n.m)")
    assert [row[1] for row in sql("DESCRIBE lake.nyc.n")] == ["int", "struct<b:int>", "struct<k:int>"]


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TIMESTAMP", "DATE"),
        ("TIMESTAMP_NTZ", "DATE"),
        ("DATE", "TIMESTAMP"),
        ("TIMESTAMP", "TIMESTAMP_NTZ"),
        ("TIMESTAMP_NTZ", "TIMESTAMP"),
        ("DOUBLE", "FLOAT"),
        ("INT", "DOUBLE"),
    ],
)
def test_a_type_that_does_not_hold_all_values_is_rejected_with_a_remedy(sql, table, old, new):
    sql(f"CREATE TABLE lake.nyc.c (c {old})")
    with pytest.raises(SchemaError, match=r"ADD COLUMN of the new type, UPDATE .*, then DROP COLUMN and RENAME COLUMN"):
        sql(f"ALTER TABLE lake.nyc.c ALTER COLUMN c TYPE {new}")
    sql(f"ALTER TABLE lake.nyc.c ADD COLUMN made {new}")
    sql(f"UPDATE lake.nyc.c SET made = CAST(c AS {new})")
    sql("ALTER TABLE lake.nyc.c DROP COLUMN c")
    sql("ALTER TABLE lake.nyc.c RENAME COLUMN made TO c")
    assert sql("DESCRIBE lake.nyc.c")[0][1] == new.lower()


def test_a_column_that_is_not_there_is_named(sql, table):
    sql("CREATE TABLE lake.nyc.n (id INT, s STRUCT<a: INT>, l ARRAY<INT>)")
    for change in (
        "ALTER COLUMN nope TYPE BIGINT",
        "ALTER COLUMN s.nope TYPE BIGINT",
        "ALTER COLUMN nope.a TYPE BIGINT",
        "RENAME COLUMN nope.a TO b",
        "RENAME COLUMN id.a TO b",
        "DROP COLUMN nope.a",
        "DROP COLUMN s.nope",
    ):
        with pytest.raises((SchemaError, InvalidInputError, NotFoundError), match=r"nope|id"):
            sql(f"ALTER TABLE lake.nyc.n {change}")


def test_a_type_that_a_column_has_is_taken(sql, table):
    kinds = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "INT", "FLOAT", "STRING", "STRING COLLATE UTF8_LCASE", "TIME(0)")
    sql(f"CREATE TABLE lake.nyc.n ({', '.join(f'c{number} {kind}' for number, kind in enumerate(kinds))})")
    for number, kind in enumerate(kinds):
        sql(f"ALTER TABLE lake.nyc.n ALTER COLUMN c{number} TYPE {kind}")


def test_a_type_that_holds_all_values_is_taken(sql, table):
    sql("CREATE TABLE lake.nyc.c (a INT, b FLOAT, c DATE)")
    sql("INSERT INTO lake.nyc.c VALUES (1, 0.5, DATE '2026-11-26')")
    for column, kind in (("a", "BIGINT"), ("b", "DOUBLE"), ("c", "TIMESTAMP_NTZ")):
        sql(f"ALTER TABLE lake.nyc.c ALTER COLUMN {column} TYPE {kind}")
    assert sql("SELECT a, b, string(c) FROM lake.nyc.c") == [(1, 0.5, "2026-11-26 00:00:00")]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("STRING", "STRING COLLATE UTF8_LCASE", "string cannot become string collate UTF8_LCASE"),
        ("STRING COLLATE UTF8_LCASE", "STRING", "string collate UTF8_LCASE cannot become string"),
        ("TIME(6)", "TIME(0)", r"cannot become time\(0\)"),
        ("STRING", "CHAR(2)", "column 'a b'"),
    ],
)
def test_no_statement_reports_success_and_does_nothing(sql, table, old, new, words):
    sql(f"CREATE TABLE lake.nyc.c (`a b` {old})")
    with pytest.raises((SchemaError, UnsupportedError), match=words):
        sql(f"ALTER TABLE lake.nyc.c ALTER COLUMN `a b` TYPE {new}")


def test_a_table_that_a_clone_needs_is_not_dropped(sql, table, lance):
    sql("CALL lake.system.shallow_clone('nyc.t', 'nyc.near')")
    with pytest.raises(
        InvalidInputError, match=r"the shallow clone \S*near.lance needs its files. Drop the clone first"
    ):
        sql("DROP TABLE lake.nyc.t")
    assert sql("SELECT count(*) FROM lake.nyc.near") == [(10,)]
    sql("DROP TABLE lake.nyc.near")
    sql("DROP TABLE lake.nyc.t")
    assert sql("SHOW TABLES IN lake.nyc") == []


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "argument", ["TABLE(SELECT id FROM {0})", "TABLE({0})", "TABLE ( {0} )", "TABLE {0}", "r => TABLE {0}"]
)
def test_a_table_is_an_argument_of_a_table_function(spark, sql, source, argument):
    from pyspark.sql.functions import udtf

    @udtf(returnType="n bigint")
    class Twice:
        def eval(self, r):
            yield (r["id"] * 2,)

    spark.udtf.register("twice_the_id", Twice)
    names = argument.format("lake.nyc.src")
    assert sql(f"SELECT sum(n) FROM twice_the_id({names})") == sql("SELECT sum(id) * 2 FROM lake.nyc.src")

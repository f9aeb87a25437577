"""Tokens, names, parameters and the grammar of statements: no session, nothing is opened."""

import datetime as dt
import decimal

import pytest

from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.registry import Catalog
from pyspark_lance.statements import procedures, run, run_describe, run_rows, run_tables
from pyspark_lance.statements.names import find_mentions
from pyspark_lance.statements.parameters import literal, parameters_in
from pyspark_lance.statements.tokens import Cursor, tokens_of


class Finder:
    """The catalog `lake`, and paths."""

    def names_catalog(self, part):
        return part.lower() in ("lake", "lance")

    def catalog(self, part):
        return Catalog(name="lake", root="r") if part.lower() == "lake" else None


def read(statement):
    return run.parse_statement(statement, Finder())


def test_tokens_are_the_user_s_characters():
    text = "SELECT `a``b`, r'\\n', 'it''s', \"d\", 5L -- no\n/* a /* b */ c */ /*+ hint */ x"
    assert [token.text for token in tokens_of(text)] == [
        "SELECT", "`a``b`", ",", "r'\\n'", ",", "'it''s'", ",", '"d"', ",", "5L", "/", "*", "+", "hint", "*", "/", "x",
    ]  # fmt: skip
    quoted, raw, string = (tokens_of(text)[i].value for i in (1, 3, 5))
    assert (quoted, raw, string) == ("a`b", "\\n", "it's")


@pytest.mark.parametrize(
    ("statement", "tokens"),
    [
        ("a -- b\rc", ["a", "c"]),
        ("a -- b\r\nc", ["a", "c"]),
        ("a -- b\x0bc\x85d\u2028e", ["a"]),
        ("a -- b \\\nc\nd", ["a", "d"]),
        ("a -- b \\\r\nc", ["a", "c"]),
        ("a /* /*+ b */ c /* d */ -- */", ["a", "c"]),
        ("a /* /* b */ c */ d", ["a", "d"]),
        ("a /*/ b */ c /**/ d /*** / ***/ e", ["a", "c", "d", "e"]),
        ("a /* /*/ b */ c */ d", ["a", "d"]),
        ("a '-- b' `/* c` \"--\" r'/*' d", ["a", "'-- b'", "`/* c`", '"--"', "r'/*'", "d"]),
        ("bar'/*\\'' --'", ["bar", "'/*\\''"]),
    ],
)
def test_comments_end_where_spark_ends_them(statement, tokens):
    assert [token.text for token in tokens_of(statement)] == tokens


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_a_condition_behind_a_comment_is_no_part_of_it(end):
    assert read(f"DELETE FROM lake.t -- old rows{end}WHERE id = 1").keywords["where"].text == "id = 1"
    assert read(f"UPDATE lake.t SET v = 0 -- reset{end}WHERE id = 1").keywords["where"].text == "id = 1"
    assert read("DELETE FROM lake.t /* /*+ a */ WHERE id = 1 /* b */ -- */").keywords["where"].text == "id = 1"
    merge = read(f"MERGE INTO lake.t USING s ON t.id = s.id WHEN MATCHED -- c{end}AND s.x > 0\nTHEN DELETE")
    assert merge.keywords["clauses"][0].condition.text == "s.x > 0"
    insert = read(f"INSERT INTO lake.t -- c{end}REPLACE WHERE day = 1\nSELECT 1")
    assert insert.keywords["condition"].text == "day = 1"


@pytest.mark.parametrize("text", ["select 'a", "select `a", "select /* /* */ 1", 'select "'])
def test_what_does_not_end_is_rejected_with_its_position(text):
    with pytest.raises(InvalidInputError, match=r"line 1, column 8: the .* is not closed"):
        tokens_of(text)


def test_names_are_found_with_branch_and_travel():
    text = "select lake.s.t.id from lake.s.t@dev-1 FOR VERSION AS OF 3 a join lance.`/x@y/t.lance`@`b/c` TIMESTAMP AS OF now() - interval 1 day b, other.lake.t, lake"
    qualifier, table, path = find_mentions(text, Finder())
    assert (qualifier.name.parts, qualifier.name.ref) == (("lake", "s", "t", "id"), None)
    assert (table.name.parts, table.name.ref, table.version.text) == (("lake", "s", "t"), "dev-1", "3")
    assert (path.name.parts, path.name.ref, path.timestamp.text) == (
        ("lance", "/x@y/t.lance"),
        "b/c",
        "now() - interval 1 day",
    )
    assert text[table.start : table.end] == "lake.s.t@dev-1 FOR VERSION AS OF 3"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id = :id and x=:x", ["id", "x"]),
        ("cast(x as struct<id:int>) = :x", ["x"]),
        ("x::int = 1 and ':no' = `:no`", []),
        (":a < 3 and b > :b", ["a", "b"]),
    ],
)
def test_parameters_are_found(text, names):
    assert [name for _, _, name in parameters_in(text)] == names


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"), (True, "true"), (-5, "(-5)"), (1 << 40, f"({1 << 40}L)"), (0.1, "cast('0.1' as double)"),
        (decimal.Decimal("1.50"), "(1.50BD)"), ("plain", "'plain'"), ("' or 1=1 --", "cast(x'27206f7220313d31202d2d' as string)"),
        (b"\x01", "x'01'"), (dt.date(2026, 1, 2), "date'2026-01-02'"),
    ],
)  # fmt: skip
def test_parameters_become_literals(value, expected):
    assert literal("p", value) == expected


def test_a_parameter_without_a_literal_is_rejected():
    with pytest.raises(InvalidInputError, match="parameter :p is a list"):
        literal("p", [1])


@pytest.mark.parametrize(
    ("statement", "function"),
    [
        ("INSERT INTO lake.t SELECT 1", run_rows.insert),
        ("insert overwrite table lake.t (a, b) values (1, 2)", run_rows.insert),
        ("UPDATE lake.s.t AS x SET a = case when b = 1 then 2 end, `c d` = (1, 2).col1 WHERE x.a = 1;", run_rows.update),
        ("DELETE FROM lance.`/data/t.lance`", run_rows.delete),
        ("MERGE INTO lake.t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY TARGET THEN INSERT *", run_rows.merge),
        ("TRUNCATE TABLE lake.t", run_rows.truncate),
        ("CREATE TABLE IF NOT EXISTS lake.t (a decimal(10, 2) NOT NULL COMMENT 'c', b struct<x: int, y: array<map<string, int>>>) USING lance PARTITIONED BY (a)", run_tables.create_table),
        ("CREATE OR REPLACE TABLE lake.t TBLPROPERTIES (a.b = 5, 'c' = true) AS SELECT 1 AS x", run_tables.create_table),
        ("DROP TABLE IF EXISTS lake.t PURGE", run_tables.drop_table),
        ("ALTER TABLE lake.t ADD COLUMNS (a int, b string)", run_tables.add_columns),
        ("ALTER TABLE lake.t ADD COLUMN a interval day to second", run_tables.add_columns),
        ("ALTER TABLE lake.t DROP COLUMN IF EXISTS a, b", run_tables.drop_columns),
        ("ALTER TABLE lake.t RENAME COLUMN a.b TO c", run_tables.rename_column),
        ("ALTER TABLE lake.t ALTER COLUMN a TYPE string COLLATE UTF8_LCASE", run_tables.alter_column),
        ("ALTER TABLE lake.t CHANGE COLUMN a DROP NOT NULL", run_tables.alter_column),
        ("ALTER TABLE lake.t SET TBLPROPERTIES ('a' = 'b')", run_tables.set_properties),
        ("ALTER TABLE lake.t UNSET TBLPROPERTIES IF EXISTS ('a', b)", run_tables.unset_properties),
        ("CALL lake.system.compact('t')", procedures.run),
        ("call LAKE.SYSTEM.Compact(table => lake.t@dev, target_rows_per_fragment => 20000);", procedures.run),
        ("CALL lance.system.drop_index('`/data/t.lance`', 'i')", procedures.run),
        ("DESCRIBE DETAIL lake.t", run_describe.describe_detail),
        ("SHOW BRANCH IN lake.t", run_describe.show_branches),
        ("SHOW TAGS IN lake.t", run_describe.show_tags),
        ("SHOW COLUMNS IN lake.t", run_describe.show_columns),
        ("CREATE TABLE lake.t (a int COMMENT 'c' NOT NULL, b string COLLATE UTF8_LCASE NOT NULL)", run_tables.create_table),
        ("FROM lake.t SELECT a", run.run_query),
        ("DESCRIBE HISTORY lake.t", run_describe.describe_history),
        ("DESC HISTORY lake.t@dev LIMIT 5;", run_describe.describe_history),
        ("SHOW TBLPROPERTIES lake.t (a.b)", run_describe.show_properties),
        ("COMMENT ON TABLE lake.t IS 'x'", run_tables.set_properties),
        ("COMMENT ON TABLE lake.t IS NULL", run_tables.unset_properties),
        ("ALTER TABLE lake.t ALTER COLUMN a.b COMMENT 'x'", run_tables.alter_column),
        ("TABLE lake.t", run.run_query),
        ("INSERT INTO lake.t TABLE lake.u", run_rows.insert),
        ("INSERT INTO plain TABLE lake.t", run.run_query),
        ("INSERT INTO lake.t SELECT default FROM plain", run_rows.insert),
        ("UPDATE lake.t SET a = default.b, c = `default`", run_rows.update),
        ("DESC TABLE EXTENDED lake.t@dev", run_describe.describe),
        ("SHOW TABLES IN lake", run_describe.show_tables),
        ("SHOW NAMESPACES FROM lake.s LIKE 'a*'", run_describe.show_tables),
        ("SHOW CREATE TABLE lake.t", run_describe.show_create_table),
        ("SHOW INDEXES IN lake.t", run_describe.show_indices),
        ("CREATE TEMP VIEW v (a) AS SELECT 1 FROM lake.t", run_tables.create_view),
        ("EXPLAIN EXTENDED SELECT * FROM lake.t", run.run_query),
        ("INSERT INTO spark_table SELECT * FROM lake.t", run.run_query),
    ],
)  # fmt: skip
def test_statements_are_read_as_a_whole(statement, function):
    assert read(statement).func is function


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1", "SELECT lake FROM t", "DROP TABLE t", "SHOW TABLES", "SHOW TABLES IN other", "SELECT * FROM a.lake.t", "UPDATE x SET a = 'lake.t'", "SELECT * FROM lance.t", "SELECT 1; SELECT 2", "SELECT IDENTIFIER('a.t')", "SELECT 'IDENTIFIER(lake.t)'", "EXECUTE IMMEDIATE 'SELECT ''1'"],
)  # fmt: skip
def test_statements_without_lance_tables_are_spark_s(statement):
    assert read(statement) is None


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE lake.t SET a = 1 WHERE", "line 1, column 30: the statement ends; expected an expression"),
        ("UPDATE lake.t\nSET a + 1", r"line 2, column 7: '\+' is not understood; expected ="),
        ("UPDATE lake.t SET a = 1, a = 2", "column 26: 'a' is not understood; expected each column once"),
        ("DELETE FROM lake.t WHERE a = 1) ", r"column 31: '\)' is not understood; expected the end"),
        ("DELETE lake.t", "column 8: 'lake' is not understood; expected FROM|column 1: 'DELETE'"),
        ("MERGE INTO lake.t USING s ON a = b WHEN NOT MATCHED THEN DELETE", "'DELETE' is not understood; expected INSERT"),
        ("MERGE INTO lake.t USING s ON a = b WHEN MATCHED THEN INSERT *", "expected UPDATE or DELETE"),
        ("MERGE INTO lake.t USING s ON a = b WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)", "a value for each of 2"),
        ("MERGE WITH SCHEMA EVOLUTION INTO lake.t USING s ON a = b WHEN MATCHED THEN DELETE", "ALTER TABLE"),
        ("MERGE INTO lake.t USING s ON a = b", "expected WHEN"),
        ("INSERT INTO lake.t PARTITION (a = 1) SELECT 1", "REPLACE WHERE"),
        ("CREATE TABLE lake.t (a int) AS SELECT 1", "no columns"),
        ("CREATE TABLE lake.t", "columns in parentheses, or AS"),
        ("CREATE TABLE lake.t (a int DEFAULT 5)", "no default values"),
        ("CREATE TABLE lake.t (PRIMARY KEY (a))", "column 22: 'PRIMARY'.*no constraints"),
        ("CREATE TABLE lake.t (a int) PARTITIONED BY (days(a))", "column 45: 'days' is not understood"),
        ("DESCRIBE HISTORY lake.t LIMIT x", "column 31: 'x' is not understood; expected a whole number"),
        ("DESCRIBE lake.t LIMIT 5", "'LIMIT' is not understood"),
        ("INSERT INTO lake.t VALUES (1, DEFAULT)", "column 31: 'DEFAULT' is not understood; expected a value"),
        ("INSERT INTO lake.t DROP TABLE u", "column 20: 'DROP' is not understood; expected a query"),
        ("CREATE TABLE lake.t (a int) LOCATION '/x'", "no LOCATION"),
        ("CREATE TABLE lake.t (a int) USING parquet", "USING lance"),
        ("ALTER TABLE lake.t ADD PARTITION (a = 1)", "is not understood"),
        ("ALTER TABLE lake.t RENAME TO lake.u", "expected ADD COLUMNS"),
        ("OPTIMIZE lake.t ZORDER BY (a)", r"column 1: 'OPTIMIZE' .* expected CALL lake.system.compact\(table => '...', ...\)"),
        ("VACUUM lake.t RETAIN 5 HOURS", "CALL lake.system.cleanup_old_versions"),
        ("CREATE INDEX i ON lake.t (a)", "CALL lake.system.create_scalar_index"),
        ("DROP INDEX i ON lake.t", "CALL lake.system.drop_index"),
        ("CREATE BRANCH IF NOT EXISTS b ON lake.t", "CALL lake.system.create_branch"),
        ("DROP BRANCH b ON lake.t", "CALL lake.system.delete_branch"),
        ("ALTER TABLE lake.t PROMOTE BRANCH b", "column 20: 'PROMOTE' .*CALL lake.system.promote_branch"),
        ("ALTER TABLE lake.t CREATE OR REPLACE TAG july", "column 20: 'CREATE' .*CALL lake.system.update_tag"),
        ("CREATE TABLE lake.t SHALLOW CLONE lake.u", "column 21: 'SHALLOW' .*CALL lake.system.shallow_clone"),
        ("CALL lake.system.vacuum('t')", "column 6: 'lake' .*one of the verbs cleanup_old_versions, compact, "),
        ("CALL lake.maintenance.compact('t')", r"expected lake.system.<verb>\(table"),
        ("CALL lake.system.compact", r"the statement ends; expected \("),
        ("CALL lake.system.compact()", "column 26: .*expected the table"),
        ("CALL lake.system.compact('t'", r"the statement ends; expected \)"),
        ("CALL lake.system.compact('t',)", "expected an expression"),
        ("CALL lake.system.compact('t') x", "'x' is not understood; expected the end"),
        ("CALL lake.system.compact(table => 't', table => 'u')", "column 40: .*expected each argument once"),
        ("CALL lake.system.compact(table => 't', 5)", "column 40: '5' .*expected name => value"),
        ("CREATE TABLE lake.t (a int COMMENT 'x' COMMENT 'y')", r"column 40: 'COMMENT' is not understood"),
        ("CREATE TABLE lake.t (a int NOT NULL NOT NULL)", r"column 37: 'NOT' is not understood"),
        ("CREATE TABLE lake.t (a int) COMMENT 'x' COMMENT 'y'", "column 41: 'COMMENT' .*expected each clause once"),
        ("CREATE TABLE lake.t (a int) PARTITIONED BY (a) PARTITIONED BY (b)", "column 48: .*expected each clause once"),
        ("CREATE TABLE lake.t (a int) TBLPROPERTIES (a = 1, 'a' = 2)", "column 51: .*expected each key once"),
        ("ALTER TABLE lake.t SET TBLPROPERTIES ('a' = 1, 'a' = 2)", "expected each key once"),
        ("MERGE INTO lake.t USING s ON a = b WHEN NOT MATCHED BY SOURCE BY TARGET THEN DELETE", "'BY' is not understood"),
        ("MERGE INTO lake.t USING s ON a = b WHEN MATCHED BY SOURCE THEN DELETE", "'BY' is not understood"),
        ("CREATE TABLE lake.t (a: int)", "column 23: ':' is not understood; expected a type"),
        ("CREATE TABLE lake.t (a int) TBLPROPERTIES (a = 1 + 1)", "column 48: '1' .*expected a string, a number"),
        ("CREATE VIEW v AS SELECT * FROM lake.t", "TEMPORARY VIEW"),
        ("CACHE TABLE lake.t", "column 1: 'CACHE' is not understood"),
        ("ANALYZE TABLE lake.t COMPUTE STATISTICS", "'ANALYZE' is not understood"),
        ("DROP TABLE lake.t CASCADE", "'CASCADE' is not understood"),
        ("RESTORE lake.t TO 5", "CALL lake.system.restore"),
        ("SELECT 1 FROM lake.t; SELECT 2", "line 1, column 21: ';' is not understood; expected one statement"),
        ("SELECT 1;\nDELETE FROM lake.t", "line 1, column 9: ';'"),
        ("INSERT INTO lake.t REPLACE USING (a) SELECT 1", "column 28: 'USING' is not understood; expected REPLACE WHERE"),
        ("INSERT INTO lake.t (a) REPLACE ON a = 1 SELECT 1", "column 32: 'ON' is not understood; expected REPLACE WHERE"),
        ("FROM lake.t INSERT INTO lake.t SELECT a", "column 13: 'INSERT' is not understood; expected the end of the query"),
        ("SELECT * FROM IDENTIFIER('lake.t')", "column 15: 'IDENTIFIER' is not understood; expected the name itself"),
        ("SELECT * FROM table_changes('lake.t', 1)", "column 15: 'table_changes'.*read_changes"),
        ("EXECUTE IMMEDIATE 'SELECT * FROM lake.t'", "column 1: 'EXECUTE' is not understood; expected the statement itself"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_rejected_by_name_and_position(statement, message):
    with pytest.raises(InvalidInputError, match=message) as raised:
        read(statement)
    assert "line " in str(raised.value)
    assert "Nothing was done" in str(raised.value)


def test_pieces_end_at_words_outside_of_parentheses_and_case():
    cursor = Cursor("case when a then (b when c) end when x")
    assert cursor.piece("WHEN").text == "case when a then (b when c) end"
    assert cursor.take_if("WHEN")

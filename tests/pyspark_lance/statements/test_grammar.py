"""Tokens, names, parameters and the grammar of statements: no session, nothing is opened."""

import datetime as dt
import decimal

import pytest

from lance_core.errors import InvalidInputError
from pyspark_lance.catalog.registry import Catalog
from pyspark_lance.statements import records, run
from pyspark_lance.statements.names import mentions_of
from pyspark_lance.statements.parameters import literal, parameters_in
from pyspark_lance.statements.tokens import Cursor, tokens_of


class Finder:
    """The catalog `lake`, and paths."""

    def names_catalog(self, part):
        return part.lower() in ("lake", "lance")

    def catalog(self, part):
        return Catalog(name="lake", root="r") if part.lower() == "lake" else None


def read(statement):
    return run.read(statement, Finder())


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
    assert read(f"DELETE FROM lake.t -- old rows{end}WHERE id = 1").where.text == "id = 1"
    assert read(f"UPDATE lake.t SET v = 0 -- reset{end}WHERE id = 1").where.text == "id = 1"
    assert read("DELETE FROM lake.t /* /*+ a */ WHERE id = 1 /* b */ -- */").where.text == "id = 1"
    merge = read(f"MERGE INTO lake.t USING s ON t.id = s.id WHEN MATCHED -- c{end}AND s.x > 0\nTHEN DELETE")
    assert merge.clauses[0].condition.text == "s.x > 0"
    insert = read(f"INSERT INTO lake.t -- c{end}REPLACE WHERE day = 1\nSELECT 1")
    assert insert.replace_where.text == "day = 1"


@pytest.mark.parametrize("text", ["select 'a", "select `a", "select /* /* */ 1", 'select "'])
def test_what_does_not_end_is_rejected_with_its_position(text):
    with pytest.raises(InvalidInputError, match=r"line 1, column 8: the .* is not closed"):
        tokens_of(text)


def test_names_are_found_with_branch_and_travel():
    text = "select lake.s.t.id from lake.s.t@dev-1 FOR VERSION AS OF 3 a join lance.`/x@y/t.lance`@`b/c` TIMESTAMP AS OF now() - interval 1 day b, other.lake.t, lake"
    qualifier, table, path = mentions_of(text, Finder())
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
    ("statement", "kind"),
    [
        ("INSERT INTO lake.t SELECT 1", records.Insert),
        ("insert overwrite table lake.t (a, b) values (1, 2)", records.Insert),
        ("UPDATE lake.s.t AS x SET a = case when b = 1 then 2 end, `c d` = (1, 2).col1 WHERE x.a = 1;", records.Update),
        ("DELETE FROM lance.`/data/t.lance`", records.Delete),
        ("MERGE INTO lake.t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY TARGET THEN INSERT *", records.Merge),
        ("TRUNCATE TABLE lake.t", records.Truncate),
        ("CREATE TABLE IF NOT EXISTS lake.t (a decimal(10, 2) NOT NULL COMMENT 'c', b struct<x: int, y: array<map<string, int>>>) USING lance PARTITIONED BY (a)", records.CreateTable),
        ("CREATE OR REPLACE TABLE lake.t TBLPROPERTIES (a.b = 5, 'c' = true) AS SELECT 1 AS x", records.CreateTable),
        ("CREATE TABLE lake.t DEEP CLONE lake.u VERSION AS OF 3", records.CloneTable),
        ("DROP TABLE IF EXISTS lake.t PURGE", records.DropTable),
        ("ALTER TABLE lake.t ADD COLUMNS (a int, b string)", records.AddColumns),
        ("ALTER TABLE lake.t ADD COLUMN a interval day to second", records.AddColumns),
        ("ALTER TABLE lake.t DROP COLUMN IF EXISTS a, b", records.DropColumns),
        ("ALTER TABLE lake.t RENAME COLUMN a.b TO c", records.RenameColumn),
        ("ALTER TABLE lake.t ALTER COLUMN a TYPE string COLLATE UTF8_LCASE", records.AlterColumn),
        ("ALTER TABLE lake.t CHANGE COLUMN a DROP NOT NULL", records.AlterColumn),
        ("ALTER TABLE lake.t SET TBLPROPERTIES ('a' = 'b')", records.SetProperties),
        ("ALTER TABLE lake.t UNSET TBLPROPERTIES IF EXISTS ('a', b)", records.UnsetProperties),
        ("OPTIMIZE lake.t WITH (target_rows_per_fragment = 20000)", records.Optimize),
        ("VACUUM lake.t RETAIN 168 HOURS DRY RUN", records.Vacuum),
        ("ALTER TABLE lake.t CREATE INDEX i USING zonemap (a.b) WITH (rows_per_zone = 4)", records.CreateIndex),
        ("CREATE INDEX ON lake.t (a)", records.CreateIndex),
        ("CREATE INDEX i ON TABLE lake.t USING zonemap (a)", records.CreateIndex),
        ("FROM lake.t SELECT a", records.Query),
        ("DROP INDEX IF EXISTS i ON lake.t", records.DropIndex),
        ("CREATE BRANCH IF NOT EXISTS feature/a-1 ON lake.t AS OF VERSION 3", records.CreateBranch),
        ("CREATE OR REPLACE TAG july ON lake.t", records.CreateTag),
        ("DROP BRANCH dev ON lake.t", records.DropRef),
        ("ALTER TABLE lake.t PROMOTE BRANCH dev", records.PromoteBranch),
        ("DESCRIBE HISTORY lake.t", records.Describe),
        ("DESC HISTORY lake.t@dev LIMIT 5;", records.Describe),
        ("SHOW TBLPROPERTIES lake.t (a.b)", records.Show),
        ("COMMENT ON TABLE lake.t IS 'x'", records.SetProperties),
        ("COMMENT ON TABLE lake.t IS NULL", records.UnsetProperties),
        ("ALTER TABLE lake.t ALTER COLUMN a.b COMMENT 'x'", records.AlterColumn),
        ("TABLE lake.t", records.Query),
        ("INSERT INTO lake.t TABLE lake.u", records.Insert),
        ("INSERT INTO plain TABLE lake.t", records.Query),
        ("INSERT INTO lake.t SELECT default FROM plain", records.Insert),
        ("UPDATE lake.t SET a = default.b, c = `default`", records.Update),
        ("DROP INDEX i ON TABLE lake.t", records.DropIndex),
        ("DESC TABLE EXTENDED lake.t@dev", records.Describe),
        ("SHOW TABLES IN lake", records.ShowTables),
        ("SHOW NAMESPACES FROM lake.s LIKE 'a*'", records.ShowTables),
        ("SHOW CREATE TABLE lake.t", records.Show),
        ("SHOW INDEXES IN lake.t", records.Show),
        ("RESTORE TABLE lake.t TO TIMESTAMP AS OF '2026-01-01'", records.Restore),
        ("CREATE TEMP VIEW v (a) AS SELECT 1 FROM lake.t", records.CreateView),
        ("EXPLAIN EXTENDED SELECT * FROM lake.t", records.Query),
        ("INSERT INTO spark_table SELECT * FROM lake.t", records.Query),
    ],
)  # fmt: skip
def test_statements_become_records(statement, kind):
    assert type(read(statement)) is kind


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
        ("VACUUM lake.t RETAIN 5 DAYS", "expected HOURS"),
        ("OPTIMIZE lake.t ZORDER BY (a)", "expected WITH"),
        ("CREATE INDEX i ON lake.t (a, b)", "one column"),
        ("CREATE VIEW v AS SELECT * FROM lake.t", "TEMPORARY VIEW"),
        ("CACHE TABLE lake.t", "column 1: 'CACHE' is not understood"),
        ("ANALYZE TABLE lake.t COMPUTE STATISTICS", "'ANALYZE' is not understood"),
        ("DROP TABLE lake.t CASCADE", "'CASCADE' is not understood"),
        ("RESTORE lake.t TO 5", "VERSION AS OF or TIMESTAMP AS OF"),
        ("SELECT 1 FROM lake.t; SELECT 2", "line 1, column 21: ';' is not understood; expected one statement"),
        ("SELECT 1;\nDELETE FROM lake.t", "line 1, column 9: ';'"),
        ("INSERT INTO lake.t REPLACE USING (a) SELECT 1", "column 28: 'USING' is not understood; expected REPLACE WHERE"),
        ("INSERT INTO lake.t (a) REPLACE ON a = 1 SELECT 1", "column 32: 'ON' is not understood; expected REPLACE WHERE"),
        ("FROM lake.t INSERT INTO lake.t SELECT a", "column 13: 'INSERT' is not understood; expected the end of the query"),
        ("SELECT * FROM IDENTIFIER('lake.t')", "column 15: 'IDENTIFIER' is not understood; expected the name itself"),
        ("SELECT * FROM table_changes('lake.t', 1)", "column 15: 'table_changes'.*read_changes"),
        ("EXECUTE IMMEDIATE 'SELECT * FROM lake.t'", "column 1: 'EXECUTE' is not understood; expected the statement itself"),
        ("CREATE INDEX i ON lake.t USING ivf_pq (a)", "column 32: 'ivf_pq' is not understood; expected btree"),
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
    assert cursor.takes("WHEN")

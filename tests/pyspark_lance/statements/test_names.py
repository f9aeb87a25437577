"""Names of columns by `spark.sql.caseSensitive`, and paths in place of names of tables."""

import pytest

import pyspark_lance
from lance_core.errors import InvalidInputError, LanceError, SchemaError
from pyspark_lance.catalog.tables import TableFinder, TableName


def test_case_of_columns_counts_if_the_session_says_so(spark, sql, table, lance):
    statements = (
        "CALL lake.system.create_scalar_index('nyc.t', 'X', 'zonemap')",
        "ALTER TABLE lake.nyc.t ALTER COLUMN X TYPE decimal(30, 0)",
        "ALTER TABLE lake.nyc.t ALTER COLUMN X COMMENT 'c'",
        "ALTER TABLE lake.nyc.t RENAME COLUMN X TO y",
        "ALTER TABLE lake.nyc.t DROP COLUMN X",
        "INSERT INTO lake.nyc.t (id, X) VALUES (1L, 1L)",
        "INSERT INTO lake.nyc.t BY NAME SELECT 1L AS id, 1L AS X, 's' AS s",
        "INSERT INTO lake.nyc.t REPLACE WHERE X = 1 SELECT 1L, 1L, 's'",
        "UPDATE lake.nyc.t SET X = 1",
        "UPDATE lake.nyc.t SET x = 1 WHERE X = 1",
        "DELETE FROM lake.nyc.t WHERE X = 1",
        "MERGE INTO lake.nyc.t t USING lake.nyc.t o ON t.id = o.id WHEN MATCHED THEN UPDATE SET X = 1",
        "CREATE TABLE lake.nyc.u (x INT, s STRING) PARTITIONED BY (X)",
        "CREATE TABLE lake.nyc.u PARTITIONED BY (X) AS SELECT x FROM lake.nyc.t",
    )
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for statement in statements:
            with pytest.raises((SchemaError, InvalidInputError)) as raised:
                sql(statement)
            assert "X" in str(raised.value), statement
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert lance.dataset(table).version == 1
    sql("CALL lake.system.create_scalar_index('nyc.t', 'X', 'zonemap')")
    assert sql("SHOW INDEXES IN lake.nyc.t")[0][1] == ["x"]


def test_partitions_are_named_in_any_case_unless_it_counts(sql, lake):
    sql("CREATE TABLE lake.nyc.u (x INT, s STRING) PARTITIONED BY (X, `S`)")
    sql("CREATE TABLE lake.nyc.w PARTITIONED BY (X) AS SELECT 1 AS x")
    for name, columns in (("u", ["x", "s"]), ("w", ["x"])):
        assert sql(f"DESCRIBE DETAIL lake.nyc.{name}")[0][3] == columns
    with pytest.raises(SchemaError, match=r"PARTITIONED BY: .*'nope'"):
        sql("CREATE TABLE lake.nyc.v (x INT) PARTITIONED BY (nope)")


@pytest.mark.parametrize("words", ["SHOW TABLES IN", "SHOW TABLES FROM", "SHOW NAMESPACES IN", "SHOW DATABASES IN"])
def test_a_path_is_no_catalog_whose_tables_are_listed(sql, lake, table, words):
    what = "TABLES" if "TABLES" in words else "NAMESPACES"
    with pytest.raises(
        InvalidInputError, match=rf"SHOW {what} lists a catalog, .*register_catalog\(.*then SHOW {what}"
    ):
        sql(f"{words} lance.`{lake}` LIKE 't*'")
    with pytest.raises(InvalidInputError, match=r"which has no branches: leave out @dev"):
        sql("SHOW TABLES IN lake@dev")


def test_each_statement_takes_the_path_of_a_table_or_rejects_it_in_a_sentence(sql, lake, table):
    path, missing, short = f"lance.`{table}`", f"lance.`{lake}/none.lance`", "lance.`"
    statements = (
        "SELECT count(*) FROM {t}", "SHOW CREATE TABLE {t}", "SHOW TBLPROPERTIES {t}", "SHOW COLUMNS IN {t}",
        "SHOW INDEXES IN {t}", "SHOW BRANCHES IN {t}", "SHOW TAGS IN {t}", "DESCRIBE {t}", "DESCRIBE HISTORY {t}",
        "DESCRIBE DETAIL {t}", "DESCRIBE EXTENDED {t}", "INSERT INTO {t} SELECT 1L, 1L, 'a'", "CALL lake.system.compact({t})",
        "CALL lake.system.cleanup_old_versions({t})", "CALL lake.system.compact('{t}')",
        "UPDATE {t} SET x = 1 WHERE id = 1", "DELETE FROM {t} WHERE id = 100", "COMMENT ON TABLE {t} IS 'c'",
        "CALL lake.system.create_branch({t}, 'dev')", "CALL lake.system.create_tag({t}, 'july')",
        "CALL lake.system.delete_tag({t}, 'july')", "CALL lance.system.delete_branch({t}, 'dev')",
        "CALL lake.system.create_scalar_index({t}, 'id', 'zonemap', 'i')", "CALL lake.system.drop_index({t}, 'i')",
        "CALL lake.system.restore({t} VERSION AS OF 1)",
        "ALTER TABLE {t} SET TBLPROPERTIES ('a' = 'b')", "ALTER TABLE {t} UNSET TBLPROPERTIES ('a')",
        "ALTER TABLE {t} ADD COLUMN n INT", "ALTER TABLE {t} DROP COLUMN n", "TRUNCATE TABLE {t}", "DROP TABLE {t}",
    )  # fmt: skip
    for statement in statements:
        for name in (missing, "lance.``", f"{path}.x", f"{short}{lake}`"):
            with pytest.raises(LanceError):
                sql(statement.format(t=name))
        sql(statement.format(t=path))
    for statement in (
        "CREATE TABLE {t} (a INT)",
        "CALL lake.system.shallow_clone({s}, '{t}')",
        "CREATE TABLE {t} AS SELECT 1",
    ):
        with pytest.raises(LanceError):
            sql(statement.format(t=f"{path}.x", s=path))
    sql(f"CREATE TABLE {missing} (a INT)")
    assert sql(f"SHOW COLUMNS IN {missing}") == [("a",)]


def test_a_path_has_the_storage_options_of_the_closest_catalog(spark, tmp_path, monkeypatch):
    roots = {"outer1": tmp_path, "inner1": tmp_path / "in", "beside1": tmp_path / "in2"}
    for order in (1, -1):
        names = [f"{name}{order}".replace("-", "_") for name in roots]
        for name, root in [*zip(names, roots.values(), strict=True)][::order]:
            pyspark_lance.register_catalog(spark, name, root, storage_options={"of": name})
        finder = TableFinder(spark)
        finder._catalogs = {name: one for name, one in finder._catalogs.items() if name in names}
        monkeypatch.chdir(tmp_path)
        for path, owner, inner in (
            ("in/t.lance", 1, "t.lance"), ("in/a/t.lance/", 1, "a/t.lance"), ("in2/t.lance", 2, "t.lance"),
            ("t.lance", 0, "t.lance"), ("in/../t.lance", 0, "t.lance"), ("inner/t.lance", 0, "inner/t.lance"),
        ):  # fmt: skip
            for uri in (f"{tmp_path}/{path}", f"file://{tmp_path}/{path}", path):
                found = finder.locate(TableName(parts=("lance", uri)))
                assert (found.storage_options, found.path) == ({"of": names[owner]}, inner), uri
        assert finder.locate(TableName(parts=("lance", f"{tmp_path}-x/t.lance"))).catalog is None


def test_an_alias_may_have_the_name_of_the_key(sql, table):
    rows = sql("SELECT count(*) FROM lake.nyc.t")[0][0]
    merge = "MERGE INTO lake.nyc.t x USING (SELECT x, s FROM lake.nyc.t) o ON x.x = o.x WHEN MATCHED THEN UPDATE SET s = o.s"
    assert sql(merge)[0][0] == rows

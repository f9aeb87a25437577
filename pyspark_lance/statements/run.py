"""`pyspark_lance.sql`: recognizes statements about Lance tables, parses them into records, and runs them.

statement ---- names no Lance table ----------------------> spark.sql(statement, args)
    |
    +-- its target is a Lance table --> grammar: record --> function of this package
    +-- it reads Lance tables -------> their frames ------> spark.sql, with frames in place of the names
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark_lance.statements import maintenance_grammar as maintenance
from pyspark_lance.statements import (
    records,
    rows_grammar,
    run_describe,
    run_maintenance,
    run_refs,
    run_rows,
    run_tables,
)
from pyspark_lance.statements import tables_grammar as tables
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.messages import in_words_of_sql
from pyspark_lance.statements.names import mentions_of, names_lance, reject_names_in_strings
from pyspark_lance.statements.sources import Sources
from pyspark_lance.statements.tokens import Cursor, Piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_lance.catalog.tables import TableFinder

__all__ = ["sql"]


class _Form(NamedTuple):
    """A form of statements.

    Attributes:
        words: Words with which it begins; `...` stands for the name of the table.
        read: Its grammar.
    """

    words: str
    read: Callable[[Cursor], records.Statement]


_FORMS: Final = (
    _Form("INSERT", rows_grammar.insert),
    _Form("UPDATE", rows_grammar.update),
    _Form("DELETE", rows_grammar.delete),
    _Form("MERGE", rows_grammar.merge),
    _Form("TRUNCATE", rows_grammar.truncate),
    _Form("CREATE TABLE", tables.create_table),
    _Form("CREATE OR REPLACE TABLE", tables.create_table),
    _Form("REPLACE TABLE", tables.create_table),
    _Form("DROP TABLE", tables.drop_table),
    _Form("ALTER TABLE ... CREATE", maintenance.alter_refs),
    _Form("ALTER TABLE ... PROMOTE", maintenance.alter_refs),
    _Form("ALTER TABLE ... DROP INDEX", maintenance.alter_refs),
    _Form("ALTER TABLE ... DROP BRANCH", maintenance.alter_refs),
    _Form("ALTER TABLE ... DROP TAG", maintenance.alter_refs),
    _Form("ALTER TABLE", tables.alter),
    _Form("OPTIMIZE", maintenance.optimize),
    _Form("VACUUM", maintenance.vacuum),
    _Form("RESTORE", maintenance.restore),
    _Form("DESCRIBE", tables.describe),
    _Form("DESC", tables.describe),
    _Form("SHOW", tables.show),
    _Form("COMMENT ON", tables.comment),
    _Form("CREATE INDEX", maintenance.create_or_drop),
    _Form("CREATE OR REPLACE INDEX", maintenance.create_or_drop),
    _Form("CREATE BRANCH", maintenance.create_or_drop),
    _Form("CREATE TAG", maintenance.create_or_drop),
    _Form("CREATE OR REPLACE TAG", maintenance.create_or_drop),
    _Form("DROP INDEX", maintenance.create_or_drop),
    _Form("DROP BRANCH", maintenance.create_or_drop),
    _Form("DROP TAG", maintenance.create_or_drop),
    _Form("PROMOTE BRANCH", maintenance.create_or_drop),
)
"""The statements whose target may be a Lance table; the first matching form is used."""

_VIEWS: Final = tuple(
    f"CREATE {words}" for kind in ("VIEW", "TEMP", "TEMPORARY", "GLOBAL") for words in (kind, f"OR REPLACE {kind}")
)
_READERS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE")
"""Words with which a statement begins that Spark runs, and that may read Lance tables."""
_EXPLAINS: Final = ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL")

_RUNNERS: Final[dict[type[records.Statement], Callable[[Context, Any], DataFrame]]] = {
    records.Query: lambda context, statement: context.sources.query(statement.query, parsed_from=statement.prefix),
    records.CreateView: run_tables.create_view,
    records.Insert: run_rows.insert,
    records.Update: run_rows.update,
    records.Delete: run_rows.delete,
    records.Merge: run_rows.merge,
    records.Truncate: run_rows.truncate,
    records.CreateTable: run_tables.create_table,
    records.DropTable: run_tables.drop_table,
    records.AddColumns: run_tables.add_columns,
    records.DropColumns: run_tables.drop_columns,
    records.RenameColumn: run_tables.rename_column,
    records.AlterColumn: run_tables.alter_column,
    records.SetProperties: run_tables.set_properties,
    records.UnsetProperties: run_tables.unset_properties,
    records.Describe: run_describe.describe,
    records.Show: run_describe.show,
    records.ShowTables: run_describe.show_tables,
    records.Optimize: run_maintenance.optimize,
    records.Vacuum: run_maintenance.vacuum,
    records.CreateIndex: run_maintenance.create_index,
    records.DropIndex: run_maintenance.drop_index,
    records.CreateBranch: run_refs.create_branch,
    records.CreateTag: run_refs.create_tag,
    records.DropRef: run_refs.drop_ref,
    records.PromoteBranch: run_refs.promote,
    records.Restore: run_maintenance.restore,
    records.CloneTable: run_maintenance.clone,
}


def sql(spark: SparkSession, statement: str, **params: Any) -> DataFrame:
    """Run an SQL statement that may read and change Lance tables by their names.

    `lake.nyc.flights` is a table of a registered catalog, and lance.`/data/t.lance` one at a path; `@dev` after the
    name is a branch or a tag, and `VERSION AS OF` and `TIMESTAMP AS OF` travel in time. A query reads one version of
    each table, which is fixed now. A statement that names no Lance table is passed to `spark.sql` unchanged.

    Args:
        spark: The session, classic or Connect.
        statement: One statement.
        **params: Values of the statement's parameters: `sql(spark, "... where id = :id", id=5)`.

    Returns:
        For a query its rows, lazily; for a statement that changes rows the numbers of changed rows, `num_affected_rows`
        first; for a statement that reports nothing an empty DataFrame.

    Raises:
        InvalidInputError: A part of the statement is not understood (the message has its line and column), or Spark
            rejects an expression. Nothing was done.
        DatasetNotFoundError: There is no table of a name.
        VersionNotFoundError: A table has no such branch, tag or version.
        SchemaError: A column does not exist, or a value does not fit it; the message names the column.
        DatasetExistsError: A table that is created already exists.
        CommitConflictError: A concurrent commit conflicts with the statement. Nothing was changed.

    Examples:
        >>> pyspark_lance.register_catalog(spark, "lake", "lake")
        >>> created = pyspark_lance.sql(spark, "create table lake.nyc.t as select id, id * 2 as x from range(3)")
        >>> pyspark_lance.sql(spark, "update lake.nyc.t set x = x + :more where id > 0", more=10).collect()
        [Row(num_affected_rows=2)]
        >>> pyspark_lance.sql(spark, "select sum(x) as x from lake.nyc.t@v1").collect()
        [Row(x=6)]
    """
    sources = Sources(spark, statement, params)
    record = read(statement, sources.finder)
    if record is None:
        return spark.sql(statement, args=params or None)
    with in_words_of_sql(sources), sources.views():
        return _RUNNERS[type(record)](Context(spark=spark, sources=sources), record)


def read(statement: str, finder: TableFinder) -> records.Statement | None:
    """The record of a statement; None if it names no Lance table.

    Raises:
        InvalidInputError: A part of the statement is not understood; the message has its position.
    """
    cursor = Cursor(statement)
    if mentions_of(statement, finder):
        cursor.check_single()
    reject_names_in_strings(cursor.copy(), finder)
    for form in _FORMS:
        if _begins(cursor.copy(), form.words, finder):
            record = form.read(cursor)
            cursor.finish()
            return record
    if not mentions_of(statement, finder):
        return None
    if any(cursor.sees(words) for words in _VIEWS):
        return tables.create_view(cursor)
    return _query(cursor)


def _begins(cursor: Cursor, words: str, finder: TableFinder) -> bool:
    """Whether a statement begins with words, and its target is a Lance table."""
    first, _, rest = words.partition(" ... ")
    if not cursor.takes(first):
        return False
    if first == "SHOW" and _shows_catalog(cursor, finder):
        return True
    if first.endswith(("INDEX", "BRANCH", "TAG")):
        while not cursor.is_done and not names_lance(cursor, finder):
            if cursor.token().upper not in ("ON", "IN", "FROM", "TABLE") and names_lance(cursor, finder):
                return False
        return not cursor.is_done
    while cursor.peek().upper in _BETWEEN and cursor.peek(1).text != ".":
        cursor.token()
    if not names_lance(cursor, finder):
        return False
    cursor.table()
    return not rest or cursor.sees(rest)


_BETWEEN: Final = frozenset(
    {
        "INTO",
        "OVERWRITE",
        "TABLE",
        "FROM",
        "IN",
        "ON",
        "WITH",
        "SCHEMA",
        "EVOLUTION",
        "IF",
        "NOT",
        "EXISTS",
        "HISTORY",
        "DETAIL",
        "EXTENDED",
        "FORMATTED",
        "CREATE",
        "TBLPROPERTIES",
        "COLUMNS",
        "INDEXES",
        "INDEX",
        "INDICES",
        "BRANCHES",
        "BRANCH",
        "TAGS",
        "TAG",
    }
)
"""Words that may stand between the first ones of a statement and the name of its target."""


def _shows_catalog(cursor: Cursor, finder: TableFinder) -> bool:
    """Whether a SHOW is about a registered catalog."""
    if not cursor.takes("TABLES", "NAMESPACES", "SCHEMAS", "DATABASES") or not cursor.takes("IN", "FROM"):
        return False
    return cursor.peek().is_name and finder.catalog(cursor.peek().value) is not None


def _query(cursor: Cursor) -> records.Query:
    start = cursor.peek().start
    prefix = 0
    if cursor.takes("EXPLAIN"):
        cursor.takes(*_EXPLAINS)
        prefix = cursor.peek().start - start
    if cursor.sees("CREATE") and cursor.peek(1).upper in ("SCHEMA", "DATABASE", "NAMESPACE"):
        cursor.fail("CREATE TABLE: a namespace is there once it has a table", cursor.peek(1))
    if cursor.peek().upper not in _READERS:
        cursor.fail("a query, or one of the statements about Lance tables (docs/spark-sql.md)")
    if cursor.sees("FROM"):
        ahead = cursor.copy()
        ahead.piece("INSERT")
        if ahead.sees("INSERT"):
            ahead.fail("the end of the query: INSERT comes first, INSERT INTO t SELECT ... FROM ...")
    rest = cursor.rest()
    text = cursor.statement[start : rest.start] + rest.text
    return records.Query(query=Piece(text, start), prefix=prefix)

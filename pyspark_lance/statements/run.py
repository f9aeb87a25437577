"""`pyspark_lance.sql`: recognizes statements about Lance tables, reads each as a whole, and then runs it.

statement ---- names no Lance table ----------------------> spark.sql(statement, args)
    |
    +-- its target is a Lance table --> grammar ----------> function of this package, with the parts of the statement
    +-- it reads Lance tables -------> their frames ------> spark.sql, with frames in place of the names
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lance_core.errors import CommitConflictError, RetryableConflictError
from pyspark_lance.catalog.tables import TableFinder
from pyspark_lance.lazy import DataFrame, SparkSession
from pyspark_lance.statements import procedures
from pyspark_lance.statements import rows_grammar as rows
from pyspark_lance.statements import tables_grammar as tables
from pyspark_lance.statements.context import Context, Statement
from pyspark_lance.statements.messages import translate_messages
from pyspark_lance.statements.names import find_mentions, names_lance, reject_names_in_strings
from pyspark_lance.statements.tokens import Cursor, Piece

_FORMS: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "INSERT": rows.parse_insert,
    "UPDATE": rows.parse_update,
    "DELETE": rows.parse_delete,
    "MERGE": rows.parse_merge,
    "TRUNCATE": rows.parse_truncate,
    "CREATE TABLE": tables.parse_create_table,
    "CREATE OR REPLACE TABLE": tables.parse_create_table,
    "REPLACE TABLE": tables.parse_create_table,
    "DROP TABLE": tables.parse_drop_table,
    "ALTER TABLE": tables.parse_alter,
    "DESCRIBE": tables.parse_describe,
    "DESC": tables.parse_describe,
    "SHOW": tables.parse_show,
    "COMMENT ON": tables.parse_comment,
    "CALL": procedures.parse_call,
}
"""The statements whose target may be a Lance table, by the words with which they begin."""
_BETWEEN: Final = frozenset({
    "INTO", "OVERWRITE", "TABLE", "FROM", "IN", "ON", "WITH", "SCHEMA", "EVOLUTION", "IF", "NOT", "EXISTS", "HISTORY",
    "DETAIL", "EXTENDED", "FORMATTED", "CREATE", "TBLPROPERTIES", "COLUMNS", "INDEXES", "INDEX", "BRANCHES", "BRANCH",
    "TAGS", "TAG",
})  # fmt: skip
"""Words that may stand between the first ones of a statement and the name of its target."""
_LISTED: Final = tuple(
    f"{what} {word}" for what in ("TABLES", "NAMESPACES", "SCHEMAS", "DATABASES") for word in ("IN", "FROM")
)
_VIEWS: Final = tuple(
    f"CREATE {words}" for kind in ("VIEW", "TEMP", "TEMPORARY", "GLOBAL") for words in (kind, f"OR REPLACE {kind}")
)
_READERS: Final = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "INSERT", "UPDATE", "DELETE", "MERGE", "CREATE")
"""Words with which a statement begins that Spark runs, and that may read Lance tables."""
_REPEATS: Final = 3
"""How often a statement that reads the table that it changes is run again after others have changed that."""
_CHANGED_EACH_TIME: Final = (
    "the statement reads the table that it changes, and others changed that each time: nothing was changed; run the"
    " statement again"
)
_EXPLAINS: Final = ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL")


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
        DatasetNotFoundError: There is no table of a name; or a changed table lost its id meanwhile.
        VersionNotFoundError: A table has no such branch, tag or version.
        SchemaError: A column does not exist, or a value does not fit it; the message names the column.
        DatasetExistsError: A table that is created already exists.
        CommitConflictError: A concurrent commit conflicts with the statement. Nothing was changed. A statement that
            reads the table that it changes was run several times before, each time on the latest version.

    Examples:
        >>> pyspark_lance.register_catalog(spark, "lake", "lake")
        >>> created = pyspark_lance.sql(spark, "create table lake.nyc.t as select id, id * 2 as x from range(3)")
        >>> pyspark_lance.sql(spark, "update lake.nyc.t set x = x + :more where id > 0", more=10).collect()
        [Row(num_affected_rows=2)]
        >>> pyspark_lance.sql(spark, "select sum(x) as x from lake.nyc.t@v1").collect()
        [Row(x=6)]
    """
    context = Context(spark, statement, params)
    run = parse_statement(statement, context.finder)
    if run is None:
        return spark.sql(statement, args=params or None)
    repeats = _REPEATS
    while True:
        try:
            with translate_messages(context), context.drop_views_at_end():
                return context.checked(run(context))
        except CommitConflictError as conflict:
            if not context.reads_target:
                raise
            if not repeats:
                raise RetryableConflictError(f"{_CHANGED_EACH_TIME}; the last conflict: {conflict}") from conflict
            context, repeats = Context(spark, statement, params), repeats - 1


def parse_statement(statement: str, finder: TableFinder) -> Statement | None:
    """Read a whole statement; None if it names no Lance table. Nothing is opened or looked up.

    Raises:
        InvalidInputError: A part of the statement is not understood; the message has its position.
    """
    cursor = Cursor(statement)
    mentions = find_mentions(statement, finder)
    if mentions:
        cursor.check_single()
    reject_names_in_strings(cursor.copy(), finder)
    for words, form in _FORMS.items():
        if _begins(cursor.copy(), words, finder):
            run = form(cursor)
            cursor.finish()
            return run
    if not mentions:
        return None
    procedures.reject_old_form(cursor, mentions[0].name.parts[0])
    return tables.parse_create_view(cursor) if any(cursor.sees(words) for words in _VIEWS) else _query(cursor)


def _begins(cursor: Cursor, words: str, finder: TableFinder) -> bool:
    """Whether a statement begins with words, and its target is a Lance table or a catalog of Lance tables."""
    if not cursor.take_if(words):
        return False
    if words == "CALL":
        return cursor.peek().is_name and finder.names_catalog(cursor.peek().value)
    if words == "SHOW" and cursor.take_if(*_LISTED) and cursor.peek().is_name and finder.catalog(cursor.peek().value):
        return True
    while cursor.peek().upper in _BETWEEN and cursor.peek(1).text != ".":
        cursor.token()
    return names_lance(cursor, finder)


def _query(cursor: Cursor) -> Statement:
    start = cursor.peek().start
    prefix = 0
    if cursor.take_if("EXPLAIN"):
        cursor.take_if(*_EXPLAINS)
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
    return partial(run_query, piece=Piece(cursor.statement[start : rest.start] + rest.text, start), prefix=prefix)


def run_query(context: Context, *, piece: Piece, prefix: int) -> DataFrame:
    """Run a query, or another statement of Spark's that reads Lance tables; `prefix` characters precede the query."""
    return context.query(piece, parsed_from=prefix)

"""The grammar of statements about tables and columns: CREATE, DROP, ALTER, DESCRIBE, SHOW, COMMENT.

Queries and the types of columns stay pieces of the statement, which Spark parses.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pyspark_lance.statements import run_describe, run_tables
from pyspark_lance.statements.context import Statement
from pyspark_lance.statements.procedures import reject_old_form
from pyspark_lance.statements.run_tables import Column
from pyspark_lance.statements.table_properties import COMMENT
from pyspark_lance.statements.tokens import Cursor

_SHOWN: Final = {
    "COLUMNS": run_describe.show_columns,
    **dict.fromkeys(("INDEXES", "INDEX"), run_describe.show_indices),
    **dict.fromkeys(("BRANCHES", "BRANCH"), run_describe.show_branches),
    **dict.fromkeys(("TAGS", "TAG"), run_describe.show_tags),
}
_CLAUSES: Final = {
    "LOCATION": "no LOCATION: the catalog decides it; lance.`path` names a table elsewhere",
    **dict.fromkeys(
        ("CLUSTER", "CLUSTERED"),
        "PARTITIONED BY and columns: rows are not clustered; CALL ... create_scalar_index narrows what is read",
    ),
}
"""Clauses that tables of Spark may have, and what is expected instead."""


def parse_create_table(cursor: Cursor) -> Statement:
    """Read a CREATE TABLE."""
    must_exist = cursor.take_if("REPLACE")
    if not must_exist:
        cursor.expect("CREATE")
    replaces = must_exist or cursor.take_if("OR REPLACE")
    cursor.expect("TABLE")
    if_not_exists = not must_exist and cursor.take_if("IF NOT EXISTS")
    table = cursor.table()
    reject_old_form(cursor, table.parts[0])
    columns = cursor.read_list(partial(_column, cursor)) if cursor.sees("(") else None
    partitioned_by: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    clauses: set[str] = set()
    while cursor.peek().upper not in ("AS", "SELECT", "WITH", ""):
        start = cursor.peek()
        if start.upper in clauses:
            cursor.fail("each clause once")
        clauses.add(start.upper)
        if cursor.take_if("USING"):
            if cursor.identifier("lance").lower() != "lance":
                cursor.fail("USING lance, for a table of a Lance catalog", start)
        elif cursor.take_if("PARTITIONED BY"):
            partitioned_by = _partitions(cursor)
        elif cursor.take_if("TBLPROPERTIES", "OPTIONS"):
            properties |= cursor.properties()
        elif cursor.take_if("COMMENT"):
            properties[COMMENT] = cursor.string("the comment")
        else:
            cursor.fail(_CLAUSES.get(start.upper, "columns in parentheses, a clause, or AS and a query"))
    query = cursor.query() if cursor.take_if("AS") or not cursor.is_done else None
    if (columns is None) == (query is None):
        cursor.fail("columns in parentheses, or AS and a query" if query is None else "no columns: the query has them")
    return partial(
        run_tables.create_table,
        table=table,
        columns=columns,
        query=query,
        if_not_exists=if_not_exists,
        replaces=replaces,
        must_exist=must_exist,
        partitioned_by=partitioned_by,
        properties=properties,
    )


def _partitions(cursor: Cursor) -> tuple[str, ...]:
    """Read the columns of PARTITIONED BY."""

    def column() -> str:
        start = cursor.peek()
        name = cursor.path()
        if cursor.sees("("):
            cursor.fail(
                f"a column: tables are partitioned by values of columns, and not by {start.text}(...); give the table"
                " a column with that value, and fill it in each INSERT",
                start,
            )
        if cursor.peek().is_name:
            cursor.fail("a comma or ): a column of PARTITIONED BY is declared among the columns of the table")
        return name

    return cursor.read_list(column, is_enclosed=True)


_CONSTRAINED: Final = ("PRIMARY KEY", "FOREIGN KEY", "UNIQUE (", "CHECK (")
"""How the constraints of a table begin."""
_NO_CONSTRAINTS: Final = "a column: tables have no constraints but NOT NULL"
_NO_DEFAULTS: Final = "another column: Lance has no default values; columns that an INSERT leaves out are NULL"
_NO_ORDER: Final = "a comma or the end: new columns come last; a query names columns in the order that it needs"
_NO_KEYS: Final = "a comma or a parenthesis: tables have no constraints but NOT NULL"
_NOT_IN_COLUMNS: Final = {
    "DEFAULT": _NO_DEFAULTS,
    "GENERATED": _NO_DEFAULTS,
    "FIRST": _NO_ORDER,
    "AFTER": _NO_ORDER,
    **dict.fromkeys(("PRIMARY", "UNIQUE", "CHECK", "REFERENCES", "CONSTRAINT"), _NO_KEYS),
}
"""Words that may follow the type of a column in Spark and Delta, and what is expected here instead."""


def _column(cursor: Cursor) -> Column:
    is_named = cursor.sees("CONSTRAINT") and cursor.peek(2).upper in ("PRIMARY", "FOREIGN", "UNIQUE", "CHECK")
    if is_named or any(cursor.sees(words) for words in _CONSTRAINED):
        cursor.fail(_NO_CONSTRAINTS)
    name = cursor.identifier("the name of a column")
    if not cursor.peek().is_name:
        cursor.fail("a type")
    kind = cursor.piece(",", "NOT NULL", "COMMENT", *_NOT_IN_COLUMNS, angles=True)
    nullable, comment = True, None
    while True:
        if nullable and cursor.take_if("NOT NULL"):
            nullable = False
        elif comment is None and cursor.take_if("COMMENT"):
            comment = cursor.string("the comment")
        else:
            break
    if (remedy := _NOT_IN_COLUMNS.get(cursor.peek().upper)) is not None:
        cursor.fail(remedy)
    return Column(name=name, type=kind, nullable=nullable, comment=comment)


def parse_create_view(cursor: Cursor) -> Statement:
    """Read a CREATE TEMPORARY VIEW."""
    cursor.expect("CREATE")
    replaces = cursor.take_if("OR REPLACE")
    is_global = cursor.take_if("GLOBAL")
    if not cursor.take_if("TEMPORARY VIEW", "TEMP VIEW"):
        cursor.fail("TEMPORARY VIEW: views that outlive the session cannot read Lance tables")
    name = cursor.identifier("the name of the view")
    columns = cursor.read_list(cursor.path) if cursor.sees("(") else ()
    cursor.expect("AS")
    query = cursor.query()
    return partial(
        run_tables.create_view, name=name, columns=columns, query=query, replaces=replaces, is_global=is_global
    )


def parse_drop_table(cursor: Cursor) -> Statement:
    """Read a DROP TABLE."""
    cursor.expect("DROP TABLE")
    if_exists = cursor.take_if("IF EXISTS")
    table = cursor.table()
    cursor.take_if("PURGE")
    return partial(run_tables.drop_table, table=table, if_exists=if_exists)


_CHANGES: Final = "ADD COLUMNS, DROP COLUMNS, RENAME COLUMN, ALTER COLUMN, SET or UNSET TBLPROPERTIES"


def parse_alter(cursor: Cursor) -> Statement:
    """Read an ALTER TABLE that changes columns or properties."""
    cursor.expect("ALTER TABLE")
    table = cursor.table()
    reject_old_form(cursor, table.parts[0])
    if cursor.sees("RENAME TO"):
        cursor.fail(f"{_CHANGES}; a table keeps its name, and CALL {table.parts[0]}.system.deep_clone(...) copies it")
    if cursor.take_if("ADD COLUMNS", "ADD COLUMN", "ADD"):
        return partial(run_tables.add_columns, table=table, columns=cursor.read_list(partial(_column, cursor)))
    if cursor.take_if("DROP COLUMNS", "DROP COLUMN"):
        if_exists = cursor.take_if("IF EXISTS")
        return partial(run_tables.drop_columns, table=table, columns=cursor.read_list(cursor.path), if_exists=if_exists)
    if cursor.take_if("RENAME COLUMN"):
        column = cursor.path()
        cursor.expect("TO")
        return partial(run_tables.rename_column, table=table, column=column, to=cursor.identifier("the new name"))
    if cursor.take_if("ALTER COLUMN", "CHANGE COLUMN", "ALTER", "CHANGE"):
        return partial(run_tables.alter_column, table=table, column=cursor.path(), **_change_of_column(cursor))
    if cursor.take_if("SET TBLPROPERTIES"):
        return partial(run_tables.set_properties, table=table, properties=cursor.properties())
    if cursor.take_if("UNSET TBLPROPERTIES"):
        if_exists = cursor.take_if("IF EXISTS")
        keys = cursor.read_list(cursor.key, is_enclosed=True)
        return partial(run_tables.unset_properties, table=table, keys=keys, if_exists=if_exists)
    return cursor.fail(_CHANGES)


def _change_of_column(cursor: Cursor) -> dict[str, Any]:
    if cursor.take_if("TYPE", "SET DATA TYPE"):
        return {"kind": cursor.rest()}
    if cursor.take_if("SET NOT NULL"):
        return {"nullable": False}
    if cursor.take_if("DROP NOT NULL"):
        return {"nullable": True}
    if cursor.take_if("COMMENT"):
        return {"comment": cursor.string("the comment")}
    remedy = "TYPE, COMMENT, SET NOT NULL or DROP NOT NULL"
    if cursor.sees("FIRST") or cursor.sees("AFTER"):
        remedy += ": columns keep their order; a query names them in the order that it needs"
    if cursor.sees("SET DEFAULT") or cursor.sees("DROP DEFAULT"):
        remedy += ": Lance has no default values; a column that an INSERT leaves out is NULL"
    return cursor.fail(remedy)


def parse_comment(cursor: Cursor) -> Statement:
    """Read a COMMENT ON TABLE, which is the property `comment`."""
    cursor.expect("COMMENT ON TABLE")
    table = cursor.table()
    cursor.expect("IS")
    if cursor.take_if("NULL"):
        return partial(run_tables.unset_properties, table=table, keys=(COMMENT,), if_exists=True)
    return partial(run_tables.set_properties, table=table, properties={COMMENT: cursor.string("the comment")})


def parse_describe(cursor: Cursor) -> Statement:
    """Read a DESCRIBE of a table."""
    if not cursor.take_if("DESCRIBE"):
        cursor.expect("DESC")
    if cursor.take_if("HISTORY"):
        table = cursor.table()
        limit = cursor.whole_number() if cursor.take_if("LIMIT") else None
        return partial(run_describe.describe_history, table=table, limit=limit)
    if cursor.take_if("DETAIL"):
        return partial(run_describe.describe_detail, table=cursor.table())
    cursor.take_if("TABLE")
    is_extended = cursor.take_if("EXTENDED", "FORMATTED")
    return partial(run_describe.describe, table=cursor.table(), is_extended=is_extended)


def parse_show(cursor: Cursor) -> Statement:
    """Read a SHOW."""
    cursor.expect("SHOW")
    if cursor.take_if("TABLES", "NAMESPACES", "SCHEMAS", "DATABASES"):
        what = "TABLES" if cursor.peek(-1).upper == "TABLES" else "NAMESPACES"
        if not cursor.take_if("IN", "FROM"):
            cursor.fail("IN and a catalog")
        space = cursor.table()
        if space.ref is not None:
            cursor.fail(f"a catalog or a namespace, which has no branches: leave out @{space.ref}", cursor.peek(-1))
        cursor.take_if("LIKE")
        pattern = None if cursor.is_done else cursor.string("a pattern")
        return partial(run_describe.show_tables, parts=space.parts, what=what, pattern=pattern)
    if cursor.take_if("CREATE TABLE"):
        return partial(run_describe.show_create_table, table=cursor.table())
    if cursor.take_if("TBLPROPERTIES"):
        table, key = cursor.table(), None
        if cursor.take_if("("):
            key = cursor.key()
            cursor.expect(")")
        return partial(run_describe.show_properties, table=table, key=key)
    shown = _SHOWN.get(cursor.peek().upper)
    if shown is None:
        cursor.fail("TABLES, NAMESPACES, CREATE TABLE, TBLPROPERTIES, COLUMNS, INDEXES, BRANCHES or TAGS")
    cursor.token()
    if not cursor.take_if("IN", "FROM", "ON"):
        cursor.fail("IN or FROM, and a table")
    return partial(shown, table=cursor.table())

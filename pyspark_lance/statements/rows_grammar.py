"""The grammar of statements that change rows: INSERT, UPDATE, DELETE, MERGE, TRUNCATE."""

from __future__ import annotations

from functools import partial
from typing import Final

from pyspark_lance.statements import run_rows
from pyspark_lance.statements.context import Statement
from pyspark_lance.statements.names import read_mention
from pyspark_lance.statements.run_rows import MergeWhen, UsingClause
from pyspark_lance.statements.tokens import Assignment, Cursor, Piece

_NO_ALIAS: Final = frozenset(
    {"SET", "WHERE", "USING", "ON", "WHEN", "VALUES", "SELECT", "FROM", "REPLACE", "BY", "PARTITION", "AS", "WITH"}
)


def parse_insert(cursor: Cursor) -> Statement:
    """Read an INSERT."""
    cursor.expect("INSERT")
    overwrites = cursor.take_if("OVERWRITE")
    if not overwrites:
        cursor.expect("INTO")
    cursor.take_if("TABLE")
    table = cursor.table()
    if cursor.sees("PARTITION"):
        cursor.fail("a query: PARTITION (...) is written as INSERT INTO ... REPLACE WHERE column = value")
    if cursor.sees("IF"):
        cursor.fail("a query")
    columns = None
    if cursor.sees("(") and cursor.peek(1).upper not in ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "("):
        columns = cursor.read_list(cursor.path)
    by_name = cursor.take_if("BY NAME")
    condition = None
    if not overwrites and cursor.take_if("REPLACE WHERE"):
        condition = cursor.piece("SELECT", "VALUES", "WITH", "FROM", "TABLE")
    if cursor.sees("REPLACE"):
        cursor.fail("REPLACE WHERE condition, or MERGE INTO", cursor.peek(1))
    if by_name and columns is not None:
        cursor.fail("either BY NAME or a list of columns")
    _reject_defaults(cursor.copy())
    return partial(
        run_rows.insert,
        table=table,
        query=cursor.query(),
        columns=columns,
        by_name=by_name,
        overwrites=overwrites,
        condition=condition,
    )


def parse_update(cursor: Cursor) -> Statement:
    """Read an UPDATE."""
    cursor.expect("UPDATE")
    table = cursor.table()
    alias = _alias(cursor)
    cursor.expect("SET")
    values = _values(cursor, "WHERE")
    where = cursor.piece() if cursor.take_if("WHERE") else None
    return partial(run_rows.update, table=table, alias=alias, values=values, where=where)


def parse_delete(cursor: Cursor) -> Statement:
    """Read a DELETE."""
    cursor.expect("DELETE FROM")
    table = cursor.table()
    alias = _alias(cursor)
    where = cursor.piece() if cursor.take_if("WHERE") else None
    return partial(run_rows.delete, table=table, alias=alias, where=where)


def parse_truncate(cursor: Cursor) -> Statement:
    """Read a TRUNCATE TABLE."""
    cursor.expect("TRUNCATE TABLE")
    return partial(run_rows.truncate, table=cursor.table())


def parse_merge(cursor: Cursor) -> Statement:
    """Read a MERGE INTO."""
    cursor.expect("MERGE")
    if cursor.sees("WITH SCHEMA"):
        cursor.fail("INTO: columns are added by ALTER TABLE ... ADD COLUMNS before the merge")
    cursor.expect("INTO")
    table = cursor.table()
    alias = _alias(cursor)
    cursor.expect("USING")
    is_query = cursor.sees("(")
    if is_query:
        cursor.expect("(")
        source = cursor.query(is_within=True)
        cursor.expect(")")
    else:
        first = cursor.peek()
        read_mention(cursor)
        source = Piece(cursor.statement[first.start : cursor.peek(-1).end], first.start)
    source_alias = _alias(cursor)
    columns = cursor.read_list(cursor.path) if source_alias is not None and cursor.sees("(") else ()
    cursor.expect("ON")
    on = cursor.piece("WHEN")
    clauses = []
    while cursor.take_if("WHEN"):
        clauses.append(_when(cursor))
    if not clauses:
        cursor.fail("WHEN")
    merge_source = UsingClause(piece=source, is_query=is_query, alias=source_alias, columns=columns)
    return partial(run_rows.merge, table=table, alias=alias, source=merge_source, on=on, clauses=clauses)


def _alias(cursor: Cursor) -> str | None:
    if cursor.take_if("AS"):
        return cursor.identifier("an alias")
    if cursor.peek().is_name and cursor.peek().upper not in _NO_ALIAS:
        return cursor.identifier()
    return None


def _values(cursor: Cursor, *stops: str) -> dict[str, Piece]:
    """Read `column = value, ...`."""
    assignments: dict[str, Piece] = {}
    while True:
        start = cursor.peek()
        name = cursor.path()
        if name in assignments:
            cursor.fail("each column once", start)
        if not cursor.take_if("= ="):
            cursor.expect("=")
        piece = _value(cursor, *stops)
        assignments[name] = Assignment(piece.text, piece.start, column=start.start)
        if not cursor.take_if(","):
            return assignments


_NO_DEFAULT: Final = "a value: Lance has no default values, so write NULL, or the value itself"


def _value(cursor: Cursor, *stops: str) -> Piece:
    """Read the value of a column, up to a comma or one of these words."""
    start = cursor.peek()
    piece = cursor.piece(",", *stops)
    if start.upper == "DEFAULT" and piece.text == start.text:
        cursor.fail(_NO_DEFAULT, start)
    return piece


def _reject_defaults(cursor: Cursor) -> None:
    """Reject DEFAULT for a value in the rows of an INSERT; a query that reads tables may have a column of that name."""
    is_rows, before = cursor.sees("VALUES"), ""
    while is_rows and not cursor.is_done:
        token = cursor.token()
        if token.upper == "DEFAULT" and before in ("(", ",", "VALUES") and cursor.peek().text in ("", ",", ")"):
            cursor.fail(_NO_DEFAULT, token)
        before = token.upper


def _when(cursor: Cursor) -> MergeWhen:
    side = "not matched"
    if cursor.take_if("NOT MATCHED BY SOURCE"):
        side = "not matched by source"
    elif not cursor.take_if("NOT MATCHED BY TARGET", "NOT MATCHED"):
        side = "matched"
        cursor.expect("MATCHED")
    condition = cursor.piece("THEN") if cursor.take_if("AND") else None
    cursor.expect("THEN")
    if cursor.take_if("DELETE"):
        action, values = "DELETE", None
    elif cursor.take_if("UPDATE SET"):
        action, values = "UPDATE", None if cursor.take_if("*") else _values(cursor, "WHEN")
    elif cursor.take_if("INSERT"):
        action, values = "INSERT", None if cursor.take_if("*") else _inserted(cursor)
    else:
        cursor.fail("UPDATE SET, DELETE or INSERT")
    if side == "not matched" and action != "INSERT":
        cursor.fail("INSERT, for rows that the table lacks", cursor.peek(-1))
    if side != "not matched" and action == "INSERT":
        cursor.fail("UPDATE or DELETE, for rows of the table", cursor.peek(-1))
    return MergeWhen(side=side, action=action, condition=condition, values=values)


def _inserted(cursor: Cursor) -> dict[str, Piece]:
    names = cursor.read_list(cursor.path, is_enclosed=True)
    cursor.expect("VALUES")
    opening = cursor.peek()
    pieces = cursor.read_list(partial(_value, cursor), is_enclosed=True)
    if len(pieces) != len(names) or len(set(names)) < len(names):
        cursor.fail(f"a value for each of {len(names)} different columns", opening)
    return dict(zip(names, pieces, strict=True))

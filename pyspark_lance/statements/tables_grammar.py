"""The grammar of statements about tables and columns: CREATE, DROP, ALTER, DESCRIBE, SHOW."""

from __future__ import annotations

from typing import Final

from pyspark_lance.catalog.tables import TableName
from pyspark_lance.statements import records
from pyspark_lance.statements.tokens import Cursor, Piece

__all__ = ["COMMENT", "alter", "comment", "create_table", "create_view", "describe", "drop_table", "show"]

COMMENT: Final = "comment"
"""Key of the metadata of a column, or of the configuration of a table, with its comment."""

_SHOWN: Final = {
    "INDEXES": "INDEXES",
    "INDEX": "INDEXES",
    "INDICES": "INDEXES",
    "BRANCHES": "BRANCHES",
    "BRANCH": "BRANCHES",
    "TAGS": "TAGS",
    "TAG": "TAGS",
    "COLUMNS": "COLUMNS",
}


def create_table(cursor: Cursor) -> records.CreateTable | records.CloneTable:
    """Read a CREATE TABLE."""
    must_exist = cursor.takes("REPLACE")
    if not must_exist:
        cursor.expect("CREATE")
    replaces = must_exist or cursor.takes("OR REPLACE")
    cursor.expect("TABLE")
    if_not_exists = not must_exist and cursor.takes("IF NOT EXISTS")
    table = cursor.table()
    if cursor.sees("SHALLOW CLONE") or cursor.sees("DEEP CLONE") or cursor.sees("CLONE"):
        if replaces:
            cursor.fail("AS or columns: a clone replaces no table; drop it first")
        return _clone(cursor, table, if_not_exists=if_not_exists)
    columns = _columns(cursor) if cursor.sees("(") else None
    clauses = _Clauses(cursor)
    query = cursor.query() if cursor.takes("AS") or cursor.sees("SELECT") or cursor.sees("WITH") else None
    if (columns is None) == (query is None):
        cursor.fail("columns in parentheses, or AS and a query" if query is None else "no columns: the query has them")
    return records.CreateTable(
        table=table,
        columns=columns,
        query=query,
        if_not_exists=if_not_exists,
        replaces=replaces,
        must_exist=must_exist,
        partitioned_by=clauses.partitioned_by,
        properties=clauses.properties,
        comment=clauses.comment,
    )


class _Clauses:
    """The clauses between the columns and the query."""

    def __init__(self, cursor: Cursor) -> None:
        self.partitioned_by: tuple[str, ...] = ()
        self.properties: dict[str, str] = {}
        self.comment: str | None = None
        while True:
            start = cursor.peek()
            if cursor.takes("USING"):
                if cursor.identifier("lance").lower() != "lance":
                    cursor.fail("USING lance, for a table of a Lance catalog", start)
            elif cursor.takes("PARTITIONED BY"):
                self.partitioned_by = _partitions(cursor)
            elif cursor.takes("TBLPROPERTIES", "OPTIONS"):
                self.properties |= cursor.properties()
            elif cursor.takes("COMMENT"):
                self.comment = cursor.string("the comment")
            elif cursor.sees("LOCATION"):
                cursor.fail("no LOCATION: the catalog decides it; lance.`path` names a table elsewhere")
            elif cursor.sees("CLUSTER BY") or cursor.sees("CLUSTERED BY"):
                cursor.fail("PARTITIONED BY and columns: rows are not clustered; CREATE INDEX narrows what is read")
            else:
                return


def _partitions(cursor: Cursor) -> tuple[str, ...]:
    """Read the columns of PARTITIONED BY."""
    cursor.expect("(")
    columns: list[str] = []
    while not columns or cursor.takes(","):
        start = cursor.peek()
        columns.append(cursor.path())
        if cursor.sees("("):
            cursor.fail(
                f"a column: tables are partitioned by values of columns, and not by {start.text}(...); give the table"
                " a column with that value, and fill it in each INSERT",
                start,
            )
        if cursor.peek().is_name:
            cursor.fail("a comma or ): a column of PARTITIONED BY is declared among the columns of the table")
    cursor.expect(")")
    return tuple(columns)


def _clone(cursor: Cursor, table: TableName, *, if_not_exists: bool) -> records.CloneTable:
    shallow = cursor.takes("SHALLOW")
    cursor.takes("DEEP")
    cursor.expect("CLONE")
    source = cursor.table()
    version, timestamp = travel(cursor)
    return records.CloneTable(
        table=table,
        source=source,
        shallow=shallow,
        if_not_exists=if_not_exists,
        version=version,
        timestamp=timestamp,
    )


def travel(cursor: Cursor) -> tuple[str | None, Piece | None]:
    """Read VERSION AS OF or TIMESTAMP AS OF, if one comes next."""
    if cursor.takes("VERSION AS OF"):
        return cursor.token().value, None
    if cursor.takes("TIMESTAMP AS OF"):
        return None, cursor.piece()
    return None, None


def _columns(cursor: Cursor) -> tuple[records.Column, ...]:
    cursor.expect("(")
    columns = [_column(cursor)]
    while cursor.takes(","):
        columns.append(_column(cursor))
    cursor.expect(")")
    return tuple(columns)


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


def _column(cursor: Cursor) -> records.Column:
    if any(cursor.sees(words) for words in _CONSTRAINED):
        cursor.fail(_NO_CONSTRAINTS)
    if cursor.sees("CONSTRAINT") and cursor.peek(2).upper in ("PRIMARY", "FOREIGN", "UNIQUE", "CHECK"):
        cursor.fail(_NO_CONSTRAINTS)
    name = cursor.identifier("the name of a column")
    kind = cursor.type()
    nullable, comment = True, None
    while True:
        if cursor.takes("NOT NULL"):
            nullable = False
        elif cursor.takes("COMMENT"):
            comment = cursor.string("the comment")
        else:
            break
    if (remedy := _NOT_IN_COLUMNS.get(cursor.peek().upper)) is not None:
        cursor.fail(remedy)
    return records.Column(name=name, type=kind, nullable=nullable, comment=comment)


def create_view(cursor: Cursor) -> records.CreateView:
    """Read a CREATE TEMPORARY VIEW."""
    cursor.expect("CREATE")
    replaces = cursor.takes("OR REPLACE")
    is_global = cursor.takes("GLOBAL")
    if not cursor.takes("TEMPORARY VIEW", "TEMP VIEW"):
        cursor.fail("TEMPORARY VIEW: views that outlive the session cannot read Lance tables")
    name = cursor.identifier("the name of the view")
    columns = cursor.identifiers() if cursor.sees("(") else ()
    cursor.expect("AS")
    return records.CreateView(name=name, columns=columns, query=cursor.query(), replaces=replaces, is_global=is_global)


def drop_table(cursor: Cursor) -> records.DropTable:
    """Read a DROP TABLE."""
    cursor.expect("DROP TABLE")
    if_exists = cursor.takes("IF EXISTS")
    table = cursor.table()
    cursor.takes("PURGE")
    return records.DropTable(table=table, if_exists=if_exists)


def alter(cursor: Cursor) -> records.Statement:
    """Read an ALTER TABLE that changes columns or properties."""
    cursor.expect("ALTER TABLE")
    table = cursor.table()
    if cursor.sees("RENAME TO"):
        cursor.fail(f"{_CHANGES}; a table keeps its name, and CREATE TABLE ... DEEP CLONE copies it")
    if cursor.takes("ADD COLUMNS", "ADD COLUMN", "ADD"):
        return records.AddColumns(table=table, columns=_columns(cursor) if cursor.sees("(") else _listed(cursor))
    if cursor.takes("DROP COLUMNS", "DROP COLUMN"):
        if_exists = cursor.takes("IF EXISTS")
        names = cursor.identifiers() if cursor.sees("(") else _paths(cursor)
        return records.DropColumns(table=table, columns=names, if_exists=if_exists)
    if cursor.takes("RENAME COLUMN"):
        column = cursor.path()
        cursor.expect("TO")
        return records.RenameColumn(table=table, column=column, to=cursor.identifier("the new name"))
    if cursor.takes("ALTER COLUMN", "CHANGE COLUMN", "ALTER", "CHANGE"):
        return _alter_column(cursor, table)
    if cursor.takes("SET TBLPROPERTIES"):
        return records.SetProperties(table=table, properties=cursor.properties())
    if cursor.takes("UNSET TBLPROPERTIES"):
        if_exists = cursor.takes("IF EXISTS")
        return records.UnsetProperties(table=table, keys=_keys(cursor), if_exists=if_exists)
    return cursor.fail(_CHANGES)


_CHANGES: Final = (
    "ADD COLUMNS, DROP COLUMNS, RENAME COLUMN, ALTER COLUMN, SET or UNSET TBLPROPERTIES, CREATE or DROP INDEX,"
    " BRANCH or TAG, or PROMOTE BRANCH"
)


def _listed(cursor: Cursor) -> tuple[records.Column, ...]:
    columns = [_column(cursor)]
    while cursor.takes(","):
        columns.append(_column(cursor))
    return tuple(columns)


def _paths(cursor: Cursor) -> tuple[str, ...]:
    paths = [cursor.path()]
    while cursor.takes(","):
        paths.append(cursor.path())
    return tuple(paths)


def _keys(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect("(")
    keys = [cursor.key()]
    while cursor.takes(","):
        keys.append(cursor.key())
    cursor.expect(")")
    return tuple(keys)


def _alter_column(cursor: Cursor, table: TableName) -> records.AlterColumn:
    column = cursor.path()
    if cursor.takes("TYPE", "SET DATA TYPE"):
        return records.AlterColumn(table=table, column=column, type=cursor.type())
    if cursor.takes("SET NOT NULL"):
        return records.AlterColumn(table=table, column=column, nullable=False)
    if cursor.takes("DROP NOT NULL"):
        return records.AlterColumn(table=table, column=column, nullable=True)
    if cursor.takes("COMMENT"):
        return records.AlterColumn(table=table, column=column, comment=cursor.string("the comment"))
    if cursor.sees("FIRST") or cursor.sees("AFTER"):
        cursor.fail(f"{_ALTERED}: columns keep their order; a query names them in the order that it needs")
    if cursor.sees("SET DEFAULT") or cursor.sees("DROP DEFAULT"):
        cursor.fail(f"{_ALTERED}: Lance has no default values; a column that an INSERT leaves out is NULL")
    return cursor.fail(_ALTERED)


_ALTERED: Final = "TYPE, COMMENT, SET NOT NULL or DROP NOT NULL"


def comment(cursor: Cursor) -> records.SetProperties | records.UnsetProperties:
    """Read a COMMENT ON TABLE, which is the property `comment`."""
    cursor.expect("COMMENT ON TABLE")
    table = cursor.table()
    cursor.expect("IS")
    if cursor.takes("NULL"):
        return records.UnsetProperties(table=table, keys=(COMMENT,), if_exists=True)
    return records.SetProperties(table=table, properties={COMMENT: cursor.string("the comment")})


def describe(cursor: Cursor) -> records.Describe:
    """Read a DESCRIBE of a table."""
    if not cursor.takes("DESCRIBE"):
        cursor.expect("DESC")
    what = ""
    if cursor.takes("HISTORY"):
        what = "HISTORY"
    elif cursor.takes("DETAIL"):
        what = "DETAIL"
    else:
        cursor.takes("TABLE")
        what = "EXTENDED" if cursor.takes("EXTENDED", "FORMATTED") else "COLUMNS"
    table = cursor.table()
    is_limited = what == "HISTORY" and cursor.takes("LIMIT")
    return records.Describe(table=table, what=what, limit=cursor.whole_number() if is_limited else None)


def show(cursor: Cursor) -> records.Show | records.ShowTables:
    """Read a SHOW."""
    cursor.expect("SHOW")
    if cursor.takes("TABLES", "NAMESPACES", "SCHEMAS", "DATABASES"):
        what = "TABLES" if cursor.peek(-1).upper == "TABLES" else "NAMESPACES"
        if not cursor.takes("IN", "FROM"):
            cursor.fail("IN and a catalog")
        table = cursor.table()
        if table.ref is not None:
            cursor.fail(f"a catalog or a namespace, which has no branches: leave out @{table.ref}", cursor.peek(-1))
        cursor.takes("LIKE")
        pattern = None if cursor.is_done else cursor.string("a pattern")
        return records.ShowTables(parts=table.parts, what=what, pattern=pattern)
    if cursor.takes("CREATE TABLE"):
        return records.Show(table=cursor.table(), what="CREATE TABLE")
    if cursor.takes("TBLPROPERTIES"):
        table, key = cursor.table(), None
        if cursor.takes("("):
            key = cursor.key()
            cursor.expect(")")
        return records.Show(table=table, what="TBLPROPERTIES", key=key)
    what = _SHOWN.get(cursor.peek().upper, "")
    if not what:
        cursor.fail("TABLES, NAMESPACES, CREATE TABLE, TBLPROPERTIES, COLUMNS, INDEXES, BRANCHES or TAGS")
    cursor.token()
    if not cursor.takes("IN", "FROM", "ON"):
        cursor.fail("IN or FROM, and a table")
    return records.Show(table=cursor.table(), what=what)

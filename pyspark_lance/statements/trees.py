"""The columns and rows that a query needs of each of its tables, found in its parsed tree.

    SELECT a.id, sum(b.x) FROM lake.s.a JOIN lake.s.b USING (id) WHERE a.day = 2
    a: columns id, day; rows with day = 2          b: columns id, x

Both are upper bounds: Spark evaluates the whole query on frames that contain at least what it needs.

- A column is needed if its name occurs anywhere in the query, or if a star could stand for it.
- A condition is pushed from the WHERE next to the table, unless an outer join could make nulls of the table's rows, or
  a semi or anti join hides the table from the WHERE.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.engine.errors import without_log
from pyspark_lance.engine.lexing import blank_comments, find_pipe, is_plain, position, tokens_of
from pyspark_lance.keys.narrowing import all_of
from pyspark_lance.reading.filter_pushdown import push_filter_of_tree, split_tree

_WIDE: Final = frozenset({"PIVOT", "UNPIVOT", "NATURAL", "TRANSFORM", "IDENTIFIER"})
"""Words of queries that may need columns without naming them."""
_VISIBLE: Final = frozenset({"", "INNER", "CROSS"})
"""Kinds of joins whose right table the WHERE sees, as sqlglot names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is needed of a table: its rows, and whether all of its columns.

    Without `has_all`, the caller keeps the columns whose names occur in the query.

    Attributes:
        alias: The alias of the table in the query; empty without one.
        scope: A key of the SELECT that contains the table.
        has_all: Whether all columns of the table are needed.
        conditions: Conditions that each needed row meets, over columns without qualifiers.
        exact: Whether case matters in the names of columns.
    """

    alias: str
    scope: int
    has_all: bool
    conditions: tuple[Any, ...]
    exact: bool

    def filter(self, schema: Any) -> Any:
        """The filter for a read; None if no condition can be pushed."""
        pushed = [push_filter_of_tree(tree, schema, exact=self.exact) for tree in self.conditions]
        return all_of(tree_filter.filter for tree_filter in pushed if tree_filter is not None)


def needs_of(
    text: str,
    starts: Mapping[int, int],
    params: Mapping[str, Any],
    statement: str,
    *,
    usual: bool = True,
    exact: bool = False,
) -> dict[int, Need]:
    """What a query needs of the tables whose names begin at given positions.

    Args:
        text: The query, or a condition with subqueries, without the syntax that only Lance tables have.
        starts: The positions of names, with the number of parts of each.
        params: Values of parameters.
        statement: The statement as the user wrote it, for messages; the text has the same positions.
        usual: Whether no setting of the session changes what names and constants mean.
        exact: Whether case matters in names.

    Returns:
        The need of each table, by the position of its name; names that only qualify columns are left out.

    Raises:
        InvalidInputError: The query is not understood; the message names the position.
    """
    from sqlglot import exp  # noqa: PLC0415 - loads for half a second

    tree = _parse_statement(text, statement)
    all_wide = not usual or _is_opaque(text)
    pushes = not all_wide and is_plain(text)
    stars = list(tree.find_all(exp.Star))
    target = _target(exp, tree)
    if target in starts:
        raise InvalidInputError(
            f"{position(statement, target)}: a statement that changes a Lance table begins with its verb:"
            " EXPLAIN explains queries only, and WITH belongs to the query, INSERT INTO t WITH c AS (...) SELECT ...;"
            " nothing was done"
        )
    needs = {}
    for table in tree.find_all(exp.Table):
        start = int(table.parts[0].meta.get("start", -1)) if table.parts else -1
        if start not in starts:
            continue
        select = table.find_ancestor(exp.Select)
        is_wide = all_wide or _is_renamed(exp, table, select)
        needs[start] = Need(
            alias=table.alias,
            scope=id(select),
            has_all=is_wide or any(_stands_for(exp, star, table, select) for star in stars),
            conditions=_conditions(exp, table, select, params, exact=exact) if pushes and not is_wide else (),
            exact=exact,
        )
    return needs


def _is_opaque(text: str) -> bool:
    """Whether a query may need columns that it does not name, or has a WHERE over other rows than those of its tables.

    Examples are `FROM t |> LIMIT 1 |> WHERE id = 3`, and `${variable}`, which Spark replaces by the value of a setting.
    """
    return find_pipe(text) is not None or "${" in text or any(token.upper in _WIDE for token in tokens_of(text))


def _is_renamed(exp: Any, table: Any, select: Any) -> bool:
    """Whether a query sees columns of a table by other names, `FROM t AS a(x, y)`, or as the rows of a function."""
    at = table
    while at is not None and at is not select:
        names = at.args.get("alias")
        if names is not None and names.args.get("columns"):
            return True
        if not isinstance(at, exp.Table | exp.From | exp.Join | exp.Subquery | exp.Paren):
            return True
        at = at.parent
    return select is None


def _target(exp: Any, tree: Any) -> int:
    """The position of the table that the statement changes; -1 for a query."""
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create):
        return -1
    table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    parts = table.parts if isinstance(table, exp.Table) else ()
    return int(parts[0].meta.get("start", -1)) if parts else -1


def _parse_statement(text: str, statement: str) -> Any:
    import sqlglot  # noqa: PLC0415 - see above

    try:
        with without_log(logging.getLogger("sqlglot")):  # it describes the parser's own terms, not the user's
            tree = sqlglot.parse_one(blank_comments(text), read="spark")
    except sqlglot.errors.ParseError as error:
        at = error.errors[0] if error.errors else {}
        lines = text.split("\n")
        line = min(int(at.get("line") or 1), len(lines))
        offset = sum(len(text_line) + 1 for text_line in lines[: line - 1]) + max(int(at.get("col") or 1) - 1, 0)
        raise _make_syntax_error(statement, offset) from None
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise _make_syntax_error(statement, len(text) - len(text.lstrip())) from None
    if isinstance(tree, sqlglot.exp.Command):
        raise _make_syntax_error(statement, len(text) - len(text.lstrip()))
    return tree


def _make_syntax_error(statement: str, offset: int) -> InvalidInputError:
    offset = next((token.start for token in tokens_of(statement) if token.start <= offset < token.end), offset)
    near = " ".join(statement[offset : offset + 40].split())
    return InvalidInputError(
        f"{position(statement, offset)}: the query is not understood near {near!r}. Nothing was done; a frame of"
        " pyspark_lance.read, as a temporary view, can be queried by spark.sql with all of Spark's syntax"
    )


def _stands_for(exp: Any, star: Any, table: Any, select: Any) -> bool:
    """Whether a star may stand for columns of a table."""
    qualifier = star.parent.table if isinstance(star.parent, exp.Column) else ""
    if isinstance(star.parent, exp.Count):
        return False  # count(*) needs no column
    if qualifier and qualifier.lower() == table.alias_or_name.lower():
        return True
    return star.find_ancestor(exp.Select) is select


def _conditions(exp: Any, table: Any, select: Any, params: Mapping[str, Any], *, exact: bool) -> tuple[Any, ...]:
    """The conditions of the WHERE next to a table that concern this table only."""
    joins = select.args.get("joins") or []
    is_first, is_joined = isinstance(table.parent, exp.From), isinstance(table.parent, exp.Join)
    if not (is_first or is_joined) or table.args.get("pivots") or table.args.get("sample"):
        return ()
    if select.args.get("sample") or any(join.side in ("RIGHT", "FULL") or join.method for join in joins):
        return ()
    if is_joined and (
        table.parent.side or table.parent.kind.upper() not in _VISIBLE or table.parent.parent is not select
    ):
        return ()
    where = select.args.get("where")
    is_only = len(joins) == 0 and not select.args.get("laterals")
    table_name = table.alias_or_name

    def is_own(column: Any) -> bool:
        name = column.table
        is_its = name == table_name or (not exact and name.lower() == table_name.lower())
        return (is_its or (is_only and not name)) and not column.args.get("db")

    conditions = []
    for part in split_tree(where.this, "AND") if where is not None else ():
        columns = list(part.find_all(exp.Column))
        if columns and all(is_own(column) for column in columns):
            conditions.append(_strip_qualifiers(exp, part.copy(), params))
    return tuple(conditions)


def _strip_qualifiers(exp: Any, tree: Any, params: Mapping[str, Any]) -> Any:
    def changed(node: Any) -> Any:
        if isinstance(node, exp.Column):
            node.set("table", None)
        elif isinstance(node, exp.Placeholder):
            return _constant(exp, params.get(node.name)) or node
        return node

    return tree.transform(changed)


def _constant(exp: Any, value: Any) -> Any:
    """The constant of a parameter; None for values that are not pushed.

    It is made by the methods of the plain types, because a subclass, such as an enumeration, can print as anything.
    """
    if isinstance(value, bool | dt.datetime):
        return None
    if isinstance(value, int):
        return exp.convert(int.__int__(value))
    if isinstance(value, str):
        return exp.convert(str.__str__(value))
    return exp.cast(exp.Literal.string(dt.date.isoformat(value)), "date") if isinstance(value, dt.date) else None

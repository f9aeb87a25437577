"""The columns and rows that a query needs of each of its tables, found in its parsed tree.

    SELECT a.id, sum(b.x) FROM lake.s.a JOIN lake.s.b USING (id) WHERE a.day = 2
    a: columns id, day; rows with day = 2          b: columns id, x

Both are upper bounds: Spark evaluates the whole query, on tables of which no more than what it needs was read.

- A column is needed if its name occurs anywhere in the query, or if a star could stand for it.
- A condition is pushed from the WHERE next to the table unless an outer join could make nulls of the table's rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.reading.filter_pushdown import Pushed, push_tree
from pyspark_lance.statements.tokens import position, tokens_of

__all__ = ["Need", "needs_of"]

_WIDE: Final = frozenset({"PIVOT", "UNPIVOT", "NATURAL", "TRANSFORM", "IDENTIFIER"})
"""Words with which columns that are not named may be needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What is needed of a table.

    Attributes:
        alias: The name that the query gives it; empty without one.
        scope: A key of the SELECT that it stands in.
        has_all: Whether all of its columns are needed.
        conditions: Conditions that each needed row meets, over columns without qualifiers.
    """

    alias: str
    scope: int
    has_all: bool
    conditions: tuple[Any, ...]

    def filter(self, schema: Any) -> Any:
        """The filter for a read; None if no condition can be pushed."""
        found: list[Pushed] = [one for tree in self.conditions if (one := push_tree(tree, schema)) is not None]
        result = None
        for one in found:
            result = one.filter if result is None else result & one.filter
        return result


def needs_of(text: str, starts: Mapping[int, int], params: Mapping[str, Any], statement: str) -> dict[int, Need]:
    """What a query needs of the tables whose names begin at some positions.

    Args:
        text: The query, or a condition with subqueries, without the syntax that only Lance tables have.
        starts: The positions of names, with the number of parts of each.
        params: Values of parameters.
        statement: The statement as the user wrote it, for messages; the text has the same positions.

    Returns:
        What is needed, by position, of those names that are tables.

    Raises:
        InvalidInputError: The query is not understood; the message names the position.
    """
    from sqlglot import exp  # noqa: PLC0415 - loads for half a second

    tree = _parsed(text, statement)
    words = {token.upper for token in tokens_of(text)}
    is_plain = '"' not in text and "\\" not in text  # settings of the session decide what these mean
    all_wide = bool(words & _WIDE) or "|>" in text
    stars = list(tree.find_all(exp.Star))
    target = _target(exp, tree)
    if target in starts:
        raise _not_understood(statement, target)
    found = {}
    for table in tree.find_all(exp.Table):
        start = int(table.parts[0].meta.get("start", -1)) if table.parts else -1
        if start not in starts:
            continue
        select = table.find_ancestor(exp.Select)
        renames = bool(table.alias_column_names)  # FROM t AS a(x, y): the query knows no name of the table's
        conditions = _conditions(exp, table, select, params) if is_plain and not renames else ()
        is_wide = all_wide or renames or select is None
        found[start] = Need(
            alias=table.alias,
            scope=id(select),
            has_all=is_wide or any(_stands_for(exp, star, table, select) for star in stars),
            conditions=conditions,
        )
    return found


def _target(exp: Any, tree: Any) -> int:
    """The position of the table that a statement of Spark's changes; -1 of a query."""
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.Create):
        return -1
    table = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    parts = table.parts if isinstance(table, exp.Table) else ()
    return int(parts[0].meta.get("start", -1)) if parts else -1


def _parsed(text: str, statement: str) -> Any:
    import sqlglot  # noqa: PLC0415 - see above

    try:
        with _quiet():
            tree = sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.ParseError as error:
        at = error.errors[0] if error.errors else {}
        lines = text.split("\n")
        line = min(int(at.get("line") or 1), len(lines))
        offset = sum(len(one) + 1 for one in lines[: line - 1]) + max(int(at.get("col") or 1) - 1, 0)
        raise _not_understood(statement, offset) from None
    except (sqlglot.errors.SqlglotError, RecursionError):
        raise _not_understood(statement, len(text) - len(text.lstrip())) from None
    if isinstance(tree, sqlglot.exp.Command):
        raise _not_understood(statement, len(text) - len(text.lstrip()))
    return tree


def _not_understood(statement: str, offset: int) -> InvalidInputError:
    offset = next((token.start for token in tokens_of(statement) if token.start <= offset < token.end), offset)
    near = " ".join(statement[offset : offset + 40].split())
    return InvalidInputError(
        f"{position(statement, offset)}: the query is not understood near {near!r}. Nothing was done; a frame of"
        " pyspark_lance.read, as a temporary view, can be queried by spark.sql with all of Spark's syntax"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The parser's own log is about its words, not the user's."""
    logger = logging.getLogger("sqlglot")
    logger.addFilter(_drop)
    try:
        yield
    finally:
        logger.removeFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False


def _stands_for(exp: Any, star: Any, table: Any, select: Any) -> bool:
    """Whether a star may stand for columns of a table."""
    qualifier = star.parent.table if isinstance(star.parent, exp.Column) else ""
    if isinstance(star.parent, exp.Count):
        return False  # count(*) needs no column
    if qualifier and qualifier.lower() == table.alias_or_name.lower():
        return True
    return star.find_ancestor(exp.Select) is select


def _conditions(exp: Any, table: Any, select: Any, params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The conditions of the WHERE next to a table that only concern the table."""
    joins = select.args.get("joins") or [] if select is not None else []
    is_first, is_joined = isinstance(table.parent, exp.From), isinstance(table.parent, exp.Join)
    if select is None or not (is_first or is_joined) or table.args.get("pivots") or table.args.get("sample"):
        return ()
    if select.args.get("sample") or any(join.side in ("RIGHT", "FULL") or join.method for join in joins):
        return ()
    if is_joined and table.parent.side:
        return ()
    where = select.args.get("where")
    is_only = len(joins) == 0 and not select.args.get("laterals")
    qualifiers = {table.alias_or_name.lower(), *([""] if is_only else [])}
    found = []
    for part in _conjuncts(exp, where.this) if where is not None else ():
        columns = list(part.find_all(exp.Column))
        if columns and all(one.table.lower() in qualifiers and not one.args.get("db") for one in columns):
            found.append(_unqualified(exp, part.copy(), params))
    return tuple(found)


def _conjuncts(exp: Any, tree: Any) -> list[Any]:
    if isinstance(tree, exp.Paren):
        return _conjuncts(exp, tree.this)
    if isinstance(tree, exp.And):
        return [*_conjuncts(exp, tree.this), *_conjuncts(exp, tree.expression)]
    return [tree]


def _unqualified(exp: Any, tree: Any, params: Mapping[str, Any]) -> Any:
    def changed(node: Any) -> Any:
        if isinstance(node, exp.Column):
            node.set("table", None)
        elif isinstance(node, exp.Placeholder) and isinstance(params.get(node.name), int | str | dt.date):
            value = params[node.name]
            if not isinstance(value, bool | dt.datetime):
                return exp.convert(value)
        return node

    return tree.transform(changed)

"""Translates conditions in Spark SQL into filters of a read, as far as Spark and Arrow evaluate them alike.

    day = 2 AND (name = 'a' OR id IN (1, 2)) AND abs(x) > 3    ->   day == 2 and (name == "a" or id isin [1, 2])  | rest

Only columns of integers, strings and dates are compared, with values that they can hold: these involve no rounding, no
NaN and no time zone. Spark evaluates all other conditions.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from pyspark_lance.engine.lexing import is_plain, parse_sql

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EQ": eq, "NEQ": ne, "GT": gt, "GTE": ge, "LT": lt, "LTE": le,
}  # fmt: skip
_MIRRORED: Final = {"EQ": "EQ", "NEQ": "NEQ", "GT": "LT", "GTE": "LTE", "LT": "GT", "LTE": "GTE"}
_MOST_PARTS: Final = 500
"""Conditions that AND or OR joins; Arrow recurses into longer chains until the process ends."""
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedFilter:
    """A filter that keeps at least the rows that a condition keeps.

    Attributes:
        filter: The filter.
        is_exact: Whether the filter keeps exactly these rows.
    """

    filter: pc.Expression
    is_exact: bool


class NotPushedError(Exception):
    """A condition that is not pushed."""


def push_filter(condition: str, schema: pa.Schema, alias: str | None = None) -> PushedFilter | None:
    """The filter of a condition; None if no part of it can be pushed.

    Args:
        condition: The condition in Spark's SQL.
        schema: The table's columns.
        alias: The name that qualifies the table's columns.
    """
    tree = parse_condition(condition)
    if tree is None:
        return None
    for column in [node for node in tree.walk() if _kind(node) == "COLUMN"] if alias is not None else ():
        if len(column.parts) == 2 and column.table.lower() == (alias or "").lower():
            column.set("table", None)
    return push_filter_of_tree(tree, schema)


def parse_condition(condition: str) -> Any:
    """The tree of a condition in Spark SQL; None if its meaning depends on settings, or it cannot be parsed."""
    try:
        return parse_sql(condition) if is_plain(condition) else None
    except InvalidInputError:
        return None


def push_filter_of_tree(tree: Any, schema: pa.Schema, *, exact: bool = False) -> PushedFilter | None:
    """The filter of a parsed condition; None if no part of it can be pushed.

    Args:
        tree: The condition, parsed as Spark's SQL, over columns without qualifiers.
        schema: The table's columns.
        exact: Whether case matters in names.
    """
    twins = Counter(name.lower() for name in schema.names)
    columns = {field.name.lower(): field for field in schema if twins[field.name.lower()] == 1}
    if exact:
        named = {node.name for node in tree.walk() if _kind(node) == "COLUMN"}
        columns = {name: field for name, field in columns.items() if field.name in named}
    expressions: list[pc.Expression] = []
    rest = 0
    for part in split_tree(tree, "AND"):
        if len(expressions) >= _MOST_PARTS:
            rest += 1
            continue
        try:
            expressions.append(_translate_tree(part, columns))
        except NotPushedError:
            rest += 1
    return PushedFilter(filter=reduce(and_, expressions), is_exact=not rest) if expressions else None


def _kind(tree: Any) -> str:
    return type(tree).__name__.upper()


def split_tree(tree: Any, kind: str) -> list[Any]:
    """The conditions that AND or OR joins, in order; chains are deeper than Python recurses."""
    conditions, left = [], [tree]
    while left:
        node = left.pop()
        if _kind(node) == "PAREN":
            left.append(node.this)
        elif _kind(node) == kind:
            left += [node.expression, node.this]
        else:
            conditions.append(node)
    return conditions


def _translate_tree(tree: Any, columns: Mapping[str, pa.Field]) -> pc.Expression:
    kind = _kind(tree)
    if kind == "PAREN":
        return _translate_tree(tree.this, columns)
    if kind in ("AND", "OR"):
        parts = split_tree(tree, kind)
        if len(parts) > _MOST_PARTS:
            raise NotPushedError
        return reduce(and_ if kind == "AND" else or_, [_translate_tree(part, columns) for part in parts])
    if kind == "NOT":
        return ~_translate_tree(tree.this, columns)
    kind, side, constants = split_comparison(tree)
    if kind == "IS":
        return pc.field(_column(side, columns, any_type=True).name).is_null()
    column = _column(_strip_cast(side, columns) if kind == "IN" else side, columns)
    field, values = pc.field(column.name), [_value(constant, column.type) for constant in constants]
    if kind == "IN":
        # Arrow's isin is false for null, where SQL's IN is null, as the comparison with a value is.
        return field.isin(pa.array([value.as_py() for value in values], column.type)) | (field == values[0])
    if kind == "BETWEEN":
        return (field >= values[0]) & (field <= values[1])
    return _COMPARISONS[kind](field, values[0])


def split_comparison(tree: Any) -> tuple[str, Any, list[Any]]:
    """The operator of a comparison, the side of the column, and the constants on the other side.

    Raises:
        NotPushedError: The tree is no comparison of one column with constants.
    """
    kind = _kind(tree)
    if kind in _COMPARISONS:
        is_first = _kind(tree.this) == "COLUMN"
        return (kind, tree.this, [tree.expression]) if is_first else (_MIRRORED[kind], tree.expression, [tree.this])
    if kind == "IN" and tree.args.get("expressions") and not tree.args.get("query"):
        return kind, tree.this, tree.args["expressions"]
    if kind == "BETWEEN" and not tree.args.get("symmetric"):
        return kind, tree.this, [tree.args["low"], tree.args["high"]]
    if kind == "IS" and _kind(tree.expression) == "NULL":
        return kind, tree.this, []
    raise NotPushedError


def _strip_cast(tree: Any, columns: Mapping[str, pa.Field]) -> Any:
    """A column in a cast that keeps each value: Spark casts both sides of IN to one type of integers."""
    if _kind(tree) not in ("CAST", "TRYCAST") or _kind(tree.this) != "COLUMN":
        return tree
    kind = _column(tree.this, columns).type
    keeps = pa.types.is_signed_integer(kind) and kind.bit_width <= _BITS.get(tree.to.sql("spark").lower(), 0)
    return tree.this if keeps else tree


def _column(tree: Any, columns: Mapping[str, pa.Field], *, any_type: bool = False) -> pa.Field:
    if _kind(tree) != "COLUMN" or len(tree.parts) != 1 or tree.name.lower() not in columns:
        raise NotPushedError
    field = columns[tree.name.lower()]
    types = pa.types
    plain = types.is_integer(field.type) and field.type != pa.uint64()
    plain = plain or types.is_date32(field.type) or types.is_string(field.type) or types.is_large_string(field.type)
    if not any_type and (not plain or b"spark.type" in (field.metadata or {})):  # a collation has its own order
        raise NotPushedError
    return field


def _value(tree: Any, kind: pa.DataType) -> pa.Scalar:
    """A literal as a value of a column's type."""
    constant: Any = _plain(tree)
    if pa.types.is_date32(kind) and isinstance(constant, str) and _DATE.fullmatch(constant):
        constant = _date(constant)
    fits = isinstance(constant, int) if pa.types.is_integer(kind) else isinstance(constant, str)
    if not (isinstance(constant, dt.date) if pa.types.is_date32(kind) else fits):
        raise NotPushedError
    try:
        return pa.scalar(constant, kind)
    except (pa.ArrowInvalid, OverflowError):
        raise NotPushedError from None


def _plain(tree: Any) -> int | str | dt.date:
    """The value of a literal, with casts between integers, and of a string to a date."""
    kind = _kind(tree)
    if kind == "PAREN":
        return _plain(tree.this)
    if kind == "LITERAL":
        if tree.is_string:
            return str(tree.this)
        if str(tree.this).isdecimal():
            return int(tree.this)
    if kind == "NEG" and isinstance(value := _plain(tree.this), int):
        return -value
    if kind in ("CAST", "TRYCAST"):  # 5L is one
        value, to = _plain(tree.this), tree.to.sql("spark").lower()
        if isinstance(value, int) and value.bit_length() < _BITS.get(to, 0):
            return value
        # A cast to a string is not pushed: sqlglot also parses a cast to `char(3)`, which can pad, as one to a string.
        if to == "date" and isinstance(value, str) and _DATE.fullmatch(value):
            return _date(value)
    raise NotPushedError


def _date(value: str) -> dt.date:
    try:
        return dt.date.fromisoformat(value)
    except ValueError:
        raise NotPushedError from None

"""SQL functions of lists. Positions count items from 1, and from the end if they are negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.schema.arrow_types import is_any_list
from lance_core.verbs.expressions.sql.compare import common_of
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, call, common_type, literal

__all__ = ["ARRAY_FUNCTIONS"]

_BOOL: Final = pa.bool_()


def _items(value: Typed) -> pa.DataType:
    kind = value.type
    if not is_any_list(kind):
        raise InvalidInputError(f"expected a list, found {kind}")
    return kind.value_type


def _item(lists: Typed, value: Typed) -> Typed:
    """The value as an item of the list, as far as it can be one."""
    _items(lists)
    return value.to(lists.type.value_type)


def _has(lists: Typed, value: Typed) -> Typed:
    return python_call("array_has", [lists, _item(lists, value)], _BOOL)


def _has_of(function: str) -> Callable[[Typed, Typed], Typed]:
    def compiled(lists: Typed, other: Typed) -> Typed:
        _items(lists)
        _items(other)
        operand = Typed(other.expression, other.type) if other.is_literal else other
        return python_call(function, [lists, operand], _BOOL)

    return compiled


def _length(value: Typed) -> Typed:
    _items(value)
    return Typed(call("list_value_length", [value], pa.int64()).expression.cast(pa.uint64()), pa.uint64())


def _empty(value: Typed) -> Typed:
    length = _length(value)
    return call("equal", [length, literal(0, pa.uint64())], _BOOL)


def _same_type(function: str) -> Callable[[Typed], Typed]:
    return lambda value: python_call(function, [_check_list(value)], pa.list_(value.type.value_type))


def _one_item(function: str) -> Callable[[Typed], Typed]:
    return lambda value: python_call(function, [_check_list(value)], value.type.value_type)


def _check_list(value: Typed) -> Typed:
    _items(value)
    return value


def _element(lists: Typed, position: Typed) -> Typed:
    return python_call("array_element", [lists, position.to(pa.int64())], _items(lists))


def _position(lists: Typed, value: Typed) -> Typed:
    return python_call("array_position", [lists, _item(lists, value)], pa.uint64())


def _append(lists: Typed, value: Typed) -> Typed:
    item = Typed(lists.expression, _items(lists))
    kind = common_type(item, value, exact=False)
    if kind is None:
        raise InvalidInputError(f"a {value.type} cannot be appended to {lists.type}")
    return python_call("array_append", [lists, value.to(kind)], pa.list_(kind))


def _concat(left: Typed, right: Typed) -> Typed:
    _items(left)
    _items(right)
    return python_call("array_concat", [left, right], pa.list_(left.type.value_type))


def _slice(lists: Typed, first: Typed, last: Typed) -> Typed:
    _items(lists)
    return python_call("array_slice", [lists, first.to(pa.int64()), last.to(pa.int64())], lists.type)


def _to_string(lists: Typed, separator: Typed) -> Typed:
    _items(lists)
    return python_call("array_to_string", [lists, separator], pa.string())


def _split(value: Typed, separator: Typed) -> Typed:
    return python_call("split", [value, separator], pa.list_(pa.string()))


def _make_array(*values: Typed) -> Typed:
    items = common_of(values)
    return python_call("make_array", items, pa.list_(items[0].type))


_Table = dict[str, tuple[Callable[..., Typed], int, int | None]]

_NAMED: Final[_Table] = {
    "append": (_append, 2, None),
    "concat": (_concat, 2, None),
    "contains": (_has, 2, None),
    "distinct": (_same_type("array_distinct"), 1, None),
    "element": (_element, 2, None),
    "has": (_has, 2, None),
    "has_all": (_has_of("array_has_all"), 2, None),
    "has_any": (_has_of("array_has_any"), 2, None),
    "length": (_length, 1, None),
    "max": (_one_item("array_max"), 1, None),
    "min": (_one_item("array_min"), 1, None),
    "position": (_position, 2, None),
    "slice": (_slice, 3, None),
    "sort": (_same_type("array_sort"), 1, None),
    "to_string": (_to_string, 2, None),
}

ARRAY_FUNCTIONS: Final[_Table] = {
    **{f"{prefix}_{name}": entry for prefix in ("array", "list") for name, entry in _NAMED.items()},
    "cardinality": (_length, 1, None),
    "empty": (_empty, 1, None),
    "make_array": (_make_array, 1, -1),
    "make_list": (_make_array, 1, -1),
    "string_to_array": (_split, 2, None),
}

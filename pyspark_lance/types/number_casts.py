"""Casts between types of numbers, value by value: a value that the target cannot hold is an error.

    bigint -> int                3 is stored; 3000000000 is an error that names column and value
    double -> int                2.0 is stored; 2.5 and NaN are errors
    decimal(38,18) -> (10,2)     1.5 is stored; 1.555 is an error
    decimal, double -> float     a number that converts back to itself is stored: 0.1 as a decimal, not as a double

SQL literals rarely have the type of the column: `1L` is a bigint, `1.5` a decimal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError

_INTEGER_DIGITS: Final = 20


def are_numbers(*kinds: pa.DataType) -> bool:
    """Whether all types are types of numbers."""
    types = pa.types
    return all(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) for kind in kinds)


def build_exact_cast(source: pa.DataType, target: pa.DataType, column: str) -> Callable[[pa.Array], pa.Array]:
    """The cast between two types of numbers, which raises InvalidInputError for a value that the target cannot hold."""

    def cast(array: pa.Array) -> pa.Array:
        done = cast_numbers(array, target)
        if done is None:
            first = find_first_failing(array, lambda part: cast_numbers(part, target) is not None)
            raise InvalidInputError(
                f"column {column!r}: the value {array[first].as_py()} of type {source} does not fit the table's type"
                f" {target}; round or filter it before it is written"
            )
        return done

    return cast


def find_first_failing(column: Any, holds: Callable[[Any], bool]) -> int:
    """The first row that fails, by bisection: there is one, and `holds` is false for each slice with such a row."""
    low, high = 0, len(column)  # `holds` is true before `low`, and false for a row before `high`
    while high - low > 1:
        middle = (low + high) // 2
        if holds(column.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def are_identical(first: pa.Array, second: pa.Array) -> bool:
    """Whether two arrays of one type with nulls at the same places hold the same values; NaN is the same as NaN."""
    if pa.types.is_float16(first.type):  # Arrow cannot compare these
        first, second = first.cast(pa.float32()), second.cast(pa.float32())
    equal = pc.equal(first, second)
    if pa.types.is_floating(first.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(first), pc.is_nan(second)))
    return bool(pc.all(equal, min_count=0).as_py())


def cast_numbers(array: pa.Array, target: pa.DataType) -> pa.Array | None:
    """The numbers in another type; None if one would change."""
    types, kind = pa.types, array.type
    try:
        done = _cast(array, target)
        is_exact = not (types.is_floating(target) or (types.is_floating(kind) and types.is_decimal(target)))
        return done if is_exact or are_identical(_cast(done, kind), array) else None
    except pa.ArrowInvalid:
        return None


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow's cast, through another type where Arrow lacks the direct cast or does not round to the nearest value."""
    types, kind = pa.types, array.type
    if kind == target:
        return array
    if pa.float16() in (kind, target) and pa.float32() not in (kind, target):
        return _cast(_cast(array, pa.float32()), target)
    if types.is_decimal(kind) and types.is_floating(target) and target != pa.float64():
        return _cast(array.cast(pa.float64()), target)
    if types.is_integer(kind) and types.is_decimal(target):
        array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    # A safe cast rejects all integers beyond 2^53, also those that a double holds.
    return array.cast(target, safe=not (types.is_integer(kind) and types.is_floating(target)))

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
        try:
            return _cast_exactly(array, target)
        except (pa.ArrowInvalid, _OtherValueError):
            value = _find_first_misfit(array, target)
            raise InvalidInputError(
                f"column {column!r}: the value {value} of type {source} does not fit the table's type {target}; round"
                " or filter it before it is written"
            ) from None

    return cast


class _OtherValueError(Exception):
    """A cast changed a value."""


def _cast_exactly(array: pa.Array, target: pa.DataType) -> pa.Array:
    cast_array = _cast(array, target)
    types = pa.types
    if (types.is_floating(target) and not types.is_integer(array.type)) or (
        types.is_floating(array.type) and types.is_decimal(target)
    ):
        back = _cast(cast_array, array.type)
        if array.type == pa.float16():  # which Arrow does not compare
            back, array = back.cast(pa.float32()), array.cast(pa.float32())
        same = pc.equal(back, array)
        if types.is_floating(array.type):
            same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(array)))
        if not pc.all(same, min_count=0).as_py():
            raise _OtherValueError
    return cast_array


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow's cast, through another type where Arrow lacks the direct cast or does not round to the nearest value."""
    types, kind = pa.types, array.type
    if kind == target:
        return array
    if kind == pa.float16() and target != pa.float32():
        return _cast(array.cast(pa.float32()), target)
    if types.is_decimal(kind) and types.is_floating(target) and target != pa.float64():
        return _cast(array.cast(pa.float64()), target)
    if types.is_integer(kind) and types.is_decimal(target):
        array = array.cast(pa.decimal128(_INTEGER_DIGITS, 0))
    return array.cast(target)


def _find_first_misfit(array: pa.Array, target: pa.DataType) -> Any:
    """The first value that the target type cannot hold, found by bisection."""
    first, last = 0, len(array)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            _cast_exactly(array.slice(first, middle - first), target)
        except (pa.ArrowInvalid, _OtherValueError):
            last = middle
        else:
            first = middle
    return array[first].as_py()

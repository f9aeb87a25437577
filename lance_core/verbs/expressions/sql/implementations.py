"""The Python implementations of SQL functions without an Arrow kernel, which `python_functions` registers with Arrow.

Each function gets the type of its result, and arrays of the same length; null arguments give null.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.sql.functions_json import JSON_IMPLEMENTATIONS

_WIDE: Final = Context(prec=80, rounding=ROUND_DOWN)


def _map_rows(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Apply a function of Python values to each row; the result is null if an argument is null."""

    def over_rows(_kind: pa.DataType, *arrays: pa.Array) -> list[Any]:
        columns = [array.to_pylist() for array in arrays]
        return [None if None in row else function(*row) for row in _zip(columns)]

    return over_rows


def _zip(columns: list[list[Any]]) -> Any:
    return zip(*columns, strict=True)


def _remainder(kind: pa.DataType, *arrays: pa.Array) -> pa.Array:
    """The remainder of two numbers as in C, which has the sign of the first; Arrow has no kernel for it."""
    numbers, divisors = arrays
    if pa.types.is_integer(kind) and pc.any(pc.and_(pc.equal(divisors, 0), numbers.is_valid())).as_py():
        raise InvalidInputError("Divide by zero error")
    with np.errstate(all="ignore"):
        values = np.fmod(*(array.fill_null(0).to_numpy(zero_copy_only=False) for array in arrays))
    nulls = [array.is_null().to_numpy(zero_copy_only=False) for array in arrays if array.null_count]
    return pa.array(values, kind, mask=np.logical_or.reduce(nulls) if nulls else None)


def _float_order(_kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Integers that compare as the floats do in SQL: negative numbers, -0.0, 0.0, positive numbers, NaN."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    width = f"i{numbers.dtype.itemsize}"
    bits = numbers.view(width)
    # The bits of a negative number without its sign, inverted: the larger it is, the lower.
    order = np.where(bits < 0, bits ^ np.iinfo(width).max, bits).astype(np.int64)
    order[np.isnan(numbers)] = np.iinfo(np.int64).max
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    return pa.array(order, pa.int64(), mask=missing)


def _map_decimals(function: Callable[[Decimal, Decimal], Decimal]) -> Callable[..., list[Decimal | None]]:
    """Apply a function of two decimals to each row; digits beyond the scale of the result are cut off."""

    def over_rows(kind: pa.DataType, left: pa.Array, right: pa.Array) -> list[Decimal | None]:
        step = Decimal(1).scaleb(-kind.scale)
        return [
            None if first is None or second is None else _WIDE.quantize(function(first, second), step)
            for first, second in zip(left.to_pylist(), right.to_pylist(), strict=True)
        ]

    return over_rows


def _check_divisor(function: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Decimal, Decimal], Decimal]:
    def divided(left: Decimal, right: Decimal) -> Decimal:
        if not right:
            raise InvalidInputError("Divide by zero error")
        return function(left, right)

    return divided


def _change_case(kernel: str, function: Callable[[str], str]) -> Callable[..., Any]:
    """Upper or lower case: by Arrow for ASCII, else in Python, where one character may become several."""

    def over_rows(kind: pa.DataType, strings: pa.Array) -> Any:
        if pc.all(pc.string_is_ascii(strings), min_count=0).as_py():
            return pc.call_function(kernel, [strings])
        return pa.array([None if string is None else function(string) for string in strings.to_pylist()], kind)

    return over_rows


def _string_to_date(kind: pa.DataType, strings: pa.Array) -> pa.Array:
    """The dates of strings that may have a time, which is cut off, and a zone."""
    try:
        return strings.cast(kind)
    except pa.ArrowInvalid:
        moments = pa.concat_arrays([_moment(strings[position : position + 1]) for position in range(len(strings))])
        return moments.cast(pa.date32()).cast(kind)


def _moment(string: pa.Array) -> pa.Array:
    try:
        return string.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return string.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))


def _array_has(_kind: pa.DataType, lists: pa.Array, values: pa.Array) -> list[bool | None]:
    pairs = zip(lists.to_pylist(), values.to_pylist(), strict=True)
    return [None if items is None or value is None else value in items for items, value in pairs]


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {
    "array_has": _array_has,
    "array_has_all": _map_rows(lambda items, searched_items: all(item in items for item in searched_items)),
    "array_has_any": _map_rows(lambda items, searched_items: any(item in items for item in searched_items)),
    "decimal_add": _map_decimals(_WIDE.add),
    "decimal_multiply": _map_decimals(_WIDE.multiply),
    "decimal_quotient": _map_decimals(_check_divisor(_WIDE.divide)),
    "decimal_remainder": _map_decimals(_check_divisor(_WIDE.remainder)),
    "decimal_subtract": _map_decimals(_WIDE.subtract),
    "float_order": _float_order,
    **{name: _map_rows(function) for name, function in JSON_IMPLEMENTATIONS.items()},
    "lower": _change_case("utf8_lower", str.lower),
    "remainder": _remainder,
    "string_to_date": _string_to_date,
    "upper": _change_case("utf8_upper", str.upper),
}

"""The Python implementations of SQL functions without an Arrow kernel, which `python_functions` registers with Arrow.

Each function gets the type of its result, and arrays of the same length; null arguments give null.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.sql.functions_json import JSON_IMPLEMENTATIONS

__all__ = ["IMPLEMENTATIONS"]

_WIDE: Final = Context(prec=80, rounding=ROUND_DOWN)


def _map_rows(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Apply a function of Python values to each row; the result is null if an argument is null."""

    def over_rows(_kind: pa.DataType, *arrays: pa.Array) -> list[Any]:
        columns = [array.to_pylist() for array in arrays]
        return [None if None in row else function(*row) for row in _zip(columns)]

    return over_rows


def _zip(columns: list[list[Any]]) -> Any:
    return zip(*columns, strict=True)


def _map_arrays(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Apply a numpy function to whole arrays; the result is null where an argument is null."""

    def over_arrays(kind: pa.DataType, *arrays: pa.Array) -> pa.Array:
        with np.errstate(all="ignore"):
            values = function(*(array.fill_null(0).to_numpy(zero_copy_only=False) for array in arrays))
        valid = np.ones(len(arrays[0]), dtype=np.bool_)
        for array in arrays:
            valid &= array.is_valid().to_numpy(zero_copy_only=False)
        return pa.array(values, kind, mask=~valid)

    return over_arrays


def _shift(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    """Apply a shift to integers: bits are lost at the ends, and the number of places is taken modulo the width."""

    def over_arrays(kind: pa.DataType, values: pa.Array, shifts: pa.Array) -> pa.Array:
        return _map_arrays(lambda number, shift: function(number, shift & (kind.bit_width - 1)))(kind, values, shifts)

    return over_arrays


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


def _add_months(_kind: pa.DataType, dates: pa.Array, months: pa.Array) -> pa.Array:
    """Dates moved by calendar months; the day is cut to the length of the month."""
    days = dates.fill_null(0).view(pa.int32()).to_numpy().astype("datetime64[D]")
    first = days.astype("datetime64[M]")
    target = first + months.fill_null(0).to_numpy().astype("timedelta64[M]")
    last = (target + np.timedelta64(1, "M")).astype("datetime64[D]") - np.timedelta64(1, "D")
    moved = np.minimum(target.astype("datetime64[D]") + (days - first.astype("datetime64[D]")), last)
    missing = ~(dates.is_valid().to_numpy(zero_copy_only=False) & months.is_valid().to_numpy(zero_copy_only=False))
    return pa.array(moved.astype(np.int32), pa.int32(), mask=missing).view(pa.date32())


def _initcap(string: str) -> str:
    return re.sub(r"[^\W_]+", lambda word: word[0][0].upper() + word[0][1:].lower(), string)


def _change_case(kernel: str, function: Callable[[str], str]) -> Callable[..., Any]:
    """Upper or lower case: by Arrow for ASCII, else in Python, where one character may become several."""

    def over_rows(kind: pa.DataType, strings: pa.Array) -> Any:
        if pc.all(pc.string_is_ascii(strings), min_count=0).as_py():
            return pc.call_function(kernel, [strings])
        return pa.array([None if string is None else function(string) for string in strings.to_pylist()], kind)

    return over_rows


def _split_part(string: str, separator: str, position: int) -> str:
    parts = string.split(separator) if separator else [string]
    index = position - 1 if position > 0 else position
    if position == 0:
        raise InvalidInputError("split_part: the position must not be 0")
    return parts[index] if -len(parts) <= index < len(parts) else ""


def _translate(string: str, source: str, target: str) -> str:
    table: dict[int, str | None] = {}
    for position, character in enumerate(source):
        table.setdefault(ord(character), target[position] if position < len(target) else None)
    return string.translate(table)


def _lpad(string: str, length: int, fill: str) -> str:
    missing = length - len(string)
    if missing <= 0 or not fill:
        return string[: max(length, 0)]
    return (fill * (missing // len(fill) + 1))[:missing] + string


def _rpad(string: str, length: int, fill: str) -> str:
    missing = length - len(string)
    if missing <= 0 or not fill:
        return string[: max(length, 0)]
    return string + (fill * (missing // len(fill) + 1))[:missing]


def _levenshtein(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


@lru_cache(maxsize=64)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidInputError(f"regular expression {pattern!r}: {error}") from error


def _regexp_match(string: str, pattern: str) -> list[str | None] | None:
    match = _compile_pattern(pattern).search(string)
    if match is None:
        return None
    return list(match.groups()) if match.re.groups else [match[0]]


def _like(string: str, pattern: str) -> bool:
    return _compile_pattern(_like_to_regex(pattern)).fullmatch(string) is not None


@lru_cache(maxsize=64)
def _like_to_regex(pattern: str) -> str:
    parts, escaped = ["(?s)"], False
    for character in pattern:
        if escaped or character not in "%_\\":
            parts.append(re.escape(character))
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            parts.append(".*" if character == "%" else ".")
    return "".join([*parts, re.escape("\\") if escaped else ""])


def _try_cast(kind: pa.DataType, values: pa.Array) -> pa.Array:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        pass  # some value does not fit: find it
    return pa.concat_arrays([_cast_or_null(values[position : position + 1], kind) for position in range(len(values))])


def _cast_or_null(value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


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


def _try_string_to_date(kind: pa.DataType, strings: pa.Array) -> pa.Array:
    return pa.concat_arrays([_date_or_null(strings[position : position + 1], kind) for position in range(len(strings))])


def _date_or_null(string: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _string_to_date(kind, string)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)


def _array_has(_kind: pa.DataType, lists: pa.Array, values: pa.Array) -> list[bool | None]:
    pairs = zip(lists.to_pylist(), values.to_pylist(), strict=True)
    return [None if items is None or value is None else value in items for items, value in pairs]


def _array_element(kind: pa.DataType, lists: pa.Array, positions: pa.Array) -> pa.Array:
    """The item at a position from 1, or from the end if negative; null outside."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = lists.offsets.to_numpy()[:-1] if not pa.types.is_fixed_size_list(lists.type) else None
    if offsets is None:
        offsets = (np.arange(len(lists)) + lists.offset) * lists.type.list_size
    places = positions.fill_null(0).to_numpy(zero_copy_only=False)
    index = np.where(places > 0, places - 1, lengths + places)
    outside = (places == 0) | (index < 0) | (index >= lengths)
    return lists.values.take(pa.array(np.where(outside, 0, offsets + index), mask=outside)).cast(kind)


def _array_position(items: list[Any], value: Any) -> int | None:
    return items.index(value) + 1 if value in items else None


def _extreme(choose: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda items: choose((item for item in items if item is not None), default=None)


def _array_sort(items: list[Any]) -> list[Any]:
    present_items = sorted(item for item in items if item is not None)
    return [None] * (len(items) - len(present_items)) + present_items


def _array_to_string(items: list[Any], separator: str) -> str:
    return separator.join(str(item) for item in items if item is not None)


def _array_slice(items: list[Any], first: int, last: int) -> list[Any]:
    start = max(first - 1, 0) if first >= 0 else max(len(items) + first, 0)
    stop = last if last >= 0 else len(items) + last + 1
    return items[start:stop]


def _make_array(_kind: pa.DataType, *columns: pa.Array) -> list[list[Any]]:
    return [list(row) for row in _zip([column.to_pylist() for column in columns])]


def _array_append(_kind: pa.DataType, lists: pa.Array, values: pa.Array) -> list[list[Any]]:
    return [[*(items or []), value] for items, value in zip(lists.to_pylist(), values.to_pylist(), strict=True)]


def _concat_ws(_kind: pa.DataType, separators: pa.Array, *columns: pa.Array) -> list[str | None]:
    rows = _zip([separators.to_pylist(), *(column.to_pylist() for column in columns)])
    return [
        None if mark is None else mark.join(string for string in strings if string is not None)
        for mark, *strings in rows
    ]


def _digest(name: str) -> Callable[[bytes], bytes]:
    return lambda data: hashlib.new(name, data, usedforsecurity=False).digest()


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {
    "acosh": _map_arrays(np.arccosh),
    "add_months": _add_months,
    "array_append": _array_append,
    "array_concat": _map_rows(lambda items, more_items: items + more_items),
    "array_distinct": _map_rows(lambda items: list(dict.fromkeys(items))),
    "array_element": _array_element,
    "array_has": _array_has,
    "array_has_all": _map_rows(lambda items, searched_items: all(item in items for item in searched_items)),
    "array_has_any": _map_rows(lambda items, searched_items: any(item in items for item in searched_items)),
    "array_max": _map_rows(_extreme(max)),
    "array_min": _map_rows(_extreme(min)),
    "array_position": _map_rows(_array_position),
    "array_slice": _map_rows(_array_slice),
    "array_sort": _map_rows(_array_sort),
    "array_to_string": _map_rows(_array_to_string),
    "ascii": _map_rows(lambda string: ord(string[0]) if string else 0),
    "asinh": _map_arrays(np.arcsinh),
    "atanh": _map_arrays(np.arctanh),
    "cbrt": _map_arrays(np.cbrt),
    "chr": _map_rows(chr),
    "concat_ws": _concat_ws,
    "contains": _map_rows(lambda string, part: part in string),
    "cosh": _map_arrays(np.cosh),
    "decimal_add": _map_decimals(_WIDE.add),
    "decimal_multiply": _map_decimals(_WIDE.multiply),
    "decimal_quotient": _map_decimals(_check_divisor(_WIDE.divide)),
    "decimal_remainder": _map_decimals(_check_divisor(_WIDE.remainder)),
    "decimal_subtract": _map_decimals(_WIDE.subtract),
    "decode_base64": _map_rows(lambda string: base64.b64decode(string + "=" * (-len(string) % 4))),
    "decode_hex": _map_rows(bytes.fromhex),
    "digest_hex": _map_rows(lambda data, name: _digest(name)(data).hex()),
    "digest": _map_rows(lambda data, name: _digest(name)(data)),
    "encode_base64": _map_rows(lambda data: base64.b64encode(data).decode().rstrip("=")),
    "encode_hex": _map_rows(bytes.hex),
    "ends_with": _map_rows(lambda string, part: string.endswith(part)),
    "float_order": _float_order,
    "float_remainder": _map_arrays(np.fmod),
    "gcd": _map_arrays(np.gcd),
    "ilike": _map_rows(lambda string, pattern: _like(string.lower(), pattern.lower())),
    "initcap": _map_rows(_initcap),
    "lcm": _map_arrays(np.lcm),
    **{name: _map_rows(function) for name, function in JSON_IMPLEMENTATIONS.items()},
    "levenshtein": _map_rows(_levenshtein),
    "like": _map_rows(_like),
    "lower": _change_case("utf8_lower", str.lower),
    "lpad": _map_rows(_lpad),
    "make_array": _make_array,
    "regexp_match": _map_rows(_regexp_match),
    "repeat": _map_rows(lambda string, times: string * max(times, 0)),
    "replace": _map_rows(lambda string, part, other: string.replace(part, other)),
    "rpad": _map_rows(_rpad),
    "shift_left": _shift(np.left_shift),
    "shift_right": _shift(np.right_shift),
    "sinh": _map_arrays(np.sinh),
    "split": _map_rows(lambda string, separator: string.split(separator) if string else []),
    "split_part": _map_rows(_split_part),
    "starts_with": _map_rows(lambda string, part: string.startswith(part)),
    "strpos": _map_rows(lambda string, part: string.find(part) + 1),
    "tanh": _map_arrays(np.tanh),
    "string_to_date": _string_to_date,
    "to_hex": _map_rows(lambda number: format(number & 0xFFFF_FFFF_FFFF_FFFF, "x")),
    "translate": _map_rows(_translate),
    "try_cast": _try_cast,
    "try_string_to_date": _try_string_to_date,
    "upper": _change_case("utf8_upper", str.upper),
}

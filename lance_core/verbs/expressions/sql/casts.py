"""CAST and TRY_CAST: the types of SQL, and DataFusion's way from one to another.

A cast of a float or a decimal to an integer or a timestamp cuts the fraction off; a timestamp or a duration becomes the
number of its units. A value that the type cannot hold fails the CAST, and gives null in a TRY_CAST.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_string_like
from lance_core.verbs.expressions.sql.compiler_protocol import Guard, guarded
from lance_core.verbs.expressions.sql.datafusion_calls import compute
from lance_core.verbs.expressions.sql.dialect import unsupported
from lance_core.verbs.expressions.sql.python_functions import evaluate_sql, python_call
from lance_core.verbs.expressions.sql.strings import words
from lance_core.verbs.expressions.sql.typed import NumberLiteral, Typed, call, decimal_of, fits, literal
from lance_core.verbs.expressions.sql.zones import check_zone

_NAMES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("ns"),
}
_WIDE: Final = Context(prec=400, rounding=ROUND_HALF_UP)
_TIMESTAMPS: Final = ("TIMESTAMP", "DATETIME", "TIMESTAMPNTZ")
_UNITS: Final = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_NANOSECONDS: Final = re.compile(r":\d\d\.\d{7,9}(?!\d)")
"""Seconds with more digits than microseconds have."""


def type_of(node: exp.DataType, sql: str) -> pa.DataType:
    """The Arrow type for the name of a type in SQL.

    Raises:
        UnsupportedError: The type is not known.
    """
    name = node.this.name if isinstance(node.this, exp.DType) else str(node.this)
    numbers = [int(parameter.name) for parameter in node.expressions if parameter.name.isdecimal()]
    if name == "DECIMAL" and len(numbers) == 2 and 0 < numbers[0] <= 38:
        return pa.decimal128(*numbers)
    if name in _TIMESTAMPS and (not numbers or numbers[0] in _UNITS):
        return pa.timestamp(_UNITS[numbers[0]] if numbers else "us")
    if name in _NAMES and not numbers:
        return _NAMES[name]
    return unsupported(node.parent or node, sql, f"the type {node.sql()}")


def cast(value: Typed, kind: pa.DataType, *, guard: Guard | None = None) -> Typed:
    """The value as another type.

    Args:
        value: The value.
        kind: The type.
        guard: Rows for which the value is needed: a value that cannot be cast elsewhere is not an error.

    Raises:
        InvalidInputError: A literal cannot be cast.
    """
    if value.type == kind:
        return value
    if pa.types.is_null(value.type):
        return literal(None, kind)
    if value.is_literal and (isinstance(value.value, str) or fits(value.value, kind)):
        return _cast_literal(value, kind)
    if guard is None and isinstance(value.value, int | NumberLiteral) and not isinstance(value.value, bool):
        number = _parse_written_number(value, kind)
        if number is not None:
            return _cast_literal(number, kind)
    if is_string_like(kind):
        return words(value, kind)
    return _cast_column(guarded(value, guard), kind)


def _parse_written_number(value: Typed, kind: pa.DataType) -> Typed | None:
    """A literal number, rounded as a cast to an integer or decimal does, from its digits; None for other types."""
    digits = value.value.digits if isinstance(value.value, NumberLiteral) else Decimal(value.value)
    if pa.types.is_decimal(kind):
        return Typed(value.expression, value.type, _WIDE.quantize(digits, Decimal(1).scaleb(-kind.scale)))
    return Typed(value.expression, value.type, int(digits)) if pa.types.is_integer(kind) else None


def _cast_literal(value: Typed, kind: pa.DataType) -> Typed:
    if kind == pa.timestamp("us") and isinstance(value.value, str) and _NANOSECONDS.search(value.value):
        kind = pa.timestamp("ns")
    try:
        return literal(_round_number(value.value, kind), kind)
    except InvalidInputError:
        if not (isinstance(value.value, str) and pa.types.is_date(kind)):
            raise
        return literal(_cast_literal(value, pa.timestamp("us")).value.cast(pa.date32()), kind)


def _round_number(value: Any, kind: pa.DataType) -> Any:
    """The number in a string, rounded to the scale of a decimal type; any other value, or type, as it is."""
    if not (isinstance(value, str) and pa.types.is_decimal(kind)):
        return value
    try:
        return _WIDE.quantize(Decimal(value), Decimal(1).scaleb(-kind.scale))
    except InvalidOperation:
        return value  # the error is that of the literal


def _cast_column(value: Typed, kind: pa.DataType) -> Typed:
    from_type = value.type
    if is_string_like(from_type):
        return python_call("string_to_date", [value], kind) if pa.types.is_date(kind) else value.to(kind)
    if pa.types.is_float16(from_type):  # Arrow has few kernels for these
        value, from_type = value.to(pa.float32()), pa.float32()
    exact = pa.types.is_decimal(from_type)
    if pa.types.is_boolean(kind) and (pa.types.is_floating(from_type) or exact):
        return call("not_equal", [value, literal(0.0, pa.float64()).to(from_type)], kind)
    if (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)) and (pa.types.is_floating(from_type) or exact):
        value = call("trunc", [value], from_type)
        value = _as_int64(value) if pa.types.is_timestamp(kind) else value
    return _cast_number_or_time(value, kind)


def _cast_number_or_time(value: Typed, kind: pa.DataType) -> Typed:
    from_type = value.type
    if pa.types.is_decimal(kind):
        return _to_decimal(value, kind)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _to_time(value, kind)
    if pa.types.is_temporal(from_type) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        number = pa.int32() if from_type.bit_width == 32 else pa.int64()
        return Typed(value.expression.cast(number).cast(kind, safe=pa.types.is_integer(kind)), kind)
    if pa.types.is_floating(kind):
        return value.to(kind)
    return Typed(value.expression.cast(kind), kind)


def _as_int64(value: Typed) -> Typed:
    return Typed(value.expression.cast(pa.int64()), pa.int64())


def _of_scale(value: Typed, scale: int) -> Typed:
    """A decimal, rounded to fewer digits after the point."""
    options = pc.RoundOptions(ndigits=scale, round_mode="half_towards_infinity")
    wide = value.to(decimal_of(value.type, value.type.precision + 1, value.type.scale))
    return call("round", [wide], wide.type, options)


def _to_decimal(value: Typed, kind: pa.DataType) -> Typed:
    if pa.types.is_decimal(value.type) and kind.scale < value.type.scale:
        return Typed(_of_scale(value, kind.scale).expression.cast(kind), kind)
    if pa.types.is_timestamp(value.type) or pa.types.is_duration(value.type):
        value = _as_int64(value)
    return value.to(kind)


def _to_time(value: Typed, kind: pa.DataType) -> Typed:
    from_type = value.type
    check_zone(from_type, kind, value.value if value.is_literal else None)
    if pa.types.is_integer(from_type):
        number = pa.int32() if kind == pa.date32() else pa.int64()
        return Typed(value.expression.cast(number).cast(kind), kind)
    if pa.types.is_timestamp(from_type) and pa.types.is_timestamp(kind) and kind.tz is None:
        return Typed(value.expression.cast(kind, safe=False), kind)  # the time in UTC, as in pylance
    if pa.types.is_timestamp(from_type) and pa.types.is_date(kind):
        if from_type.unit in ("s", "ms"):  # microseconds bound the years to those that a date can have
            value = value.to(pa.timestamp("us", from_type.tz))
        return Typed(value.expression.cast(pa.date32()).cast(kind), kind)
    return value.to(kind)


def try_cast(value: Typed, kind: pa.DataType, guard: Guard | None) -> Typed:
    """The value as another type, null where the type cannot hold it."""
    check_zone(value.type, kind)
    type_name = evaluate_sql("TRY_CAST", "arrow_typeof(x0)", [pa.nulls(1, kind)], 1)[0]
    return compute("TRY_CAST", f"arrow_try_cast({{}}, '{type_name}')", [value], guard)

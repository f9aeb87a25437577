"""CAST and TRY_CAST: the types of SQL, and DataFusion's way from one to another.

A cast of a float or a decimal to an integer cuts the fraction off; a value that the type cannot hold fails the CAST,
and gives null in a TRY_CAST.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.sql.compiler_protocol import Guard, guarded
from lance_core.verbs.expressions.sql.dialect import unsupported
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.strings import words
from lance_core.verbs.expressions.sql.typed import NumberLiteral, Typed, call, decimal_of, fits, is_string_like, literal
from lance_core.verbs.expressions.sql.zones import check_zone

__all__ = ["cast", "named_type", "type_of"]

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
_ARROW_NAMES: Final = {
    "utf8": pa.string(),
    "largeutf8": pa.large_string(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "largebinary": pa.large_binary(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_LIST: Final = re.compile(
    r"(?:(?P<large>Large)?List|FixedSizeList(?=\(\d))\((?:(?P<size>(?<=SizeList\()\d{1,9})\s*[,x]\s*)?(?P<inner>.+)\)",
    re.IGNORECASE,
)
_NANOSECONDS: Final = re.compile(r":\d\d\.\d{7,9}(?!\d)")
"""Seconds with more digits than microseconds have."""
_SIZED_BINARY: Final = re.compile(r"FixedSizeBinary\((\d{1,9})\)", re.IGNORECASE)


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


def named_type(name: str) -> pa.DataType | None:
    """The type with a name of Arrow's Rust library, such as `Float64` or `List(Int32)`; None if the name is unknown."""
    name = name.strip()
    lists = _LIST.fullmatch(name)
    if lists is not None:
        inner = named_type(lists["inner"])
        if inner is None:
            return None
        if lists["size"] is not None:
            return pa.list_(inner, int(lists["size"]))
        return pa.large_list(inner) if lists["large"] else pa.list_(inner)
    sized = _SIZED_BINARY.fullmatch(name)
    return pa.binary(int(sized[1])) if sized is not None else _ARROW_NAMES.get(name.lower())


def cast(value: Typed, kind: pa.DataType, *, strict: bool, guard: Guard | None = None) -> Typed:
    """The value as another type.

    Args:
        value: The value.
        kind: The type.
        strict: CAST; TRY_CAST if false.
        guard: Rows for which the value is needed: a value that cannot be cast elsewhere is not an error.

    Raises:
        InvalidInputError: A literal cannot be cast.
    """
    if value.type == kind:
        return value
    if pa.types.is_null(value.type):
        return literal(None, kind)
    if value.is_literal and (isinstance(value.value, str) or fits(value.value, kind)):
        return _cast_literal(value, kind, strict=strict)
    if guard is None and isinstance(value.value, int | NumberLiteral) and not isinstance(value.value, bool):
        number = _parse_written_number(value, kind)
        if number is not None:
            return _cast_literal(number, kind, strict=strict)
    if is_string_like(kind):
        return words(value, kind)
    return _cast_column(guarded(value, guard), kind, strict=strict)


def _parse_written_number(value: Typed, kind: pa.DataType) -> Typed | None:
    """A literal number, rounded as a cast to an integer or decimal does, from its digits; None for other types."""
    digits = value.value.digits if isinstance(value.value, NumberLiteral) else Decimal(value.value)
    if pa.types.is_decimal(kind):
        return Typed(value.expression, value.type, _WIDE.quantize(digits, Decimal(1).scaleb(-kind.scale)))
    return Typed(value.expression, value.type, int(digits)) if pa.types.is_integer(kind) else None


def _cast_literal(value: Typed, kind: pa.DataType, *, strict: bool) -> Typed:
    if kind == pa.timestamp("us") and isinstance(value.value, str) and _NANOSECONDS.search(value.value):
        kind = pa.timestamp("ns")
    try:
        return literal(_round_number(value.value, kind), kind)
    except InvalidInputError:
        if isinstance(value.value, str) and pa.types.is_date(kind):
            moment = _cast_literal(value, pa.timestamp("us"), strict=strict)
            return literal(moment.value.cast(pa.date32()), kind) if moment.value is not None else literal(None, kind)
        if strict:
            raise
        return literal(None, kind)


def _round_number(value: Any, kind: pa.DataType) -> Any:
    """The number in a string, rounded to the scale of a decimal type; any other value, or type, as it is."""
    if not (isinstance(value, str) and pa.types.is_decimal(kind)):
        return value
    try:
        return _WIDE.quantize(Decimal(value), Decimal(1).scaleb(-kind.scale))
    except InvalidOperation:
        return value  # the error is that of the literal


def _cast_column(value: Typed, kind: pa.DataType, *, strict: bool) -> Typed:
    from_type = value.type
    if is_string_like(from_type):
        return _cast_string(value, kind, strict=strict)
    if pa.types.is_float16(from_type):  # Arrow has few kernels for these
        value, from_type = value.to(pa.float32()), pa.float32()
    exact = pa.types.is_decimal(from_type)
    if pa.types.is_boolean(kind) and (pa.types.is_floating(from_type) or exact):
        return call("not_equal", [value, literal(0.0, pa.float64()).to(from_type)], kind)
    if pa.types.is_integer(kind) and (pa.types.is_floating(from_type) or exact):
        value = call("trunc", [value], from_type)
    if pa.types.is_integer(kind) and not strict and (pa.types.is_integer(from_type) or pa.types.is_floating(from_type)):
        value = _null_outside(value, kind)
    if not strict and pa.types.is_integer(from_type) and pa.types.is_date(kind):
        value = _null_outside(value, pa.int32())
    if not strict and (exact or pa.types.is_decimal(kind) or pa.types.is_temporal(from_type)):
        return _try_cast(value, kind)
    return _cast_number_or_time(value, kind)


def _cast_string(value: Typed, kind: pa.DataType, *, strict: bool) -> Typed:
    if pa.types.is_date(kind):
        return python_call("string_to_date" if strict else "try_string_to_date", [value], kind)
    return value.to(kind) if strict else python_call("try_cast", [value], kind)


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


def _try_cast(value: Typed, kind: pa.DataType) -> Typed:
    """TRY_CAST: each value as the other type, or null if the type cannot hold it."""
    from_type = value.type
    if pa.types.is_decimal(from_type) and pa.types.is_floating(kind):
        return value.to(kind)
    if pa.types.is_integer(from_type):  # Arrow wants room for every value of the type
        value = value.to(decimal_of(kind, 20, 0))
    if pa.types.is_decimal(from_type) and pa.types.is_decimal(kind) and kind.scale < from_type.scale:
        value = _of_scale(value, kind.scale)
    elif pa.types.is_temporal(from_type) and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        number = pa.int32() if from_type.bit_width == 32 else pa.int64()
        value = Typed(value.expression.cast(number), number)
    elif pa.types.is_temporal(from_type):
        return _cast_column(value, kind, strict=True)
    return python_call("try_cast", [value], kind)


def _of_scale(value: Typed, scale: int) -> Typed:
    """A decimal, rounded to fewer digits after the point."""
    options = pc.RoundOptions(ndigits=scale, round_mode="half_towards_infinity")
    wide = value.to(decimal_of(value.type, value.type.precision + 1, value.type.scale))
    return call("round", [wide], wide.type, options)


def _null_outside(value: Typed, kind: pa.DataType) -> Typed:
    """The number, or null where the integer type cannot hold it."""
    low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
    high = low + 2**kind.bit_width
    if pa.types.is_floating(value.type):
        # The bounds are powers of two, which floats hold exactly.
        lower, upper = literal(float(low), value.type), literal(float(high), value.type)
        above, below = call("greater_equal", [value, lower], pa.bool_()), call("less", [value, upper], pa.bool_())
    else:
        lower = literal(low if fits(low, value.type) else _integer_bound(value.type, lowest=True), value.type)
        upper = literal(
            high - 1 if fits(high - 1, value.type) else _integer_bound(value.type, lowest=False), value.type
        )
        above, below = call("greater_equal", [value, lower], pa.bool_()), call("less_equal", [value, upper], pa.bool_())
    inside = call("and", [above, below], pa.bool_())
    return call("if_else", [inside, value, literal(None, value.type)], value.type)


def _integer_bound(kind: pa.DataType, *, lowest: bool) -> int:
    low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
    return low if lowest else int(low + 2**kind.bit_width - 1)


def _to_decimal(value: Typed, kind: pa.DataType) -> Typed:
    if pa.types.is_decimal(value.type) and kind.scale < value.type.scale:
        return Typed(_of_scale(value, kind.scale).expression.cast(kind), kind)
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

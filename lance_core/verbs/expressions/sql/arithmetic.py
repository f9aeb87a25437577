"""SQL's arithmetic with DataFusion's types: integers wrap, `/` of integers truncates, decimals keep their digits."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.sql.compare import common_of, compare, either, in_common_type, is_null, negated
from lance_core.verbs.expressions.sql.compiler_protocol import Guard, rows_of
from lance_core.verbs.expressions.sql.intervals import is_interval, shift
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.strings import words
from lance_core.verbs.expressions.sql.time_coercion import cast_time
from lance_core.verbs.expressions.sql.typed import (
    NumberLiteral,
    Typed,
    call,
    decimal_of,
    fits,
    integer,
    is_number,
    is_string_like,
    literal,
    number_literal,
    unit_type,
)

__all__ = ["arithmetic", "bitwise", "concatenated", "guarded", "minus"]

_KERNELS: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_DECIMAL_DIGITS: Final = 38
_BITS: Final = {
    "&": "bit_wise_and",
    "|": "bit_wise_or",
    "^": "bit_wise_xor",
}
_SHIFTS: Final = {"<<": "shift_left", ">>": "shift_right"}


def arithmetic(operator: str, left: Typed, right: Typed, *, guard: Guard | None = None, root: bool = False) -> Typed:
    """`left operator right` for + - * / %.

    Args:
        operator: The operator.
        left: Its left side.
        right: Its right side.
        guard: Rows for which the value is needed: a division by zero elsewhere is not an error.
        root: Whether this is the whole expression: pylance then gives a literal the type of the column beside it.

    Raises:
        InvalidInputError: The types do not go together.
    """
    if is_interval(left.type) or is_interval(right.type) or _is_time(left.type) or _is_time(right.type):
        return _compute_times(operator, left, right)
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        kind = left.type if pa.types.is_null(right.type) else right.type
        return literal(None, pa.int64() if pa.types.is_null(kind) else kind)
    if is_string_like(left.type) and left.is_literal:
        left = left.to(right.type)
    if is_string_like(right.type) and right.is_literal:
        right = right.to(left.type)
    if not (is_number(left.type) and is_number(right.type)):
        raise InvalidInputError(f"{left.type} {operator} {right.type}: these are not numbers")
    left, right = _in_common_type(left, right, root=root)
    if pa.types.is_decimal(left.type):
        return _compute_decimals(operator, left, right, guard)
    if pa.types.is_float16(left.type):
        # Arrow has no kernels for these. One operation in float32, rounded, is exact.
        wide = arithmetic(operator, left.to(pa.float32()), right.to(pa.float32()), guard=guard)
        return Typed(wide.expression.cast(left.type, safe=False), left.type)
    if operator == "%":
        return _compute_remainder(left, right, guard)
    if operator == "/" and pa.types.is_integer(left.type):
        right = guarded(right, guard)
    return call(_KERNELS[operator], [left, right], left.type)


def bitwise(operator: str, left: Typed, right: Typed, *, root: bool = False) -> Typed:
    """`left operator right` for & | ^ << >>; `root` as for `arithmetic`.

    Raises:
        InvalidInputError: An operand is not an integer.
    """
    if operator in _SHIFTS and pa.types.is_uint64(left.type) and pa.types.is_integer(right.type):
        right = Typed(right.expression.cast(pa.uint64()), pa.uint64())  # no decimals, as which the two would meet
    left, right = in_common_type(left, right) if root else in_common_type(_strip_origin(left), _strip_origin(right))
    if not pa.types.is_integer(left.type):
        raise InvalidInputError(f"{left.type} {operator} {right.type}: these are not integers")
    if operator in _SHIFTS:  # Arrow's own leave a number as it is where a bit would be lost
        return python_call(_SHIFTS[operator], [left, right], left.type)
    return call(_BITS[operator], [left, right], left.type)


def minus(value: Typed) -> Typed:
    """The value with the other sign.

    Raises:
        InvalidInputError: Values of this type have no sign.
    """
    if pa.types.is_null(value.type):
        return value
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return integer(-value.value)
    if isinstance(value.value, NumberLiteral):
        return number_literal(value.value.negated())
    if isinstance(value.value, float):
        return literal(-value.value, value.type)
    is_signed = is_number(value.type) and not pa.types.is_unsigned_integer(value.type)
    if not (is_signed or pa.types.is_duration(value.type)):
        raise InvalidInputError(f"a {value.type} has no negative")
    return call("negate", [value], value.type)


def concatenated(left: Typed, right: Typed) -> Typed:
    """`left || right`: null where either is null.

    Raises:
        InvalidInputError: Neither side is a string or binary.
    """
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return literal(None, pa.string())
    if not (is_string_like(left.type) or is_string_like(right.type)):
        left, right = in_common_type(left, right)
        if not (pa.types.is_binary(left.type) or pa.types.is_large_binary(left.type)):
            raise InvalidInputError(f"{left.type} || {right.type}: one of them must be a string")
        kind = left.type
        parts = [left, right, literal(b"", kind)]
    else:
        kind = pa.large_string() if pa.large_string() in (left.type, right.type) else pa.string()
        parts = [side.to(kind) if is_string_like(side.type) else words(side, kind) for side in (left, right)]
        parts.append(literal("", kind))
    return call("binary_join_element_wise", parts, kind, pc.JoinOptions(null_handling="emit_null"))


def guarded(value: Typed, guard: Guard | None) -> Typed:
    """The value for the rows of the guard, null for others, so that it cannot fail there."""
    rows = rows_of(guard)
    if rows is None:
        return value
    return call("if_else", [rows, Typed(value.expression, value.type), literal(None, value.type)], value.type)


def _in_common_type(left: Typed, right: Typed, *, root: bool) -> tuple[Typed, Typed]:
    if root and left.is_column and right.is_literal and fits(right.value, left.type):
        return left, right.to(left.type)
    if root and right.is_column and left.is_literal and fits(left.value, right.type):
        return left.to(right.type), right
    plain_left, plain_right = _strip_origin(left), _strip_origin(right)
    if pa.types.is_decimal(plain_left.type) and pa.types.is_integer(plain_right.type):
        return plain_left, plain_right.to(pa.decimal128({8: 3, 16: 5, 32: 10, 64: 20}[plain_right.type.bit_width], 0))
    if pa.types.is_decimal(plain_right.type) and pa.types.is_integer(plain_left.type):
        return plain_left.to(pa.decimal128({8: 3, 16: 5, 32: 10, 64: 20}[plain_left.type.bit_width], 0)), plain_right
    if pa.types.is_decimal(plain_left.type) and pa.types.is_decimal(plain_right.type):
        return plain_left, plain_right
    return in_common_type(plain_left, plain_right, exact=False)


def _strip_origin(value: Typed) -> Typed:
    """The value, no longer known to be a literal or a column: a literal then keeps its type."""
    return Typed(value.expression, value.type)


def _compute_decimals(operator: str, left: Typed, right: Typed, guard: Guard | None) -> Typed:
    if left.type.bit_width != right.type.bit_width:
        left, right = (side.to(pa.decimal256(side.type.precision, side.type.scale)) for side in (left, right))
    left_type, right_type = left.type, right.type
    digits = _DECIMAL_DIGITS * left_type.bit_width // 128
    scale = max(left_type.scale, right_type.scale)
    whole = max(left_type.precision - left_type.scale, right_type.precision - right_type.scale)
    if operator in ("+", "-", "*"):
        if operator == "*":
            scale = left_type.scale + right_type.scale
            whole = left_type.precision + right_type.precision + 1 - scale
        else:
            whole += 1
        if whole + scale <= digits:
            return call(_KERNELS[operator], [left, right], decimal_of(left_type, whole + scale, scale))
        # The kernels reject a result that could be too long; DataFusion one that is.
        kind = decimal_of(left_type, digits, min(scale, digits))
        return python_call(f"decimal_{_KERNELS[operator]}", [left, right], kind)
    right = guarded(right, guard)
    if operator == "%":
        whole = min(left_type.precision - left_type.scale, right_type.precision - right_type.scale)
        return python_call("decimal_remainder", [left, right], decimal_of(left_type, whole + scale, scale))
    scale = left_type.scale + 4
    kind = decimal_of(left_type, left_type.precision - left_type.scale + right_type.scale + scale, scale)
    return python_call("decimal_quotient", [left, right], kind)


def _compute_remainder(left: Typed, right: Typed, guard: Guard | None) -> Typed:
    if pa.types.is_floating(left.type):
        return python_call("float_remainder", [left, right], left.type)
    right = guarded(right, guard)
    quotient = call("divide", [left, right], left.type)
    return call("subtract", [left, call("multiply", [quotient, right], left.type)], left.type)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def _compute_times(operator: str, left: Typed, right: Typed) -> Typed:
    if operator == "+" and (is_interval(left.type) or (not _is_time(left.type))):
        left, right = right, left
    if operator not in ("+", "-") or not _is_time(left.type):
        raise InvalidInputError(f"{left.type} {operator} {right.type} has no meaning")
    if is_interval(right.type):
        return shift(left, right, operator)
    if is_string_like(right.type) and right.is_literal and operator == "-":
        right = right.to(left.type)
    left_type, right_type = left.type, right.type
    if pa.types.is_date(left_type) and pa.types.is_integer(right_type):
        days = call(_KERNELS[operator], [_count_days(left), right.to(pa.int64())], pa.int64())
        return Typed(days.expression.cast(pa.int32()).cast(pa.date32()), pa.date32())
    if pa.types.is_date(left_type) and pa.types.is_date(right_type) and operator == "-":
        return call("subtract", [_count_days(left), _count_days(right)], pa.int64())
    if operator == "-" and not pa.types.is_duration(left_type) and not pa.types.is_duration(right_type):
        return _subtract_times(left, right)
    if pa.types.is_duration(right_type) and (pa.types.is_timestamp(left_type) or pa.types.is_duration(left_type)):
        unit = unit_type(left_type, right_type)
        kind = pa.timestamp(unit, left_type.tz) if pa.types.is_timestamp(left_type) else pa.duration(unit)
        return call(_KERNELS[operator], [left.to(kind), right.to(pa.duration(unit))], kind)
    raise InvalidInputError(f"{left_type} {operator} {right_type} has no meaning")


def _subtract_times(left: Typed, right: Typed) -> Typed:
    if pa.types.is_date(left.type) or pa.types.is_date(right.type):
        zone = getattr(left.type, "tz", None) or getattr(right.type, "tz", None)
        left, right = left.to(pa.timestamp("ns", zone)), right.to(pa.timestamp("ns", zone))
    left, right = common_of([left, right])
    return call("subtract", [left, right], pa.duration(left.type.unit))


def _count_days(value: Typed) -> Typed:
    return Typed(value.expression.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), pa.int64())


def null_if(value: Typed, other: Typed) -> Typed:
    """`NULLIF(value, other)`: null where the two are equal, else the first."""
    if other.is_literal and is_string_like(other.type) and not is_string_like(value.type):
        if pa.types.is_timestamp(value.type):  # beside a string pylance takes every time for one of nanoseconds
            value = cast_time(value, pa.timestamp("ns", value.type.tz))
        other = other.to(value.type)
    plain_value = common_of([_strip_origin(value), _strip_origin(other)])[0]
    # pylance asks its kernel, to which a zero is not the other one, literal or not.
    pair = common_of([value, other]) if _is_time(plain_value.type) else in_common_type(value, other)
    equal = compare("=", *map(_strip_origin, pair))
    keep = either(is_null(equal), negated(equal))
    return call("if_else", [keep, plain_value, literal(None, plain_value.type)], plain_value.type)

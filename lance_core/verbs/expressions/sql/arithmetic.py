"""SQL's arithmetic with DataFusion's types: integers wrap, `/` of integers truncates, decimals keep their digits."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_date_or_timestamp, is_string_like
from lance_core.verbs.expressions.sql.compare import common_of, compare, either, in_common_type, is_null, negate
from lance_core.verbs.expressions.sql.compiler_protocol import Guard, guarded
from lance_core.verbs.expressions.sql.datafusion_calls import INTERVAL, compute
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
    literal,
    number_literal,
)

_KERNELS: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_DECIMAL_DIGITS: Final = 38
_BITS: Final = {"&": "bit_wise_and", "|": "bit_wise_or", "^": "bit_wise_xor"}


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
    if _is_time(left.type) or _is_time(right.type):
        return compute(_KERNELS.get(operator, "remainder"), f"{{}} {operator} {{}}", [left, right], guard)
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
        return python_call("remainder", [left, guarded(right, guard)], left.type)
    if operator == "/" and pa.types.is_integer(left.type):
        right = guarded(right, guard)
    return call(_KERNELS[operator], [left, right], left.type)


def bitwise(operator: str, left: Typed, right: Typed, *, root: bool = False) -> Typed:
    """`left operator right` for & | ^ << >>; `root` as for `arithmetic`.

    Raises:
        InvalidInputError: An operand is not an integer.
    """
    if operator not in _BITS and pa.types.is_uint64(left.type) and pa.types.is_integer(right.type):
        right = Typed(right.expression.cast(pa.uint64()), pa.uint64())  # no decimals, as which the two would meet
    left, right = in_common_type(left, right) if root else in_common_type(_strip_origin(left), _strip_origin(right))
    if not pa.types.is_integer(left.type):
        raise InvalidInputError(f"{left.type} {operator} {right.type}: these are not integers")
    if operator not in _BITS:  # Arrow's own shifts leave a number as it is where a bit would be lost
        return compute("shift", f"{{}} {operator} {{}}", [left, right])
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


def _is_time(kind: pa.DataType) -> bool:
    return is_date_or_timestamp(kind) or pa.types.is_duration(kind) or kind == INTERVAL


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
    keep = either(is_null(equal), negate(equal))
    return call("if_else", [keep, plain_value, literal(None, plain_value.type)], plain_value.type)

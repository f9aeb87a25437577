"""Arrow expressions with types, and the rules by which two types are coerced to a common one.

An Arrow expression has no type until it is bound to data, but SQL needs the types of operands to choose a common one.
Each expression here carries its type, and a literal its value, so that it can take the type of the other operand.

    numbers     the wider integer; a signed one that holds both; a float where one is a float; decimals keep digits
    string      `string`; `large_string` if one is
    times       the finer unit; a date and a timestamp meet as a timestamp
    string literal with anything else: parsed as that
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import time
from decimal import Decimal
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_string_like
from lance_core.verbs.expressions.sql.zones import check_zone


class _Missing:
    """The type of `MISSING`, which marks an expression that is not a literal."""


MISSING: Final = _Missing()


class NumberLiteral(float):
    """A literal number that no integer type holds: a float that keeps its digits, for decimals.

    Args:
        literal: The literal as it is written.
    """

    __slots__ = ("literal",)

    def __new__(cls, literal: str) -> Self:
        """The float that is nearest to the literal."""
        number = super().__new__(cls, literal)
        number.literal = literal
        return number

    literal: str

    @property
    def digits(self) -> Decimal:
        """The number exactly."""
        return Decimal(self.literal)

    def negated(self) -> NumberLiteral:
        """The literal with the other sign."""
        return NumberLiteral(self.literal.removeprefix("-") if self.literal.startswith("-") else f"-{self.literal}")


EXACT_FLOATS: Final = 2.0**53
"""From here on a float64 stands for several integers."""
UNITS: Final = ("s", "ms", "us", "ns")
"""Units of times, the coarsest first."""
_TRUTH: Final = {
    **dict.fromkeys(("t", "true", "y", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "off", "0"), False),
}
_MOST_HALF: Final = 65_504
"""The largest number of 16 bits."""
_MOST_DIGITS: Final = 38
"""Digits that a decimal of 128 bits can have."""
_INT_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression with its type.

    Attributes:
        expression: The Arrow expression.
        type: The type of its values.
        value: The Python value of a literal; `MISSING` for all else.
        is_column: Whether it is a column, or a field of one, and nothing else.
    """

    expression: pc.Expression
    type: pa.DataType
    value: Any = MISSING
    is_column: bool = False

    @property
    def is_literal(self) -> bool:
        """Whether the expression is a literal."""
        return self.value is not MISSING

    @property
    def is_null(self) -> bool:
        """Whether it is the literal NULL."""
        return self.value is None

    def to(self, kind: pa.DataType) -> Typed:
        """The expression with another type; the evaluation fails where a value does not fit.

        Raises:
            InvalidInputError: The literal does not fit the type.
        """
        if self.type == kind:
            return self
        if self.is_literal:
            value = str(self.value).lower() if isinstance(self.value, bool) and is_string_like(kind) else self.value
            return literal(value, kind)
        if pa.types.is_decimal(kind) and pa.types.is_integer(self.type):
            digits = max(_INT_DIGITS[self.type.bit_width], 19)
            return Typed(self.expression.cast(decimal_of(kind, digits, 0)).cast(kind), kind)
        if pa.types.is_floating(kind) and pa.types.is_decimal(self.type):
            # Arrow's own cast is off by a digit in one of ten numbers such as 0.07; through strings it is exact.
            exact = self.expression.cast(pa.string()).cast(pa.float64())
            return Typed(exact.cast(kind, safe=False), kind)
        check_zone(self.type, kind)
        if pa.types.is_timestamp(kind) and pa.types.is_date(self.type):
            # A date begins at midnight UTC, whatever the zone, as in pylance.
            return Typed(self.expression.cast(pa.timestamp(kind.unit)).cast(kind), kind)
        if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC") and not getattr(self.type, "tz", None):
            naive = self.to(pa.timestamp(kind.unit))
            options = pc.AssumeTimezoneOptions(kind.tz, ambiguous="earliest", nonexistent="earliest")
            return call("assume_timezone", [naive], kind, options)
        # An integer may be rounded to a float, as everywhere in SQL; nothing else may lose anything.
        return Typed(self.expression.cast(kind, safe=not pa.types.is_floating(kind)), kind)


def literal(value: Any, kind: pa.DataType) -> Typed:
    """A literal of a type.

    Raises:
        InvalidInputError: The value is not of that type.
    """
    try:
        scalar = _scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise InvalidInputError(f"{value!r} is not a valid {kind}: {error}") from error
    python_value = value if value is None else scalar.as_py() if _is_plain(kind) else scalar
    return Typed(pc.scalar(scalar), kind, python_value)


def integer(value: int) -> Typed:
    """A literal of the first type that holds an integer: int64, uint64, or float64, which knows its digits."""
    if -(2**63) <= value < 2**64:
        return literal(value, pa.int64() if value < 2**63 else pa.uint64())
    return number_literal(NumberLiteral(str(value)))


def number_literal(value: NumberLiteral) -> Typed:
    """A literal with a fraction or an exponent."""
    return Typed(literal(float(value), pa.float64()).expression, pa.float64(), value)


def call(name: str, arguments: list[Typed], kind: pa.DataType, options: Any = None) -> Typed:
    """A call of an Arrow function whose result has type `kind`."""
    expressions = [argument.expression for argument in arguments]
    return Typed(pc.Expression._call(name, expressions, options), kind)  # noqa: SLF001 - the only way to reach them all


def is_number(kind: pa.DataType) -> bool:
    """Whether values are numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def decimal_of(like: pa.DataType, precision: int, scale: int) -> pa.DataType:
    """A decimal type of `precision` and `scale`, as wide as `like` (128 bits or 256), which limits the precision."""
    if pa.types.is_decimal256(like):
        return pa.decimal256(min(precision, 2 * _MOST_DIGITS), scale)
    return pa.decimal128(min(precision, _MOST_DIGITS), scale)


def as_string(value: Typed) -> Typed:
    """The value if it is a string; a null literal becomes a null string.

    Raises:
        InvalidInputError: The value is not a string.
    """
    if is_string_like(value.type):
        return value
    if pa.types.is_null(value.type):
        return literal(None, pa.string())
    raise InvalidInputError(f"expected a string, found {value.type}")


def fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a type can hold the value of a literal; a float may be rounded to a shorter float."""
    if value is None:
        return True
    fitting: Any = False
    if isinstance(value, bool):
        fitting = pa.types.is_boolean(kind)
    elif isinstance(value, int) and pa.types.is_integer(kind):
        low = -(2 ** (kind.bit_width - 1)) if pa.types.is_signed_integer(kind) else 0
        fitting = low <= value <= low + 2**kind.bit_width - 1
    elif isinstance(value, int) and pa.types.is_decimal(kind):
        fitting = abs(value) < 10 ** (kind.precision - kind.scale)
    elif isinstance(value, int | float):
        fitting = pa.types.is_floating(kind) and not (pa.types.is_float16(kind) and _is_beyond_half(value))
    elif isinstance(value, str):
        fitting = is_string_like(kind)
    return bool(fitting)


def unit_type(left: pa.DataType, right: pa.DataType) -> str:
    """The finer of the units of two times."""
    return str(max(left.unit, right.unit, key=UNITS.index))


def common_type(left: Typed, right: Typed, *, exact: bool = True) -> pa.DataType | None:
    """The common type of two values; None if there is none.

    Args:
        left: The first value.
        right: The second value.
        exact: Whether a literal such as 1.4 meets a decimal as the decimal 1.4; as a float if false.
    """
    left_type, right_type = left.type, right.type
    if left_type == right_type:
        return left_type
    if pa.types.is_null(left_type) or pa.types.is_null(right_type):
        return right_type if pa.types.is_null(left_type) else left_type
    if is_number(left_type) and is_number(right_type):
        return _common_number(left, right, exact=exact)
    if is_string_like(left_type) and is_string_like(right_type):
        return pa.large_string()
    if (left.is_literal and is_string_like(left_type)) or (right.is_literal and is_string_like(right_type)):
        return right_type if left.is_literal and is_string_like(left_type) else left_type
    if pa.types.is_temporal(left_type) and pa.types.is_temporal(right_type):
        return _common_time(left_type, right_type)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    if any(check(left_type) for check in binary) and any(check(right_type) for check in binary):
        return pa.large_binary() if pa.large_binary() in (left_type, right_type) else pa.binary()
    return None


def _common_number(left: Typed, right: Typed, *, exact: bool) -> pa.DataType:
    left_type, right_type = left.type, right.type
    for decimal, number in ((left, right), (right, left)):
        if not pa.types.is_decimal(decimal.type):
            continue
        if pa.types.is_floating(number.type):
            if exact and isinstance(number.value, float) and math.isfinite(number.value):
                return _find_exact_type(decimal.type, _decimal_of(number.value)) or pa.float64()
            return pa.float64()
        return _widen_type(decimal.type, _as_decimal(number.type))
    for whole, number in ((left, right), (right, left)):
        if exact and pa.types.is_integer(whole.type) and _is_inexact(number.value):
            return _find_exact_type(_as_decimal(whole.type), _decimal_of(number.value)) or pa.float64()
    if pa.float64() in (left_type, right_type):
        return pa.float64()
    if pa.types.is_floating(left_type) or pa.types.is_floating(right_type):
        if _is_beyond_half(left.value) or _is_beyond_half(right.value):
            return pa.float64()
        halves = pa.types.is_float16(left_type) or pa.types.is_float16(right_type)
        return pa.float16() if halves and pa.float32() not in (left_type, right_type) else pa.float32()
    return _common_integer(left_type, right_type)


def _is_beyond_half(value: Any) -> bool:
    """Whether a literal is a finite number beyond the range of float16."""
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) > _MOST_HALF


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
        return left if left.bit_width >= right.bit_width else right
    signed, unsigned = (left, right) if pa.types.is_signed_integer(left) else (right, left)
    bits = max(signed.bit_width, unsigned.bit_width * 2)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64(), 128: pa.decimal128(20, 0)}[bits]


def _as_decimal(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_decimal(kind) else pa.decimal128(_INT_DIGITS[kind.bit_width], 0)


def _is_inexact(value: Any) -> bool:
    """Whether a literal is a float so large that several integers round to it."""
    return isinstance(value, float) and math.isfinite(value) and abs(value) >= EXACT_FLOATS


def _decimal_of(value: float) -> Decimal:
    """The number as it was written, with all its digits."""
    return value.digits if isinstance(value, NumberLiteral) else Decimal(repr(value))


def _find_exact_type(kind: pa.DataType, value: Decimal) -> pa.DataType | None:
    """The decimal type that holds a number and all values of `kind`, of 256 bits if needed; None if there is none."""
    scale = max(-int(value.as_tuple().exponent), 0)
    whole = max(value.adjusted() + 1, kind.precision - kind.scale, 1)
    scale = max(scale, kind.scale)
    if whole + scale <= _MOST_DIGITS:
        return pa.decimal128(whole + scale, scale)
    return pa.decimal256(whole + scale, scale) if whole + scale <= 2 * _MOST_DIGITS else None


def _widen_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return decimal_of(left if pa.types.is_decimal256(left) else right, whole + scale, scale)


def _common_time(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    timestamps = [kind for kind in (left, right) if pa.types.is_timestamp(kind)]
    if len(timestamps) == 2:
        return pa.timestamp(unit_type(left, right), timestamps[0].tz or timestamps[1].tz)
    if timestamps and (pa.types.is_date(left) or pa.types.is_date(right)):
        return timestamps[0]
    if pa.types.is_date(left) and pa.types.is_date(right):
        return pa.date64()
    for check, make in ((pa.types.is_duration, pa.duration), (pa.types.is_time, _time_type)):
        if check(left) and check(right):
            return make(unit_type(left, right))
    return None


def _time_type(unit: str) -> pa.DataType:
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Python can hold every value of the type."""
    return not (pa.types.is_temporal(kind) or pa.types.is_nested(kind))


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, str) and not is_string_like(kind):
        return _from_string(value, kind)
    if isinstance(value, float) and pa.types.is_decimal(kind):
        value = _decimal_of(value)
    if isinstance(value, int) and pa.types.is_decimal(kind):
        value = Decimal(value)
    if isinstance(value, pa.Scalar):
        check_zone(value.type, kind, value)
    if isinstance(value, pa.Scalar) and pa.types.is_timestamp(kind) and pa.types.is_date(value.type):
        return value.cast(pa.timestamp(kind.unit)).cast(kind)
    if isinstance(value, pa.Scalar):
        if pa.types.is_timestamp(kind) and kind.tz and not getattr(value.type, "tz", None):
            naive = value.cast(pa.timestamp(kind.unit))
            return pc.assume_timezone(naive, kind.tz, ambiguous="earliest", nonexistent="earliest")
        return value.cast(kind)
    if isinstance(value, int) and not isinstance(value, bool) and pa.types.is_floating(kind):
        value = float(value)
    return pa.scalar(value, kind)


def _from_string(string: str, kind: pa.DataType) -> pa.Scalar:
    """Parse a string literal as a value of a type; a timestamp without a zone is local time in the zone of the type."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(string.encode(), kind)
    if pa.types.is_time(kind):
        try:
            return pa.scalar(time.fromisoformat(string)).cast(kind)
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
    if pa.types.is_boolean(kind):
        return pa.scalar(_TRUTH.get(string.lower(), string)).cast(kind)
    if pa.types.is_timestamp(kind):
        naive = pa.timestamp(kind.unit)
        try:
            moment = pa.scalar(string).cast(naive)
        except pa.ArrowInvalid:
            return pa.scalar(string).cast(pa.timestamp(kind.unit, "UTC")).cast(kind if kind.tz else naive)
        check_zone(naive, kind, string)
        return _scalar(moment, kind) if kind.tz else moment
    return pa.scalar(string).cast(kind)

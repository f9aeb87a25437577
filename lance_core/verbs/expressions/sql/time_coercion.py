"""Coercion of dates and timestamps: the unit and the zone in which several of them are compared, as in pylance.

two timestamps           the coarser unit; the zone of the one that has one
a date and a timestamp   nanoseconds without a zone; a timestamp with a zone is converted to UTC first
a literal                takes the unit of the column beside it if that is coarser, and never makes it coarser
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_date_or_timestamp, is_string_like
from lance_core.verbs.expressions.sql.typed import UNITS, Typed, literal, unit_type
from lance_core.verbs.expressions.sql.zones import check_zone


def common_time_type(kinds: Sequence[pa.DataType], zone: str | None) -> pa.DataType:
    """The common type of the time arguments of a function."""
    if any(pa.types.is_date(kind) for kind in kinds):
        return pa.timestamp("ns")
    return pa.timestamp(_coarsest([kind for kind in kinds if pa.types.is_timestamp(kind)]), zone)


def _coarsest(kinds: Sequence[pa.DataType]) -> str:
    return str(min((kind.unit for kind in kinds), key=UNITS.index))


def cast_time(value: Typed, kind: pa.DataType) -> Typed:
    """Cast a date or timestamp to a timestamp type; digits finer than its unit are cut off."""
    from_type = value.type
    if (
        kind.tz
        and not value.is_null
        and (pa.types.is_date(from_type) or (pa.types.is_timestamp(from_type) and not from_type.tz))
    ):
        return cast_time(value, pa.timestamp(kind.unit)).to(kind)
    if not pa.types.is_timestamp(from_type) or value.is_null:
        return value.to(kind)
    check_zone(from_type, kind, value.value if value.is_literal else None)
    safe = UNITS.index(kind.unit) >= UNITS.index(from_type.unit)
    if value.is_literal:
        try:
            return literal(value.value.cast(kind, safe=safe), kind)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"{value.value} is not a valid {kind}: {error}") from error
    return Typed(value.expression.cast(kind, safe=safe), kind)


def coerced_pairs(value: Typed, operands: Sequence[Typed], *, each: bool) -> list[tuple[Typed, Typed]]:
    """The value of IN or BETWEEN paired with each operand, both cast to the types in which pylance compares times.

    The value and the operands decide together on the unit and the zone; a literal keeps its unit.

    Args:
        value: The value.
        operands: The operands.
        each: True for BETWEEN: a literal beside a column is cast by itself. False for IN: all share one type.
    """
    kinds = [value.type, *(other.type for other in operands)]
    if not any(pa.types.is_timestamp(kind) for kind in kinds):
        return [(value, other) for other in operands]
    if each:
        pairs = [_of_two(value.type, other.type) for other in operands]
        kind = reduce(_of_two, pairs)
    else:
        are_literals = all(other.is_literal for other in operands)
        kind = reduce(_of_two if are_literals else _of_two_or_string, kinds)
    if not pa.types.is_timestamp(kind):
        return [(value, other) for other in operands]
    if each:
        return [_cast_bound(value, other, kind) for other in operands]
    sides = [_in_zone(side, kind.tz) if are_literals else cast_time(side, kind) for side in (value, *operands)]
    return [(sides[0], side) for side in sides[1:]]


def _cast_bound(value: Typed, other: Typed, kind: pa.DataType) -> tuple[Typed, Typed]:
    """Cast the value and a bound of BETWEEN for their comparison; as in pylance, times beside literals keep their type.

    Args:
        value: The value.
        other: The bound.
        kind: The common type of the value and both bounds, to which a literal is cast before it takes the other's type.
    """
    if is_beyond(other, value.type) or is_beyond(value, other.type):
        return _in_zone(value, kind.tz), _in_zone(other, kind.tz)
    if value.is_literal != other.is_literal:
        return _cast_operand(value, other, kind), _cast_operand(other, value, kind)
    return cast_time(value, kind), cast_time(other, kind)


def _cast_operand(side: Typed, other: Typed, kind: pa.DataType) -> Typed:
    """An operand of a pair of a column and a literal, cast for the comparison."""
    if not side.is_literal:
        return side if pa.types.is_timestamp(side.type) else cast_time(side, kind)
    moment = cast_time(_parse_string(side, other.type, kind.tz), kind)
    other_type = other.type if pa.types.is_timestamp(other.type) else kind
    if other_type.tz and not kind.tz:  # a date is among the three: without a zone they are times in UTC
        moment = cast_time(moment, pa.timestamp(kind.unit, "UTC"))
    return cast_time(moment, other_type)


def _parse_string(side: Typed, kind: pa.DataType, zone: str | None) -> Typed:
    """A string as a date if `kind` is a date, else as a timestamp with all its digits; other operands as they are."""
    if not isinstance(side.value, str):
        return side
    if pa.types.is_date(kind):
        return literal(side.value, kind)
    try:
        return literal(side.value, pa.timestamp("us", zone))
    except InvalidInputError:
        return literal(side.value, pa.timestamp("ns", zone))


def _of_two(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which two times are compared; the first where one is not a time."""
    stamps = [pa.types.is_timestamp(kind) for kind in (left, right)]
    if all(stamps):
        return pa.timestamp(_coarsest([left, right]), left.tz or right.tz)
    if any(stamps) and (pa.types.is_date(left) or pa.types.is_date(right)):
        return pa.timestamp("ns")
    return right if stamps[1] else left


def _of_two_or_string(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The type in which a time is compared with an item of a list: nanoseconds if the item is a string."""
    for time, string in ((left, right), (right, left)):
        if pa.types.is_timestamp(time) and is_string_like(string):
            return pa.timestamp("ns", time.tz)
    return _of_two(left, right)


def _in_zone(side: Typed, zone: str | None) -> Typed:
    """A timestamp in a zone; if `zone` is None, converted to UTC and without a zone."""
    if not pa.types.is_timestamp(side.type) or side.is_null:
        return side
    return cast_time(side, pa.timestamp(side.type.unit, zone))


def of_one_unit(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Two timestamps in the coarser of their units, in which pylance compares them; other values as they are.

    A literal takes the unit of the column where that is the coarser one, and never makes a column's unit coarser.
    """
    sides = (left, right)
    if is_beyond(right, left.type):
        return cast_time(left, pa.timestamp("us", left.type.tz)), right
    if is_beyond(left, right.type):
        return left, cast_time(right, pa.timestamp("us", right.type.tz))
    if not all(pa.types.is_timestamp(side.type) for side in sides) or left.type == right.type:
        return sides
    if left.is_literal or right.is_literal:
        return _literal_in_unit(left, right), _literal_in_unit(right, left)
    unit = left.type.unit if unit_type(left.type, right.type) == right.type.unit else right.type.unit
    left_side, right_side = (
        Typed(side.expression.cast(pa.timestamp(unit, side.type.tz), safe=False), pa.timestamp(unit, side.type.tz))
        for side in sides
    )
    return left_side, right_side


def is_beyond(side: Typed, kind: pa.DataType) -> bool:
    """Whether a literal time lies outside the range of timestamps in nanoseconds, if `kind` is such a type."""
    if getattr(kind, "unit", "") != "ns" or not side.is_literal or side.is_null:
        return False
    if getattr(side.type, "unit", "") == "ns" or not is_date_or_timestamp(side.type) or not pa.types.is_timestamp(kind):
        return False
    try:
        side.value.cast(pa.timestamp("us", getattr(side.type, "tz", None))).cast(kind)
    except pa.ArrowInvalid:
        return True
    return False


def _literal_in_unit(side: Typed, other: Typed) -> Typed:
    """A literal in the unit of the column beside it if that unit is coarser: finer digits are cut off."""
    if not side.is_literal or side.is_null or other.is_literal or unit_type(side.type, other.type) == other.type.unit:
        return side
    value, kind = side.value, pa.timestamp(other.type.unit, side.type.tz)
    if side.type.unit == "ns":  # the digits after those of microseconds are cut off, before 1970 too
        value = pa.scalar(value.value // 1000, pa.timestamp("us", side.type.tz))
    return literal(value.cast(kind, safe=False), kind)

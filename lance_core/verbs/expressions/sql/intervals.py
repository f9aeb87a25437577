"""SQL intervals, and dates and timestamps shifted by them: months, days and nanoseconds are counted separately.

A month is a calendar month: the day is cut to the length of the month that is reached. A date stays a date, so that
hours count in whole days only.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, call, literal
from lance_core.verbs.expressions.sql.zones import check_parts

__all__ = ["INTERVAL", "interval", "is_interval", "shift"]

INTERVAL: Final = pa.month_day_nano_interval()

_DAY_NS: Final = 86_400_000_000_000
_MONTHS: Final = {"month": 1, "mon": 1, "quarter": 3, "year": 12, "yr": 12, "y": 12, "decade": 120, "century": 1200}
_DAYS: Final = {"day": 1, "d": 1, "week": 7, "w": 7}
_NANOSECONDS: Final = {
    "hour": 3_600_000_000_000,
    "hr": 3_600_000_000_000,
    "h": 3_600_000_000_000,
    "minute": 60_000_000_000,
    "min": 60_000_000_000,
    "m": 60_000_000_000,
    "second": 1_000_000_000,
    "sec": 1_000_000_000,
    "s": 1_000_000_000,
    "millisecond": 1_000_000,
    "ms": 1_000_000,
    "microsecond": 1_000,
    "us": 1_000,
    "nanosecond": 1,
    "ns": 1,
}
_PART: Final = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")
_PLAIN_CLOCK: Final = 1_000_000_000


def is_interval(kind: pa.DataType) -> bool:
    """Whether values are intervals."""
    return bool(kind == INTERVAL)


def interval(string: str) -> Typed:
    """An interval literal such as `1 year 2 days`.

    Raises:
        InvalidInputError: The string is not an interval.
    """
    months, days, nanoseconds = 0.0, 0.0, 0.0
    position = 0
    while position < len(string):
        match = _PART.match(string, position)
        if match is None:
            raise InvalidInputError(f"{string!r} is not an interval")
        position = match.end()
        amount, unit = float(match[1]), _singular(match[2].lower())
        if unit in _MONTHS:
            months += amount * _MONTHS[unit]
        elif unit in _DAYS:
            days += amount * _DAYS[unit]
        elif unit in _NANOSECONDS:
            nanoseconds += amount * _NANOSECONDS[unit]
        else:
            raise InvalidInputError(f"{match[2]!r} is not a unit of an interval")
    if not position or months % 1 or days % 1:
        raise InvalidInputError(f"{string!r} is not an interval of whole months and days")
    return literal(pa.scalar((int(months), int(days), int(nanoseconds)), INTERVAL), INTERVAL)


def shift(moment: Typed, by: Typed, operator: str) -> Typed:
    """A date or a timestamp plus or minus an interval.

    Raises:
        InvalidInputError: The interval is not a literal, or the moment is neither a date nor a timestamp.
        UnsupportedError: Months are added to times with a zone other than UTC.
    """
    if not by.is_literal or by.value is None:
        raise InvalidInputError("only an interval that is a literal can be added")
    parts = by.value.as_py()
    sign = -1 if operator == "-" else 1
    months, days, nanoseconds = sign * parts.months, sign * parts.days, sign * parts.nanoseconds
    if pa.types.is_date(moment.type):
        days += int(nanoseconds / _DAY_NS)
        return _shift_days(_shift_months(moment, months), days)
    if not pa.types.is_timestamp(moment.type):
        raise InvalidInputError(f"an interval cannot be added to {moment.type}")
    if months or days:
        check_parts(moment.type, "a day or a month")
    if (months or days) and moment.type.tz not in (None, "UTC"):
        raise UnsupportedError(f"days and months added to times in the zone {moment.type.tz} are not supported")
    if months:
        moment = _shift_calendar(moment, months)
    return _shift_clock(moment, days * _DAY_NS + nanoseconds)


def _singular(unit: str) -> str:
    if unit == "centuries":
        return "century"
    return unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit


def _shift_months(date: Typed, months: int) -> Typed:
    if not months:
        return date
    return python_call("add_months", [date.to(pa.date32()), literal(months, pa.int64())], pa.date32())


def _shift_days(date: Typed, days: int) -> Typed:
    if not days:
        return date
    number = Typed(date.expression.cast(pa.date32()).cast(pa.int32()), pa.int32())
    moved = call("add", [number, literal(days, pa.int32())], pa.int32())
    return Typed(moved.expression.cast(pa.date32()), pa.date32())


def _shift_calendar(moment: Typed, months: int) -> Typed:
    """Move the day, and put the time of the day back on."""
    start = call("floor_temporal", [moment], moment.type, pc.RoundTemporalOptions(unit="day"))
    day = Typed(start.expression.cast(pa.date32()), pa.date32())
    clock = call("subtract", [moment, start], pa.duration(moment.type.unit))
    moved = _shift_months(day, months).to(moment.type)
    return call("add", [moved, clock], moment.type)


def _shift_clock(moment: Typed, nanoseconds: int) -> Typed:
    if not nanoseconds:
        return moment
    per_unit = {"s": _PLAIN_CLOCK, "ms": 1_000_000, "us": 1_000, "ns": 1}[moment.type.unit]
    if nanoseconds % per_unit:
        raise InvalidInputError(f"the interval is finer than {moment.type}")
    amount = literal(pa.scalar(nanoseconds // per_unit, pa.duration(moment.type.unit)), pa.duration(moment.type.unit))
    return call("add", [moment, amount], moment.type)

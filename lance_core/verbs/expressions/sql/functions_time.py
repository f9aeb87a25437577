"""SQL functions of dates and timestamps, with DataFusion's results, such as date_part, date_trunc and to_timestamp.

Weeks begin on Monday; the parts of a timestamp with a zone are those of its local time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema.arrow_types import is_date_or_timestamp
from lance_core.verbs.expressions.sql.casts import cast
from lance_core.verbs.expressions.sql.typed import Typed, call, is_string_like, literal, string_literal
from lance_core.verbs.expressions.sql.zones import check_parts

__all__ = ["TIME_FUNCTIONS"]

_KERNELS: Final = {
    "year": "year",
    "quarter": "quarter",
    "month": "month",
    "week": "iso_week",
    "isoyear": "iso_year",
    "day": "day",
    "doy": "day_of_year",
    "hour": "hour",
    "minute": "minute",
}
_TRUNCATIONS: Final = (
    "year",
    "quarter",
    "month",
    "week",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "microsecond",
)
_PER_SECOND: Final = {"second": 1, "millisecond": 1_000, "microsecond": 1_000_000, "nanosecond": 1_000_000_000}
_OF_EVERY_ZONE: Final = ("epoch", *_PER_SECOND)
"""What is the same in each zone: zones differ by minutes, at least since 1972."""
_TICKS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _moment(value: Typed) -> Typed:
    if is_string_like(value.type):
        return cast(value, pa.timestamp("ns"), strict=True)
    if not is_date_or_timestamp(value.type):
        raise InvalidInputError(f"expected a date or a timestamp, found {value.type}")
    return value


def _date_part(unit: Typed, value: Typed) -> Typed:
    name, value = string_literal(unit).lower().removesuffix("s"), _moment(value)
    if name not in _OF_EVERY_ZONE:
        check_parts(value.type, f"the {name}")
    if name in _KERNELS:
        kernel = _KERNELS[name]
        if kernel in ("hour", "minute") and pa.types.is_date(value.type):
            value = value.to(pa.timestamp("s"))
        return Typed(call(kernel, [value], pa.int64()).expression.cast(pa.int32()), pa.int32())
    if name in ("dow", "isodow"):
        sunday_first = name == "dow"
        options = pc.DayOfWeekOptions(count_from_zero=sunday_first, week_start=7 if sunday_first else 1)
        return Typed(call("day_of_week", [value], pa.int64(), options).expression.cast(pa.int32()), pa.int32())
    if name == "epoch":
        return _epoch(value)
    if name in _PER_SECOND:
        return _below_minute(value, name)
    raise UnsupportedError(f"the part {name!r} of a date is not supported")


def _epoch(value: Typed) -> Typed:
    if pa.types.is_date(value.type):
        value = value.to(pa.timestamp("s"))
    ticks = Typed(value.expression.cast(pa.int64()).cast(pa.float64(), safe=False), pa.float64())
    return call("divide", [ticks, literal(float(_TICKS[value.type.unit]), pa.float64())], pa.float64())


def _below_minute(value: Typed, name: str) -> Typed:
    """The seconds within the minute, counted in a unit such as milliseconds; finer digits are cut off."""
    kind = pa.int64() if name == "nanosecond" else pa.int32()
    if pa.types.is_date(value.type):
        return Typed(pc.if_else(value.expression.is_valid(), pa.scalar(0, kind), pa.scalar(None, kind)), kind)
    minute = call("floor_temporal", [value], value.type, pc.RoundTemporalOptions(unit="minute"))
    rest = call("subtract", [value, minute], pa.duration(value.type.unit)).expression.cast(pa.int64())
    ticks, requested_ticks = _TICKS[value.type.unit], _PER_SECOND[name]
    number = Typed(rest, pa.int64())
    if requested_ticks > ticks:
        number = call("multiply", [number, literal(requested_ticks // ticks, pa.int64())], pa.int64())
    elif ticks > requested_ticks:
        number = call("divide", [number, literal(ticks // requested_ticks, pa.int64())], pa.int64())
    return Typed(number.expression.cast(kind), kind) if kind != number.type else number


def _date_trunc(unit: Typed, value: Typed) -> Typed:
    name, value = string_literal(unit).lower(), _moment(value)
    if name not in _TRUNCATIONS:
        raise UnsupportedError(f"truncation to {name!r} is not supported")
    if name not in _OF_EVERY_ZONE:
        check_parts(value.type, f"the {name}")
    if pa.types.is_date(value.type):
        value = value.to(pa.timestamp("ns"))
    return call("floor_temporal", [value], value.type, pc.RoundTemporalOptions(unit=name, week_starts_monday=True))


def _to_timestamp(unit: str, number_unit: str) -> Callable[[Typed], Typed]:
    """A function that converts its argument to a timestamp; numbers count `number_unit` since the epoch."""

    def compiled(value: Typed) -> Typed:
        if pa.types.is_integer(value.type):
            kind = pa.timestamp(number_unit)
            counted = Typed(value.expression.cast(pa.int64()).cast(kind), kind)
            return counted.to(pa.timestamp(unit))
        if pa.types.is_floating(value.type):
            raise UnsupportedError("a timestamp from a float is not supported; CAST it to BIGINT first")
        return cast(value, pa.timestamp(unit), strict=True)

    return compiled


def _to_unixtime(value: Typed) -> Typed:
    moment = _moment(value)
    if pa.types.is_date(moment.type):
        moment = moment.to(pa.timestamp("s"))
    # The fraction is cut off, before 1970 too.
    kind = pa.timestamp("s", moment.type.tz)
    return Typed(moment.expression.cast(kind, safe=False).cast(pa.int64()), pa.int64())


def _to_date(value: Typed) -> Typed:
    return cast(value, pa.date32(), strict=True)


def _format_time(value: Typed, form: Typed) -> Typed:
    moment = _moment(value)
    check_parts(moment.type, "the string")
    if "%f" in string_literal(form):
        raise UnsupportedError("%f in a format of dates is not supported")
    if "%S" in string_literal(form) and pa.types.is_timestamp(moment.type):
        # Arrow writes the fraction of a second with %S.
        moment = call("floor_temporal", [moment], moment.type, pc.RoundTemporalOptions(unit="second"))
        kind = pa.timestamp("s", moment.type.tz)
        moment = Typed(moment.expression.cast(kind), kind)
    return call("strftime", [moment], pa.string(), pc.StrftimeOptions(string_literal(form)))


def _now() -> Typed:
    kind = pa.timestamp("ns")
    return literal(pa.scalar(datetime.now(UTC).replace(tzinfo=None), kind), kind)


def _today() -> Typed:
    return literal(pa.scalar(datetime.now(UTC).date(), pa.date32()), pa.date32())


TIME_FUNCTIONS: Final[dict[str, tuple[Callable[..., Typed], int, int | None]]] = {
    "current_date": (_today, 0, None),
    "current_timestamp": (_now, 0, None),
    "date_format": (_format_time, 2, None),
    "date_part": (_date_part, 2, None),
    "date_trunc": (_date_trunc, 2, None),
    "datepart": (_date_part, 2, None),
    "datetrunc": (_date_trunc, 2, None),
    "from_unixtime": (_to_timestamp("s", "s"), 1, None),
    "now": (_now, 0, None),
    "to_char": (_format_time, 2, None),
    "to_date": (_to_date, 1, None),
    "to_timestamp": (_to_timestamp("ns", "s"), 1, None),
    "to_timestamp_micros": (_to_timestamp("us", "us"), 1, None),
    "to_timestamp_millis": (_to_timestamp("ms", "ms"), 1, None),
    "to_timestamp_nanos": (_to_timestamp("ns", "ns"), 1, None),
    "to_timestamp_seconds": (_to_timestamp("s", "s"), 1, None),
    "to_unixtime": (_to_unixtime, 1, None),
}

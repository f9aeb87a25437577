"""Parses points in time, time zones and durations as users write them, and converts times to UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lance_core.errors import InvalidInputError

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Zµ]+)\s*")
# Those of pylance: "m" are minutes, "M" months.
SECONDS: Final = {
    **dict.fromkeys(("ns", "nsec", "nanos"), 1e-9),
    **dict.fromkeys(("us", "usec", "µs", "micros"), 1e-6),
    **dict.fromkeys(("ms", "msec", "millis"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 7 * 86_400.0),
    **dict.fromkeys(("M", "month", "months"), 2_630_016.0),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 31_557_600.0),
}
"""The seconds of each unit of a duration."""


def ago(age: timedelta) -> datetime:
    """The time `age` before now, in UTC; the first or last time of the calendar if that is out of its range."""
    try:
        return datetime.now(UTC) - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC) if age > timedelta(0) else datetime.max.replace(tzinfo=UTC)


def moment(value: datetime | date | str, *, zone: tzinfo = UTC) -> datetime:
    """A point in time, in UTC.

    Args:
        value: A time, a date, which stands for its midnight, or the ISO form of either.
        zone: The zone of a time without one.

    Raises:
        InvalidInputError: The value is not a time.
    """
    original: object = value
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise InvalidInputError(
                f"a time must be in ISO form, such as 2026-11-22T04:00:00, not {value!r}"
            ) from error
    if isinstance(value, datetime):
        # `astimezone` of a pandas timestamp without a zone does not assume local time.
        value = datetime.fromisoformat(value.isoformat())
    elif isinstance(value, date):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone is added below
    else:
        raise InvalidInputError(f"a time must be a datetime, a date or a string in ISO form, not {original!r}")
    if value.tzinfo is None:
        value = value.replace(tzinfo=zone)
    return value.astimezone(UTC)


def zone_named(name: str) -> tzinfo:
    """The zone of a name or an offset, as Spark takes them: `Asia/Tokyo`, `+09:00`, `GMT+9`, `Z`.

    Raises:
        InvalidInputError: The string names no time zone.
    """
    match = _OFFSET.fullmatch(name.strip())
    try:
        if match is not None:
            hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
            offset = time(hours, minutes, seconds)  # rejects what a clock does not show
            since = timedelta(hours=offset.hour, minutes=offset.minute, seconds=offset.second)
            return timezone(-since if match[1] == "-" else since)
        return UTC if name.strip() == "Z" else ZoneInfo(name.strip())
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(f"{name!r} is not a time zone, such as Asia/Tokyo or +09:00") from error


def parse_duration(string: str) -> timedelta:
    """A duration in pylance's notation, such as `500ms`, `14d` or `1h 30m`.

    Raises:
        InvalidInputError: The string is not a duration, or is one of more than 999,999,999 days.
    """
    position, seconds = 0, 0.0
    while position < len(string):
        match = _PART.match(string, position)
        if match is None or match[2] not in SECONDS:
            raise InvalidInputError(f"{string!r} is not a duration, such as 30s, 500ms or 1h 30m")
        seconds += float(match[1]) * SECONDS[match[2]]
        position = match.end()
    if not position:
        raise InvalidInputError("a duration is missing; write it as 30s, 500ms or 1h 30m")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise InvalidInputError(f"{string!r} is longer than {timedelta.max.days:,} days") from error


def since_epoch(nanoseconds: int) -> datetime:
    """The point in time, in UTC, of a number of nanoseconds since the epoch, truncated to microseconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)

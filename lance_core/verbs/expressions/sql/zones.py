"""Times with and without a time zone that meet in SQL: those without one are taken for UTC, as pylance does.

    ts timestamp[us, tz=UTC]       ts < '2026-01-01 05:00:00'      05:00 in UTC
                                   ts < '2026-01-01T05:00:00-03:00'    08:00 in UTC, whatever the caller's zone
                                   date_part('hour', ts)           the hour in UTC

A caller whose times have another zone, such as a session of Spark, compiles `with_written_zones`: then what depends on
the assumption is rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.schema.arrow_types import is_date_or_timestamp

__all__ = ["are_written", "check_parts", "check_zone", "with_written_zones"]

_are_written: Final = ContextVar("zones are written", default=False)


@contextmanager
def with_written_zones() -> Iterator[None]:
    """Reject, within, what depends on the zone of a time that names none."""
    token = _are_written.set(True)
    try:
        yield
    finally:
        _are_written.reset(token)


def are_written() -> bool:
    """Whether what depends on an assumed zone is rejected."""
    return _are_written.get()


def check_zone(own: pa.DataType, kind: pa.DataType, shown: object = None) -> None:
    """Make sure that no zone is assumed where a date or a time becomes one of another type.

    Args:
        own: The type that it has.
        kind: The type that it gets.
        shown: The value, for the message, if it is known.

    Raises:
        InvalidInputError: Exactly one of the types has a zone.
    """
    compared = _are_written.get() and is_date_or_timestamp(own) and is_date_or_timestamp(kind)
    if not compared or _has_zone(own) == _has_zone(kind):
        return
    value = f"a {own}" if shown is None else repr(str(shown))
    raise InvalidInputError(
        f"{value} meets a {kind}: only one of them has a time zone, and Lance's SQL takes the other for UTC; compare a"
        " timestamp with a string that names its zone, such as '2026-01-01T05:00:00+00:00'"
    )


def check_parts(kind: pa.DataType, what: str) -> None:
    """Make sure that a time is not taken apart in an assumed zone.

    Raises:
        InvalidInputError: The value is a timestamp with a zone.
    """
    if _are_written.get() and _has_zone(kind):
        raise InvalidInputError(
            f"{what} of a timestamp depends on the time zone, which is UTC in Lance's SQL; compare the timestamp itself"
            " with a string that names its zone, such as '2026-01-01T05:00:00+00:00'"
        )


def _has_zone(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz)

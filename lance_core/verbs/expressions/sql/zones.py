"""Time zones in SQL: where times with and without a zone meet, those without one are taken for UTC, as in pylance.

    ts timestamp[us, tz=UTC]       ts < '2026-01-01 05:00:00'      05:00 in UTC
                                   ts < '2026-01-01T05:00:00-03:00'    08:00 in UTC, whatever the caller's zone
                                   date_part('hour', ts)           the hour in UTC

A caller whose times have another zone, such as a session of Spark, calls `parse_filter` with `assume_utc=False`, which
compiles within `with_written_zones`: SQL whose result depends on the assumed zone is then rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import pyarrow as pa

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_date_or_timestamp

ZONES_ARE_WRITTEN: Final = ContextVar("zones are written", default=False)
"""Whether SQL that depends on an assumed zone is rejected: each zone has to be written."""


@contextmanager
def with_written_zones() -> Iterator[None]:
    """While the body runs, reject SQL that depends on the zone of a time without one."""
    token = ZONES_ARE_WRITTEN.set(True)
    try:
        yield
    finally:
        ZONES_ARE_WRITTEN.reset(token)


def check_zone(from_type: pa.DataType, kind: pa.DataType, shown: object = None) -> None:
    """Make sure, within `with_written_zones`, that no zone is assumed where a date or a timestamp is cast.

    Args:
        from_type: The type of the value.
        kind: The type that it is cast to.
        shown: The value, for the message, if it is known.

    Raises:
        InvalidInputError: Exactly one of the types has a zone, and zones have to be written.
    """
    compared = ZONES_ARE_WRITTEN.get() and is_date_or_timestamp(from_type) and is_date_or_timestamp(kind)
    if not compared or _has_zone(from_type) == _has_zone(kind):
        return
    value = f"a {from_type}" if shown is None else repr(str(shown))
    raise InvalidInputError(
        f"{value} meets a {kind}: only one of them has a time zone, and Lance's SQL takes the other for UTC; compare a"
        " timestamp with a string that names its zone, such as '2026-01-01T05:00:00+00:00'"
    )


def check_parts(kind: pa.DataType, what: str) -> None:
    """Make sure, within `with_written_zones`, that no part of a timestamp is computed in an assumed zone.

    Raises:
        InvalidInputError: The value is a timestamp with a zone, and zones have to be written.
    """
    if ZONES_ARE_WRITTEN.get() and _has_zone(kind):
        raise InvalidInputError(
            f"{what} of a timestamp depends on the time zone, which is UTC in Lance's SQL; compare the timestamp itself"
            " with a string that names its zone, such as '2026-01-01T05:00:00+00:00'"
        )


def _has_zone(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz)

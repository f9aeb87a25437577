"""The time zone of a session, in conditions that are evaluated without Spark.

Lance's SQL takes times without a zone for UTC where they meet timestamps, Spark for the zone of the session. In a
session of another zone such a condition would choose other rows than Spark does, so it is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_utc", "session_zone"]

_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Universal", "Greenwich", "Z", "+00:00")


def session_zone(spark: SparkSession) -> str:
    """The name of the time zone of a session."""
    return spark.conf.get("spark.sql.session.timeZone", "UTC") or "UTC"


def is_utc(zone: str) -> bool:
    """Whether a time zone is one of the names of UTC."""
    return zone.strip() in _UTC

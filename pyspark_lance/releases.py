"""Releases of Spark: which one is installed, and the lowest one for each feature, in one table.

`docs/spark.md` shows the table. What is not in it works from `LOWEST` on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final, NamedTuple

Release = tuple[int, int]

LOWEST: Final[Release] = (3, 5)


class Feature(NamedTuple):
    """What needs a later release of Spark than `LOWEST`.

    Attributes:
        lowest: The lowest release that has it.
        remedy: What to do with an older one.
    """

    lowest: Release
    remedy: str


WITHOUT_COLUMN: Final = "read the other columns by columns=, and change the table by lance_core"
"""What to do with a table that has a column of a type that Spark lacks."""

FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        'format("lance")': Feature((4, 0), "use pyspark_lance.read and pyspark_lance.write"),
        'readStream.format("lance")': Feature((4, 0), "use pyspark_lance.read_changes"),
        'writeStream.format("lance")': Feature((4, 1), "use foreachBatch, with pyspark_lance.write"),
        "a session of Spark Connect": Feature((4, 0), "use a classic session"),
        "a query with pipes": Feature((4, 0), "write it with subqueries"),
        "a column with a collation": Feature((4, 0), WITHOUT_COLUMN),
        "a column of TIME": Feature((4, 1), WITHOUT_COLUMN),
        "a value of a user-defined type": Feature(
            (4, 1), "append the rows by pyspark_lance.write, or merge them by pyspark_lance.merge"
        ),
    }
)


def installed_spark() -> str | None:
    """The version of pyspark, found without loading it; None if pyspark is not installed."""
    loaded = getattr(sys.modules.get("pyspark"), "__version__", None)
    if loaded is not None:
        return str(loaded)
    for distribution in ("pyspark", "pyspark-client", "pyspark-connect"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def is_at_least(release: Release) -> bool:
    """Whether the installed Spark is of a release or a later one; True if none is installed."""
    installed = installed_spark()
    digits = [int(part) if part.isdecimal() else 0 for part in (installed or "").split(".")[:2]]
    return installed is None or tuple(digits) >= release


def missing_release(what: str, release: Release) -> str | None:
    """The message that something needs a release of Spark, if an older one is installed; else None."""
    if is_at_least(release):
        return None
    return f"{what} needs Spark {release[0]}.{release[1]} or newer, and pyspark {installed_spark()} is installed"


def require_feature(feature: str, where: str = "") -> None:
    """Make sure that the installed Spark has a feature.

    Args:
        feature: A key of `FEATURES`.
        where: What the feature is needed for, which begins the message.

    Raises:
        UnsupportedError: The installed release lacks it; the message names both releases.
    """
    lowest, remedy = FEATURES[feature]
    message = missing_release(feature, lowest)
    if message is not None:
        from lance_core.errors import UnsupportedError  # noqa: PLC0415 - Spark imports the package when it looks for a format

        raise UnsupportedError(f"{where and f'{where}: '}{message}; {remedy}")

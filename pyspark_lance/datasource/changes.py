"""The range of versions of a change feed (option `readChangeFeed`): both ends are included, as in Delta.

startingVersion 3, endingVersion 5     the changes that versions 3, 4 and 5 made
startingTimestamp                      begins with the first version that was committed then or later
endingTimestamp                        ends with the last version that was committed then or before
"""

from __future__ import annotations

from typing import Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, VersionNotFoundError
from pyspark_lance.datasource.options import SourceOptions

_OF_FEEDS: Final = ("startingTimestamp", "endingVersion", "endingTimestamp", "netChanges")
_NOT_OF_FEEDS: Final = ("version", "versionAsOf", "tag", "asof", "timestampAsOf", "filter", "ignoreChanges")


def check_feed_options(options: SourceOptions, *, streams: bool) -> bool:
    """Check the options of a change feed; returns whether a change feed is read.

    Raises:
        InvalidInputError: An option needs a change feed, or does not go together with one.
    """
    reads_feed = options.boolean("readChangeFeed")
    rejected_options = [
        name for name in (_NOT_OF_FEEDS if reads_feed else _OF_FEEDS) if options.value(name) is not None
    ]
    if not reads_feed:
        if not streams and options.value("startingVersion") is not None:
            rejected_options.append("startingVersion")
        if rejected_options:
            raise InvalidInputError(f"options {rejected_options} need option readChangeFeed=true")
        return False
    if rejected_options:
        instead = "; DataFrame.where selects rows of the feed" if "filter" in rejected_options else ""
        raise InvalidInputError(f"options {rejected_options} do not go together with readChangeFeed{instead}")
    for version_option, other in (("startingVersion", "startingTimestamp"), ("endingVersion", "endingTimestamp")):
        if options.value(version_option) is not None and options.value(other) is not None:
            raise InvalidInputError(f"only one of the options {version_option} and {other} can be given")
    return True


def choose_starting_version(options: SourceOptions, latest: LanceDataset) -> int:
    """The first version whose changes are read.

    Raises:
        InvalidInputError: No option gives a first version.
        VersionNotFoundError: There is no such version yet.
    """
    number, time = options.value("startingVersion"), options.value("startingTimestamp")
    if number is None and time is None:
        raise InvalidInputError("a change feed needs option startingVersion or startingTimestamp")
    first = max(1, options.integer("startingVersion") or 0) if time is None else _find_first_since(options, latest)
    if first > latest.version:
        name, start_value = ("startingVersion", number) if time is None else ("startingTimestamp", time)
        raise VersionNotFoundError(
            f"option {name}: {latest.uri} has no version from {start_value} on; its latest one is {latest.version}, of "
            f"{latest.timestamp.isoformat()}"
        )
    return first


def choose_ending_version(options: SourceOptions, latest: LanceDataset) -> int:
    """The last version whose changes are read; the latest unless an option gives another version."""
    if options.value("endingTimestamp") is not None:
        return latest.version_as_of(options.moment("endingTimestamp"))
    last = options.integer("endingVersion")
    return latest.version if last is None else last


def _find_first_since(options: SourceOptions, latest: LanceDataset) -> int:
    """The first version that was committed at a time or later."""
    moment = options.moment("startingTimestamp")
    oldest: int = latest.version_refs()[0]["version"]
    if latest.checkout_version(oldest).timestamp > moment:
        return oldest
    before = latest.version_as_of(moment)
    return before if latest.checkout_version(before).timestamp >= moment else before + 1

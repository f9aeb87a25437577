"""The range of versions of a change feed (option `readChangeFeed`): both ends are included, as in Delta.

startingVersion 3, endingVersion 5     the changes that versions 3, 4 and 5 made
startingTimestamp                      begins with the first version that was committed then or later
endingTimestamp                        ends with the last version that was committed then or before

A window between two times in which no version was committed has no changes.
"""

from __future__ import annotations

from typing import Final

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, VersionNotFoundError
from pyspark_lance.datasource.options import SourceOptions

_OF_FEEDS: Final = ("startingTimestamp", "endingVersion", "endingTimestamp", "netChanges")
_BOUNDS: Final = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")
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
        VersionNotFoundError: There is no such version yet, and no time at which the changes end.
    """
    number, time = options.value("startingVersion"), options.value("startingTimestamp")
    if number is None and time is None:
        raise InvalidInputError("a change feed needs option startingVersion or startingTimestamp")
    first = max(1, options.integer("startingVersion") or 0) if time is None else _find_first_since(options, latest)
    if first > latest.version and not _is_window(options):
        name, start_value = ("startingVersion", number) if time is None else ("startingTimestamp", time)
        raise VersionNotFoundError(
            f"option {name}: {latest.uri} has no version from {start_value} on; its latest one is {latest.version}, of "
            f"{latest.timestamp.isoformat()}"
        )
    return first


def choose_begin_version(options: SourceOptions, latest: LanceDataset, end: LanceDataset) -> int:
    """The version after which changes are read: that of `end` if no version was committed in a window of times.

    Raises:
        InvalidInputError: The first version is after the last one, or a window ends before it begins.
        VersionNotFoundError: There is no first version yet.
    """
    first = choose_starting_version(options, latest)
    if _is_window(options):
        if options.moment("endingTimestamp") < options.moment("startingTimestamp"):
            raise InvalidInputError(
                f"option endingTimestamp: {options.value('endingTimestamp')} is before startingTimestamp,"
                f" {options.value('startingTimestamp')}"
            )
        return end.version if first > end.version or not choose_ending_version(options, latest) else first - 1
    if first > end.version:
        names = [name for name in _BOUNDS if options.value(name) is not None]
        raise InvalidInputError(f"options {names}: the last version is {end.version}, and the first one is {first}")
    return first - 1


def choose_ending_version(options: SourceOptions, latest: LanceDataset) -> int:
    """The last version whose changes are read: the latest unless an option gives another; 0 before version 1."""
    if options.value("endingTimestamp") is None:
        last = options.integer("endingVersion")
        return latest.version if last is None else last
    until = options.moment("endingTimestamp")
    try:
        return latest.version_as_of(until)
    except VersionNotFoundError:
        oldest: int = latest.version_refs()[0]["version"]
        if oldest > 1 or not _is_window(options) or latest.checkout_version(oldest).timestamp <= until:
            raise  # what was committed until then may have been cleaned up
        return 0


def _is_window(options: SourceOptions) -> bool:
    """Whether times are both ends of the changes."""
    return options.value("startingTimestamp") is not None and options.value("endingTimestamp") is not None


def _find_first_since(options: SourceOptions, latest: LanceDataset) -> int:
    """The first version that was committed at a time or later."""
    moment = options.moment("startingTimestamp")
    oldest: int = latest.version_refs()[0]["version"]
    if latest.checkout_version(oldest).timestamp > moment:
        return oldest
    before = latest.version_as_of(moment)
    return before if latest.checkout_version(before).timestamp >= moment else before + 1

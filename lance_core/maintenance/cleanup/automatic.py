"""Automatic cleanup after commits, as the table's configuration asks for.

    lance.auto_cleanup.interval             after every N-th version; 0 after each
    lance.auto_cleanup.older_than           an age such as "14d" or "1h 30m"
    lance.auto_cleanup.retain_versions      keep the newest N
    lance.auto_cleanup.delete_rate_limit, .delete_concurrency
    lance.auto_cleanup.referenced_branch    "true" on main: first clean the branches forked from main, each by its own
                                            configuration

As in pylance, the version before the new one counts as the handle's version, so that the last two versions always stay.
Tagged versions are kept without an error. If a configuration value cannot be used, a warning is logged, and the table
is not cleaned.
"""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from typing import Final

from lance_core.errors import LanceError, VersionNotFoundError
from lance_core.maintenance.cleanup.run import CleanupStats, cleanup_old_versions, select
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.branch_roots import store_of_branch
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import read_branches, report_torn

__all__ = ["auto_cleanup", "auto_cleanup_after", "parse_age"]

_logger = logging.getLogger(__name__)

PREFIX: Final = "lance.auto_cleanup."

_PART = re.compile(r"\s*(\d+)\s*([a-zA-Z]+)\s*")
_SECONDS: Final = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
    **dict.fromkeys(("M", "month", "months"), 2630016.0),
    **dict.fromkeys(("y", "year", "years"), 31557600.0),
    **dict.fromkeys(("ms", "msec", "millis"), 1e-3),
    **dict.fromkeys(("us", "usec", "micros"), 1e-6),
    **dict.fromkeys(("ns", "nsec", "nanos"), 1e-9),
}


def parse_age(age: str) -> timedelta:
    """Read an age such as "14d" or "1h 30m".

    Raises:
        ValueError: The string is not a duration.
    """
    position, seconds = 0, 0.0
    while position < len(age):
        match = _PART.match(age, position)
        if match is None or match[2] not in _SECONDS:
            raise ValueError(f"{age!r} is not a duration")
        seconds += int(match[1]) * _SECONDS[match[2]]
        position = match.end()
    if not position:
        raise ValueError("a duration is missing")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise ValueError(f"{age!r} is too long a duration") from error


def auto_cleanup_after(store: ObjectStore, manifest: Manifest) -> None:
    """Clean up after a commit of this process, if the configuration asks for it."""
    auto_cleanup(Handle(store.root, storage_options=store.options, manifest=manifest))


def auto_cleanup(dataset: Handle) -> CleanupStats | None:
    """Run the cleanup that the table's configuration asks for after the handle's version.

    Returns:
        The result; None if this version does not trigger a cleanup, or if the cleanup failed, which is logged.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> print(maintenance.auto_cleanup(table))  # it is not configured
        None
    """
    config = dataset.config()
    if PREFIX + "interval" not in config:
        return None
    try:
        interval = _interval(config[PREFIX + "interval"])
        if interval and dataset.version % interval:
            return None
        age, retain = config.get(PREFIX + "older_than"), config.get(PREFIX + "retain_versions")
        if age is None and retain is None:
            return None
        selectors = select(
            parse_age(age) if age is not None else None,
            int(retain) if retain is not None else None,
            error_if_tagged_old_versions=False,
        )
        rate, concurrency = (config.get(PREFIX + name) for name in ("delete_rate_limit", "delete_concurrency"))
        if config.get(PREFIX + "referenced_branch", "").lower() == "true":
            _clean_branches(dataset)
        return cleanup_old_versions(
            dataset.checkout_version(dataset.version - 1),
            selectors,
            delete_rate_limit=int(rate) if rate else None,
            delete_concurrency=int(concurrency) if concurrency else None,
        )
    except VersionNotFoundError:
        return None
    except (LanceError, ValueError) as error:
        # The commit has succeeded, and an error here would make it seem failed.
        _logger.warning("automatic cleanup of %s failed: %s", dataset.uri, error)
        return None


def _interval(value: str) -> int:
    """The number of versions from one cleanup to the next.

    Raises:
        ValueError: The string is not such a number.
    """
    interval = int(value)
    if interval < 0:
        raise ValueError(f"the interval {interval} is negative")
    return interval


def _clean_branches(dataset: Handle) -> None:
    """Clean the branches that were forked from main."""
    source = dataset.source
    if source.manifest.branch is not None:
        return
    branches, torn = read_branches(source.store)
    report_torn(torn.values())
    for name, ref in branches.items():
        if ref.parent_branch is None:
            auto_cleanup(Handle(store_of_branch(source.store, name).root, storage_options=source.options))

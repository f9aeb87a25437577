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
from typing import Final

from lance_core.errors import LanceError, VersionNotFoundError
from lance_core.maintenance.cleanup.run import CleanupStats, cleanup_old_versions, select
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.times import parse_duration
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.context.references import read_branches, report_torn, store_of_branch

_logger = logging.getLogger(__name__)

PREFIX: Final = "lance.auto_cleanup."


def run_auto_cleanup_after(store: ObjectStore, manifest: Manifest) -> None:
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
            parse_duration(age) if age is not None else None,
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
            log_level=logging.INFO,
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
    snapshot = dataset.snapshot
    if snapshot.manifest.branch is not None:
        return
    branches, torn = read_branches(snapshot.store)
    report_torn(torn.values())
    for name, ref in branches.items():
        if ref.parent_branch is None:
            auto_cleanup(Handle(store_of_branch(snapshot.store, name).root, storage_options=snapshot.options))

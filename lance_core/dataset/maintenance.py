"""Verbs for compaction and cleanup, implemented by `lance_core.maintenance`.

That package is imported when a verb is used, so that reading and writing load less. Automatic cleanup,
where a table's configuration asks for it, runs after each commit: this module registers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from lance_core.commit import on_commit
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.handle import Handle

if TYPE_CHECKING:
    from lance_core.maintenance.cleanup import CleanupExplanation, CleanupStats
    from lance_core.maintenance.optimizer import DatasetOptimizer

__all__ = ["CleanupSelectors", "MaintainingVerbs"]


class CleanupSelectors(TypedDict, total=False):
    """Further conditions on the versions and files that are removed.

    Attributes:
        delete_unverified: Remove files that no version refers to even if they are younger than seven days; False by
            default. Only safe while nobody writes.
        error_if_tagged_old_versions: Raise if a version is selected that is tagged, rather than keep it; True by
            default.
        versions: Only these versions.
        in_use: Versions to keep, by the name of their user. Not in pylance.
    """

    delete_unverified: bool | None
    error_if_tagged_old_versions: bool | None
    versions: Sequence[int] | None
    in_use: Mapping[str, int] | None


class MaintainingVerbs(Handle):
    """Methods that keep a dataset small and fast."""

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction; see `DatasetOptimizer`."""
        from lance_core.maintenance.optimizer import DatasetOptimizer  # noqa: PLC0415 - see the module's text

        return DatasetOptimizer(self)

    def cleanup_old_versions(
        self,
        older_than: timedelta | np.timedelta64 | None = None,
        retain_versions: int | None = None,
        *,
        delete_rate_limit: int | None = None,
        delete_concurrency: int | None = None,
        **selectors: Unpack[CleanupSelectors],
    ) -> CleanupStats:
        """Remove old versions, and the files that only they need.

        This version and newer ones stay, and so do tagged versions, those that branches need, and files that any
        branch or detached version needs.

        Args:
            older_than: Only versions older than this; two weeks if neither of the three selectors is given.
            retain_versions: Only versions beyond the newest so many.
            delete_rate_limit: Most deletions per second.
            delete_concurrency: Most deletions at a time.
            selectors: Further conditions; see `CleanupSelectors` for their meanings and defaults.

        Raises:
            InvalidInputError: A tagged version is selected, or an argument cannot be used.
        """
        from lance_core.maintenance import cleanup  # noqa: PLC0415 - see the module's text

        return cleanup.cleanup_old_versions(
            self,
            cleanup.select(older_than, retain_versions, **selectors),
            delete_rate_limit=delete_rate_limit,
            delete_concurrency=delete_concurrency,
        )

    def explain_cleanup_old_versions(
        self,
        older_than: timedelta | np.timedelta64 | None = None,
        retain_versions: int | None = None,
        *,
        delete_rate_limit: int | None = None,
        include_files: bool = False,
        max_files: int = 1000,
        **selectors: Unpack[CleanupSelectors],
    ) -> CleanupExplanation:
        """Report what `cleanup_old_versions` would remove, and remove nothing.

        Args:
            older_than: As there.
            retain_versions: As there.
            delete_rate_limit: Accepted for compatibility with pylance; it has no effect, as nothing is deleted.
            include_files: Whether to list the files.
            max_files: Most files to list.
            selectors: As there.
        """
        from lance_core.maintenance import cleanup  # noqa: PLC0415 - see the module's text

        del delete_rate_limit
        return cleanup.explain_cleanup_old_versions(
            self,
            cleanup.select(older_than, retain_versions, **selectors),
            include_files=include_files,
            max_files=max_files,
        )


def _clean_up_automatically(store: ObjectStore, manifest: Manifest) -> None:
    """Run the cleanup that a table's configuration asks for after a commit."""
    if "lance.auto_cleanup.interval" in manifest.config:
        from lance_core.maintenance.auto_cleanup import auto_cleanup_after  # noqa: PLC0415 - see the module's text

        auto_cleanup_after(store, manifest)


on_commit(_clean_up_automatically)

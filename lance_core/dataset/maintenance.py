"""Methods of `LanceDataset` for compaction, cleanup and erasure, implemented by `lance_core.maintenance`.

The package is imported when one of these methods is called, so that reading and writing load less. This module also
registers the listener for automatic cleanup, which runs after commits if the table's configuration asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import numpy as np

from lance_core.arguments import checked_methods, reject
from lance_core.commit.loop import commit, on_commit
from lance_core.commit.versions import reload_latest
from lance_core.errors import InvalidInputError
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import UpdateConfig, UpdateMap
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.write.write_version import AutoCleanupConfig, auto_cleanup_keys

if TYPE_CHECKING:
    from lance_core.maintenance.cleanup.run import CleanupExplanation, CleanupStats
    from lance_core.maintenance.compaction.rewrite import CompactionMetrics
    from lance_core.maintenance.erasure.report import ErasureReport
    from lance_core.verbs.indices.stable_row_ids import RowIdMigration

_NOT_OPTIONS: Final = ("transaction_properties", "progress")


class CleanupSelectors(TypedDict, total=False):
    """Further conditions on the versions and files that are removed.

    Attributes:
        delete_unverified: Remove files that no version refers to even if they are younger than seven days, and versions
            on object storage even if they are younger than five minutes; False by default. Only safe while nobody
            writes.
        error_if_tagged_old_versions: Raise if a version is selected that is tagged, rather than keep it; True by
            default.
        versions: Only these versions.
        in_use: Versions to keep, by the name of their user. Not in pylance.
        age_from: From when the age of a version counts: "commit", its own commit, as in pylance and by default; or
            "replacement", the commit of the next version, so that the newest good version is kept for the whole age
            after a bad write. Not in pylance.
    """

    delete_unverified: bool | None
    error_if_tagged_old_versions: bool | None
    versions: Sequence[int] | None
    in_use: Mapping[str, int] | None
    age_from: str


@checked_methods
class DatasetOptimizer:
    """The maintenance of one dataset.

    Args:
        dataset: The handle, which moves to the versions that are made.
    """

    def __init__(self, dataset: Handle) -> None:
        self._dataset = dataset

    def enable_auto_cleanup(self, auto_cleanup_config: AutoCleanupConfig) -> None:
        """Remove old versions after commits from now on; this commits a version.

        Args:
            auto_cleanup_config: How often, and how old versions must be.

        Raises:
            InvalidInputError: A key is missing or unknown, or a number cannot be used.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.optimize.enable_auto_cleanup({"interval": 20, "older_than_seconds": 86400})
            >>> sorted(table.config())
            ['lance.auto_cleanup.interval', 'lance.auto_cleanup.older_than']
        """
        config = dict(auto_cleanup_config)
        if set(config) != {"interval", "older_than_seconds"} or not all(
            (isinstance(value, int) and not isinstance(value, bool) and value >= 0) for value in config.values()
        ):
            raise InvalidInputError(f"auto_cleanup_config needs interval and older_than_seconds, not {config}")
        self._configure(auto_cleanup_keys(auto_cleanup_config))

    def disable_auto_cleanup(self) -> None:
        """Stop removing old versions after commits; this commits a version.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.optimize.enable_auto_cleanup({"interval": 20, "older_than_seconds": 86400})
            >>> table.optimize.disable_auto_cleanup()
            >>> table.config()
            {}
        """
        self._configure(dict.fromkeys(auto_cleanup_keys({"interval": 0, "older_than_seconds": 0})))

    def _configure(self, entries: Mapping[str, str | None]) -> None:
        # The change does not depend on the handle's version; versions after that version may be cleaned up already.
        self._dataset.checkout_latest()
        operation = UpdateConfig(config=UpdateMap(entries=entries))
        transaction = Transaction(read_version=self._dataset.version, operation=operation)
        snapshot = self._dataset.snapshot
        self._dataset.move_to(commit(snapshot.store, transaction, base=snapshot.manifest).manifest)

    def compact_files(
        self,
        *,
        target_rows_per_fragment: int | None = None,
        max_rows_per_group: int | None = None,
        max_bytes_per_file: int | None = None,
        materialize_deletions: bool | None = None,
        materialize_deletions_threshold: float | None = None,
        defer_index_remap: bool | None = None,
        num_threads: int | None = None,
        batch_size: int | None = None,
        compaction_mode: str | None = None,
        binary_copy_read_batch_bytes: int | None = None,
        max_source_fragments: int | None = None,
        max_source_rows: int | None = None,
        max_source_bytes: int | None = None,
        excluded_fragment_ids: Sequence[int] | None = None,
        data_storage_version: str | None = None,
        target_bytes_per_fragment: int | None = None,
        deletions_only: bool = False,
        partition_by: Sequence[str] | None = None,
        repair_pages: bool = False,
        transaction_properties: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CompactionMetrics:
        """Rewrite small fragments, and those with many deletions, into fewer and larger ones.

        Options that are not given come from the table's configuration (`lance.compaction.<name>`), then from the
        defaults of `CompactionOptions`, which describes them.

        Args:
            target_rows_per_fragment: Fragments with fewer rows are merged with their neighbours.
            max_rows_per_group: Accepted for compatibility with pylance, without effect.
            max_bytes_per_file: Bytes after which a new file is started.
            materialize_deletions: Whether fragments with many deletions are rewritten.
            materialize_deletions_threshold: The share of deleted rows above which a fragment has many deletions.
            defer_index_remap: Record moved rows in the fragment reuse index.
            num_threads: Tasks that run at a time, each in a process of its own if there are several.
            batch_size: Rows that are read at a time.
            compaction_mode: "reencode", "try_binary_copy" (the default) or "force_binary_copy".
            binary_copy_read_batch_bytes: Bytes that a copy of pages reads at a time.
            max_source_fragments: Most fragments to rewrite.
            max_source_rows: Most rows to rewrite.
            max_source_bytes: Most bytes to rewrite.
            excluded_fragment_ids: Fragments that stay as they are.
            data_storage_version: Version of the new files.
            target_bytes_per_fragment: Fragments of at least this many bytes are not merged. Not in pylance.
            deletions_only: Rewrite only the fragments with many deletions, each on its own. Not in pylance.
            partition_by: Columns that must have one value in all rows of a merged fragment. Not in pylance.
            repair_pages: Also rewrite fragments in which `verify` finds pages that other readers misread. Not in
                pylance.
            transaction_properties: Strings for the history, by key. Not in pylance.
            progress: Is called with the number of rewritten rows and the number of all rows to rewrite. Not in pylance.

        Raises:
            InvalidInputError: An option cannot be used.
            RetryableConflictError: Concurrent commits changed the fragments of all tasks.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.optimize.compact_files().fragments_removed
            2
            >>> table.fragment_ids()
            {2}
        """
        options = {name: value for name, value in locals().items() if name not in ("self", *_NOT_OPTIONS)}
        from lance_core.maintenance.compaction.compaction import compact  # noqa: PLC0415 - see docstring

        return compact(self._dataset, options, transaction_properties=transaction_properties, progress=progress)

    def optimize_indices(
        self,
        num_indices_to_merge: int | None = None,
        index_names: Sequence[str] | None = None,
        retrain: bool | None = None,
        *,
        transaction_properties: Mapping[str, str] | None = None,
        **unsupported: Any,
    ) -> None:
        """Extend indices to the fragments that they do not cover yet, reading only these fragments.

        Args:
            num_indices_to_merge: How many of an index's last segments are merged, together with uncovered fragments; 0
                makes a new segment of these alone. 1 by default.
            index_names: Which indices; by default all of the kinds that are built here.
            retrain: Rebuild each index as one segment.
            transaction_properties: Strings for the history, by key. Not in pylance.
            **unsupported: Rejected.

        Raises:
            NotFoundError: There is no index of a name.
            UnsupportedError: An index that is named cannot be built here, or an argument is not offered.
            RetryableConflictError: Other writers changed the same indices or fragments in each attempt.
            DatasetNotFoundError: The dataset was dropped.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.create_scalar_index("id", "BTREE")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.optimize.optimize_indices()
            >>> table.index_statistics("id_idx")["num_unindexed_rows"]
            0
        """
        from lance_core.verbs.indices.optimize import optimize_indices  # noqa: PLC0415 - see docstring

        reject("optimize_indices", unsupported)
        snapshot = self._dataset.snapshot
        manifest = optimize_indices(
            snapshot,
            num_indices_to_merge=num_indices_to_merge,
            index_names=index_names,
            retrain=bool(retrain),
            properties=transaction_properties,
        )
        if manifest is snapshot.manifest:
            reload_latest(snapshot.store, manifest)  # nothing was committed, which would say if the dataset was dropped
        self._dataset.move_to(manifest)


class MaintenanceVerbs(Handle):
    """Methods that keep a dataset small and fast."""

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction and the maintenance of indices; see `DatasetOptimizer`."""
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

        This version and newer ones stay, and so do tagged versions, versions that branches need, and files that any
        branch or detached version needs; on object storage also versions of the last five minutes. What is kept
        although it was selected is logged as a warning.

        Args:
            older_than: Only versions older than this, by the time of their commit unless `age_from` says otherwise; two
                weeks if none of `older_than`, `retain_versions` and `versions` is given.
            retain_versions: Number of the newest versions that are kept in any case.
            delete_rate_limit: Most deletions per second.
            delete_concurrency: Most deletions at a time.
            selectors: Further conditions; see `CleanupSelectors` for their meanings and defaults.

        Raises:
            InvalidInputError: A tagged version is selected, or an argument cannot be used.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.cleanup_old_versions(retain_versions=1).old_versions
            1
        """
        from lance_core.maintenance.cleanup import run as cleanup  # noqa: PLC0415 - see docstring

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
            older_than: The age, as `cleanup_old_versions` takes it.
            retain_versions: The number of newest versions that are kept, as `cleanup_old_versions` takes it.
            delete_rate_limit: Accepted for compatibility with pylance; it has no effect, as nothing is deleted.
            include_files: Whether to list the files.
            max_files: Most files to list.
            selectors: Further conditions, as `cleanup_old_versions` takes them.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.explain_cleanup_old_versions(retain_versions=1).stats.old_versions
            1
        """
        from lance_core.maintenance.cleanup import run as cleanup  # noqa: PLC0415 - see docstring

        del delete_rate_limit
        return cleanup.explain_cleanup_old_versions(
            self,
            cleanup.select(older_than, retain_versions, **selectors),
            include_files=include_files,
            max_files=max_files,
        )

    def erase_rows(
        self,
        where: str,
        *,
        dry_run: bool = False,
        retag: bool = False,
        release_branches: bool = False,
        drop_indices: bool = False,
        delete_unverified: bool = False,
        in_use: Mapping[str, int] | None = None,
        transaction_properties: Mapping[str, str] | None = None,
    ) -> ErasureReport:
        """Erase rows from all versions, branches, files and indices, and prove it by reading what is left.

        On every branch that holds the rows, they are deleted and their files are written again without them. Versions
        that hold the rows are removed, whatever their age, and can no longer be read. Where a tag, a branch, a clone or
        a user needs such a version, nothing is changed, and the report names it. No version records the condition. Not
        in pylance.

        Args:
            where: The rows, by a condition in SQL on values of columns.
            dry_run: Report what would be done, and change nothing.
            retag: Move tags of versions that hold rows to the version of the same branch after the erasure. Tags of
                readers of changes (`readers`) are deleted in any case.
            release_branches: Remove versions that branches were forked from. These branches cannot be promoted any
                more.
            drop_indices: Drop indices that can hold values of the rows and cannot be built here, such as vector and
                full-text indices.
            delete_unverified: Remove files that nothing refers to whatever their age, and on object storage versions of
                the last five minutes. Only safe if no other process uses the dataset.
            in_use: Versions of the main branch that must stay, by the name of their user.
            transaction_properties: Transaction properties of the commits; they must hold no value of the rows.

        Returns:
            The report of what was done and read. Where `proven` is false, `obstacles` or `remaining` say why.

        Raises:
            InvalidInputError: The condition does not fit the columns, or names no column.
            CorruptFileError: The file of a tag or branch is torn, so that the versions it needs are not known.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> report = table.erase_rows("id = 2")
            >>> report.proven, report.rows_deleted
            (True, {'main': 1})
            >>> table.to_table()["id"].to_pylist()
            [1, 3]
        """
        from lance_core.maintenance.erasure.erase import erase_rows  # noqa: PLC0415 - see docstring
        from lance_core.maintenance.erasure.report import ErasureOptions  # noqa: PLC0415 - see docstring

        options = ErasureOptions(
            dry_run=dry_run,
            retag=retag,
            release_branches=release_branches,
            drop_indices=drop_indices,
            delete_unverified=delete_unverified,
            in_use=in_use or {},
            transaction_properties=transaction_properties or {},
        )
        return erase_rows(self, where, options)

    def migrate_to_stable_row_ids(self, *, transaction_properties: Mapping[str, str] | None = None) -> RowIdMigration:
        """Give the rows of the newest version ids that they keep when they are updated or moved; none is written again.

        A row gets its address as its id, so that all indices stay valid. Older versions, tags of them, clones and
        branches stay as they are. A table that has stable row ids stays as it is. Other writers need not stop: their
        appends follow, and of two conflicting changes the later one is computed again.

        Args:
            transaction_properties: Strings for the history, by key.

        Raises:
            InvalidInputError: The handle is on a branch.
            UnsupportedError: Indices that cannot be rebuilt here follow moves by the fragment reuse index.
            RetryableConflictError: Other writers committed first in each attempt.
            DatasetNotFoundError: The dataset was dropped.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.create_scalar_index("id", "BTREE")
            >>> table.migrate_to_stable_row_ids().indices_kept
            ('id_idx',)
            >>> table.update({"id": "9"}, where="id = 3")
            {'num_rows_updated': 1}
            >>> table.to_table(filter="id = 9", with_row_id=True)["_rowid"].to_pylist()
            [2]
        """
        from lance_core.verbs.indices.stable_row_ids import migrate_to_stable_row_ids  # noqa: PLC0415 - see docstring

        manifest, migration = migrate_to_stable_row_ids(self.snapshot, transaction_properties)
        self.move_to(manifest)
        return migration


def _clean_up_automatically(store: ObjectStore, manifest: Manifest) -> None:
    """Run the cleanup that a table's configuration asks for after a commit."""
    from lance_core.maintenance.cleanup.automatic import run_auto_cleanup_after  # noqa: PLC0415 - see docstring

    run_auto_cleanup_after(store, manifest)


on_commit("lance.auto_cleanup.interval", _clean_up_automatically)

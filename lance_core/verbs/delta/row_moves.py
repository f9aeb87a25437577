"""Follow rows from version to version in tables without stable row ids.

A row is identified by its first address. Only a Rewrite gives unchanged rows new addresses:

    Append, Overwrite, Restore, Delete   fragments are added or removed; an address identifies a row
    Rewrite                              the new fragments have the live rows of the old ones, in the same order
    Update that adds or removes rows     the same as an Append or a Delete
    Update of a partition or an attempt  rows are replaced: some are deleted, others inserted
    other Updates, DataReplacement,      rows have new values, and nothing records which: an error names the version
    Merge and Restore with other files,
    Restore of columns that were dropped,
    Merge that adds and removes rows     (the promotion of a branch that added columns)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lance_core.commit.attempts import REPLACES_KEY
from lance_core.commit.conflict import affected_fragments
from lance_core.commit.versions import load_manifest, load_transaction
from lance_core.errors import UnsupportedError
from lance_core.row_addresses import fragment_ids_of, make_row_addresses
from lance_core.table.filled_slices import SLICES_KEY
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    DataReplacement,
    Merge,
    Operation,
    Restore,
    Rewrite,
    RewriteGroup,
    UnknownOperation,
    Update,
)
from lance_core.table.paths import origin_of
from lance_core.table.rowids import U64Array
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.delta.version_of_branch import BranchHistory
from lance_core.verbs.rows.rewritten_rows import numbered_fragments
from lance_core.verbs.scan.read_fragment import count_file_rows

_NAMED = "only a table with stable row ids (migrate_to_stable_row_ids gives it these) records which rows were updated"


class RowMoves:
    """Records the first addresses of rows that compactions moved, from one version to a later one.

    Args:
        begin: The version to begin with; None for the time before the first version.
        only: Fragments whose rows are followed; None for all. If given, updates in place are allowed, as they move no
            row.
    """

    def __init__(self, begin: Snapshot | None, only: Iterable[int] | None = None) -> None:
        self._before = begin
        self._only = None if only is None else set(only)
        self._moved: dict[int, U64Array] = {}
        self._added_in: dict[int, int] = {}

    def follow(self, end: Snapshot, history: BranchHistory | None = None) -> None:
        """Follow the rows to a later version.

        Args:
            end: The later version.
            history: The versions in between; None if they are on the branch of both.

        Raises:
            VersionNotFoundError: A version in between was cleaned up.
            UnsupportedError: A version in between updated rows.
        """
        read = history.committed if history else lambda number: end.with_manifest(load_manifest(end.store, number))
        while self._before is not None and self._before.manifest.version < end.manifest.version:
            number = self._before.manifest.version + 1
            after = read(number)
            if history is not None and after.store.root != self._before.store.root:
                self._before = history.opened(number - 1)  # the branch's own clone of its fork version
            transaction = load_transaction(after.store, after.manifest)
            if transaction is None:
                raise self._unknown_error(number, "records no transaction")
            self._check(transaction, self._before.manifest, after.manifest)
            if isinstance(transaction.operation, Rewrite):
                for group in transaction.operation.groups:
                    if not group.is_in_place:
                        self._move(group, self._before, after)
            else:
                self._note_added(self._before, after)
            self._before = after

    def ids(self, snapshot: Snapshot, fragment: Fragment) -> U64Array:
        """The first addresses of all rows of a fragment, deleted ones included."""
        if (moved := self._moved.get(fragment.id)) is not None:
            return moved
        return make_row_addresses(fragment.id, np.arange(count_file_rows(snapshot, fragment)))

    def versions(self, ids: U64Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The version after `begin` that added each row, given by first addresses; -1 for rows that `begin` has."""
        origins, places = np.unique(fragment_ids_of(ids), return_inverse=True)
        return np.array([self._added_in.get(origin, -1) for origin in origins.tolist()], np.int64)[places]

    def _note_added(self, before: Snapshot, after: Snapshot) -> None:
        """Record the version that added fragments."""
        ids_before = set(before.manifest.fragments.ids)
        for number in set(after.manifest.fragments.ids) - ids_before:
            moved = self._moved.get(number)
            origins = [number] if moved is None else np.unique(fragment_ids_of(moved)).tolist()
            self._added_in |= dict.fromkeys(origins, after.manifest.version)

    def _check(self, transaction: Transaction, before: Manifest, after: Manifest) -> None:
        """Check that a version updated no row.

        Raises:
            UnsupportedError: The version updated rows, or may have updated some.
        """
        operation = transaction.operation
        moves = isinstance(operation, Merge) and _adds_and_takes(before, after, self._only)
        if self._only is not None and not moves and self._is_unmoved(operation, self._only):
            return
        if isinstance(operation, UnknownOperation):
            raise self._unknown_error(after.version, "was committed by an operation that is not known")
        replaces = not {SLICES_KEY, REPLACES_KEY}.isdisjoint(transaction.properties)
        in_place = isinstance(operation, Merge | Restore) and _has_other_files(before, after)
        in_place |= isinstance(operation, Restore) and _regains_columns(before, after)
        updates = moves or _may_update(operation)
        if in_place or isinstance(operation, DataReplacement) or (updates and not replaces):
            raise self._unknown_error(after.version, f"updated rows ({operation.name})")

    def _unknown_error(self, version: int, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"the changes of version {version} cannot be listed: it {what}, and {_NAMED}. Compare two versions before "
            f"version {version}, or two versions from {version} on, or read the whole table"
        )

    def _is_unmoved(self, operation: Operation, only: set[int]) -> bool:
        """Whether an operation moves none of the rows that are followed."""
        if not isinstance(operation, Update):
            return not isinstance(operation, UnknownOperation)
        return not operation.new_fragments or only.isdisjoint(affected_fragments(operation))

    def _move(self, group: RewriteGroup, before: Snapshot, after: Snapshot) -> None:
        """Record the first addresses of the rows of a group of fragments for the new fragments."""
        parts = []
        for old in group.old_fragments:
            ids, deletions = self.ids(before, old), before.deletions(old)
            parts.append(ids if deletions is None else ids[deletions.live_rows(len(ids))])
        ids = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
        new = numbered_fragments(group, after.manifest)
        if new is None:
            raise self._unknown_error(after.manifest.version, "does not hold the fragments that it wrote")
        ends = np.cumsum([count_file_rows(after, fragment) for fragment in new]) if new else np.zeros(1, np.int64)
        if int(ends[-1]) != len(ids):
            raise self._unknown_error(after.manifest.version, f"rewrote {len(ids)} rows as {int(ends[-1])}")
        for fragment, new_ids in zip(new, np.split(ids, ends[:-1]), strict=False):
            self._moved[fragment.id] = new_ids
        if self._only is not None and not self._only.isdisjoint(old.id for old in group.old_fragments):
            self._only.update(fragment.id for fragment in new)


def _may_update(operation: Operation) -> bool:
    """Whether an operation changes values of rows, or may do so."""
    if not isinstance(operation, Update):
        return False
    takes = bool(operation.removed_fragment_ids or operation.updated_fragments)
    return bool(operation.fields_modified) or (takes and bool(operation.new_fragments))


def _adds_and_takes(before: Manifest, after: Manifest, only: set[int] | None) -> bool:
    """Whether a version has new fragments, and other fragments lost rows, which may have moved to the new ones.

    Args:
        before: The version before it.
        after: The version.
        only: The fragments whose rows are followed; None for all.
    """
    if not set(after.fragments.ids) - set(before.fragments.ids):
        return False
    pairs = ((before.fragments.get(i), after.fragments.get(i)) for i in only or before.fragments.ids)
    return any(old is not None and (new is None or new.deletion_file != old.deletion_file) for old, new in pairs)


def _has_other_files(before: Manifest, after: Manifest) -> bool:
    """Whether a fragment that both versions have has columns in other files."""
    raw = set(before.fragments.raw)
    changed = (i for i, record in zip(after.fragments.ids, after.fragments.raw, strict=True) if record not in raw)
    pairs = ((before.fragments.get(i), after.fragments.get(i)) for i in changed)
    return any(
        old is not None and new is not None and _fragment_files(old) != _fragment_files(new) for old, new in pairs
    )


def _regains_columns(before: Manifest, after: Manifest) -> bool:
    """Whether a fragment that both versions have holds values of a field that only the later one has."""
    gained = after.schema.by_id().keys() - before.schema.by_id().keys()
    if not gained:
        return False
    shared_ids = set(before.fragments.ids)
    fragments = (message for message in after.fragments.messages() if message.id in shared_ids)
    return any(not gained.isdisjoint(file.fields) for message in fragments for file in message.files)


def _fragment_files(fragment: Fragment) -> set[tuple[int, str]]:
    return {(field, origin_of(file.path)) for file in fragment.files for field in file.fields if field != TOMBSTONE}

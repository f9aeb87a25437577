"""Find the rows of an earlier attempt of a write in a later version.

A transaction names the fragments that its commit added. Their rows are identified in the latest version exactly:

    stable row ids   by the ids of the rows, wherever they are
    otherwise        by the fragments if no later version has changed them, or else version by version:
                     Rewrite     rows are in the group's new fragments, in the order of the old fragments' live rows
                     Overwrite   all rows are deleted
                     Restore     rows are where they were in the restored version
                     Delete      rows are deleted
                     Update      rows are deleted if the update adds no rows, is a replacement or a later attempt;
                                 otherwise it may have moved the rows that it deleted, and they are lost
                     others      rows stay where they are

Rows that were deleted meanwhile are skipped. If the version of the attempt was cleaned up, the table's configuration
records its fragments and row ids (`table.idempotency`): its rows are found by stable row ids, or by the fragments if
all of them still exist and have no deleted row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_core.commit.attempts import REPLACES_KEY, WriteAttempt, number_of, reject_later
from lance_core.commit.history import find_transaction
from lance_core.commit.proofs import attempts_of
from lance_core.commit.versions import load_manifest, load_transaction
from lance_core.errors import CorruptFileError, EarlierAttemptError, HistoryGapError, NotFoundError
from lance_core.row_addresses import bitmap_of
from lance_core.store import ObjectStore
from lance_core.table.filled_slices import SLICES_KEY
from lance_core.table.fragment import Fragment
from lance_core.table.idempotency import CommittedAttempt, Proofs
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    Append,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Restore,
    Rewrite,
    RewriteGroup,
    UnknownOperation,
    Update,
    UpdateMode,
)
from lance_core.table.rowids import decode_row_ids_of
from lance_core.table.transaction import FIRST_ADDED_KEY, PROMOTION_KEY, Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.rows.removal import RowsByFragment
from lance_core.verbs.rows.rewritten_rows import fragment_name, numbered_fragments, rewritten_rows
from lance_core.verbs.scan.read_fragment import count_file_rows


class TraceLostError(Exception):
    """The rows of a version cannot be identified any more; the message has the reason."""


def rows_of_attempts(
    snapshot: Snapshot, write: WriteAttempt, versions: Collection[int]
) -> tuple[RowsByFragment, int | None, frozenset[int]]:
    """Find the rows of earlier attempts that a new attempt replaces.

    Args:
        snapshot: The version in which the rows are searched for.
        write: The attempt that replaces the earlier ones.
        versions: The versions that the earlier attempts committed.

    Returns:
        The rows that are alive in the version; the commit that is kept in place of the write if rows cannot be
        identified and `on_earlier_attempt` is "adopt", otherwise None; and the versions whose rows stay beside those of
        the write because they cannot be identified and `on_earlier_attempt` is "append".

    Raises:
        EarlierAttemptError: The rows of an attempt cannot be identified, and `on_earlier_attempt` is "replace".
    """
    rows: RowsByFragment = {}
    beside: set[int] = set()
    done = {int(part) for version in versions for part in _replaced_by(find_transaction(snapshot.store, version))}
    for version in sorted(set(versions) - done):
        try:
            for fragment_id, attempt_rows in _rows_of_attempt(snapshot, write, version).items():
                rows[fragment_id] = attempt_rows | rows.get(fragment_id, BitMap())
        except TraceLostError as error:
            if write.on_earlier_attempt == "replace":
                raise EarlierAttemptError(
                    f"{snapshot.store.root}: an earlier attempt of this write added rows in version {version}, and "
                    f"they cannot be identified any more: {error}. Nothing was written. Remove them, for example with "
                    f"delete, or with restore of version {version - 1} if that still exists, and write with "
                    "on_earlier_attempt 'append'; or keep them in place of the rows of this write, with "
                    "on_earlier_attempt 'adopt'."
                ) from error
            if write.on_earlier_attempt == "adopt":
                return {}, max(versions), frozenset(beside)
            beside.add(version)
    return rows, None, frozenset(beside)


def committed_attempts(store: ObjectStore, write: WriteAttempt | None, since: int, latest: Manifest) -> set[int]:
    """The versions after a given version that attempts of a write committed.

    Raises:
        SupersededError: A later attempt has committed.
        HistoryGapError: A version in between, which an attempt may have committed, was cleaned up.
    """
    if write is None:
        return set()
    proven = {attempt.version for attempt in attempts_of(latest, write) if attempt.version > since}
    complete = Proofs.of(latest.config).complete_after("attempts")
    recorded = {}
    for version in range(since + 1, latest.version + 1):
        other = find_transaction(store, version)
        if other is not None and write.is_of(other.properties):
            recorded[version] = other
        elif other is None and (complete is None or version <= complete):
            raise gap_error(store.root, since, version)
    for version, other in recorded.items():
        reject_later(write, store.root, version, number_of(other.properties), is_same_write=True)
    return proven | set(recorded)


def gap_error(root: str, since: int, version: int) -> HistoryGapError:
    """The error for a version that was cleaned up and may conflict."""
    return HistoryGapError(
        f"{root}: version {version} was cleaned up, so it is not known whether it conflicts with this write, which is "
        f"based on version {since}; do the write again"
    )


def _replaced_by(transaction: Transaction | None) -> list[str]:
    """The versions whose rows a commit removed, as strings."""
    named = "" if transaction is None else transaction.properties.get(REPLACES_KEY, "")
    return [part for part in named.split(",") if part.isdecimal()]


def _rows_of_attempt(snapshot: Snapshot, write: WriteAttempt, version: int) -> RowsByFragment:
    """The rows of an attempt that are alive in a version, by the attempt's version, or by its proof without it.

    Raises:
        TraceLostError: The rows cannot be identified.
    """
    attempts: list[CommittedAttempt | None] = [
        attempt
        for attempt in attempts_of(snapshot.manifest, write)
        if attempt.version == version and attempt.number not in write.surviving_attempts
    ]
    rows: RowsByFragment = {}
    for attempt in attempts or [None]:
        try:
            attempt_rows = rows_of_version(snapshot, version, None if attempt is None else attempt.fragments)
        except TraceLostError as error:
            traced = None if attempt is None else _by_proof(snapshot, attempt)
            if traced is None:
                raise TraceLostError(f"{error}, and no record shows where they are now") from error
            attempt_rows = traced
        for fragment_id, alive in attempt_rows.items():
            rows[fragment_id] = alive | rows.get(fragment_id, BitMap())
    return rows


def _by_proof(snapshot: Snapshot, attempt: CommittedAttempt) -> RowsByFragment | None:
    """The rows of an attempt, by the row ids or fragments in the table's configuration; None if rows may have moved.

    Without stable row ids, a row that is marked as deleted may have been updated, and thus moved.
    """
    if attempt.row_ids is not None and snapshot.manifest.uses_stable_row_ids:
        return _rows_with_ids(snapshot, np.arange(*attempt.row_ids, dtype=np.uint64))
    if attempt.fragments is None:
        return None
    rows = {}
    for number in range(*attempt.fragments):
        fragment = snapshot.manifest.fragments.get(number)
        if fragment is None or fragment.deletion_file is not None:
            return None
        rows[number] = _all_rows(snapshot, fragment)
    return rows


def rows_of_version(snapshot: Snapshot, version: int, recorded: tuple[int, int] | None = None) -> RowsByFragment:
    """The rows that a version added and that are still alive in a later one.

    Args:
        snapshot: The later version.
        version: The version that added them.
        recorded: The range of the fragment ids of the attempt, as the table has recorded it. The promotion of a branch
            also adds fragments of other writes.

    Raises:
        TraceLostError: The rows cannot be identified.
    """
    origin = _load_snapshot(snapshot, version)
    transaction = _transaction(origin)
    mine = list(_added_fragments(origin.manifest, transaction.operation, transaction.properties.get(FIRST_ADDED_KEY)))
    if PROMOTION_KEY in transaction.properties:
        if recorded is None:
            raise TraceLostError(f"version {version} is the promotion of a branch")
        mine = [fragment for fragment in mine if fragment.id in range(*recorded)]
    if not mine:
        return {}
    if origin.manifest.uses_stable_row_ids and snapshot.manifest.uses_stable_row_ids:
        return _by_row_id(snapshot, mine)
    if all(snapshot.manifest.fragments.get(fragment.id) == fragment for fragment in mine):
        return _alive(snapshot, {fragment.id: _all_rows(origin, fragment) for fragment in mine})
    return _alive(snapshot, _Trace(origin, mine).to(snapshot))


def _added_fragments(manifest: Manifest, operation: Operation, first: str | None) -> Iterator[Fragment]:
    """The fragments that the transaction of a version added, with the ids that the manifest gives them."""
    if isinstance(operation, Append | Overwrite):
        added = operation.fragments
    elif isinstance(operation, Update):
        added = operation.new_fragments
        if any(fragment.row_ids is not None for fragment in added):
            raise TraceLostError(f"version {manifest.version} moved rows of other versions")
    elif isinstance(operation, Merge) and first is not None:
        added = tuple(fragment for fragment in operation.fragments if fragment.id >= int(first))
    else:
        raise TraceLostError(f"version {manifest.version} was made by {operation.name}")
    names = {fragment_name(fragment) for fragment in added}
    added_fragments = [fragment for fragment in manifest.fragments if fragment_name(fragment) in names]
    if len(added_fragments) != len(names):
        raise TraceLostError(f"the manifest of version {manifest.version} lacks fragments of its transaction")
    yield from added_fragments


def _by_row_id(snapshot: Snapshot, mine: Iterable[Fragment]) -> RowsByFragment:
    parts = [ids for fragment in mine if (ids := decode_row_ids_of(fragment)) is not None]
    return _rows_with_ids(snapshot, np.unique(np.concatenate(parts)) if parts else np.empty(0, np.uint64))


def _rows_with_ids(snapshot: Snapshot, attempt_ids: npt.NDArray[np.uint64]) -> RowsByFragment:
    rows: RowsByFragment = {}
    for fragment in snapshot.manifest.fragments:
        ids = decode_row_ids_of(fragment)
        if ids is None:
            raise TraceLostError(f"fragment {fragment.id} has no row ids")
        offsets = np.flatnonzero(np.isin(ids, attempt_ids))
        if len(offsets):
            rows[fragment.id] = bitmap_of(offsets)
    return _alive(snapshot, rows)


def _alive(snapshot: Snapshot, rows: Mapping[int, BitMap]) -> RowsByFragment:
    """The rows without those that are deleted in a version."""
    result = {}
    for fragment_id, offsets in rows.items():
        fragment = snapshot.manifest.fragments.get(fragment_id)
        if fragment is None:
            raise TraceLostError(f"fragment {fragment_id} is missing")
        left = offsets - _deleted(snapshot, fragment)
        if left:
            result[fragment_id] = left
    return result


class _Trace:
    """The rows of some fragments, followed from one version to the next."""

    def __init__(self, origin: Snapshot, mine: Iterable[Fragment]) -> None:
        self._before = origin
        self._rows: RowsByFragment = {fragment.id: _all_rows(origin, fragment) for fragment in mine}
        self._first = origin.manifest.version
        self._past = {self._first: self._rows}

    def to(self, latest: Snapshot) -> RowsByFragment:
        """Follow the rows to a later version, version by version."""
        for version in range(self._first + 1, latest.manifest.version + 1):
            after = latest if version == latest.manifest.version else _load_snapshot(latest, version)
            self._rows = self._next(_transaction(after), after)
            self._past[version] = self._rows
            self._before = after
        return self._rows

    def _next(self, transaction: Transaction, after: Snapshot) -> RowsByFragment:
        operation = transaction.operation
        if isinstance(operation, UnknownOperation):
            raise TraceLostError(f"version {after.manifest.version} was made by an unknown operation")
        if isinstance(operation, Overwrite):
            return {}
        if isinstance(operation, Restore):
            return self._past.get(operation.version, {})
        if isinstance(operation, Delete):
            return {i: rows for i, rows in self._rows.items() if i not in set(operation.deleted_fragment_ids)}
        if isinstance(operation, Update):
            return self._updated(operation, transaction, after)
        if isinstance(operation, Rewrite):
            return self._rewritten(operation, after)
        return self._rows

    def _updated(self, operation: Update, transaction: Transaction, after: Snapshot) -> RowsByFragment:
        removed = set(operation.removed_fragment_ids)
        left = {i: rows for i, rows in self._rows.items() if i not in removed}
        only_removes = not operation.new_fragments or not {SLICES_KEY, REPLACES_KEY}.isdisjoint(transaction.properties)
        if only_removes or operation.update_mode is UpdateMode.REWRITE_COLUMNS:
            return left
        touched = removed | {fragment.id for fragment in operation.updated_fragments}
        for i in touched & self._rows.keys():
            was = self._rows[i] - _deleted(self._before, self._before.manifest.fragments.get(i))
            now = BitMap() if i in removed else was - _deleted(after, after.manifest.fragments.get(i))
            if was != now:
                raise TraceLostError(f"version {after.manifest.version} changed {len(was) - len(now)} of its rows")
        return left

    def _rewritten(self, operation: Rewrite, after: Snapshot) -> RowsByFragment:
        result = dict(self._rows)
        for group in operation.groups:
            old = [fragment.id for fragment in group.old_fragments]
            if group.is_in_place or result.keys().isdisjoint(old):
                continue
            if any(left >= right for left, right in pairwise(old)):
                raise TraceLostError(f"version {after.manifest.version} does not record the order of its rows")
            moved = self._moved(group, after)
            for i in old:
                result.pop(i, None)
            result |= moved
        return result

    def _moved(self, group: RewriteGroup, after: Snapshot) -> RowsByFragment:
        """The rows after a group of fragments was rewritten."""
        new = numbered_fragments(group, after.manifest)
        if new is None:
            raise TraceLostError(f"version {after.manifest.version} lacks fragments that it wrote")
        # The rows that the rewrite read; rows that were deleted later are in the new fragments, marked as deleted.
        live = [_all_rows(self._before, old) - _deleted(self._before, old) for old in group.old_fragments]
        mine = [self._rows.get(old.id, BitMap()) for old in group.old_fragments]
        moved = rewritten_rows(live, mine, [count_file_rows(after, fragment) for fragment in new])
        if moved is None:
            raise TraceLostError(f"version {after.manifest.version} has another number of rows than it rewrote")
        return {fragment.id: rows for fragment, rows in zip(new, moved, strict=True) if rows}


def _all_rows(snapshot: Snapshot, fragment: Fragment) -> BitMap:
    rows = BitMap()
    rows.add_range(0, count_file_rows(snapshot, fragment))
    return rows


def _deleted(snapshot: Snapshot, fragment: Fragment | None) -> BitMap:
    if fragment is None:
        return BitMap()
    try:
        return snapshot.deleted_rows(fragment)
    except (NotFoundError, CorruptFileError) as error:
        raise TraceLostError(f"the deletion file of fragment {fragment.id} cannot be read") from error


def _load_snapshot(latest: Snapshot, version: int) -> Snapshot:
    try:
        return latest.with_manifest(load_manifest(latest.store, version))
    except NotFoundError as error:
        raise TraceLostError(f"version {version} was cleaned up") from error


def _transaction(snapshot: Snapshot) -> Transaction:
    transaction = load_transaction(snapshot.store, snapshot.manifest)
    if transaction is None:
        raise TraceLostError(f"version {snapshot.manifest.version} does not record what it changed")
    return transaction

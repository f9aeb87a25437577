"""Promotion after the parent was compacted: find the rows that the branch removed in the parent's new fragments.

    version   operation    rows that go
    fork                   fragment 2: all        fragment 3: 5 7
    fork+1    Append       the same
    fork+2    Rewrite      2 3 -> 9: a rewrite keeps the order of its group's live rows, so a row's place in 9 is its
                           rank among them
    latest                 fragment 9: 0 .. 41 46 48

Any other commit since the fork that changed the branch's rows is a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pyroaring import BitMap

from lance_core.commit import AffectedRows, Verdict, judge
from lance_core.errors import RetryableConflictError
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Rewrite, Update
from lance_core.table.operations.rewrite import RewriteGroup
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.rows.removal import RowsByFragment, bitmap_of, remove_rows

__all__ = ["follow_rewrites", "rows_taken"]


def follow_rewrites(
    branch: Branch,
    changes: BranchChanges,
    transaction: Transaction,
    latest: Manifest,
    commits: Mapping[int, Transaction],
    files: UncommittedFiles,
) -> tuple[Transaction, AffectedRows]:
    """The transaction of a promotion as a change of the parent's latest version.

    Args:
        branch: The branch.
        changes: Its changes.
        transaction: The promotion as a change of the fork version.
        latest: The parent's latest version.
        commits: All commits of the parent since the fork, by version.
        files: Takes note of the deletion files that are written.

    Raises:
        RetryableConflictError: A commit changed the same rows, or rewrote a fragment whose columns the branch rewrote.
    """
    operation = transaction.operation
    assert isinstance(operation, Update)
    columns = {i for i, changed in operation.updated_fragment_fields.items() if changed}
    rows = rows_taken(branch, changes, columns)
    for version, other in commits.items():
        if isinstance(other.operation, Rewrite):
            for group in other.operation.groups:
                _follow(branch.parent, group, rows, columns, version)
            continue
        pending = replace(operation, removed_fragment_ids=(*rows, *columns), updated_fragments=())
        if judge(replace(transaction, operation=pending), other) is not Verdict.COMPATIBLE:
            raise _conflict(version, other.operation.name)
    source = Snapshot(branch.parent.store, latest, branch.parent.options)
    removal = remove_rows(source, _in(latest, rows), files)
    kept = tuple(fragment for fragment in operation.updated_fragments if fragment.id in columns)
    changed = replace(
        operation,
        removed_fragment_ids=removal.removed_fragment_ids,
        updated_fragments=(*kept, *removal.updated_fragments),
    )
    return replace(transaction, operation=changed, read_version=latest.version), removal.affected_rows


def rows_taken(branch: Branch, changes: BranchChanges, columns: set[int]) -> RowsByFragment:
    """The rows that go, by fragment of the fork version; not of those whose columns were rewritten."""
    rows = {i: taken for i, taken in changes.rows_taken(branch).items() if i not in columns and taken}
    for fragment in changes.removed:
        rows[fragment.id] = _live(branch.parent, fragment)
    return rows


def _live(source: Snapshot, fragment: Fragment) -> BitMap:
    deleted = source.deletions(fragment)
    whole = BitMap(range(fragment.physical_rows))
    return whole if deleted is None else whole - deleted.bitmap


def _follow(source: Snapshot, group: RewriteGroup, rows: RowsByFragment, columns: set[int], version: int) -> None:
    """Map rows of a group's old fragments to rows of the new ones."""
    if columns & {fragment.id for fragment in group.old_fragments}:
        raise _conflict(version, Rewrite.name)
    if not any(fragment.id in rows for fragment in group.old_fragments):
        return
    positions, before = [], 0
    for fragment in group.old_fragments:
        live = np.frombuffer(_live(source, fragment).to_array(), np.uint32)
        taken = np.frombuffer(rows.pop(fragment.id, BitMap()).to_array(), np.uint32)
        places = np.searchsorted(live, taken)
        if not np.array_equal(live[np.minimum(places, len(live) - 1)] if len(live) else live, taken):
            raise _conflict(version, Rewrite.name)
        positions.append(places + before)
        before += len(live)
    if before != sum(fragment.physical_rows for fragment in group.new_fragments):
        raise _conflict(version, Rewrite.name)
    _place(np.concatenate(positions), group.new_fragments, rows)


def _place(positions: np.ndarray, fragments: Sequence[Fragment], rows: RowsByFragment) -> None:
    start = 0
    for fragment in fragments:
        end = start + fragment.physical_rows
        inside = positions[(positions >= start) & (positions < end)] - start
        if len(inside):
            rows[fragment.id] = bitmap_of(inside)
        start = end


def _in(latest: Manifest, rows: RowsByFragment) -> list[tuple[Fragment, BitMap]]:
    found = [(latest.fragments.get(i), taken) for i, taken in sorted(rows.items())]
    return [(fragment, taken) for fragment, taken in found if fragment is not None]


def _conflict(version: int, name: str) -> RetryableConflictError:
    return RetryableConflictError(f"version {version} ({name}) changed the same fragments")

"""Hides rows that other writers deleted while a compaction task ran, so that the task's new fragments can be committed.

    old fragments, as planned    a b . d | e f     (offset 2 of the first fragment is deleted)
    old fragments, now           a . . d | e f     (offset 1 is deleted too)
    new fragment, as written     a b d e f
    new fragment, as committed   a . d e f         by a deletion file

A new fragment holds the rows that were alive when the task was planned, in their order, so that the place of a row in
it follows from the deletions at that time. The Rewrite names the old fragments as they were planned, so that readers
of the transaction can follow rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyroaring import BitMap

from lance_core.commit.conflict import Verdict, judge
from lance_core.commit.versions import load_manifest, load_transaction, reload_latest
from lance_core.errors import NotFoundError, RetryableConflictError
from lance_core.retry import retrying
from lance_core.store import make_durable
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Delete, Rewrite, RewriteGroup, Update
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.rows.removal import with_deletions
from lance_core.verbs.rows.rewritten_rows import rewritten_rows
from lance_core.verbs.scan.read_fragment import count_file_rows

ATTEMPTS: Final = 20
"""How often later deletions are looked up and hidden; one attempt takes about as long as one deletion."""


def commit_despite_deletions(snapshot: Snapshot, planned: Transaction, base: Manifest) -> Manifest:
    """Commit a Rewrite whose old fragments have lost more rows since the plan.

    Args:
        snapshot: The dataset, at any version.
        planned: The transaction with the Rewrite as it was planned, with reserved ids, whose commit had a conflict.
        base: A later version, in which the ids are reserved.

    Raises:
        RetryableConflictError: Other writers did more than delete rows of the old fragments, or committed first in
            each attempt.
    """

    def following(before: Manifest, since: int) -> Manifest:
        latest = reload_latest(snapshot.store, before)
        _check_others(snapshot, planned, since, latest.version)
        return latest

    return retrying(
        following(base, planned.read_version),
        lambda latest, _: _commit_at(snapshot.with_manifest(latest), planned),
        lambda before, _: following(before, before.version),
        conflict_retries=ATTEMPTS - 1,
        is_retryable=lambda error: error.retryable,
    )


def _commit_at(snapshot: Snapshot, planned: Transaction) -> Manifest:
    operation = planned.operation
    assert isinstance(operation, Rewrite)
    with collecting_files(snapshot) as files:
        groups = []
        for group in operation.groups:
            late = find_late_deletions(snapshot, group.old_fragments, group.new_fragments)
            if late is None:
                ids = [fragment.id for fragment in group.old_fragments]
                raise RetryableConflictError(f"{snapshot.store.root}: concurrent commits changed the fragments {ids}")
            hidden = [
                with_deletions(snapshot, fragment, rows, files) if rows else fragment
                for fragment, rows in zip(group.new_fragments, late, strict=True)
            ]
            groups.append(RewriteGroup(old_fragments=group.old_fragments, new_fragments=tuple(hidden)))
        new = [fragment for group in groups for fragment in group.new_fragments]
        make_durable(
            snapshot.store,
            [fragment.deletion_file.key(fragment.id) for fragment in new if fragment.deletion_file is not None],
            files.pending,
        )
        # The rows moved as planned; those deleted since are hidden in the new fragments.
        rewrite = Rewrite(groups=tuple(groups), moved_rows=operation.moved_rows)
        return files.commit(rewrite, properties=planned.properties)


def find_late_deletions(snapshot: Snapshot, old: Sequence[Fragment], new: Sequence[Fragment]) -> list[BitMap] | None:
    """The rows of new fragments that a version has deleted since the old ones were planned.

    Args:
        snapshot: The version.
        old: The old fragments, as they were planned.
        new: The new fragments.

    Returns:
        Offsets for each new fragment; None if the old fragments changed in another way, or if a new fragment would have
        no live row.
    """
    live, hidden = [], []
    for planned in old:
        now = snapshot.manifest.fragments.get(planned.id)
        if now is None or replace(now, deletion_file=planned.deletion_file) != planned:
            return None
        before = snapshot.deleted_rows(planned)
        after = before if now == planned else snapshot.deleted_rows(now)
        if not before <= after:
            return None
        live.append(BitMap(range(count_file_rows(snapshot, planned))) - before)
        hidden.append(after - before)
    sizes = [fragment.physical_rows for fragment in new]
    late = rewritten_rows(live, hidden, sizes)
    return None if late is None or any(len(rows) == size for rows, size in zip(late, sizes, strict=True)) else late


def _check_others(snapshot: Snapshot, planned: Transaction, since: int, latest: int) -> None:
    """Check that later versions have only deleted or updated rows of the old fragments.

    Raises:
        RetryableConflictError: A later version has changed these fragments in another way.
    """
    for version in range(since + 1, latest + 1):
        try:
            other = load_transaction(snapshot.store, load_manifest(snapshot.store, version))
        except NotFoundError:
            other = None
        if other is None:
            raise RetryableConflictError(
                f"{snapshot.store.root}: the transaction of version {version} is missing; compact again"
            )
        if judge(planned, other) is not Verdict.COMPATIBLE and not isinstance(other.operation, Delete | Update):
            raise RetryableConflictError(
                f"{snapshot.store.root}: version {version} ({other.operation.name}) changed the same fragments"
            )

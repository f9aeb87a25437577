"""Facts about a commit of fragments: its operation and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from lance_core.commit import AffectedRows, Committed, is_gone
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Delete, Merge, Overwrite, Update
from lance_core.table.transaction import FIRST_ADDED_KEY
from lance_core.verbs.rows.removal import Removal

__all__ = ["CommitFacts", "commit_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """Facts about a commit.

    Attributes:
        operation: Name of the operation.
        transaction_uuid: Id of the transaction.
        read_version: Version that the change was based on; 0 for a new dataset.
        rows_added: Rows in the new fragments; None if an earlier commit was adopted whose version was cleaned up.
        rows_deleted: Rows that were removed; None if an earlier commit was adopted, or the transaction does not say.
        fragments_added: Number of new fragments; None as for `rows_added`.
        fragments_removed: Number of fragments that were removed; None if an earlier commit was adopted.
        attempts: How often a manifest was put; 0 if an earlier commit was adopted.
        deduplicated: Whether an earlier commit was adopted: it carries the `idempotency_key` property, or is that of an
            earlier attempt of the same write.
        replaced_versions: Versions that earlier attempts of the same write had committed, and that this commit
            replaced.
        overruled_versions: Versions in which other writes had meanwhile filled the same rows, and that this commit
            replaced (`WriteAttempt.conflict_policy`).
    """

    operation: str
    transaction_uuid: str
    read_version: int
    rows_added: int | None
    rows_deleted: int | None
    fragments_added: int | None
    fragments_removed: int | None
    attempts: int
    deduplicated: bool
    replaced_versions: tuple[int, ...] = ()
    overruled_versions: tuple[int, ...] = ()


def commit_facts(
    base: Manifest | None,
    done: Committed,
    removal: Removal | None = None,
    *,
    affected_rows: AffectedRows | None = None,
    replaced: tuple[int, ...] = (),
    overruled: tuple[int, ...] = (),
) -> CommitFacts:
    """The facts of a commit.

    Args:
        base: The version that it was based on; None if there was no dataset, or an earlier commit was adopted.
        done: The commit.
        removal: The rows that it removed; None if it removed none, or all of the base.
        affected_rows: The rows that it removed, if they were given with the transaction.
        replaced: Versions of earlier attempts.
        overruled: Versions of other writes that were replaced.
    """
    operation = done.transaction.operation
    added = operation.new_fragments if isinstance(operation, Update) else ()
    if isinstance(operation, Append | Overwrite):
        added = operation.fragments
    if isinstance(operation, Merge) and (first := done.transaction.properties.get(FIRST_ADDED_KEY)):
        added = tuple(fragment for fragment in operation.fragments if fragment.id >= int(first))
    rows_deleted: int | None = 0
    removed: int | None = 0
    if done.deduplicated:
        rows_deleted = removed = None
    elif removal is not None:
        rows_deleted, removed = removal.num_rows, len(removal.removed_fragment_ids)
    elif isinstance(operation, Update | Delete):
        rows_deleted = None if affected_rows is None else sum(map(len, affected_rows.values()))
        removed = len(
            operation.removed_fragment_ids if isinstance(operation, Update) else operation.deleted_fragment_ids
        )
    elif isinstance(operation, Overwrite) and base is not None:
        rows_deleted = sum(fragment.num_rows for fragment in base.fragments)
        removed = len(base.fragments)
    return CommitFacts(
        operation=operation.name,
        transaction_uuid=done.transaction.uuid,
        read_version=done.transaction.read_version,
        rows_added=None if is_gone(done.transaction) else sum(fragment.physical_rows for fragment in added),
        rows_deleted=rows_deleted,
        fragments_added=None if is_gone(done.transaction) else len(added),
        fragments_removed=removed,
        attempts=done.attempts,
        deduplicated=done.deduplicated,
        replaced_versions=replaced,
        overruled_versions=overruled,
    )

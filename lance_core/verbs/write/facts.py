"""The result of a commit of fragments for users: its operation, and how many rows and fragments it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lance_core.commit import AffectedRows, Committed
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Delete, Merge, Operation, Overwrite, Update
from lance_core.table.transaction import FIRST_ADDED_KEY, Transaction
from lance_core.verbs.rows.removal import Removal

__all__ = ["CommitFacts", "CommitOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """What a commit did: its operation, counters, and the versions that it replaced.

    Attributes:
        operation: Name of the operation; "Unknown" if an earlier commit was adopted whose version was cleaned up.
        transaction_uuid: Id of the transaction; empty if its version was cleaned up.
        read_version: Version that the change was based on; 0 for a new dataset, or if its version was cleaned up.
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

    operation: str = "Unknown"
    transaction_uuid: str = ""
    read_version: int = 0
    rows_added: int | None = None
    rows_deleted: int | None = None
    fragments_added: int | None = None
    fragments_removed: int | None = None
    attempts: int = 0
    deduplicated: bool = False
    replaced_versions: tuple[int, ...] = ()
    overruled_versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """The outcome of a commit, from which its facts are computed.

    Attributes:
        base: The version that it was based on; None if there was no dataset, or an earlier commit was adopted.
        done: The commit.
        removal: The rows that it removed; None if it removed none, or all of the base.
        affected_rows: The rows that it removed, if they were given with the transaction.
        replaced: Versions of earlier attempts that it replaced.
        overruled: Versions of other writes that it replaced.
    """

    base: Manifest | None
    done: Committed
    removal: Removal | None = None
    affected_rows: AffectedRows | None = None
    replaced: tuple[int, ...] = ()
    overruled: tuple[int, ...] = ()

    def facts(self) -> CommitFacts:
        """The facts of the commit."""
        transaction = self.done.transaction
        if transaction is None:
            return CommitFacts(deduplicated=True)
        added = _added(transaction)
        rows_deleted, removed = (None, None) if self.done.deduplicated else self._removed(transaction.operation)
        return CommitFacts(
            operation=transaction.operation.name,
            transaction_uuid=transaction.uuid,
            read_version=transaction.read_version,
            rows_added=sum(fragment.physical_rows for fragment in added),
            rows_deleted=rows_deleted,
            fragments_added=len(added),
            fragments_removed=removed,
            attempts=self.done.attempts,
            deduplicated=self.done.deduplicated,
            replaced_versions=self.replaced,
            overruled_versions=self.overruled,
        )

    def _removed(self, operation: Operation) -> tuple[int | None, int]:
        """The numbers of rows and of fragments that the commit removed; None if the transaction does not say."""
        if self.removal is not None:
            return self.removal.num_rows, len(self.removal.removed_fragment_ids)
        if isinstance(operation, Update | Delete):
            ids = operation.removed_fragment_ids if isinstance(operation, Update) else operation.deleted_fragment_ids
            rows = None if self.affected_rows is None else sum(map(len, self.affected_rows.values()))
            return rows, len(ids)
        if isinstance(operation, Overwrite) and self.base is not None:
            return sum(fragment.num_rows for fragment in self.base.fragments), len(self.base.fragments)
        return 0, 0


def _added(transaction: Transaction) -> Sequence[Fragment]:
    """The fragments that a transaction added."""
    operation = transaction.operation
    if isinstance(operation, Update):
        return operation.new_fragments
    if isinstance(operation, Merge) and (first := transaction.properties.get(FIRST_ADDED_KEY)):
        return [fragment for fragment in operation.fragments if fragment.id >= int(first)]
    return operation.fragments if isinstance(operation, Append | Overwrite) else ()

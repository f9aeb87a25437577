"""The outcome of a commit of fragments: its operation, and how many rows and fragments it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lance_core.commit import AffectedRows, Committed
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, Delete, Merge, Operation, Overwrite, Update
from lance_core.table.transaction import FIRST_ADDED_KEY, Transaction
from lance_core.verbs.rows.removal import Removal

__all__ = ["CommitOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOutcome:
    """The outcome of a commit, from which the `CommitResult` is computed.

    Attributes:
        base: The version that the commit was based on; None if there was no dataset, or an earlier commit was adopted.
        committed: The commit.
        removal: The rows that the commit removed; None if it removed none, or all rows of the base.
        affected_rows: The rows that the commit removed, if the transaction named them.
        replaced: Versions of earlier attempts that the commit replaced.
        overruled: Versions of other writes that the commit replaced.
    """

    base: Manifest | None
    committed: Committed
    removal: Removal | None = None
    affected_rows: AffectedRows | None = None
    replaced: tuple[int, ...] = ()
    overruled: tuple[int, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The fields of the `CommitResult` except its dataset."""
        transaction = self.committed.transaction
        if transaction is None:
            return {"deduplicated": True}
        added = _added(transaction)
        rows_deleted, removed = (None, None) if self.committed.deduplicated else self._removed(transaction.operation)
        return {
            "operation": transaction.operation.name,
            "transaction_uuid": transaction.uuid,
            "read_version": transaction.read_version,
            "rows_added": sum(fragment.physical_rows for fragment in added),
            "rows_deleted": rows_deleted,
            "fragments_added": len(added),
            "fragments_removed": removed,
            "attempts": self.committed.attempts,
            "deduplicated": self.committed.deduplicated,
            "replaced_versions": self.replaced,
            "overruled_versions": self.overruled,
        }

    def _removed(self, operation: Operation) -> tuple[int | None, int]:
        """The numbers of rows and of fragments that the commit removed; None if the rows are not recorded."""
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

"""What a commit did: its operation, and how many rows and fragments it changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lance_core.commit.records import Change, Committed
from lance_core.table.fragment import Fragment
from lance_core.table.operations import Append, Delete, Merge, Operation, Overwrite, Update
from lance_core.table.transaction import FIRST_ADDED_KEY, Transaction
from lance_core.verbs.write.commit_fragments import FragmentsChange


def commit_facts(done: Committed) -> dict[str, Any]:
    """The fields of the `CommitResult` except its dataset."""
    transaction, change = done.transaction, done.change
    if transaction is None:
        return {"deduplicated": True}
    added = _added(transaction)
    facts = {
        "operation": transaction.operation.name,
        "transaction_uuid": transaction.uuid,
        "read_version": transaction.read_version,
        "rows_added": sum(fragment.physical_rows for fragment in added),
        "fragments_added": len(added),
        "attempts": done.attempts,
        "deduplicated": done.deduplicated,
    }
    if done.deduplicated or change is None:
        return facts
    facts["rows_deleted"], facts["fragments_removed"] = _removed(change, transaction.operation)
    if isinstance(change, FragmentsChange):
        facts["replaced_versions"] = tuple(sorted(change.attempts - change.beside))
        facts["overruled_versions"] = tuple(sorted(change.overruled))
    return facts


def _removed(change: Change, operation: Operation) -> tuple[int | None, int]:
    """The numbers of rows and of fragments that a commit removed; None if the rows are not recorded."""
    if isinstance(change, FragmentsChange) and change.removal is not None:
        return change.removal.num_rows, len(change.removal.removed_fragment_ids)
    if isinstance(operation, Update | Delete):
        ids = operation.removed_fragment_ids if isinstance(operation, Update) else operation.deleted_fragment_ids
        rows = None if change.affected_rows is None else sum(map(len, change.affected_rows.values()))
        return rows, len(ids)
    if isinstance(operation, Overwrite) and change.base is not None:
        return sum(fragment.num_rows for fragment in change.base.fragments), len(change.base.fragments)
    return 0, 0


def _added(transaction: Transaction) -> Sequence[Fragment]:
    """The fragments that a transaction added."""
    operation = transaction.operation
    if isinstance(operation, Update):
        return operation.new_fragments
    if isinstance(operation, Merge) and (first := transaction.properties.get(FIRST_ADDED_KEY)):
        return [fragment for fragment in operation.fragments if fragment.id >= int(first)]
    return operation.fragments if isinstance(operation, Append | Overwrite) else ()

"""Delete rows: fragments that lose some rows get a deletion file, fragments that lose all rows are removed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import pyarrow.compute as pc

from lance_core.commit.loop import commit
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Delete
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot, retry_on_latest
from lance_core.verbs.context.uncommitted_files import collecting_files
from lance_core.verbs.rows.removal import each_matching, remove_rows
from lance_core.verbs.scan.conditions import to_condition
from lance_core.verbs.scan.projection import described_columns


def delete_rows(
    snapshot: Snapshot,
    predicate: str | pc.Expression,
    *,
    conflict_retries: int = CONFLICT_RETRIES,
    retry_timeout: timedelta = RETRY_TIMEOUT,
    properties: Mapping[str, str] | None = None,
    is_recorded: bool = True,
    skips_empty: bool = False,
) -> tuple[Manifest, int]:
    """Commit a version without the rows for which the predicate is true.

    Args:
        snapshot: The version to begin with.
        predicate: The rows, as SQL or an expression.
        conflict_retries: How often everything is repeated after a conflict with another commit.
        retry_timeout: Time after which no further attempt begins.
        properties: Properties of the transaction.
        is_recorded: Whether the transaction has the predicate. If not, nothing is committed where no row matches.
        skips_empty: Whether nothing is committed where no row matches.

    Returns:
        The new version, and the number of deleted rows.

    Raises:
        InvalidInputError: The predicate does not fit the columns.
        RetryableConflictError: A commit of another writer conflicted with every attempt.
    """

    def attempt(base: Snapshot) -> tuple[Manifest, int]:
        columns = described_columns(base.manifest)
        expression = to_condition(predicate, columns or base.manifest.schema)
        with collecting_files(base) as files:
            removal = remove_rows(base, each_matching(base, expression, columns), files)
            if not removal.num_rows and (skips_empty or not is_recorded):
                return base.manifest, 0
            operation = Delete(
                updated_fragments=removal.updated_fragments,
                deleted_fragment_ids=removal.removed_fragment_ids,
                predicate=str(predicate) if is_recorded else "",
            )
            manifest = files.commit(operation, removal.affected_rows, properties)
        return manifest, removal.num_rows

    return retry_on_latest(snapshot, attempt, conflict_retries=conflict_retries, retry_timeout=retry_timeout)


def truncate(snapshot: Snapshot) -> Manifest:
    """Commit a version without rows."""

    def attempt(base: Snapshot) -> Manifest:
        operation = Delete(deleted_fragment_ids=tuple(base.manifest.fragments.ids), predicate="true")
        transaction = Transaction(read_version=base.manifest.version, operation=operation)
        return commit(base.store, transaction, base=base.manifest).manifest

    return retry_on_latest(snapshot, attempt)

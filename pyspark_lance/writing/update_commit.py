"""Commits of an `Update` with new fragments and deleted rows: first the deletion vectors, then the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyroaring import BitMap

import lance_core
from lance_core import Commit, CommitResult, FragmentMetadata, LanceDataset, Transaction
from lance_core.errors import CommitConflictError, RetryableConflictError


def commit_update(
    dataset: LanceDataset,
    new_fragments: Sequence[FragmentMetadata],
    deleted: Mapping[int, BitMap],
    commit: Commit,
    *,
    inserted: Any = None,
    checked_through: int | None = None,
) -> CommitResult:
    """Commit new fragments and deleted rows.

    Args:
        dataset: The version that the change is based on.
        new_fragments: The new fragments.
        deleted: Offsets of the deleted rows, by fragment id.
        commit: How the change is committed.
        inserted: Inserted keys, as `lance_core.key_filter` returns them: concurrent inserts of one of them conflict.
        checked_through: Version up to which the history was searched for `idempotency_key` and other attempts; None for
            the version of `dataset`.

    Raises:
        RetryableConflictError: A concurrent commit changed the same rows.
        SupersededError: A later attempt has committed.
        EarlierAttemptCommittedError: An earlier attempt, which `write_attempt` does not name, has committed.
    """
    operation = dataset.update_operation(new_fragments, deleted, inserted_rows=inserted)
    transaction = Transaction(read_version=dataset.version, operation=operation, affected_rows=dict(deleted))
    checked_through = checked_through if commit.identity else None
    return lance_core.commit_transaction(dataset, transaction, replace(commit, checked_through=checked_through))


def make_conflict_error(uri: str) -> Callable[[int, CommitConflictError], RetryableConflictError]:
    """The error of a change of a table after a conflict in each attempt; for `lance_core.retrying`."""

    def error(attempts: int, last: CommitConflictError) -> RetryableConflictError:
        return RetryableConflictError(
            f"{uri}: others changed the same rows in each of {attempts} attempts; the last: {last}"
        )

    return error

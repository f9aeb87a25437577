"""Commits of an `Update` with new fragments and deleted rows, which are found by a condition or by their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import Commit, CommitResult, FragmentMetadata, LanceDataset, Transaction
from lance_core.errors import CommitConflictError, RetryableConflictError
from lance_core.row_addresses import bitmaps_by_fragment
from pyspark_lance.keys.equality import join_by_key


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
            f"{uri}: a commit of another writer conflicted with each of {attempts} attempts; the last: {last}"
        )

    return error


def find_rows_where(dataset: LanceDataset, condition: str) -> dict[int, BitMap]:
    """Offsets of the rows that meet a condition, by fragment id."""
    return _by_fragment(dataset.scanner(columns=["_rowaddr"], filter=condition).to_batches())


def find_rows_with_keys(dataset: LanceDataset, keys: pa.Table) -> dict[int, BitMap]:
    """Offsets of the rows that have one of the keys, by fragment id. A key that contains a null equals no other."""
    return _by_fragment(join_by_key(dataset, keys, ["_rowaddr"]))


def _by_fragment(batches: Iterable[Any]) -> dict[int, BitMap]:
    rows_of_fragments: dict[int, BitMap] = {}
    for batch in batches:
        for number, rows in bitmaps_by_fragment(batch.column("_rowaddr").to_numpy()).items():
            rows_of_fragments[number] = rows_of_fragments[number] | rows if number in rows_of_fragments else rows
    return rows_of_fragments

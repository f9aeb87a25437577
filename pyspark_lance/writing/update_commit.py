"""Commits of an `Update` with new fragments and removed rows: deletion vectors first, then the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import CommitResult, FragmentMetadata, LanceDataset, Transaction, WriteAttempt
from lance_core.errors import CommitConflictError, RetryableConflictError
from lance_core.row_addresses import rows_by_fragment
from pyspark_lance.keys.equality import joined_by_key

__all__ = ["commit_update", "lost_each_time", "rows_where", "rows_with_keys"]

_COMMIT_MESSAGE: Final = "__lance_commit_message"
"""The property in which pylance keeps a commit's message."""


def commit_update(
    dataset: LanceDataset,
    made: Sequence[FragmentMetadata],
    gone: Mapping[int, BitMap],
    *,
    inserted: Any = None,
    properties: Mapping[str, str] | None,
    message: str | None,
    idempotency_key: tuple[str, str] | None = None,
    write_attempt: WriteAttempt | None = None,
    checked_through: int | None = None,
) -> CommitResult:
    """Commit new fragments, and a version without some rows.

    Args:
        dataset: The version that the change is based on.
        made: The new fragments.
        gone: Offsets of the rows that go, by fragment id.
        inserted: Inserted keys, as `lance_core.key_filter` gives them: concurrent inserts of one of them conflict.
        properties: Texts for the history.
        message: A text for the history.
        idempotency_key: A transaction property that at most one commit may carry.
        write_attempt: The write and the number of the attempt.
        checked_through: Version up to which the history was searched for `idempotency_key` and other attempts; None for
            that of `dataset`.

    Raises:
        RetryableConflictError: Others changed the same rows meanwhile.
        SupersededError: A later attempt has committed.
        EarlierAttemptLandedError: An earlier attempt has, which `write_attempt` does not name.
    """
    operation = dataset.update_operation(made, gone, inserted_rows=inserted)
    texts = {**(properties or {}), **({} if message is None else {_COMMIT_MESSAGE: message})}
    transaction = Transaction(
        read_version=dataset.version,
        operation=operation,
        transaction_properties=texts,
        affected_rows=dict(gone),
    )
    return lance_core.commit_transaction(
        dataset,
        transaction,
        idempotency_key=idempotency_key,
        write_attempt=write_attempt,
        checked_through=checked_through,
    )


def lost_each_time(uri: str) -> Callable[[int, CommitConflictError], RetryableConflictError]:
    """The error of a change of a table that met a conflict in each of its attempts; for `lance_core.retrying`."""

    def error(attempts: int, last: CommitConflictError) -> RetryableConflictError:
        return RetryableConflictError(
            f"{uri}: others changed the same rows in each of {attempts} attempts; the last: {last}"
        )

    return error


def rows_where(dataset: LanceDataset, condition: str) -> dict[int, BitMap]:
    """Offsets of the rows that meet a condition, by fragment id."""
    return _by_fragment(dataset.scanner(columns=["_rowaddr"], filter=condition).to_batches())


def rows_with_keys(dataset: LanceDataset, keys: pa.Table) -> dict[int, BitMap]:
    """Offsets of the rows whose key is among some, by fragment id. A key with a null in it equals no other."""
    return _by_fragment(joined_by_key(dataset, keys, ["_rowaddr"]))


def _by_fragment(batches: Iterable[Any]) -> dict[int, BitMap]:
    found: dict[int, BitMap] = {}
    for batch in batches:
        for number, rows in rows_by_fragment(batch.column("_rowaddr").to_numpy()).items():
            found[number] = found[number] | rows if number in found else rows
    return found

"""Commits of writes that replace rows by a condition (`replaceWhere`) or by their keys.

tasks    new files
driver   the rows to delete: a scan of the condition's columns
         Update(deleted rows, new fragments); after a conflict both steps are repeated on the latest version

Each commit searches the versions after the one that the write began with for `idempotency_key` and other attempts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import FragmentMetadata, LanceDataset, WriteAttempt, WriteResult
from lance_core.errors import (
    CommitConflictError,
    EarlierAttemptCommittedError,
    HistoryGapError,
    RetryableConflictError,
    SchemaError,
)
from lance_core.extension_types import empty_table
from pyspark_lance.keys.collations import check_columns, check_condition
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.writing.options import WriteArguments
from pyspark_lance.writing.row_checks import RowRules
from pyspark_lance.writing.update_commit import commit_update, make_conflict_error

CONFLICT_RETRIES: Final = 9
_DYNAMIC: Final = "partitionOverwriteMode dynamic"
_IN_TWO: Final = (
    "delete the rows with pyspark_lance.delete(uri, rows, on=...), where rows is a DataFrame with the values of key"
    " columns, then append the new ones: keys are compared as Spark does"
)


def row_rules(options: WriteArguments, stored: pa.Schema) -> RowRules:
    """The rules for a write.

    Raises:
        SchemaError: The data lacks a column of `partition_by` or `merge_on`.
        UnsupportedError: The rows to replace depend on a column that has a collation.
        InvalidInputError: The condition does not fit the columns, or is not SQL.
    """
    for what, names in (("partition_by", options.partition_by), ("merge_on", options.merge_on)):
        missing = [name for name in names or () if stored.get_field_index(name) < 0]
        if missing or names == ():
            raise SchemaError(f"{what}: there are no columns {missing}; the columns are {stored.names}")
        check_keys_of(what, map(stored.field, names or ()), by_tasks=what == "merge_on")
    if options.is_dynamic:
        check_columns(_DYNAMIC, map(stored.field, options.partition_by or ()), _IN_TWO)
    condition = None
    if options.replace_where is not None:
        # An empty table in memory with the same columns parses the condition.
        uri = f"memory://lance-replace-where/{uuid.uuid4().hex}"
        try:
            empty = lance_core.write_dataset(empty_table(stored), uri)
            condition = empty.parse_filter(options.replace_where, assume_utc=options.assume_utc)
        finally:
            LanceDataset.drop(uri, ignore_not_found=True)
        check_condition("replaceWhere", condition, stored, _IN_TWO)
    return RowRules(
        condition=condition, sql=options.replace_where, partition_by=options.partition_by, keys=options.merge_on
    )


def replace_rows(
    dataset: LanceDataset,
    fragments: Sequence[FragmentMetadata],
    options: WriteArguments,
    find_deleted: Callable[[LanceDataset], Mapping[int, BitMap]],
    *,
    inserted: Any = None,
    conflict_retries: int = CONFLICT_RETRIES,
) -> WriteResult:
    """Commit fragments that replace some rows, which are found again after each conflict.

    Args:
        dataset: The version to begin with, up to which the history was searched for `idempotency_key` and other
            attempts.
        fragments: The new rows.
        options: The options of the write.
        find_deleted: Finds the rows that are replaced, as offsets by fragment id.
        inserted: Inserted keys, as for `commit_update`.
        conflict_retries: How often the rows are found again.

    Raises:
        RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
    """

    def attempt(base: tuple[LanceDataset, WriteAttempt | None], number: int) -> WriteResult:
        latest, write = base
        commit, deleted = replace(options.commit, write_attempt=write), find_deleted(latest)
        done = commit_update(latest, fragments, deleted, commit, inserted=inserted, checked_through=dataset.version)
        write_result = WriteResult.of(done, fragments, sum(fragment.physical_rows for fragment in fragments), {})
        return replace(
            write_result,
            attempts=0 if done.deduplicated else number,
            replaced_versions=() if write is None else write.earlier,
        )

    def following(
        base: tuple[LanceDataset, WriteAttempt | None], error: CommitConflictError
    ) -> tuple[LanceDataset, WriteAttempt | None]:
        write = base[1]
        if isinstance(error, EarlierAttemptCommittedError) and write is not None:
            write = replace(write, earlier=(*write.earlier, error.version))
        return lance_core.dataset(dataset.uri, storage_options=options.storage_options), write

    return lance_core.retrying(
        (dataset, options.commit.write_attempt),
        attempt,
        following,
        is_retryable=lambda error: isinstance(error, RetryableConflictError | HistoryGapError),
        conflict_retries=conflict_retries,
        exhausted=make_conflict_error(dataset.uri),
    )

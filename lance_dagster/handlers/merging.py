"""Merges: rows with a key that the table has are updated, others are inserted, as the output's policies say.

    key                     policy                        default
    ---                     ------                        -------
    in both                 when_matched                  update
    only in the output      when_not_matched              insert
    only in the table       when_not_matched_by_source    nothing; in a run of partitions only theirs count

A run of partitions removes no row of another partition: a key of another partition is rejected before the commit.

A retry of a merge merges again. The result is that of the last attempt alone if matched rows are updated, and the last
attempt has every key of the earlier ones; otherwise `on_earlier_attempt` decides. The same holds for an earlier attempt
that commits while a merge runs; a later attempt that commits stops the merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import LanceDataset, LanceFragment, WriteAttempt, WriteResult
from lance_core.errors import (
    DatasetNotFoundError,
    EarlierAttemptCommittedError,
    EarlierAttemptError,
    InvalidInputError,
    SchemaError,
    UnsupportedError,
    VersionNotFoundError,
)
from lance_core.extension_types import storage_type
from lance_dagster.handlers.arrow_schema import find_types_for_nulls
from lance_dagster.handlers.base import WriteRequest
from lance_dagster.handlers.exact_cast import show_row
from lance_dagster.handlers.merge_clauses import inserts_rows, is_idempotent, parse_simple_merge
from lance_dagster.properties import PROMOTED_FROM, properties_of
from lance_dagster.tables.attempts import find_commits_of_write


def merge_arrow(table: pa.Table, request: WriteRequest) -> WriteResult:
    """Merge the rows of an Arrow table, which has the columns of the dataset, in one commit.

    Raises:
        LanceError: The merge failed, and nothing was committed.
    """
    dataset, output, plain = request.existing, request.output, parse_simple_merge(request.output)
    assert dataset is not None
    give_null_columns_types(dataset, table.schema)
    merge = dataset.merge_insert(output.merge_key).record_keys().commit_properties(request.commit.texts)
    if request.commit.write_attempt is not None:
        merge = merge.write_attempt(request.commit.write_attempt)
    if plain.matched == "update":
        merge = merge.when_matched_update_all(plain.condition)
    elif plain.matched == "delete":
        merge = merge.when_matched_delete()
    if plain.inserts:
        merge = merge.when_not_matched_insert_all()
    if plain.deletes_others:
        merge = merge.when_not_matched_by_source_delete(_deleted_condition(dataset, request, plain.unmatched_condition))
    slices = slices_that_merge_may_change(request)
    if slices is not None:
        merge = merge.within(slices)
    set_table_config(request)
    before = dataset.version
    if request.deletes is not None:
        merge = merge.source_deletes([False] * len(table) + [True] * len(request.deletes))
        table = pa.concat_tables([table, request.deletes])
    stats = merge.execute(table)
    return _build_merge_result(
        dataset,
        request,
        read_version=before,
        rows_written=stats["num_inserted_rows"] + stats["num_updated_rows"],
        rows_inserted=stats["num_inserted_rows"],
        rows_updated=stats["num_updated_rows"],
        rows_deleted=stats["num_deleted_rows"],
    )


def _deleted_condition(dataset: LanceDataset, request: WriteRequest, condition: str | None) -> pc.Expression | None:
    """The condition of rows only in the table that are deleted: the run's partitions and the clause's condition."""
    conditions = [None if request.slices is None else request.slices.expression(dataset.schema)]
    conditions.append(None if condition is None else dataset.parse_filter(condition))
    present_conditions = [part for part in conditions if part is not None]
    return reduce(and_, present_conditions) if present_conditions else None


def slices_that_merge_may_change(request: WriteRequest) -> lance_core.Slices | None:
    """The partitions in which the rows must be that a merge updates or deletes; None for any partition."""
    return request.slices if request.output.out_of_partition == "error" else None


def set_table_config(request: WriteRequest) -> None:
    """Set the entries of `table_config` that the table lacks or has with another value, in a version of their own.

    The merge is based on the version before that one, because its commit looks for other attempts from there on.
    """
    existing = request.existing
    assert existing is not None
    config = existing.config()
    missing = {key: value for key, value in request.table.table_config.items() if config.get(key) != value}
    if missing:
        existing.checkout_version(existing.version).update_config(missing)


def give_null_columns_types(dataset: LanceDataset, frame: pa.Schema) -> None:
    """Give columns of type null a frame's types, in a version before the merge, whose commit cannot change types.

    Args:
        dataset: The table; it is on the new version afterwards.
        frame: The frame's columns.
    """
    types = find_types_for_nulls(dataset.schema, frame)
    if types:
        dataset.alter_columns(*({"path": name, "data_type": kind} for name, kind in types.items()))


def _build_merge_result(dataset: LanceDataset, request: WriteRequest, **facts: Any) -> WriteResult:
    """The WriteResult of the version that a merge made.

    Args:
        dataset: The table at the version that the merge made.
        request: The merge.
        **facts: Further fields of the result.
    """
    transaction = dataset.read_transaction(dataset.version)
    assert transaction is not None  # lance_core records one with each commit
    earlier = () if request.commit.write_attempt is None else request.commit.write_attempt.earlier
    return WriteResult.of_transaction(dataset, transaction, replaced_versions=earlier, **facts)


def check_inserts_rows(request: WriteRequest) -> None:
    """Reject a merge into a missing table that inserts no rows.

    Raises:
        DatasetNotFoundError: The merge inserts nothing.
    """
    if not inserts_rows(request.output):
        raise DatasetNotFoundError(
            f"there is no table at {request.uri} to merge into, and the merge inserts no rows; set "
            "lance/when_not_matched to insert, or create the table first"
        )


def check_keys(table: pa.Table, key: Sequence[str]) -> None:
    """Reject an output that has a key twice.

    Raises:
        SchemaError: A column of the key is missing.
        UnsupportedError: A column of the key is nested.
        InvalidInputError: Two rows have the same key.
    """
    counts = select_key(table, key).group_by(list(key)).aggregate([([], "count_all")])
    all_repeated = counts.filter(pc.greater(counts.column("count_all"), 1)).drop_columns(["count_all"])
    repeated = all_repeated.slice(0, 100).drop_null().slice(0, 1)
    if repeated.num_rows:
        shown = show_row(repeated.cast(table.select(key).schema))
        raise InvalidInputError(
            f"the output has several rows with the key {shown}, but a merge needs unique keys; return one row per key"
        )


def select_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The columns of a merge's key, in types by which Arrow groups and joins rows.

    Raises:
        SchemaError: A column of the key is missing.
        UnsupportedError: A column of the key is nested.
    """
    missing = [name for name in key if name not in table.column_names]
    if missing:
        raise SchemaError(f"lance/merge_on names {missing}, which are not among the columns {table.column_names}")
    return cast_to_groupable(table.select(list(key)))


def cast_to_groupable(table: pa.Table) -> pa.Table:
    """The rows in types by which Arrow groups and joins them.

    Raises:
        UnsupportedError: A column is nested.
    """
    kinds = [storage_type(kind) for kind in table.schema.types]
    for name, kind in zip(table.column_names, kinds, strict=True):
        if pa.types.is_nested(kind):
            raise UnsupportedError(
                f"column {name!r} is of type {kind}, which cannot be a key; use columns of numbers, strings or times"
            )
    return table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))


def merge_on_attempts(
    request: WriteRequest, keys: Callable[[], pa.Table], merge: Callable[[WriteRequest], WriteResult]
) -> WriteResult:
    """Merge, and merge again on top of each earlier attempt that commits meanwhile.

    Args:
        request: The merge.
        keys: Returns the keys of the rows to merge; called only after an earlier attempt.
        merge: Merges by a request.

    Raises:
        EarlierAttemptError: Merging on top of an earlier attempt gives another result than this attempt alone.
        SupersededError: A later attempt has committed.
    """
    while True:
        if not _should_merge(request, keys):
            return build_adopted_result(request)
        try:
            return merge(request) if _replaces_earlier(request, keys) else replace(merge(request), replaced_versions=())
        except EarlierAttemptCommittedError as error:
            write = request.commit.write_attempt
            assert write is not None  # the error is only raised for a write with attempts
            # The commits before `error.version` were checked; the commit of the next merge checks those after it.
            committed = lance_core.dataset(request.uri, error.version, storage_options=request.storage_options)
            request = replace(request, existing=committed, mode="merge")
            request = request.with_attempt(earlier=(*write.earlier, error.version))


def rebase_on_created_table(request: WriteRequest) -> WriteRequest:
    """Base a merge on the table that another writer has created since this merge found none.

    Raises:
        SupersededError: A later attempt has committed.
    """
    existing = lance_core.dataset(request.uri, storage_options=request.storage_options)
    write = request.commit.write_attempt
    if write is not None:
        earlier_commits, _ = find_commits_of_write(existing, write)
        committed = existing.committed_attempts(write.token)
        alive = {attempt.version for attempt in committed if not attempt.is_removed}
        versions = alive | (set(earlier_commits) - {attempt.version for attempt in committed})
        write = replace(write, earlier=tuple(sorted(versions)))
    return replace(request, existing=existing, mode="merge").changed_commit(write_attempt=write)


def _should_merge(request: WriteRequest, keys: Callable[[], pa.Table]) -> bool:
    """Decide whether to merge again after earlier attempts; True without one.

    Args:
        request: The merge.
        keys: Returns the keys of the rows to merge; called only after an earlier attempt.

    Returns:
        True also if `on_earlier_attempt` is append; False if the result would differ, and `on_earlier_attempt` is
        adopt: the earlier commit is kept.

    Raises:
        EarlierAttemptError: The result would differ, and `on_earlier_attempt` is replace.
    """
    write, dataset = request.commit.write_attempt, request.existing
    if write is None or not write.earlier or dataset is None or write.on_earlier_attempt == "append":
        return True
    is_alike = is_idempotent(request.output)
    # Clauses may have changed rows whose keys the output lacks, so that these keys do not show what was inserted.
    counts = is_alike or request.output.merge_clauses is None
    num_lost_keys = _count_keys_of_earlier(dataset, write, request.output.merge_key, keys) if counts else 0
    if num_lost_keys == 0 and is_alike:
        return True
    if write.on_earlier_attempt == "adopt":
        return False
    if num_lost_keys:
        why = f"it merged {num_lost_keys} keys that this attempt lacks"
    elif request.output.merge_clauses is not None:
        why = "the clauses of lance/merge_on would be applied twice"
    else:
        why = f"lance/when_matched is {request.output.when_matched}"
    before = write.earlier[0] - 1
    restored = f" (to merge without it, first restore version {before}, if nobody else wrote since)" if before else ""
    raise EarlierAttemptError(
        f"an earlier attempt of this write committed version {write.earlier[-1]} of {request.uri}, and a merge on top "
        f"of it would give another result than this attempt alone: {why}. Nothing was written. Set "
        f"lance/on_earlier_attempt to append, to merge on top of it{restored}, or to adopt, to keep it"
    )


def _replaces_earlier(request: WriteRequest, keys: Callable[[], pa.Table]) -> bool:
    """Whether the result of the merge is that of the last attempt alone, so that it replaces the earlier ones."""
    write, dataset = request.commit.write_attempt, request.existing
    if write is None or not write.earlier or dataset is None or write.on_earlier_attempt != "append":
        return True
    try:
        return is_idempotent(request.output) and not _count_keys_of_earlier(
            dataset, write, request.output.merge_key, keys
        )
    except EarlierAttemptError:  # the version of an attempt was cleaned up
        return False


def build_adopted_result(request: WriteRequest) -> WriteResult:
    """The result of the earlier commit, which is kept."""
    assert request.existing is not None
    assert request.commit.write_attempt is not None
    try:
        earlier_version = request.existing.checkout_version(request.commit.write_attempt.earlier[-1])
    except VersionNotFoundError:  # the version was cleaned up; the table's configuration has recorded the attempt
        return WriteResult.of_transaction(request.existing, None, deduplicated=True)
    transaction = earlier_version.read_transaction(earlier_version.version)
    assert transaction is not None  # the attempt was found by its properties
    return WriteResult.of_transaction(earlier_version, transaction, deduplicated=True)


def _count_keys_of_earlier(
    dataset: LanceDataset, write: WriteAttempt, key: Sequence[str], keys: Callable[[], pa.Table]
) -> int:
    """The number of keys that only earlier attempts wrote.

    Raises:
        EarlierAttemptError: The version of an attempt was cleaned up, or does not say what the attempt wrote.
    """
    current = keys()
    left = 0
    for version in write.earlier:
        try:
            earlier_version = _checkout(dataset, version)
        except VersionNotFoundError as error:
            raise _make_unknown_keys_error(dataset, version, "was cleaned up") from error
        fragments = _find_fragments_of_attempts(earlier_version, write)
        if fragments is None:
            raise _make_unknown_keys_error(dataset, version, "does not record which rows are its own")
        if fragments:
            earlier = earlier_version.scanner(columns=list(key), fragments=fragments).to_table()
            comparable = current.cast(earlier.schema) if current.schema != earlier.schema else current
            left += earlier.join(comparable, keys=list(key), join_type="left anti").num_rows
    return left


def _checkout(dataset: LanceDataset, version: int) -> LanceDataset:
    """A version of a branch, or of its parent if the branch was forked from a later one."""
    fork = None if dataset.branch is None else dataset.branches.list().get(dataset.branch)
    if fork is not None and version < fork["parent_version"]:
        return dataset.checkout_version((fork["parent_branch"], version))
    return dataset.checkout_version(version)


def _find_fragments_of_attempts(dataset: LanceDataset, write: WriteAttempt) -> list[LanceFragment] | None:
    """The fragments that attempts of a write added in the version of the dataset; None if that is not recorded.

    The record of attempts says which fragments of a promotion are theirs, beside those of other runs. A branch begins
    with a copy of a version, whose transaction adds no fragments.
    """
    version, transaction = dataset.version, dataset.read_transaction(dataset.version)
    is_copy = transaction is None or transaction.operation.name == "Clone"
    if is_copy or PROMOTED_FROM in properties_of(transaction):
        attempts = [attempt for attempt in dataset.committed_attempts(write.token) if attempt.version == version]
        ranges = [range(*attempt.fragments) for attempt in attempts if attempt.fragments is not None]
        if ranges or is_copy:
            return (
                [f for f in dataset.get_fragments() if any(f.fragment_id in ids for ids in ranges)] if ranges else None
            )
    assert transaction is not None
    operation: Any = transaction.operation
    added = [*getattr(operation, "new_fragments", ()), *getattr(operation, "fragments", ())]
    names = {file.path for fragment in added for file in fragment.files}
    return [f for f in dataset.get_fragments() if names & {file.path for file in f.data_files()}]


def _make_unknown_keys_error(dataset: LanceDataset, version: int, why: str) -> EarlierAttemptError:
    return EarlierAttemptError(
        f"an earlier attempt of this write merged rows into {dataset.uri} in version {version}, which {why}, so that "
        "its keys are unknown. Nothing was written. Set lance/on_earlier_attempt to append, to merge on top of it"
    )

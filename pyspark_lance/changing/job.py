"""The Spark job of a merge, an update or a delete, and its commit of new data files and deletion vectors.

    Spark job   new data files; bitmaps of deleted rows by fragment
    driver      deletion vectors from the bitmaps of all tasks
                one Update with removed, updated and new fragments, which names the deleted rows, so that concurrent
                changes of other rows do not conflict

A failure before the commit leaves the table unchanged and deletes the new data files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

import lance_core
from lance_core import MAX_EXACT_KEYS, FragmentMetadata, LanceDataset, Slices, WriteResult, key_filter
from lance_core.errors import InvalidInputError
from lance_core.row_addresses import make_row_addresses, offsets_of, row_offsets
from pyspark_lance.changing.finer_values import FinerColumns
from pyspark_lance.changing.key_lookup import KeyLookup, KeyMergeTask
from pyspark_lance.changing.task import ChangeReport, RowLevelTask
from pyspark_lance.engine.partitions import run_on_partitions
from pyspark_lance.keys.equality import has_bytes
from pyspark_lance.lazy import DataFrame
from pyspark_lance.types.column_names import quoted
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.options import JobOptions
from pyspark_lance.writing.orphan_files import cleaning_up, committed_fragments, delete_orphan_files
from pyspark_lance.writing.row_checks import all_hashes
from pyspark_lance.writing.schema_plan import plan_write
from pyspark_lance.writing.update_commit import commit_update, make_conflict_error

_NO_COLUMNS: Final = pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions(JobOptions):
    """The options of a change; `merge` describes them."""

    conflict_retries: int = 10
    within: Slices | None = None

    def __post_init__(self) -> None:
        if self.conflict_retries < 0:
            raise InvalidInputError(f"conflict_retries is {self.conflict_retries}, and must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult(WriteResult):
    """The result of a merge, an update or a delete.

    Attributes:
        rows_inserted: Number of new rows.
        rows_updated: Number of rows with new values.
        rows_deleted: Number of deleted rows, without updated ones.
        attempts: How often the change was computed: once, and again after each conflict.
    """

    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLevelChange:
    """A change to one version, computed by one frame.

    Attributes:
        dataset: The version.
        frame: Rows in the columns that the head of `task` draws.
        stored: Schema of the table; without columns if no rows are written.
        on: The key.
        options: How to write and commit.
        repeats: Whether several inserted rows may have one key.
        is_exact: Whether equal inserted rows have equal keys; if not, a concurrent change may insert any of them.
        checked_through: Version up to which the history was searched for other attempts.
        lookup: What tasks do with rows whose keys they look up in the table; then the frame has the columns of the
            table alone. None if the frame says what happens to each row.
    """

    dataset: LanceDataset
    frame: DataFrame
    stored: pa.Schema = _NO_COLUMNS
    on: Sequence[str]
    options: ChangeOptions
    repeats: bool = False
    is_exact: bool = True
    checked_through: int | None = None
    lookup: KeyLookup | None = None

    @classmethod
    def writing(
        cls,
        base: LanceDataset,
        frame: DataFrame,
        on: Sequence[str],
        options: ChangeOptions,
        *,
        lookup: KeyLookup | None = None,
        **facts: Any,
    ) -> RowLevelChange:
        """A change that writes rows, whose types are checked against the table's."""
        columns = frame.select(*map(quoted, base.schema.names))
        plan = plan_write(batch_schema(columns.schema), base.schema, has_schema_mode=False)
        frame = frame if lookup is None else columns
        return cls(dataset=base, frame=frame, stored=plan.stored, on=on, options=options, lookup=lookup, **facts)

    def run(self) -> ChangeResult:
        """Run the job and commit.

        Raises:
            InvalidInputError: Two rows of the source have one key, or the data cannot be written.
            RetryableConflictError: A concurrent commit changed the same rows.
            OutcomeUnknownError: The storage did not report whether the commit took effect.
        """
        task = self._task()
        try:
            lookup, version = self.lookup, self.dataset.version
            run = task if lookup is None else KeyMergeTask(version=version, change=task, lookup=lookup)
            answers = run_on_partitions(self.frame, run, self.stored)
        except BaseException:
            self._clean(task.job, failed=True)
            raise
        with cleaning_up(partial(self._clean, task.job)):
            reports = [ChangeReport.from_bytes(answer) for answer in answers]
            new_fragments = [fragment for report in reports for fragment in report.fragments]
            deleted = collect_deleted_rows(reports, self.on)
            self._check_within(deleted)
            done = commit_update(
                self.dataset,
                new_fragments,
                deleted,
                self.options.commit,
                inserted=build_inserted_keys_filter(
                    self.dataset, reports, self.on, repeats=self.repeats, is_exact=self.is_exact
                ),
                checked_through=self.checked_through,
            )
        self._clean(task.job, committed_fragments(done, new_fragments))
        inserts, updates, deletes = (sum(report.counts[i] for report in reports) for i in range(3))
        return ChangeResult.of(
            done,
            new_fragments,
            inserts + updates,
            {},
            rows_inserted=inserts,
            rows_updated=updates,
            rows_deleted=deletes,
        )

    def _clean(self, job: str, keep: Sequence[FragmentMetadata] = (), *, failed: bool = False) -> None:
        delete_orphan_files(self.dataset.uri, job, keep, self.options.storage_options, failed=failed)

    def _check_within(self, deleted: Mapping[int, BitMap]) -> None:
        """Reject a change that deletes a row outside of the slices to which it is confined.

        Raises:
            InvalidInputError: A deleted row lies in none of the slices.
        """
        within = self.options.within
        if within is None or (self.is_exact and set(within.columns) <= set(self.on)):
            return  # the rows of the source lie in the slices, and so do the rows with the same keys
        columns = list(dict.fromkeys((*self.on, *within.columns)))
        for number, rows in deleted.items():
            fragment = self.dataset.get_fragment(number)
            assert fragment is not None
            scanner = self.dataset.scanner(columns=list(within.columns), fragments=[fragment], with_row_address=True)
            for batch in scanner.to_batches():
                offsets = row_offsets(batch.column("_rowaddr").to_numpy())
                is_deleted = np.isin(offsets, offsets_of(rows))
                outside = offsets[is_deleted & (within.assign(batch) < 0)]
                if len(outside):
                    address = pc.field("_rowaddr") == pa.scalar(make_row_addresses(number, outside[:1])[0], pa.uint64())
                    table = self.dataset.scanner(columns=columns, fragments=[fragment], filter=address).to_table()
                    row = table.to_pylist()[0]
                    key = ", ".join(f"{name} = {row[name]!r}" for name in self.on)
                    within.reject_match(key, row, self.dataset.uri)

    def _task(self) -> RowLevelTask:
        return RowLevelTask(
            uri=self.dataset.uri,
            job=uuid.uuid4().hex,
            stored=self.stored,
            on=tuple(self.on) if self.is_exact else (),
            stable=self.dataset.has_stable_row_ids,
            # Other collations are compared by Spark alone: every key may equal one of the inserted keys.
            most_keys=MAX_EXACT_KEYS if all(has_bytes(self.dataset.schema.field(name)) for name in self.on) else 0,
            repeats=self.repeats,
            finer=FinerColumns.of(self.dataset, self.options.storage_options) if len(self.stored) else None,
            files=replace(self.options.files, data_storage_version=self.dataset.data_storage_version),
            storage_options=self.options.storage_options,
            dataset_schema=self.dataset.lance_schema_bytes,
        )


def run_change(
    dataset: LanceDataset,
    change: Callable[[LanceDataset], RowLevelChange],
    options: ChangeOptions,
    checked_through: int | None = None,
) -> ChangeResult:
    """Compute and commit a change on a version; after each conflict, do both again on the latest version.

    If a version has the `idempotency_key` of the options already, nothing is computed.
    """
    if options.commit.idempotency_key is not None:
        commit = dataset.find_idempotent_commit(*options.commit.idempotency_key)
        if commit is not None:
            return ChangeResult.of_transaction(dataset.checkout_version(commit[0]), commit[1], deduplicated=True)
    checked = dataset.version if checked_through is None else checked_through

    def attempt(base: LanceDataset, number: int) -> ChangeResult:
        return replace(replace(change(base), checked_through=checked).run(), attempts=number)

    return lance_core.retrying(
        dataset,
        attempt,
        lambda base, _: lance_core.dataset(base.uri, storage_options=options.storage_options),
        conflict_retries=options.conflict_retries,
        exhausted=make_conflict_error(dataset.uri),
    )


def collect_deleted_rows(reports: Iterable[ChangeReport], on: Sequence[str]) -> dict[int, BitMap]:
    """The deleted rows of all tasks.

    Raises:
        InvalidInputError: Two tasks have deleted the same row.
    """
    deleted_rows: dict[int, BitMap] = {}
    for report in reports:
        for number, rows in report.deleted.items():
            if number in deleted_rows and deleted_rows[number].intersect(rows):
                raise InvalidInputError(
                    f"Ambiguous merge inserts are prohibited: several rows of the source match row"
                    f" {next(iter(deleted_rows[number] & rows))} of fragment {number}; the key is {list(on)}"
                )
            deleted_rows[number] = deleted_rows[number] | rows if number in deleted_rows else rows
    return deleted_rows


def build_inserted_keys_filter(
    dataset: LanceDataset,
    reports: Sequence[ChangeReport],
    on: Sequence[str],
    *,
    repeats: bool = False,
    is_exact: bool = True,
) -> Any:
    """The filter of the inserted keys, by which concurrent writers detect conflicts; None without a key.

    Args:
        dataset: The version.
        reports: What the tasks report.
        on: The columns of the key.
        repeats: Whether several inserted rows may have one key.
        is_exact: Whether equal inserted rows have equal keys; if not, an inserted row makes the filter match any key.

    Raises:
        InvalidInputError: Two tasks insert one key.
    """
    if not on:
        return None
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    if not is_exact:
        return key_filter(None if any(report.counts[0] for report in reports) else [], [ids[name] for name in on])
    keys = all_hashes((report.keys for report in reports), on, repeats=repeats)
    listed = len(keys) <= MAX_EXACT_KEYS and all(report.keys is not None for report in reports)
    return key_filter(keys.tolist() if listed else None, [ids[name] for name in on if name in ids])

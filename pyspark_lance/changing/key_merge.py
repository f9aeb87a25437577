"""Option `merge_on` of the data source: an upsert whose tasks look up the keys of their rows in the table.

    task      rows --> buffered (memory, then a temporary file)   | their keys
              table: key columns with addresses --- join by key --+--> inserted and updated rows: `RowLevelTask`
    commit    one Update with bitmaps of deleted rows and hashes of new keys

A data source has no session and cannot run Spark's joins: each task reads the key columns of the table, narrowed by an
index if the table has one. Rows with one key may be in several tasks. They are detected because they replace the same
row, or because the hashes of their keys are equal. After a conflict the committing process looks up the keys of the new
files again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

import lance_core
from lance_core import CommitResult, FragmentMetadata, LanceDataset
from lance_core.errors import InvalidInputError, LanceError, StoreError
from pyspark_lance.changing.finer_values import FinerColumns
from pyspark_lance.changing.job import inserted_keys, rows_deleted_by
from pyspark_lance.changing.task import ADDRESS, INSERT, KIND, ROW_ID, UPDATE, ChangeReport, RowLevelTask
from pyspark_lance.keys.equality import joined_by_key
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.column_names import columns_named
from pyspark_lance.writing.job import WriteJob
from pyspark_lance.writing.row_checks import hashes_of_keys
from pyspark_lance.writing.row_lookup import rows_with_keys
from pyspark_lance.writing.task import copied
from pyspark_lance.writing.update_commit import commit_update, lost_each_time

__all__ = ["KeyMergeJob", "KeyMergeTask"]

_IN_MEMORY: Final = 64 << 20
"""Bytes of rows that a task keeps in memory while it collects their keys."""
_ATTEMPTS: Final = 10
_ROW: Final = "__lance_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeTask:
    """The function that runs on each partition; it is pickled.

    Attributes:
        version: Version of the table in which keys are looked up.
        change: The task that writes the rows.
        storage_options: Options of the storage.
    """

    version: int
    change: RowLevelTask
    storage_options: Mapping[str, str] | None

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the batches of a partition; returns a `ChangeReport` as bytes."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as aside:
            keys = self._keep(batches, aside)
            return self.change(partition, attempt, _with_addresses(aside, self._look_up(keys)))

    def _keep(self, batches: Iterable[pa.RecordBatch], aside: IO[bytes]) -> pa.Table:
        """Buffer the rows in a file; returns their keys, in the table's types."""
        stored, on = self.change.stored, list(self.change.on)
        schema = pa.schema([stored.field(name) for name in on])
        keys, writer = [], None
        for batch in batches:
            writer = writer or pa.ipc.new_stream(aside, batch.schema)
            writer.write_batch(batch)
            part = columns_named(batch, on)
            keys.append(copied(BatchConverter(part.schema, schema)(part)))
        if writer is not None:
            writer.close()
        aside.seek(0)
        return pa.Table.from_batches(keys, schema=schema)

    def _look_up(self, keys: pa.Table) -> _Matches:
        """The addresses of the table's rows with the same keys."""
        dataset = lance_core.dataset(self.change.uri, self.version, storage_options=self.storage_options)
        about = ["_rowaddr", *(["_rowid"] if self.change.stable else [])]
        numbered = keys.append_column(_ROW, pa.array(np.arange(keys.num_rows)))
        found = [batch for batch in joined_by_key(dataset, numbered, about) if batch.num_rows]
        names = [_ROW, *about]
        rows, addresses, *ids = (
            np.concatenate(
                [np.zeros(0, np.int64), *(batch.column(name).to_numpy().astype(np.int64) for batch in found)]
            )
            for name in names
        )
        new = np.setdiff1d(np.arange(keys.num_rows), rows)
        all_rows = np.concatenate([rows, new])
        order = np.argsort(all_rows, kind="stable")
        return _Matches(
            rows=all_rows[order],
            addresses=np.concatenate([addresses, np.full(len(new), -1)])[order],
            ids=np.concatenate([ids[0], np.zeros(len(new), np.int64)])[order] if ids else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matches:
    """Rows of the source, each with the row of the table that it replaces, or as a new row.

    Attributes:
        rows: Position of the row in the source, ascending; a row that replaces several rows occurs once for each.
        addresses: Address of the replaced row; -1 for a new row.
        ids: Stable id of the replaced row, if rows have stable ids.
    """

    rows: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeJob:
    """A write with `merge_on` into an existing table, with the methods of `WriteJob`; it can be pickled.

    Attributes:
        write: The prepared write.
        stable: Whether rows of the table have stable ids.
    """

    write: WriteJob
    stable: bool

    @classmethod
    def of(cls, write: WriteJob) -> KeyMergeJob:
        """The merge of a write."""
        return cls(write=write, stable=write.base().has_stable_row_ids)

    def task(self) -> KeyMergeTask:
        """The function to run on each partition."""
        plain = self.write.task()
        base, options = self.write.base(), self.write.options.storage_options
        change = RowLevelTask(
            uri=plain.uri,
            job=plain.job,
            stored=plain.stored,
            on=self._on,
            stable=self.stable,
            most_keys=None,  # rows of a key may be in two tasks
            finer=FinerColumns.of(base, options),
            options=plain.options,
        )
        return KeyMergeTask(version=self.write.base_version, change=change, storage_options=options)

    def finish(self, messages: Iterable[bytes]) -> LanceDataset:
        """Commit what the tasks report, and delete the files that the commit does not use.

        Raises:
            InvalidInputError: Two rows have one key, or data cannot be written.
            RetryableConflictError: Each attempt lost the race with a concurrent change of the same rows.
            OutcomeUnknownError: The storage did not report whether the commit took effect.
        """
        try:
            reports = [ChangeReport.from_bytes(message) for message in messages]
            made = [fragment for report in reports for fragment in report.fragments]
            done = self._commit(made, reports)
        except StoreError:
            raise  # the commit may have taken effect, or may still do so
        except LanceError:
            self.clean(())
            raise
        self.clean(() if done.deduplicated else made)
        return done.dataset

    def clean(self, keep: Iterable[FragmentMetadata], *, failed: bool = False) -> None:
        """Delete the files of this write that belong to none of some fragments; see `delete_orphan_files`."""
        self.write.clean(keep, failed=failed)

    @property
    def _on(self) -> tuple[str, ...]:
        return self.write.options.merge_on or ()

    def _commit(self, made: list[FragmentMetadata], reports: Sequence[ChangeReport]) -> CommitResult:
        options = self.write.options
        base = self.write.base()
        try:
            deleted, inserted = rows_deleted_by(reports, self._on), inserted_keys(base, reports, self._on)
        except InvalidInputError:
            hashes_of_keys(self._written_keys(made))  # raises as well, and names the key
            raise

        def attempt(begin: tuple[LanceDataset, dict[int, BitMap]], _: int) -> CommitResult:
            return commit_update(
                begin[0],
                made,
                begin[1],
                options,
                inserted=inserted,
                checked_through=self.write.base_version,
            )

        def following(_begin: object, _conflict: object) -> tuple[LanceDataset, dict[int, BitMap]]:
            latest = lance_core.dataset(self.write.uri, storage_options=options.storage_options)
            return latest, rows_with_keys(latest, self._written_keys(made))

        return lance_core.retrying(
            (base, deleted),
            attempt,
            following,
            # With stable ids the new rows already carry the ids of the rows that they replace.
            conflict_retries=0 if self.stable else _ATTEMPTS - 1,
            exhausted=lost_each_time(self.write.uri),
        )

    def _written_keys(self, made: Iterable[FragmentMetadata]) -> pa.Table:
        """The keys of the rows of new files."""
        tables = [
            lance_core.file.LanceFileReader(
                f"{self.write.uri}/data/{file.path}", self.write.options.storage_options, list(self._on)
            )
            .read_all()
            .to_table()
            for fragment in made
            for file in fragment.files
        ]
        schema = pa.schema([self.write.plan.stored.field(name) for name in self._on])
        columns = [pa.chunked_array([c for t in tables for c in t.column(f.name).chunks], f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)


def _with_addresses(aside: IO[bytes], matches: _Matches) -> Iterator[pa.RecordBatch]:
    """The buffered rows, with the columns of `changing/task.py`."""
    if not len(matches.rows):
        return
    start = 0
    for batch in pa.ipc.open_stream(aside):
        first, last = np.searchsorted(matches.rows, [start, start + batch.num_rows])
        rows, addresses = matches.rows[first:last] - start, matches.addresses[first:last]
        more: dict[str, Any] = {ADDRESS: addresses, KIND: np.where(addresses < 0, INSERT, UPDATE).astype(np.int8)}
        if matches.ids is not None:
            more[ROW_ID] = matches.ids[first:last]
        part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
        columns = [*part.columns, *map(pa.array, more.values())]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *more])
        start += batch.num_rows

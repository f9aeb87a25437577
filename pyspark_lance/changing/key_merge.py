"""`merge_on` of the data source: an upsert whose tasks look the keys of their rows up in the table by themselves.

    task      rows --> kept aside (memory, then a temporary file) | their keys
              table: key columns with addresses --- join by key --+--> rows that are new | that move: `change_task`
    commit    bitmaps of rows that go, hashes of keys that are new: Update

A data source has no session, and so no join of Spark's: each task reads the key columns of the table, narrowed by an
index where there is one. Rows of a key may be in any task; two of them show by the row that both replace, or by the
hash of the new key. After a conflict the committing process looks the keys of the new files up again.
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
from pyspark_lance.changing.job import deleted_rows, inserted_keys
from pyspark_lance.changing.task import ADDRESS, INSERT, KIND, ROW_ID, UPDATE, ChangeReport, ChangeTask
from pyspark_lance.keys.equality import joined_by_key
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.names import columns_named
from pyspark_lance.writing.job import WriteJob
from pyspark_lance.writing.row_checks import hashes_of_keys
from pyspark_lance.writing.task import copied
from pyspark_lance.writing.update_commit import commit_update, lost_each_time, rows_with_keys

__all__ = ["KeyMergeJob", "KeyMergeTask"]

_IN_MEMORY: Final = 64 << 20
"""Bytes of rows that a task keeps in memory while it learns which keys there are."""
_ATTEMPTS: Final = 10
_ROW: Final = "__lance_row"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeTask:
    """The function that runs on each partition; it is pickled.

    Attributes:
        version: Version of the table that keys are looked up in.
        change: The task that writes the rows.
        storage_options: Options of the storage.
    """

    version: int
    change: ChangeTask
    storage_options: Mapping[str, str] | None

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the batches of a partition; gives a `ChangeReport` as bytes."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as aside:
            keys = self._keep(batches, aside)
            return self.change(partition, attempt, _with_addresses(aside, self._look_up(keys)))

    def _keep(self, batches: Iterable[pa.RecordBatch], aside: IO[bytes]) -> pa.Table:
        """Keep the rows aside; gives their keys, in the table's types."""
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
        """Where the rows of the table with the key of each row are."""
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
    """Rows that are written, each for a row of the table or as a new one.

    Attributes:
        rows: Number of the row of the source, ascending; a row whose key several rows have is there for each of them.
        addresses: Address of the row of the table; -1 for a new row.
        ids: Its id, if rows have one.
    """

    rows: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeJob:
    """A write with `merge_on` into an existing table; it can be pickled. The same methods as `WriteJob`.

    Attributes:
        write: The write, as it was prepared and checked.
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
        change = ChangeTask(
            uri=plain.uri,
            job=plain.job,
            stored=plain.stored,
            on=self._on,
            stable=self.stable,
            most_keys=None,  # rows of a key may be in two tasks
            options=plain.options,
        )
        options = self.write.options.storage_options
        return KeyMergeTask(version=self.write.base_version, change=change, storage_options=options)

    def finish(self, messages: Iterable[bytes]) -> LanceDataset:
        """Commit what the tasks report, and delete the files that the commit does not use.

        Raises:
            InvalidInputError: Two rows have one key, or data cannot be written.
            RetryableConflictError: Others changed the same rows each time.
            OutcomeUnknownError: The storage left open whether the commit took effect.
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
        """Delete the files of this write that belong to none of these fragments; as `delete_orphan_files`."""
        self.write.clean(keep, failed=failed)

    @property
    def _on(self) -> tuple[str, ...]:
        return self.write.options.merge_on or ()

    def _commit(self, made: list[FragmentMetadata], reports: Sequence[ChangeReport]) -> CommitResult:
        options = self.write.options
        base = self.write.base()
        try:
            gone, inserted = deleted_rows(reports, self._on), inserted_keys(base, reports, self._on)
        except InvalidInputError:
            hashes_of_keys(self._written_keys(made))  # raises as well, and names the key
            raise

        def attempt(begin: tuple[LanceDataset, dict[int, BitMap]], _: int) -> CommitResult:
            return commit_update(
                begin[0],
                made,
                begin[1],
                inserted=inserted,
                properties=options.transaction_properties,
                message=options.commit_message,
                idempotency_key=options.idempotency_key,
                checked_through=self.write.base_version if options.idempotency_key is not None else None,
            )

        def following(_begin: object, _conflict: object) -> tuple[LanceDataset, dict[int, BitMap]]:
            latest = lance_core.dataset(self.write.uri, storage_options=options.storage_options)
            return latest, rows_with_keys(latest, self._written_keys(made))

        return lance_core.retrying(
            (base, gone),
            attempt,
            following,
            conflict_retries=0
            if self.stable
            else _ATTEMPTS - 1,  # new rows carry the ids of the rows that they replace
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
    """The rows that were kept aside, with the columns of `change_task`."""
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

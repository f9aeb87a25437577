"""The task of a merge that looks up the keys of its rows in the table, without Spark's joins.

    task      rows --> buffered (memory, then a temporary file)   | their keys
              table: key columns with addresses --- join by key --+--> inserted and updated rows: `RowLevelTask`

Each task reads the key columns of the table, narrowed by an index if the table has one. Passing the rows of the table
to Spark would cost more than reading their keys once for each task.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import lance_core
from pyspark_lance.changing.task import ADDRESS, INSERT, KIND, ROW_ID, UPDATE, RowLevelTask
from pyspark_lance.keys.equality import join_by_key
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.column_names import select_renamed
from pyspark_lance.writing.task import copy_batch

_IN_MEMORY: Final = 64 << 20
"""Bytes of rows that a task keeps in memory while it collects their keys."""
_ROW: Final = "__lance_row"
_Numbers: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """What happens to rows whose keys tasks look up in the table.

    Attributes:
        matched: Rows whose key the table has: UPDATE, DELETE, or None if they are left out.
        inserts: Whether the other rows are inserted.
    """

    matched: int | None = UPDATE
    inserts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeTask:
    """The function that runs on each partition; it is pickled.

    Attributes:
        version: Version of the table in which keys are looked up.
        change: The task that writes the rows.
        lookup: What happens to the rows.
    """

    version: int
    change: RowLevelTask
    lookup: KeyLookup

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the batches of a partition; returns a `ChangeReport` as bytes."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=_spark_folder()) as aside:
            return self.change(partition, attempt, self._changes(batches, aside))

    def _changes(self, batches: Iterator[pa.RecordBatch], aside: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the changes; a generator that `change` runs, which reports errors in the keys like those in columns."""
        keys = self._spill_rows(batches, aside)
        yield from self._add_addresses(aside, *self._look_up(keys))

    def _spill_rows(self, batches: Iterable[pa.RecordBatch], aside: IO[bytes]) -> pa.Table:
        """Buffer the rows in a file; returns their keys, in the table's types."""
        stored, on = self.change.stored, list(self.change.on)
        schema = pa.schema([stored.field(name) for name in on])
        keys, writer = [], None
        for batch in batches:
            writer = writer or pa.ipc.new_stream(aside, batch.schema)
            writer.write_batch(batch)
            part = select_renamed(batch, on)
            keys.append(copy_batch(BatchConverter(schema)(part)))
        if writer is not None:
            writer.close()
        aside.seek(0)
        return pa.Table.from_batches(keys, schema=schema)

    def _look_up(self, keys: pa.Table) -> tuple[_Numbers, _Numbers, _Numbers | None]:
        """Rows of the source, and the row of the table that each replaces, if there is one.

        Returns:
            The position of each row in the source, ascending, where a row that replaces several rows occurs once for
            each; the address of the replaced row, -1 for a new row; and its stable id, if rows have stable ids.
        """
        dataset = lance_core.dataset(self.change.uri, self.version, storage_options=self.change.storage_options)
        about = ["_rowaddr", *(["_rowid"] if self.change.stable else [])]
        numbered = keys.append_column(_ROW, pa.array(np.arange(keys.num_rows)))
        matching_batches = [batch for batch in join_by_key(dataset, numbered, about) if batch.num_rows]
        names = [_ROW, *about]
        rows, addresses, *ids = (
            np.concatenate(
                [np.zeros(0, np.int64), *(batch.column(name).to_numpy().astype(np.int64) for batch in matching_batches)]
            )
            for name in names
        )
        new = np.setdiff1d(np.arange(keys.num_rows), rows) if self.lookup.inserts else rows[:0]
        if self.lookup.matched is None:
            rows, addresses, ids = rows[:0], addresses[:0], [array[:0] for array in ids]
        all_rows = np.concatenate([rows, new])
        order = np.argsort(all_rows, kind="stable")
        return (
            all_rows[order],
            np.concatenate([addresses, np.full(len(new), -1)])[order],
            np.concatenate([ids[0], np.zeros(len(new), np.int64)])[order] if ids else None,
        )

    def _add_addresses(
        self, aside: IO[bytes], positions: _Numbers, replaced: _Numbers, ids: _Numbers | None
    ) -> Iterator[pa.RecordBatch]:
        """The buffered rows, with the columns of `changing/task.py`."""
        if not len(positions):
            return
        start = 0
        for batch in pa.ipc.open_stream(aside):
            first, last = np.searchsorted(positions, [start, start + batch.num_rows])
            rows, addresses = positions[first:last] - start, replaced[first:last]
            kinds = np.where(addresses < 0, INSERT, self.lookup.matched or INSERT).astype(np.int8)
            more: dict[str, Any] = {ADDRESS: addresses, KIND: kinds}
            if ids is not None:
                more[ROW_ID] = ids[first:last]
            is_same = np.array_equal(rows, np.arange(batch.num_rows))
            part = batch if is_same else batch.take(pa.array(rows))
            columns = [*part.columns, *map(pa.array, more.values())]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, *more])
            start += batch.num_rows


def _spark_folder() -> str | None:
    """A folder of this executor for temporary files (`spark.local.dir`), which may be larger than the system's."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")  # Spark sets it for its Python workers
    return next((folder for folder in folders if folder and Path(folder).is_dir()), None)

"""The tasks of a merge, an update or a delete: they write new rows to data files and deleted rows to bitmaps.

    columns of the table | __lance_addr | __lance_id | __lance_kind
    ---------------------+--------------+------------+-------------
    new values           | null         | null       | 0  insert
    new values           | old address  | stable id  | 1  update: the row moves
    (not used)           | old address  |            | 2  delete

The driver writes deletion vectors from the bitmaps and commits. The source must have each key once: two rows that
replace the same row are an error, and so are two new rows with the same key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core import MAX_EXACT_KEYS, FragmentMetadata, FragmentWriter
from lance_core.errors import InvalidInputError
from lance_core.row_addresses import bitmaps_by_fragment
from pyspark_lance.changing.finer_values import FinerColumns
from pyspark_lance.types.batch_convert import BatchConverter
from pyspark_lance.types.column_names import select_renamed, source_indices
from pyspark_lance.writing.row_checks import AMBIGUOUS, hashes_of_keys
from pyspark_lance.writing.task import PartitionTask, TaskOutput, TaskReport, copy_batch

ADDRESS: Final = "__lance_addr"
ROW_ID: Final = "__lance_id"
KIND: Final = "__lance_kind"
INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport(TaskReport):
    """The report of a task of a change.

    Attributes:
        deleted: Deleted rows, by fragment id.
        counts: Rows inserted, updated, deleted.
    """

    deleted: Mapping[int, BitMap] = field(default_factory=dict)
    counts: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLevelTask(PartitionTask):
    """The task of a change.

    Attributes:
        on: The key.
        stable: Whether rows have stable ids.
        most_keys: Largest number of new rows' keys whose hashes are reported; None for any number.
        repeats: Whether several new rows may have one key.
        finer: The columns whose values Spark rounds; None if there are none.
    """

    on: Sequence[str] = ()
    stable: bool = False
    most_keys: int | None = MAX_EXACT_KEYS
    repeats: bool = False
    finer: FinerColumns | None = None

    def output(self, prefix: str) -> TaskOutput:
        """The output of one attempt."""
        return _RowLevelOutput(self, prefix)


class _RowLevelOutput:
    """The output of a task of a change. If rows have stable ids, updated and inserted rows go to separate files."""

    def __init__(self, task: RowLevelTask, prefix: str) -> None:
        self._task = task
        self._prefix = prefix
        self._convert = BatchConverter(task.stored)
        self._writers: dict[int, FragmentWriter] = {}
        self._ids: list[npt.NDArray[np.uint64]] = []
        self._deleted: dict[int, BitMap] = {}
        self._keys: list[pa.Table] = []
        self._hashes: npt.NDArray[np.uint64] | None = np.zeros(0, np.uint64)
        self._counts: Counter[int] = Counter()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write new rows and rows that move, and note the rows that are deleted."""
        kinds = batch.column(KIND).to_numpy()
        for kind in (INSERT, UPDATE, DELETE):
            rows = np.flatnonzero(kinds == kind)
            if not len(rows):
                continue
            part = batch if len(rows) == len(kinds) else batch.take(pa.array(rows))
            self._counts[kind] += len(rows)
            if kind != INSERT:
                self._note_deleted(part)
            else:
                self._note_keys(part)
            if kind != DELETE:
                self._write(kind, part)

    def finish(self) -> ChangeReport:
        """Close all files."""
        keys = self._new_keys()
        fragments: list[FragmentMetadata] = []
        for kind, writer in self._writers.items():
            new_fragments = writer.finish()
            if kind == UPDATE and self._ids:
                ids, start = np.concatenate(self._ids), 0
                for fragment in new_fragments:
                    fragment.set_row_ids(ids[start : start + fragment.physical_rows])
                    start += fragment.physical_rows
            fragments += new_fragments
        counts = (self._counts[INSERT], self._counts[UPDATE], self._counts[DELETE])
        return ChangeReport(fragments=tuple(fragments), deleted=self._deleted, counts=counts, keys=keys)

    def discard(self) -> None:
        """Delete all files that this attempt wrote."""
        for writer in self._writers.values():
            writer.discard()

    def _note_deleted(self, part: pa.RecordBatch) -> None:
        """Note deleted rows.

        Raises:
            InvalidInputError: A row is deleted twice.
        """
        addresses = part.column(ADDRESS).to_numpy()
        deletes = bitmaps_by_fragment(addresses)
        earlier = {number: self._deleted.setdefault(number, BitMap()) for number in deletes}
        if sum(map(len, deletes.values())) < len(addresses) or any(earlier[i].intersect(deletes[i]) for i in deletes):
            raise InvalidInputError(f"{AMBIGUOUS}{row_changed_twice(part, addresses, self._task.on)}")
        for number, rows in deletes.items():
            self._deleted[number] |= rows

    def _note_keys(self, part: pa.RecordBatch) -> None:
        on = list(self._task.on)
        if on and self._hashes is not None:
            # In the table's types, in which other writers hash the keys that they insert.
            schema = pa.schema([self._task.stored.field(name) for name in on])
            key_columns = select_renamed(part, on)
            keys = BatchConverter(schema)(key_columns)
            if self._task.repeats:
                self._note_hashes(pa.Table.from_batches([keys]))
            else:  # two rows of one key are detected at the end
                self._keys.append(pa.Table.from_batches([copy_batch(keys)]))

    def _note_hashes(self, keys: pa.Table) -> None:
        """Note the hashes of new keys, of which at most `most_keys` are kept in memory."""
        if self._hashes is None:
            return
        hashes = np.union1d(self._hashes, hashes_of_keys(keys, repeats=True))
        self._hashes = hashes if self._are_few(hashes) else None

    def _are_few(self, keys: npt.NDArray[np.uint64]) -> bool:
        return self._task.most_keys is None or len(keys) <= self._task.most_keys

    def _new_keys(self) -> npt.NDArray[np.uint64] | None:
        """Hashes of the keys of new rows; None if they are too many to report.

        Raises:
            InvalidInputError: Two new rows have one key.
        """
        if not self._keys:
            return self._hashes
        keys = hashes_of_keys(pa.concat_tables(self._keys))
        return keys if self._are_few(keys) else None

    def _write(self, kind: int, part: pa.RecordBatch) -> None:
        files = kind if self._task.stable else INSERT
        if files not in self._writers:
            self._writers[files] = self._task.writer(self._prefix)
        rows = self._convert(part)
        if kind == UPDATE and (self._task.stable or self._task.finer is not None):
            ids = part.column(ROW_ID if self._task.stable else ADDRESS).to_numpy().astype(np.uint64)
            if self._task.stable:
                self._ids.append(ids)
            if self._task.finer is not None:
                rows = self._task.finer.restore_finer_values(rows, ids)
        self._writers[files].write(rows)


def row_changed_twice(part: pa.RecordBatch, addresses: npt.NDArray[np.int64], on: Sequence[str]) -> str:
    """Name the key of a row that a batch deletes twice, for a message.

    Args:
        part: The batch.
        addresses: The addresses of its rows.
        on: The key columns; a batch of deletes alone does not have them.
    """
    unique_addresses, counts = np.unique(addresses, return_counts=True)
    if not (counts > 1).any() or not on or -1 in source_indices(part.schema.names, on):
        return f" of one row of the table; the key is {list(on)}"
    row = int(np.flatnonzero(addresses == unique_addresses[np.argmax(counts > 1)])[0])
    keys = select_renamed(part, on)
    return " " + ", ".join(f"{name} = {keys.column(name)[row].as_py()!r}" for name in on)

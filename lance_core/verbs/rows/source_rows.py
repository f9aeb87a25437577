"""The rows of a merge's source: many rows of a stream are stored in a temporary file.

    table in memory     as it is
    stream              in memory up to `SPOOLED_BYTES`; otherwise all rows are in a file on the local disk

                        |part|part|part| ...    each is a separate Arrow stream: a schema, dictionaries, one batch

The file is memory-mapped: rows are read when they are taken, and their pages are released afterwards. Only the position
of each part is kept in memory; its arrays are made when it is read, so that tables of a thousand columns take no memory
for each part.

The file has no name, so nothing is left of it however the process ends. It is in the folder of `tempfile`, which the
environment variable TMPDIR sets.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.encoding.concatenate import combined
from lance_core.extension_types import empty_table
from lance_core.file.collected import one_by_one
from lance_core.file.utf8 import check_rows
from lance_core.schema import in_storage_types
from lance_core.schema.relabel import relabel

__all__ = ["SPOOLED_BYTES", "SourceRows"]

Rows = npt.NDArray[np.int64]

SPOOLED_BYTES: Final = 16 * 1024 * 1024
"""A stream of more bytes is written to a file."""
STEP_BYTES: Final = 8 * 1024 * 1024
"""About how many bytes of rows in a file are taken at a time."""
LARGE_STEP_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes of rows in memory are taken at a time."""
_VIEWS: Final = (pa.string_view(), pa.binary_view())

_MOST_BATCHES: Final = 64
_LEAST_BYTES: Final = 1024 * 1024
"""More than `_MOST_BATCHES` batches of fewer bytes than this are combined, because rows are taken batch by batch."""
_KEPT_ARRAYS: Final = 16_384
"""The most arrays of a file's parts that are cached."""


class _Parts(Sequence[pa.RecordBatch]):
    """Batches in a memory-mapped file, each of which is made when it is accessed.

    Args:
        schema: Their columns.
        mapped: The file.
        ends: Where each part ends.
        num_rows: The number of rows of each part.
        names: The columns in the file, in its order; None for those of the schema.
    """

    def __init__(
        self,
        schema: pa.Schema,
        mapped: mmap.mmap,
        ends: Sequence[int],
        num_rows: Sequence[int],
        names: Sequence[str] | None = None,
    ) -> None:
        self.schema = schema
        self.num_rows = num_rows
        self.nbytes = ends[-1]
        self._mapped = mapped
        self._data = pa.py_buffer(mapped)
        self._ends = ends
        self._names = schema.names if names is None else names
        self._places = {name: place for place, name in enumerate(self._names)}
        self._kept: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._num_kept = max(1, _KEPT_ARRAYS // max(len(schema), 1))

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.num_rows)

    def __getitem__(self, index: Any) -> Any:
        """One part, whose values are read from the file when they are used."""
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        self._kept[index] = self._read(index, self.schema)
        if len(self._kept) > self._num_kept:
            self._kept.popitem(last=False)
        return self._kept[index]

    def select(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all parts; the arrays are not cached."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches([self._read(index, schema) for index in range(len(self))])

    def relabelled(self, schema: pa.Schema) -> _Parts:
        """These parts, with columns of another order, nullability or metadata."""
        return _Parts(schema, self._mapped, self._ends, self.num_rows, self._names)

    def release(self) -> None:
        """Release the pages of the file from memory; they are read again when they are used."""
        advise: Any = getattr(self._mapped, "madvise", None)  # Windows has neither it nor its options
        if advise is not None:
            advise(mmap.MADV_DONTNEED)

    def _read(self, index: int, schema: pa.Schema) -> pa.RecordBatch:
        start, end = self._ends[index - 1] if index else 0, self._ends[index]
        options = pa.ipc.IpcReadOptions(included_fields=[self._places[name] for name in schema.names])
        batch = pa.ipc.open_stream(self._data.slice(start, end - start), options=options).read_next_batch()
        columns = [relabel(batch.column(field.name), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class SourceRows:
    """The rows of a source, which can be taken by number, part by part.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: pa.Table | _Parts) -> None:
        self._batches: Sequence[pa.RecordBatch]
        counts: Sequence[int]
        if isinstance(rows, pa.Table):
            batches = rows.to_batches()
            if len(batches) > _MOST_BATCHES and _bytes_of(rows) < len(batches) * _LEAST_BYTES:
                rows = combined(rows, keeps_chunks=True)
                batches = rows.to_batches()
            self._batches, counts, size = batches, [batch.num_rows for batch in batches], LARGE_STEP_BYTES
        else:
            self._batches, counts, size = rows, rows.num_rows, STEP_BYTES
        self._rows = rows
        self._starts = np.cumsum([0, *counts])
        self._step = max(1, size * int(self._starts[-1]) // max(_bytes_of(rows), 1))

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], *, is_stream: bool) -> SourceRows:
        """The rows of a source.

        Args:
            schema: Its columns.
            batches: Its rows.
            is_stream: Whether the batches are produced one by one; False if all of them are already in memory.

        Raises:
            SchemaError: A string is not UTF-8; the message names column and row.
        """
        waiting: list[pa.Table] = []
        num_bytes, tables = 0, _read_tables(batches)
        for table in tables:
            waiting.append(table)
            num_bytes += _bytes_of(table)
            if is_stream and num_bytes > SPOOLED_BYTES:
                del table
                return cls(_map_to_disk(chain(_drain(waiting), tables)))
        return cls(pa.concat_tables(waiting) if waiting else empty_table(schema))

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows.schema

    def select(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        return self._rows.select(list(columns))

    def converted(self, schema: pa.Schema, convert: Callable[[pa.Table], pa.Table]) -> SourceRows:
        """These rows in other types.

        Args:
            schema: The schema of the converted rows.
            convert: Converts a table of rows to this schema.
        """
        if isinstance(self._rows, pa.Table):
            return SourceRows(convert(self._rows))
        if all(field.type == self.schema.field(field.name).type for field in schema):
            return SourceRows(self._rows.relabelled(schema))
        batches = _map_to_disk(convert(pa.Table.from_batches([batch])) for batch in self._batches)
        self._rows.release()
        return SourceRows(batches)

    def steps(self, rows: Rows) -> Iterator[Rows]:
        """Yield the row numbers in parts whose rows fit into memory; after each part its memory is released."""
        for start in range(0, len(rows), self._step):
            yield rows[start : start + self._step]
            self.release()

    def take(self, rows: Rows) -> pa.Table:
        """The rows with these numbers, in this order: slices of consecutive rows, copies of others."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        parts, places = [], np.flatnonzero(np.diff(owners[order], prepend=-1))
        for first, last in pairwise([*places, len(rows)]):
            positions = order[first:last]
            number = int(owners[positions[0]])
            batch, batch_rows = self._batches[number], rows[positions] - self._starts[number]
            if bool((np.diff(batch_rows) == 1).all()):
                parts.append(batch.slice(int(batch_rows[0]), len(batch_rows)))
            else:
                parts.append(batch.take(pa.array(batch_rows)))
                self.release()
        table = pa.Table.from_batches(parts, schema=self.schema)
        if bool((np.diff(order) == 1).all()):
            return table
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return combined(table).take(pa.array(back))

    def release(self) -> None:
        """Release the memory of rows that were read from the file."""
        if isinstance(self._rows, _Parts):
            self._rows.release()


def _read_tables(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    row = 0
    for rows in one_by_one(batches):
        check_rows(rows, row)  # not only where they are written: the message has the row of the source
        row += rows.num_rows
        yield pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        del rows


def _bytes_of(rows: pa.Table | _Parts) -> int:
    """The bytes of rows; with view columns the bytes of whole buffers, as pyarrow 24 crashes at `nbytes` of views."""
    if isinstance(rows, pa.Table) and any(field.type in _VIEWS for field in rows.schema):
        return int(rows.get_total_buffer_size())
    return int(rows.nbytes)


def _drain(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables, and remove each from the list, so that its memory can be freed."""
    tables.reverse()
    while tables:
        yield tables.pop()


def _of_size(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables; small tables are combined to about `STEP_BYTES`."""
    waiting: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        waiting.append(table)
        num_bytes += _bytes_of(table)
        del table  # frees its memory before the next table is made
        if num_bytes >= STEP_BYTES:
            yield pa.concat_tables(_drain(waiting))
            num_bytes = 0
    if waiting:
        yield pa.concat_tables(_drain(waiting))


def _map_to_disk(tables: Iterator[pa.Table]) -> _Parts:
    """Write at least one table to an unnamed temporary file, and map it into memory."""
    schema: pa.Schema | None = None
    ends: list[int] = []
    num_rows: list[int] = []
    pool = pa.default_memory_pool()  # it would keep memory that is not used any more, besides what this needs
    pool.release_unused()
    with tempfile.TemporaryFile(prefix="lance-merge-") as file:
        for table in _of_size(tables):
            schema = schema or table.schema
            size = max(1, STEP_BYTES * table.num_rows // max(_bytes_of(table), 1))
            # Extension types that are not registered would be lost.
            for batch in combined(in_storage_types(table), keeps_chunks=True).to_batches(max_chunksize=size):
                with pa.ipc.new_stream(file, batch.schema) as writer:
                    writer.write_batch(batch)
                ends.append(file.tell())
                num_rows.append(batch.num_rows)
            del table, batch
        assert schema is not None, "there is a table"
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pool.release_unused()
    return _Parts(schema, mapped, ends, num_rows)

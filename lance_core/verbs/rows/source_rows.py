"""The rows of a merge's source: those of a stream lie in a temporary file once they are many.

    table in memory     as it is
    stream              its first rows in memory; from `SPOOLED_BYTES` on all rows in an Arrow stream on the local disk,
                        which is mapped: rows are read where they are taken, and their pages are let go again

The file has no name from the start, so that nothing is left of it however the process ends. Its folder is that of
`tempfile`, which the environment variable TMPDIR changes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["SPOOLED_BYTES", "SourceRows"]

Rows = npt.NDArray[np.int64]

SPOOLED_BYTES: Final = 16 * 1024 * 1024
"""A stream with more than that is put into a file."""
STEP_BYTES: Final = 8 * 1024 * 1024
"""About how many bytes of rows in a file are taken at a time."""
LARGE_STEP_BYTES: Final = 64 * 1024 * 1024
"""The same of rows in memory, all of which are there anyway."""
_MOST_BATCHES: Final = 64
_LEAST_BYTES: Final = 1024 * 1024
"""More batches than that are put together if they have fewer bytes each: rows are taken batch by batch."""


class SourceRows:
    """Rows that are taken by their numbers, part by part.

    Args:
        table: The rows.
        release: Lets go of the memory into which rows were mapped; None for rows in memory.
    """

    def __init__(self, table: pa.Table, release: Callable[[], None] | None = None) -> None:
        batches = table.to_batches()
        if release is None and len(batches) > _MOST_BATCHES and table.nbytes < len(batches) * _LEAST_BYTES:
            table = table.combine_chunks()
            batches = table.to_batches()
        self.table = table
        self._release = release
        self._batches = batches
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        size = STEP_BYTES if release is not None else LARGE_STEP_BYTES
        self._step = max(1, size * table.num_rows // max(table.nbytes, 1))

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], *, is_stream: bool) -> SourceRows:
        """The rows of a source.

        Args:
            schema: Its columns.
            batches: Its rows.
            is_stream: Whether the rows come as they are asked for, and are in memory only then.
        """
        waiting: list[pa.Table] = []
        num_bytes, tables = 0, _tables(batches)
        for table in tables:
            waiting.append(table)
            num_bytes += table.nbytes
            if is_stream and num_bytes > SPOOLED_BYTES:
                del table
                return cls(*_mapped(chain(_drained(waiting), tables)))
        return cls(pa.concat_tables(waiting) if waiting else schema.empty_table())

    def with_table(self, table: pa.Table) -> SourceRows:
        """The same rows in other types."""
        return self if table is self.table else SourceRows(table, self._release)

    def steps(self, rows: Rows) -> Iterator[Rows]:
        """Yield the row numbers in parts that can be in memory at once; what was mapped for one is let go after it."""
        for start in range(0, len(rows), self._step):
            yield rows[start : start + self._step]
            self.release()

    def take(self, rows: Rows) -> pa.Table:
        """Copies of the rows of these numbers, in this order."""
        if len(self._batches) <= 1:
            return self.table.take(pa.array(rows))
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        parts, places = [], np.flatnonzero(np.diff(owners[order], prepend=-1))
        for first, last in zip(places, [*places[1:], len(rows)], strict=True):
            own = order[first:last]
            batch = int(owners[own[0]])
            parts.append(self._batches[batch].take(pa.array(rows[own] - self._starts[batch])))
            self.release()
        found = pa.Table.from_batches(parts, schema=self.table.schema)
        if bool((np.diff(order) == 1).all()):
            return found
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.combine_chunks().take(pa.array(back))

    def release(self) -> None:
        """Let go of the memory of rows that were read."""
        if self._release is not None:
            self._release()


def _tables(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([b]) if isinstance(b, pa.RecordBatch) else b for b in batches)


def _drained(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """The tables, none of which is held in the list once it is given."""
    tables.reverse()
    while tables:
        yield tables.pop()


def _of_size(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The tables put together to about the size of a step; larger ones as they are."""
    waiting: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        waiting.append(table)
        num_bytes += table.nbytes
        if num_bytes >= STEP_BYTES:
            yield pa.concat_tables(_drained(waiting))
            num_bytes = 0
    if waiting:
        yield pa.concat_tables(_drained(waiting))


def _mapped(tables: Iterator[pa.Table]) -> tuple[pa.Table, Callable[[], None]]:
    """Tables, one at least, in a file of no name that is mapped into memory."""
    with tempfile.TemporaryFile(prefix="lance-merge-") as file:
        writer = None
        for table in _of_size(tables):
            writer = writer or pa.ipc.new_stream(file, table.schema)
            size = max(1, STEP_BYTES * table.num_rows // max(table.nbytes, 1))
            writer.write_table(table.combine_chunks(), max_chunksize=size)
        assert writer is not None, "there is a table"
        writer.close()
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
    advise: Any = getattr(mapped, "madvise", None)  # there is none on Windows
    return found, (lambda: advise(mmap.MADV_DONTNEED)) if advise is not None else (lambda: None)

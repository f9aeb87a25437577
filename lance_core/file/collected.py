"""Buffers the rows of columns until they fill a page, and limits the memory that buffered rows hold.

A slice holds the whole memory of its array. A column of a batch of another library may hold the memory of the batch:

    memory of a batch     |id|label|image .....................................|
                           ^^ is buffered for a page of megabytes, and holds the memory of the images, although these
                              are written already

Therefore columns that are narrow compared with the others are copied after some megabytes of rows, most of which are
written by then. Wide columns are not copied: they hold little more memory than their buffered rows and soon fill pages.

Arrow's allocator keeps freed memory for about a second, in which a stream yields many batches. Therefore it is asked to
release unused memory to the system after every few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from lance_core.encoding.concatenate import concatenate
from lance_core.file.write_plan import ColumnWritePlan

__all__ = ["Collected", "Releaser", "one_by_one"]

_PASSED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows between two checks of the columns."""
_TIMES: Final = 4
"""A column is copied if all rows since the last check are larger than its buffered rows by this factor."""
_LARGEST_COPY: Final = 2**30
_RETURNED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows after which unused memory is released to the system."""

_Rows = TypeVar("_Rows", bound="pa.RecordBatch | pa.Table")


class Collected:
    """The rows of one top-level field that are not encoded yet.

    Args:
        plan: How the field is written.
    """

    __slots__ = ("_num_checked", "arrays", "num_bytes", "plan", "unchecked_bytes")

    def __init__(self, plan: ColumnWritePlan) -> None:
        self.plan = plan
        self.arrays: list[pa.Array] = []
        self.num_bytes = 0
        self._num_checked = 0
        self.unchecked_bytes = 0

    def add(self, array: pa.Array, num_bytes: int) -> None:
        """Add rows of about `num_bytes` bytes."""
        self.arrays.append(array)
        self.num_bytes += num_bytes
        self.unchecked_bytes += num_bytes

    def take(self) -> list[pa.Array]:
        """Remove and return all buffered rows."""
        arrays, self.arrays = self.arrays, []
        self.num_bytes = self._num_checked = self.unchecked_bytes = 0
        return arrays

    def copy_if_small(self, passed: int) -> None:
        """Copy the rows since the last call if they are small compared with `passed`, the bytes of all rows since."""
        if self.unchecked_bytes * _TIMES < passed and self.unchecked_bytes < _LARGEST_COPY:
            added = self.arrays[self._num_checked :]
            if added:
                self.arrays[self._num_checked :] = [_copy_rows(added)]
        self._num_checked = len(self.arrays)
        self.unchecked_bytes = 0


class Releaser:
    """Limits the memory that buffered rows hold to about their own size.

    Args:
        columns: All columns of a file.
    """

    __slots__ = ("_columns", "_next_look", "_passed")

    def __init__(self, columns: Sequence[Collected]) -> None:
        self._columns = columns
        self._passed = 0
        self._next_look = _PASSED_BYTES

    def passed(self, num_bytes: int) -> None:
        """Account for rows of `num_bytes` bytes that were added, or written, since the last call."""
        self._passed += num_bytes
        if self._passed < self._next_look:
            return
        if 2 * sum(column.unchecked_bytes for column in self._columns) > self._passed:
            self._next_look = self._passed + _PASSED_BYTES
            return
        for column in self._columns:
            column.copy_if_small(self._passed)
        self._passed, self._next_look = 0, _PASSED_BYTES


def one_by_one(batches: Iterable[_Rows]) -> Iterator[_Rows]:
    """The batches of a stream; no batch is held here while the next one is created.

    The memory of earlier batches is free if the caller also drops each batch before it requests the next one.
    """
    passed = 0
    for batch in batches:
        passed += batch.nbytes
        yield batch
        del batch
        if passed >= _RETURNED_BYTES:
            passed = 0
            pa.default_memory_pool().release_unused()


def _copy_rows(arrays: Sequence[Any]) -> pa.Array:
    """The rows in new memory; dictionary arrays keep sharing a common dictionary."""
    if len(arrays) == 1:
        return pa.concat_arrays([arrays[0].slice(0, 0), arrays[0]])
    return concatenate(arrays)

"""Rows of columns that wait until they make a page, and the memory that they keep.

A slice keeps the whole of the memory that it was cut from, and so may any column of a batch that came from elsewhere:

    message     |id|label|image .....................................|
                 ^^ waits for a page of megabytes, and the images, which are long written, wait with it

So once rows of some size have passed, most of which no longer wait, columns that are narrow beside the others are
copied. Wide ones are left: they keep little more than what waits of them, and become pages soon.

Arrow's allocator keeps what is freed for a second or so, in which a stream brings many batches. So it is told to give
memory back to the system whenever some megabytes have passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from lance_core.encoding.concatenate import concatenate
from lance_core.file.write_plan import ColumnWritePlan

__all__ = ["Collected", "Releaser", "one_by_one"]

_PASSED_BYTES: Final = 16 * 1024 * 1024
"""Rows that may pass before columns are looked at."""
_TIMES: Final = 4
"""A column is copied if the rows that passed are so many times larger than what waits of it."""
_LARGEST_COPY: Final = 2**30
_RETURNED_BYTES: Final = 16 * 1024 * 1024
"""Rows that may pass before unused memory is given back to the system."""

_Rows = TypeVar("_Rows", bound="pa.RecordBatch | pa.Table")


class Collected:
    """The rows of one top-level field that are not encoded yet.

    Args:
        plan: How the field is written.
    """

    __slots__ = ("_num_settled", "arrays", "num_bytes", "plan", "unsettled_bytes")

    def __init__(self, plan: ColumnWritePlan) -> None:
        self.plan = plan
        self.arrays: list[pa.Array] = []
        self.num_bytes = 0
        self._num_settled = 0
        self.unsettled_bytes = 0

    def add(self, array: pa.Array, num_bytes: int) -> None:
        """Add rows of about so many bytes."""
        self.arrays.append(array)
        self.num_bytes += num_bytes
        self.unsettled_bytes += num_bytes

    def take(self) -> list[pa.Array]:
        """All rows, which no longer wait then."""
        arrays, self.arrays = self.arrays, []
        self.num_bytes = self._num_settled = self.unsettled_bytes = 0
        return arrays

    def resolve_outcome(self, passed: int) -> None:
        """Copy what was added since the last call if it is small beside the bytes of all rows that passed since."""
        if self.unsettled_bytes * _TIMES < passed and self.unsettled_bytes < _LARGEST_COPY:
            added = self.arrays[self._num_settled :]
            if added:
                self.arrays[self._num_settled :] = [_copied(added)]
        self._num_settled = len(self.arrays)
        self.unsettled_bytes = 0


class Releaser:
    """Sees to it that waiting rows keep about as much memory as they have bytes.

    Args:
        columns: All columns of a file.
    """

    __slots__ = ("_columns", "_next_look", "_passed")

    def __init__(self, columns: Sequence[Collected]) -> None:
        self._columns = columns
        self._passed = 0
        self._next_look = _PASSED_BYTES

    def passed(self, num_bytes: int) -> None:
        """Account for rows of so many bytes that were added, or written, since the last call."""
        self._passed += num_bytes
        if self._passed < self._next_look:
            return
        if 2 * sum(column.unsettled_bytes for column in self._columns) > self._passed:
            self._next_look = self._passed + _PASSED_BYTES
            return
        for column in self._columns:
            column.resolve_outcome(self._passed)
        self._passed, self._next_look = 0, _PASSED_BYTES


def one_by_one(batches: Iterable[_Rows]) -> Iterator[_Rows]:
    """The batches of a stream, none of which is held here while the next one is made.

    Neither is the memory of earlier ones, if the caller, too, lets go of each batch before it asks for the next one.
    """
    passed = 0
    for batch in batches:
        passed += batch.nbytes
        yield batch
        del batch
        if passed >= _RETURNED_BYTES:
            passed = 0
            pa.default_memory_pool().release_unused()


def _copied(arrays: Sequence[Any]) -> pa.Array:
    """The rows in memory of their own; arrays of dictionaries go on sharing a dictionary that is but one."""
    if len(arrays) == 1:
        return pa.concat_arrays([arrays[0].slice(0, 0), arrays[0]])
    return concatenate(arrays)

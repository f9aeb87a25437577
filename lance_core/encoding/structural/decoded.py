"""Records for the decoders of structural layouts: `RowRuns`, the wanted rows, and `DecodedRows`, the result.

Decoders may return more rows than wanted (for example whole chunks), so that every result records the rows it covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt

from lance_core.encoding.compression.chunks import expand_runs
from lance_core.encoding.datablock import DataBlock
from lance_core.encoding.levels.repdef import Levels

__all__ = ["DecodedRows", "RowRuns"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRuns:
    """Ascending, disjoint runs of rows: run i is ``starts[i] .. ends[i]``, the end excluded."""

    starts: Rows
    ends: Rows

    @classmethod
    def of_range(cls, start: int, end: int) -> Self:
        """One run."""
        return cls(starts=np.array([start], np.int64), ends=np.array([end], np.int64))

    @classmethod
    def of_rows(cls, rows: Rows) -> Self:
        """Runs of ascending, unique row numbers."""
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        first = np.concatenate([[0], breaks]) if rows.size else np.empty(0, np.int64)
        last = np.concatenate([breaks, [rows.size]]) - 1 if rows.size else first
        return cls(starts=rows[first].astype(np.int64), ends=rows[last].astype(np.int64) + 1)

    @property
    def count(self) -> int:
        """Rows in all runs."""
        return int((self.ends - self.starts).sum())

    @property
    def is_one_run(self) -> bool:
        """Whether there is exactly one run."""
        return self.starts.size == 1

    def covers(self, num_rows: int) -> bool:
        """Whether this is all of ``0 .. num_rows``."""
        return self.starts.size == 1 and int(self.starts[0]) == 0 and int(self.ends[0]) == num_rows

    def shifted(self, by: int) -> RowRuns:
        """These runs, counted from a row `by` rows earlier."""
        return RowRuns(starts=self.starts + by, ends=self.ends + by)

    def clipped(self, start: int, end: int) -> RowRuns:
        """The part of the runs inside ``start .. end``."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        starts, ends = self.starts[first:last], self.ends[first:last]
        return RowRuns(starts=np.maximum(starts, start), ends=np.minimum(ends, end))

    def within(self, start: int, end: int) -> RowRuns:
        """The part of the runs inside ``start .. end``, counted from `start`."""
        if self.starts.size == 1 and self.starts.item() <= start < end <= self.ends.item():
            return _all_rows(end - start)
        if start == 0 and self.ends.size and self.ends[-1] <= end:
            return self
        return self.clipped(start, end).shifted(-start)

    def rows(self) -> Rows:
        """Every row number."""
        return expand_runs(self.starts, self.ends - self.starts)

    def positions_in(self, covering: RowRuns) -> Rows:
        """The positions of these rows among the rows of `covering`, which has all of them."""
        lengths = covering.ends - covering.starts
        before = np.cumsum(lengths) - lengths
        run = np.searchsorted(covering.starts, self.starts, side="right") - 1
        first = self.starts - covering.starts[run] + before[run]
        return expand_runs(first, self.ends - self.starts)


@lru_cache(maxsize=256)
def _all_rows(count: int) -> RowRuns:
    """All of `count` rows, cached because small files have pages of few different lengths."""
    runs = RowRuns.of_range(0, count)
    runs.starts.flags.writeable = runs.ends.flags.writeable = False
    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """Some rows of a page, not yet an Arrow array.

    Attributes:
        covered: The decoded rows of the page; at least the wanted ones.
        levels: Their levels.
        values: One value per slot of the levels; with `items`, 32-bit indices into them. None: all slots are null.
        items: The dictionaries of the pages, in order; empty if `values` has the values themselves.
    """

    covered: RowRuns
    levels: Levels
    values: DataBlock | None
    items: tuple[DataBlock, ...] = ()

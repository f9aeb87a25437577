"""Small pages of several columns, decoded together.

A column of some hundred rows is one page, and decoding a page costs as much as decoding thousands of values. Columns of
one type whose pages have the same description are decoded as the pages of one column, and sliced:

    column 0 | column 1 | column 2 |       one array of the rows of all columns, in the order of the columns
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from lance_core.encoding.page import ByteRange, BytesLike, RowRuns
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.file.column import ColumnReadPlan, Fetch, PageTask
from lance_core.file.pool import submit

FEWEST_COLUMNS: Final = 8
"""Fewer columns are decoded one by one."""

_MOST_ROWS: Final = 16 * 1024
_MOST_BYTES: Final = 1024 * 1024


def join_columns(plans: Sequence[ColumnReadPlan], runs: RowRuns) -> None:
    """Let columns whose pages are small and alike be decoded together.

    Args:
        plans: The plans of columns that are whole top-level fields.
        runs: The wanted rows.
    """
    if len(plans) < FEWEST_COLUMNS or not runs.is_one_run or not 0 < runs.count <= _MOST_ROWS:
        return
    groups = defaultdict[object, list[ColumnReadPlan]](list)
    for plan in plans:
        key = plan.find_shared_key(runs)
        if key is not None:
            groups[key].append(plan)
    for group in groups.values():
        most = max(FEWEST_COLUMNS, _MOST_BYTES // (16 * runs.count))
        for first in range(0, len(group), most):
            if len(some := group[first : first + most]) >= FEWEST_COLUMNS:
                _JoinedColumns(some, runs)


class _JoinedColumns:
    """The decoding of several columns; each by itself after an error, which then names the column.

    Args:
        plans: The plans of the columns, which get a task each.
        runs: The wanted rows.
    """

    def __init__(self, plans: Sequence[ColumnReadPlan], runs: RowRuns) -> None:
        self._plans = plans
        self._runs = runs
        self._joined = plans[0].join(plans)
        self._alone: list[PageTask] = []
        self.future: Future[None] | None = None
        for number, plan in enumerate(plans):
            plan.joined = _JoinedColumn(self, number, runs.count, self._joined.num_bytes // len(plans))

    def advance(self) -> Sequence[ByteRange]:
        """The ranges that the decoder needs first."""
        try:
            return self._joined.advance(None) or ()
        except (CorruptFileError, UnsupportedError):
            self._begin_alone()
            return ()

    def run(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Run the decoder to its end in this thread."""
        if not self._alone:
            try:
                return self._joined.run(answer, fetch)
            except (CorruptFileError, UnsupportedError):
                self._begin_alone()
        for task in self._alone:
            task.run(fetch(task.advance(None) or ()), fetch)
        return None

    def result(self, number: int) -> pa.Array:
        """The array of one column."""
        if self.future is not None:
            self.future.result()
        if self._alone:
            return self._alone[number].result()
        count = self._runs.count
        return self._joined.result().slice(number * count, count)

    def _begin_alone(self) -> None:
        for plan in self._plans:
            plan.joined = None
        self._alone = [task for plan in self._plans for task in plan.tasks(self._runs)]


class _JoinedColumn(PageTask):
    """The task of one column; that of the first one decodes all of them."""

    __slots__ = ("_columns", "_number")

    def __init__(self, columns: _JoinedColumns, number: int, num_rows: int, num_bytes: int) -> None:
        self._columns = columns
        self._number = number
        self.num_rows, self.num_bytes, self.encoded_bytes, self.is_whole = num_rows, num_bytes, num_bytes, True

    def advance(self, answer: Sequence[BytesLike] | None) -> Sequence[ByteRange] | None:
        """The ranges that the decoder needs first; None for all columns but the first."""
        assert answer is None  # pages that are read whole are run to their end
        return None if self._number else self._columns.advance()

    def finish(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Run the decoder to its end in the pool."""
        self._columns.future = submit(self.run, answer, fetch)

    def run(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Run the decoder to its end in this thread."""
        self._columns.run(answer, fetch)

    def result(self) -> pa.Array:
        """The array, once it is decoded."""
        return self._columns.result(self._number)

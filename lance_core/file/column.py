"""Reads the pages of one column, a few pages ahead of the rows that are returned."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import accumulate, pairwise, starmap
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from lance_core.encoding.decoder import decode_pages, group_key, key_is_of_encoding
from lance_core.encoding.page import ByteRange, BytesLike, PageInfo, RowRuns, Steps
from lance_core.encoding.point_reads import PointPage, point_page, read_points, value_bits
from lance_core.errors import CorruptFileError, LanceError, UnsupportedError
from lance_core.file.metadata import ColumnPages
from lance_core.file.pool import submit
from lance_core.schema import Field, arrow_type_of
from lance_core.schema.field import is_packed, items_per_row

Fetch: TypeAlias = Callable[[Sequence[ByteRange]], Sequence[BytesLike]]
ReportCached: TypeAlias = Callable[[int], None]

FEW_POINTS: Final = 128
"""Up to this many rows every value is looked up separately; of more rows only values of one width, in one run."""

# Most rows and bytes of one decoding task; larger pages are decoded in parts.
_MAX_ROWS: Final = 4 * 1024 * 1024
_MAX_BYTES: Final = 128 * 1024 * 1024
# Small pages are decoded together, up to about this many bytes.
_GROUP_BYTES: Final = 4 * 1024 * 1024
# Columns of few bytes and pages may be decoded together.
_SHARED_BYTES: Final = 64 * 1024
_MOST_SHARED_PAGES: Final = 128
# If values are up to this many times larger than their pages, only the bytes of pages limit what is read ahead.
_EXPECTED_EXPANSION: Final = 4
# The first page of a column of strings or binary values is decoded before others are read, if it has fewer bytes.
_TELLING_BYTES: Final = 1024 * 1024
# The fixed cost of looking up a few rows of a page, in bytes.
_LOOK_UP_BYTES: Final = 64 * 1024

# Errors that numpy and pyarrow raise on corrupt bytes that no check of this package found. A TypeError would be a fault
# of this package, and a MemoryError is not a property of the file.
_SYMPTOMS: Final = (ValueError, IndexError, OverflowError, struct.error, pa.ArrowException)


def located(where: str) -> AbstractContextManager[None]:
    """Add the file, and the column and page if known, to errors of the block that do not name them.

    Raises:
        CorruptFileError: The block found corrupt bytes, or failed because of them.
        UnsupportedError: The block needs a feature that is not implemented.
        MemoryError: The process does not have enough memory.
    """
    return _Located(where)


class _Located:
    """The context of `located`: a generator would take a tenth of a scan of small pages."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Nothing is done before an error."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        where = self._where
        match error:
            case CorruptFileError() | UnsupportedError():
                if not str(error).startswith(f"{where}: "):
                    raise type(error)(f"{where}: {error}") from error
            case LanceError():
                pass
            case MemoryError():
                raise MemoryError(f"{where}: not enough memory to read it: {error}") from error
            case _ if isinstance(error, _SYMPTOMS):
                raise CorruptFileError(f"{where}: {error}") from error


class PageTask:
    """The decoding of one page, or of a part of it, to an array.

    Args:
        where: File, column and page, for messages.
        steps: The decoder.
        num_rows: Number of rows of the array.
        num_bytes: Approximate number of bytes to read.
        is_whole: Whether the whole page is read, in one request.
        encoded_bytes: Approximate number of encoded bytes of the rows, without the bytes that are read to find them;
            None for `num_bytes`.
    """

    __slots__ = ("_future", "_result", "_steps", "_where", "encoded_bytes", "is_whole", "num_bytes", "num_rows")

    def __init__(
        self,
        where: str,
        steps: Steps[pa.Array],
        num_rows: int,
        num_bytes: int,
        *,
        is_whole: bool,
        encoded_bytes: int | None = None,
    ) -> None:
        self._where = where
        self._steps = steps
        self._future: Future[None] | None = None
        self._result: pa.Array | None = None
        self.num_rows = num_rows
        self.num_bytes = num_bytes
        self.encoded_bytes = num_bytes if encoded_bytes is None else encoded_bytes
        self.is_whole = is_whole

    def advance(self, answer: Sequence[BytesLike] | None) -> Sequence[ByteRange] | None:
        """Advance the decoder by one step, and return the ranges that it needs next; None when it is done."""
        with located(self._where):
            try:
                return next(self._steps) if answer is None else self._steps.send(answer)
            except StopIteration as stop:
                self._result = stop.value
            if len(self._result) != self.num_rows:
                raise CorruptFileError(f"{len(self._result)} rows where {self.num_rows} are expected")
            return None

    def finish(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Run the decoder to its end in the pool."""
        self._future = submit(self.run, answer, fetch)

    def run(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Run the decoder to its end in this thread."""
        ranges = self.advance(answer)
        while ranges is not None:
            ranges = self.advance(fetch(ranges))

    def result(self) -> pa.Array:
        """The array, once it is decoded."""
        if self._future is not None:
            self._future.result()
        return self._result


class Expansion:
    """How much memory the values of a column take, compared with its pages: strings can be a thousand times larger.

    Args:
        is_known: Whether the factor is about 1; False if it is known only after a page was decoded.
    """

    __slots__ = ("_times",)

    def __init__(self, *, is_known: bool = True) -> None:
        self._times: float | None = 1.0 if is_known else None

    @property
    def is_known(self) -> bool:
        """Whether a page was decoded, or the factor is about 1."""
        return self._times is not None

    def weighed(self, page: PageTask | _PageRead) -> float:
        """The bytes for which a page counts in what is read ahead; more than any budget for a small unknown page."""
        if self._times is None:
            return page.num_bytes if page.num_bytes >= _TELLING_BYTES else _MAX_BYTES
        return max(page.num_bytes, page.encoded_bytes * self._times / _EXPECTED_EXPANSION)

    def learn(self, values: pa.Array, encoded_bytes: int) -> None:
        """Compute the factor from a decoded page, for the following pages."""
        self._times = values.nbytes / max(encoded_bytes, 1)


class RowStream:
    """Wanted rows in order, from tasks that are started ahead of time.

    Args:
        tasks: The tasks, in the order of the rows.
        expansion: The factor between the sizes of values and pages.
    """

    def __init__(self, tasks: Iterator[PageTask], expansion: Expansion | None = None) -> None:
        self._tasks = tasks
        self._expansion = expansion or Expansion()
        self._waiting: deque[PageTask] = deque()
        self._current: pa.Array | None = None
        self._exhausted = False

    def rows_ready(self) -> int:
        """Rows that are decoded or being decoded."""
        current = 0 if self._current is None else len(self._current)
        return current + sum(task.num_rows for task in self._waiting)

    def rows_at_hand(self) -> int:
        """Rows of the next page, which can be returned without a copy."""
        if self._current is not None and len(self._current):
            return len(self._current)
        return self._waiting[0].num_rows if self._waiting else 0

    def bytes_ahead(self) -> float:
        """Bytes of the pages that are decoded or being decoded ahead, weighed by `Expansion`."""
        return sum(self._expansion.weighed(task) for task in self._waiting)

    def next_tasks(self, num_bytes: int) -> list[PageTask]:
        """The tasks for the next pages, of about `num_bytes` bytes; empty when all have been started.

        The tasks of earlier calls must have been run, or be running.
        """
        if self._waiting and not self._expansion.is_known:
            # How many of the following pages are decoded together depends on the factor of the first one.
            first = self._waiting[0]
            self._expansion.learn(first.result(), first.encoded_bytes)
        tasks: list[PageTask] = []
        total = 0.0
        while not self._exhausted and (not tasks or total < num_bytes):
            task = next(self._tasks, None)
            if task is None:
                self._exhausted = True
                break
            tasks.append(task)
            total += self._expansion.weighed(task)
        self._waiting.extend(tasks)
        return tasks

    def take(self, count: int) -> list[pa.Array]:
        """The next rows, as one array or several."""
        parts: list[pa.Array] = []
        while count:
            if self._current is None or not len(self._current):
                task = self._waiting.popleft()
                self._current = task.result()
                self._expansion.learn(self._current, task.encoded_bytes)
                continue
            part = self._current.slice(0, count)
            self._current = self._current.slice(len(part))
            parts.append(part)
            count -= len(part)
        return parts


def point_task(
    key: str, field: Field, pages: ColumnPages, rows: Sequence[int], num_rows: int, report_cached: ReportCached
) -> PageTask | None:
    """A task that reads a few rows of a column of a 2.1 or 2.2 file value by value; None if that is not possible.

    Args:
        key: The file, for messages.
        field: A top-level field that has a column of its own.
        pages: The column's pages, which cache the metadata that is read from them.
        rows: Numbers of the rows, ascending, at least one; a run is a `range`.
        num_rows: Rows in the file.
        report_cached: Called with the approximate number of bytes that are cached.

    Raises:
        CorruptFileError: The pages have more or fewer rows than the file.
    """
    if is_packed(field):
        return None
    kind = arrow_type_of(field)
    bits = value_bits(kind)
    if bits is None:
        return None
    bounds = pages.points.get("bounds")
    if bounds is None:
        bounds = [0, *accumulate(pages.num_items.tolist())]
        if bounds[-1] != num_rows:
            raise CorruptFileError(f"column {field.name!r}: pages of {bounds[-1]} rows in a file of {num_rows}")
        pages.points["bounds"] = bounds
    where = f"{key}: column {field.name!r}"
    point_pages: list[tuple[PointPage, Sequence[int]]] = []
    for number, start, places in _divide_by_page(bounds, rows):
        name = number, kind if pa.types.is_fixed_size_list(kind) else bits
        if name not in pages.points:
            with located(f"{where}, page {number}"):
                info = pages.page(number, start, bounds[number + 1] - start)
                pages.points[name] = point_page(info, kind, bits)
        page = pages.points[name]
        if page is None or (len(rows) > FEW_POINTS and not page.takes_runs):
            return None
        point_pages.append((page, places))
    return PageTask(where, read_points(point_pages, kind, report_cached), len(rows), 1, is_whole=False)


def _divide_by_page(bounds: Sequence[int], rows: Sequence[int]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """The pages of some rows: the number of each page, its first row, and the rows counted from its first."""
    at = 0
    while at < len(rows):
        number = bisect_right(bounds, rows[at]) - 1
        start, end = bounds[number], bounds[number + 1]
        if isinstance(rows, range):
            stop = at + min(rows.stop, end) - rows[at]
            yield number, start, range(rows[at] - start, min(rows.stop, end) - start)
        else:
            stop = bisect_left(rows, end, at)
            yield number, start, [row - start for row in rows[at:stop]]
        at = stop


class ColumnReadPlan:
    """The plan for reading wanted rows of one column of a 2.1 or 2.2 file.

    Args:
        key: The file, for messages.
        path: The fields from the top-level one down to the column.
        pages: The column's pages.
        num_rows: Rows in the file.

    Raises:
        CorruptFileError: The pages have more or fewer rows than the file.
    """

    def __init__(self, key: str, path: tuple[Field, ...], pages: ColumnPages, num_rows: int) -> None:
        self._path = path
        self.expansion = Expansion(is_known=not _is_of_any_width(path[-1]))
        self._name = f"{key}: column {'.'.join(f.name for f in path)!r}"
        self._pages = pages
        factor = items_per_row(path)
        bounds = np.zeros(pages.num_items.size + 1, np.int64)
        np.cumsum(pages.num_items // max(factor, 1), out=bounds[1:])
        if int(bounds[-1]) != num_rows or bool((pages.num_items % max(factor, 1)).any()):
            raise CorruptFileError(f"column {path[-1].name!r}: pages of {int(bounds[-1])} rows in a file of {num_rows}")
        self._bounds = bounds
        self.shared: list[_PageRead] = []
        """The wanted pages, once `find_shared_key` has returned a key."""
        self.joined: PageTask | None = None
        """The task of all wanted rows, if they are decoded together with those of other columns."""

    def find_shared_key(self, runs: RowRuns) -> object | None:
        """The key that columns share if all their wanted rows can be decoded together; None for large columns."""
        if self._bounds.size > _MOST_SHARED_PAGES:
            return None
        reads = list(self._find_page_reads(runs))
        is_small = sum(read.size for read in reads) <= _SHARED_BYTES and all(read.is_whole for read in reads)
        if not is_small or not all(starmap(self._can_join, pairwise(reads))):
            return None
        self.shared, key = reads, self._find_key(reads[0])
        properties = tuple((field.logical_type, field.nullable) for field in self._path)
        return None if key is None else (key, arrow_type_of(self._path[0]), properties)

    def join(self, plans: Sequence[ColumnReadPlan]) -> PageTask:
        """A task that decodes all pages of columns with the same `find_shared_key`, in their order."""
        return self._make_task([read for plan in plans for read in plan.shared])

    def tasks(self, runs: RowRuns) -> Iterator[PageTask]:
        """One task per page, per group of small pages with the same key, or per part of a large page."""
        if self.joined is not None:
            yield self.joined
            return
        group: list[_PageRead] = []
        num_bytes = 0.0
        for page_read in self._find_page_reads(runs):
            if group and (num_bytes >= _GROUP_BYTES or not self._can_join(group[-1], page_read)):
                yield self._make_task(group)
                group, num_bytes = [], 0.0
            num_bytes += self.expansion.weighed(page_read)
            if page_read.is_large:
                yield from self._divide_page(page_read)
            else:
                group.append(page_read)
        if group:
            yield self._make_task(group)

    def _can_join(self, last: _PageRead, following: _PageRead) -> bool:
        """Whether a page can be decoded together with the group that ends with the page before it."""
        if following.is_large or last.is_whole != following.is_whole:
            return False
        key = self._find_key(last)
        if key is not None and following.key is None and last.page.encoding is following.page.encoding:
            following.key = key if key_is_of_encoding(last.page.encoding) else None
        return key is not None and key == self._find_key(following)

    def _find_key(self, page_read: _PageRead) -> bytes | None:
        if page_read.key is None:
            with located(f"{self._name}, page {page_read.index}"):
                page_read.key = group_key(page_read.page, self._path[-1], is_whole=page_read.is_whole)
        return page_read.key

    def _find_page_reads(self, runs: RowRuns) -> Iterator[_PageRead]:
        """The pages that hold wanted rows."""
        bounds = self._bounds
        if not runs.count:
            return
        index = int(np.searchsorted(bounds, runs.starts[0], side="right")) - 1
        while index < bounds.size - 1 and int(bounds[index]) < int(runs.ends[-1]):
            start, end = int(bounds[index]), int(bounds[index + 1])
            rows = runs.within(start, end)
            if rows.starts.size:
                with located(f"{self._name}, page {index}"):
                    page = self._pages.page(index, start, end - start)
                yield _PageRead(index, page, rows)
                index += 1
            else:
                # Jump to the page of the next wanted row.
                following = runs.starts[np.searchsorted(runs.starts, end)]
                index = int(np.searchsorted(bounds, following, side="right")) - 1

    def _make_task(self, group: list[_PageRead]) -> PageTask:
        pages = [page_read.page for page_read in group]
        rows = group[0].rows
        if group[0].is_whole:
            rows = RowRuns.of_range(0, sum(page.num_rows for page in pages))
        elif len(group) > 1:
            firsts = accumulate([page.num_rows for page in pages], initial=0)
            moved = [page_read.rows.shift(first) for page_read, first in zip(group, firsts, strict=False)]
            rows = RowRuns(
                starts=np.concatenate([runs.starts for runs in moved]),
                ends=np.concatenate([runs.ends for runs in moved]),
            )
        first, last = group[0].index, group[-1].index
        where = f"{self._name}, page {first}" if first == last else f"{self._name}, pages {first} to {last}"
        num_bytes = sum(page_read.num_bytes for page_read in group)
        encoded = sum(page_read.encoded_bytes for page_read in group)
        steps = decode_pages(pages, self._path, rows)
        return PageTask(where, steps, rows.count, num_bytes, is_whole=group[0].is_whole, encoded_bytes=encoded)

    def _divide_page(self, page_read: _PageRead) -> Iterator[PageTask]:
        num_rows, size = page_read.page.num_rows, page_read.size
        step = max(1, min(_MAX_ROWS, _MAX_BYTES * num_rows // max(size, 1)))
        for first in range(int(page_read.rows.starts[0]), int(page_read.rows.ends[-1]), step):
            rows = page_read.rows.clip(first, first + step)
            if rows.count:
                steps = decode_pages([page_read.page], self._path, rows)
                encoded = size * rows.count // num_rows
                about = min(size, encoded + _LOOK_UP_BYTES)
                where = f"{self._name}, page {page_read.index}"
                yield PageTask(where, steps, rows.count, about, is_whole=False, encoded_bytes=encoded)


def _is_of_any_width(field: Field) -> bool:
    """Whether values of a column are strings or binary values."""
    kind = arrow_type_of(field)
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


class _PageRead:
    """A page and its wanted rows; `key` caches the key of its group."""

    __slots__ = ("encoded_bytes", "index", "is_large", "is_whole", "key", "num_bytes", "page", "rows", "size")

    def __init__(self, index: int, page: PageInfo, rows: RowRuns) -> None:
        self.index = index
        self.page = page
        self.rows = rows
        self.key: bytes | None = None
        self.size = sum(end - start for start, end in page.buffers)
        self.is_whole = rows.covers(page.num_rows)
        self.is_large = page.num_rows > _MAX_ROWS or self.size > _MAX_BYTES
        self.num_bytes = self.encoded_bytes = self.size
        if not self.is_whole:
            self.encoded_bytes = self.size * rows.count // max(page.num_rows, 1)
            self.num_bytes = min(self.size, self.encoded_bytes + _LOOK_UP_BYTES)

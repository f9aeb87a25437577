"""Reading the pages of one column, a few ahead of the rows that are handed out."""

__all__ = ["ColumnReader", "PageTask"]

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from lance_core.encoding.decoder import decode_page
from lance_core.encoding.page import ByteRange, BytesLike, Steps
from lance_core.encoding.paths import items_per_row
from lance_core.encoding.structural.decoded import RowRuns
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.file.metadata import ColumnPages
from lance_core.file.pool import submit
from lance_core.schema import Field

Fetch: TypeAlias = Callable[[Sequence[ByteRange]], Sequence[BytesLike]]

# Rows and bytes that are decoded in one go; larger pages are decoded in parts.
_MAX_ROWS: Final = 4 * 1024 * 1024
_MAX_BYTES: Final = 128 * 1024 * 1024
# What looking up a few rows of a page costs beside the rows.
_LOOK_UP_BYTES: Final = 64 * 1024

# What broken bytes make numpy and pyarrow say, where no check of ours came first.
_SYMPTOMS: Final = (ValueError, IndexError, TypeError, OverflowError, MemoryError, pa.ArrowException)


class PageTask:
    """One page, or a part of it, on its way from the file to an array.

    Args:
        where: File, column and page, for messages.
        page: The page; None if only parsing it failed and `steps` raises.
        steps: Its decoder.
        num_rows: Rows that it will give.
        num_bytes: About how many bytes it reads.
        is_whole: Whether it reads the whole page, in one request.
    """

    __slots__ = ("_future", "_result", "_steps", "_where", "is_whole", "num_bytes", "num_rows")

    def __init__(self, where: str, steps: Steps[pa.Array], num_rows: int, num_bytes: int, *, is_whole: bool) -> None:
        self._where = where
        self._steps = steps
        self._future: Future[None] | None = None
        self._result: pa.Array | None = None
        self.num_rows = num_rows
        self.num_bytes = num_bytes
        self.is_whole = is_whole

    def advance(self, answer: Sequence[BytesLike] | None) -> Sequence[ByteRange] | None:
        """Take the decoder one step further: returns the ranges it asks for, None once it is done."""
        try:
            return next(self._steps) if answer is None else self._steps.send(answer)
        except StopIteration as stop:
            self._result = stop.value
            if len(stop.value) != self.num_rows:
                raise CorruptFileError(
                    f"{self._where}: {len(stop.value)} rows where {self.num_rows} are expected"
                ) from None
            return None
        except (CorruptFileError, UnsupportedError) as error:
            raise type(error)(f"{self._where}: {error}") from error
        except _SYMPTOMS as error:
            raise CorruptFileError(f"{self._where}: {error}") from error

    def finish(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        """Take the decoder to its end in the pool."""
        self._future = submit(self._finish, answer, fetch)

    def _finish(self, answer: Sequence[BytesLike], fetch: Fetch) -> None:
        ranges = self.advance(answer)
        while ranges is not None:
            ranges = self.advance(fetch(ranges))

    def result(self) -> pa.Array:
        """The array; waits for it."""
        if self._future is not None:
            self._future.result()
        return self._result


class ColumnReader:
    """The wanted rows of one column, in order.

    Args:
        key: The file, for messages.
        path: The fields from the top-level one down to the column.
        pages: The column's pages.
        runs: The wanted rows of the file.
        num_rows: Rows in the file.

    Raises:
        CorruptFileError: The pages do not make up the rows of the file.
    """

    def __init__(self, key: str, path: tuple[Field, ...], pages: ColumnPages, runs: RowRuns, num_rows: int) -> None:
        self._path = path
        self._name = f"{key}: column {'.'.join(f.name for f in path)!r}"
        self._pages = pages
        factor = items_per_row(path)
        bounds = np.zeros(pages.num_items.size + 1, np.int64)
        np.cumsum(pages.num_items // max(factor, 1), out=bounds[1:])
        if int(bounds[-1]) != num_rows or bool((pages.num_items % max(factor, 1)).any()):
            raise CorruptFileError(f"{self._name}: pages of {int(bounds[-1])} rows in a file of {num_rows}")
        self._bounds = bounds
        self._plan = self._planned(runs)
        self._waiting: deque[PageTask] = deque()
        self._current: pa.Array | None = None
        self._exhausted = False

    def rows_ready(self) -> int:
        """Rows that are decoded or being decoded."""
        current = 0 if self._current is None else len(self._current)
        return current + sum(task.num_rows for task in self._waiting)

    def rows_at_hand(self) -> int:
        """Rows of the page that comes next, so that they can be handed out without a copy."""
        if self._current is not None and len(self._current):
            return len(self._current)
        return self._waiting[0].num_rows if self._waiting else 0

    def bytes_ahead(self) -> int:
        """Bytes of the pages that are decoded or being decoded ahead."""
        return sum(task.num_bytes for task in self._waiting)

    def next_tasks(self, num_bytes: int) -> list[PageTask]:
        """The tasks for the next pages, of about so many bytes; none when all are under way."""
        tasks: list[PageTask] = []
        total = 0
        while not self._exhausted and (not tasks or total < num_bytes):
            task = next(self._plan, None)
            if task is None:
                self._exhausted = True
                break
            tasks.append(task)
            total += task.num_bytes
        self._waiting.extend(tasks)
        return tasks

    def take(self, count: int) -> list[pa.Array]:
        """The next rows, as one array or several."""
        parts: list[pa.Array] = []
        while count:
            if self._current is None or not len(self._current):
                self._current = self._waiting.popleft().result()
                continue
            part = self._current.slice(0, count)
            self._current = self._current.slice(len(part))
            parts.append(part)
            count -= len(part)
        return parts

    def _planned(self, runs: RowRuns) -> Iterator[PageTask]:
        """One task per page, or several for large ones."""
        if not runs.count:
            return
        first = int(np.searchsorted(self._bounds, runs.starts[0], side="right")) - 1
        index = first
        while index < self._bounds.size - 1 and int(self._bounds[index]) < int(runs.ends[-1]):
            start, end = int(self._bounds[index]), int(self._bounds[index + 1])
            wanted = runs.clipped(start, end).shifted(-start)
            if wanted.count:
                yield from self._tasks_of_page(index, start, end - start, wanted)
                index += 1
            else:
                # Jump to the page of the next wanted row.
                following = runs.starts[np.searchsorted(runs.starts, end)]
                index = int(np.searchsorted(self._bounds, following, side="right")) - 1

    def _tasks_of_page(self, index: int, start: int, num_rows: int, wanted: RowRuns) -> Iterator[PageTask]:
        where = f"{self._name}, page {index}"
        try:
            page = self._pages.page(index, start, num_rows)
        except (CorruptFileError, UnsupportedError) as error:
            raise type(error)(f"{where}: {error}") from error
        size = sum(end - begin for begin, end in page.buffers)
        if wanted.covers(num_rows) and num_rows <= _MAX_ROWS and size <= _MAX_BYTES:
            yield PageTask(where, decode_page(page, self._path, wanted), num_rows, size, is_whole=True)
            return
        step = max(1, min(_MAX_ROWS, _MAX_BYTES * num_rows // max(size, 1)))
        for first in range(int(wanted.starts[0]), int(wanted.ends[-1]), step):
            part = wanted.clipped(first, first + step)
            if part.count:
                about = min(size, size * part.count // num_rows + _LOOK_UP_BYTES)
                yield PageTask(where, decode_page(page, self._path, part), part.count, about, is_whole=False)



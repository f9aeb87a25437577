"""Pages: the results of encoders for the file writer, and the inputs of decoders from the file reader.

A page is a run of rows of one column: a message that describes it and the buffers that the message refers to by
index. Neither encoders nor decoders do I/O:

    encoder   arrays  ->  EncodedPage      its buffers are written by `file`
    decoder   PageInfo -> Steps            a generator that yields byte ranges of the file, is sent their bytes,
                                           and returns the decoded result

A decoder that must read an index before the values yields twice. `lock_step` runs many decoders together, so that the
ranges of all columns reach the store in one request.

The description of a page in the column metadata: a google.protobuf.Any message inside of another.

Pages of 2.2 files may have the draft form of 2.2, which pylance 0.35 to 1.0 wrote:

    mini-block, has_large_chunk     2.2: chunks are described by u32
    mini-block without it           the draft, and 2.1: chunks are described by u16

This library reads both; the reference library rejects files of 2.2 with such pages.

The wanted rows of a page are `RowRuns`, its decoded rows `DecodedRows`. Decoders may return more rows than wanted (for
example whole chunks), so that every result records the rows it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core._proto.file2_pb2 import Encoding
from lance_core.encoding.compression.chunks import expand_runs
from lance_core.encoding.datablock import DataBlock
from lance_core.encoding.repdef import Levels
from lance_core.errors import CorruptFileError

TYPES: Final[dict[str, type[Message]]] = {
    "/lance.encodings.ArrayEncoding": ArrayEncoding,
    "/lance.encodings21.PageLayout": PageLayout,
}
"""The messages that describe pages, by the name in the description."""
_TYPE_URLS: Final = {kind: url for url, kind in TYPES.items()}


def page_encoding(description: Message) -> Encoding:
    """The description of a page for the column metadata; one that has this form already is returned as it is."""
    if isinstance(description, Encoding):
        return description
    wrapped = AnyMessage(type_url=_TYPE_URLS[type(description)], value=description.SerializeToString())
    encoding = Encoding()
    encoding.direct.encoding = wrapped.SerializeToString()
    return encoding


ByteRange: TypeAlias = tuple[int, int]
"""Start and end (excluded) of a run of bytes of a file."""

Bytes: TypeAlias = npt.NDArray[np.uint8]
BytesLike: TypeAlias = Any
"""Anything with the buffer protocol: bytes, memoryview, numpy and Arrow buffers."""

SMALL_PAGE: Final = 64 * 1024
"""Pages up to this size are read whole, without looking up first where the wanted values are."""

_GAP_BYTES = 16 * 1024
"""Runs with gaps up to this size are read as one range: the bytes between them cost less than another range."""

T = TypeVar("T")
Steps: TypeAlias = Generator[Sequence[ByteRange], Sequence[BytesLike], T]
"""A running decoder: yields ranges, is sent one buffer per range, returns a `T`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPage:
    """A page that is ready to be written.

    Attributes:
        num_rows: Top-level rows in the page.
        length: The recorded length: rows, or items where the format counts items.
        encoding: The description: `PageLayout` (2.1 and later) or `ArrayEncoding` (2.0), or the result of
            `page_encoding`.
        buffers: Bytes of the page buffers, in the order in which the description counts them.
    """

    num_rows: int
    length: int
    encoding: Message
    buffers: tuple[BytesLike, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all buffers, without padding."""
        return sum(memoryview(b).nbytes for b in self.buffers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """A page in a file.

    Attributes:
        first_row: Row of the file at which the page begins.
        num_rows: Rows in the page.
        length: The recorded length (see `EncodedPage.length`).
        encoding: The parsed description.
        buffers: The ranges of the page buffers in the file.
    """

    first_row: int
    num_rows: int
    length: int
    encoding: Message
    buffers: tuple[ByteRange, ...]

    def buffer(self, index: int) -> ByteRange:
        """The range of one buffer.

        Raises:
            CorruptFileError: The page has no such buffer.
        """
        if index >= len(self.buffers):
            raise CorruptFileError(f"buffer {index} is missing: the page has {len(self.buffers)} buffers")
        return self.buffers[index]


def as_bytes(buffer: BytesLike) -> Bytes:
    """A view of any buffer as an array of bytes."""
    return np.frombuffer(buffer, np.uint8)


def allocate_bytes(size: int) -> Bytes:
    """An uninitialized array in Arrow's memory, which is released to the system from every thread.

    The C library keeps large freed arrays of each thread, including those of numpy.
    """
    return np.frombuffer(pa.allocate_buffer(size), np.uint8) if size else np.empty(0, np.uint8)


def merge_ranges(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], pages: npt.NDArray[np.int64]
) -> tuple[list[ByteRange], npt.NDArray[np.int64]]:
    """Ranges of the file that hold all runs of bytes; runs with small gaps between them are merged.

    Args:
        starts: The starts of the runs.
        ends: The ends of the runs.
        pages: The number of the page of each run. Runs of different pages are not merged: their files may differ.

    Returns:
        The ranges, and the number of runs in each.
    """
    gaps = starts[1:] - ends[:-1]
    apart = np.flatnonzero((gaps > _GAP_BYTES) | (gaps < 0) | (pages[1:] != pages[:-1])) + 1
    first = np.concatenate([[0], apart])
    counts = np.diff(np.append(first, starts.size))
    return list(zip(starts[first].tolist(), ends[first + counts - 1].tolist(), strict=True)), counts


def coalesce_pieces(pieces: Sequence[BytesLike]) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """One array of all pieces, and the start of each piece in it.

    Pieces of one mapped file, or of one larger read, are not copied.
    """
    if len(pieces) == 1:
        return as_bytes(pieces[0]), np.zeros(1, np.int64)
    parts = [as_bytes(piece) for piece in pieces]
    whole: BytesLike = pieces[0].obj if isinstance(pieces[0], memoryview) else None
    if whole is not None and all(isinstance(piece, memoryview) and piece.obj is whole for piece in pieces):
        data = np.frombuffer(whole, np.uint8)
        places = [part.__array_interface__["data"][0] for part in (data, *parts)]
        return data, np.array(places[1:], np.int64) - places[0]
    sizes = np.array([part.size for part in parts], np.int64)
    return np.concatenate(parts), np.cumsum(sizes) - sizes


def run_steps(steps: Steps[T], fetch: Callable[[Sequence[ByteRange]], Sequence[BytesLike]]) -> T:
    """Run one decoder to its end; `fetch` reads the ranges that it yields."""
    try:
        ranges = next(steps)
        while True:
            ranges = steps.send(fetch(ranges))
    except StopIteration as stop:
        result: T = stop.value
        return result


def lock_step(many: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Combine several decoders into one that yields the ranges of all of them together.

    Each round collects the ranges of every unfinished decoder, so that columns whose index must be read first cost one
    more round in total, not one more round each.
    """
    results: dict[int, T] = {}
    waiting: dict[int, Sequence[ByteRange]] = {}
    for index, steps in enumerate(many):
        _advance(steps, None, index, waiting, results)
    while waiting:
        pending = dict(waiting)
        answers = yield [r for ranges in pending.values() for r in ranges]
        waiting.clear()
        position = 0
        for index, ranges in pending.items():
            _advance(many[index], answers[position : position + len(ranges)], index, waiting, results)
            position += len(ranges)
    return [results[index] for index in range(len(many))]


def _advance(
    steps: Steps[T],
    answer: Sequence[BytesLike] | None,
    index: int,
    waiting: dict[int, Sequence[ByteRange]],
    results: dict[int, T],
) -> None:
    try:
        waiting[index] = next(steps) if answer is None else steps.send(answer)
    except StopIteration as stop:
        results[index] = stop.value


def is_draft(description: Message) -> bool:
    """Whether a page of a 2.2 file has the chunks of 2.1."""
    if not isinstance(description, PageLayout):
        return False
    if description.HasField("blob_layout"):
        description = description.blob_layout.inner_layout
    return description.HasField("mini_block_layout") and not description.mini_block_layout.has_large_chunk


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

    def shift(self, by: int) -> RowRuns:
        """These runs, counted from a row `by` rows earlier."""
        return RowRuns(starts=self.starts + by, ends=self.ends + by)

    def clip(self, start: int, end: int) -> RowRuns:
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
        return self.clip(start, end).shift(-start)

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

"""Merges data files by copying their pages unchanged.

A page of a 2.x file is self-contained: its description and its buffers mean the same in any file of that version. Only
the positions of the buffers and the page's first row are recorded outside of it, and are rewritten:

    page whose rows all stay         copied: description and buffers byte for byte, with neighbours (see below)
    page that loses some rows        decoded, without those rows, and encoded again
    page that pylance misreads       decoded and encoded again (see `encoding.hidden_nulls` and `encoding.drafts`)
    page that loses all rows         left out
    consecutive small pages          decoded and encoded together, so that files of many loads get large pages
    column that a source lacks       encoded as nulls

A page of list items in a 2.0 file does not record the rows of its items, so that only whole 2.0 files are copied.

Which regions of a data file are copied in order to copy some of its pages:

    file       |page|page| other |page|page|page| other |metadata|
    regions    |=========|       |==============|

A region begins and ends at multiples of 64 bytes, and moves as a whole: buffers keep their positions modulo 64, and the
padding after them is copied with them. The storage copies large regions best, so that small regions are joined with
their neighbors if few bytes lie between. These bytes are copied as well, but no reader uses them.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.file2_pb2 import ColumnMetadata, Encoding
from lance_core.encoding.choosing.strategy import Limits
from lance_core.encoding.concatenate import concatenate
from lance_core.encoding.encoder import encode_field
from lance_core.encoding.hidden_nulls import hides_nulls
from lance_core.encoding.page import ByteRange, BytesLike, EncodedPage, is_draft, page_encoding
from lance_core.errors import LanceError, UnsupportedError
from lance_core.file.coalesced import can_coalesce, coalesce
from lance_core.file.container import PageFile, WrittenFile
from lance_core.file.metadata import ALIGNMENT, ColumnPages, FileVersion
from lance_core.file.pool import num_threads, submit
from lance_core.file.reader import DataFileReader
from lance_core.file.writer import DEFAULT_PAGE_BYTES
from lance_core.schema import Field, Schema, field_to_arrow
from lance_core.schema.field import is_blob, is_blob_v2, items_per_row, leaf_paths, plain_columns
from lance_core.store import DEFAULT_READ_BYTES, ObjectStore

# A page below both limits is small: readers need more time to find it than to read it.
SMALL_ROWS: Final = 16 * 1024
SMALL_BYTES: Final = 64 * 1024
# Least share of the bytes that must be in copied pages.
WORTH_COPYING: Final = 0.1
_TOTAL_BUFFERED: Final = 256 * 1024 * 1024
_MIN_PAGE_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 8 * 1024 * 1024
# Bytes of small pages of a column that are decoded together.
_DECODED_BYTES: Final = 1024 * 1024

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """Rows to copy, from files that hold different columns of the same rows.

    Attributes:
        num_rows: Rows in the files.
        keep: For each row whether to keep it; None for all.
        columns: For each available field id the store and key of its file, the opened file, and its column.
    """

    num_rows: int
    keep: Mask | None
    columns: Mapping[int, tuple[ObjectStore, str, DataFileReader, int]]

    @property
    def num_kept(self) -> int:
        """Number of rows to keep."""
        return self.num_rows if self.keep is None else int(np.count_nonzero(self.keep))

    def kept_offsets(self, rows: range) -> npt.NDArray[np.int64]:
        """The offsets of those of some rows that are kept."""
        keep = slice(None) if self.keep is None else self.keep[rows.start : rows.stop]
        return np.arange(rows.start, rows.stop)[keep]


def copy_pages(
    store: ObjectStore,
    key: str,
    schema: Schema,
    version: FileVersion,
    sources: Sequence[CopySource],
    *,
    merge_small: bool = True,
    read_bytes: int = DEFAULT_READ_BYTES,
) -> WrittenFile:
    """Write one file with the rows of several, one after the other.

    Args:
        store: The store of the new file.
        key: The new file's key.
        schema: Its columns.
        version: Its version, which must be the version of all sources.
        sources: The rows.
        merge_small: Whether to merge small pages, and to reject files with few pages to copy.
        read_bytes: Bytes per read if the storage cannot copy.

    Raises:
        UnsupportedError: Pages cannot be copied between these files; no file is written.
    """
    if version is FileVersion.V0_1:
        raise UnsupportedError("pages of 0.1 files cannot be copied")
    for source in sources:
        _check_can_copy(source, schema, version)
    columns = _plan_columns(schema, version)
    if not version.has_levels and any(source.keep is not None for source in sources):
        raise UnsupportedError("pages of 2.0 files with deleted rows cannot be copied")
    steps = [[list(_plan_steps(column, source, version)) for source in sources] for column in columns]
    if merge_small:
        _reject_small_gain(steps, decodes_together=version.has_levels and can_coalesce(schema))
        if version.has_levels:
            steps = [_decode_small_neighbours(column_steps) for column_steps in steps]
    file = PageFile(store.open_writer(key), key, schema, version)
    try:
        copier = _Copier(file, columns, version, read_bytes)
        for index, source in enumerate(sources):
            copier.copy(source, [column_steps[index] for column_steps in steps])
        copier.finish()
        return file.finish(sum(source.num_kept for source in sources))
    except BaseException:
        file.abort()
        raise


@dataclass(frozen=True, slots=True)
class _CopiedColumn:
    """A column of the new file.

    Attributes:
        top: The top-level field, with only the fields on the path to the column.
        field: The field that has the column.
        items_per_row: Items of a page per row.
    """

    top: Field
    field: Field
    items_per_row: int


@dataclass(frozen=True, slots=True)
class _CopyStep:
    """A run of rows of a source in one column, to copy or to decode.

    Attributes:
        start: First row.
        end: Row after the last.
        page: The page to copy; None to decode the rows, or to write nulls where the source lacks the column.
        size: Bytes of the page.
    """

    start: int
    end: int
    page: ColumnMetadata.Page | None
    size: int

    @property
    def is_small(self) -> bool:
        """Whether the page should be merged with others."""
        return self.size < SMALL_BYTES and self.end - self.start < SMALL_ROWS


def _plan_columns(schema: Schema, version: FileVersion) -> list[_CopiedColumn]:
    if not version.has_levels:
        return [_CopiedColumn(top, field, 1) for top in schema.fields for field in plain_columns(top)]
    return [
        _CopiedColumn(_narrow_to_path(path), path[-1], items_per_row(path))
        for top in schema.fields
        for path in leaf_paths(top)
    ]


def _narrow_to_path(path: Sequence[Field]) -> Field:
    """The first field of a path, with only the children on the path; a map is stored as a list of structs."""
    result = path[-1]
    for field in reversed(path[:-1]):
        logical_type = "list.struct" if field.logical_type == "map" else field.logical_type
        result = replace(field, logical_type=logical_type, children=(result,))
    return result


def _check_can_copy(source: CopySource, schema: Schema, version: FileVersion) -> None:
    """Reject a source whose pages would have another meaning in the new file."""
    fields_by_reader: dict[int, dict[int, Field]] = {}
    for top in schema.fields:
        fields = [path[-1] for path in leaf_paths(top)] if version.has_levels else list(plain_columns(top))
        present_fields = [field for field in fields if field.id in source.columns]
        if present_fields and len(present_fields) < len(fields):
            raise UnsupportedError(f"pages of {top.name!r} cannot be copied: a file has only some of its columns")
        stored = {field.id for field in fields}
        if any(field.id in source.columns and field.id not in stored for field, _ in top.walk()):
            raise UnsupportedError(
                f"pages of {top.name!r} cannot be copied: it is a packed struct in only one of the two files"
            )
        if not present_fields and not version.has_levels:
            raise UnsupportedError(f"pages of 2.0 files that lack the column {top.name!r} cannot be copied")
        for field in present_fields:
            _, key, reader, index = source.columns[field.id]
            file_fields = fields_by_reader.setdefault(id(reader), {f.id: f for f, _ in reader.schema.walk()})
            if reader.version is not version:
                raise UnsupportedError(f"pages of {key} cannot be copied: it has version {reader.version.value}")
            if field.id not in file_fields or not _has_same_layout(file_fields[field.id], field):
                raise UnsupportedError(f"pages of {field.name!r} cannot be copied: it has another type in {key}")
            if not 0 <= index < len(reader.metadata.columns):
                raise UnsupportedError(f"pages of {field.name!r} cannot be copied: {key} has no column {index}")
            pages = reader.metadata.columns[index]
            if is_blob(field) or is_blob_v2(field) or pages.column.WhichOneof("column_encoding") != "values":
                raise UnsupportedError(
                    f"pages of {field.name!r} cannot be copied: they contain positions in their file"
                )


def _has_same_layout(file_field: Field, new: Field) -> bool:
    """Whether a field of a file is stored like one of the new file."""
    if file_field.logical_type != new.logical_type or file_field.extension_name != new.extension_name:
        return False
    by_id = {child.id: child for child in file_field.children}
    return all(child.id in by_id and _has_same_layout(by_id[child.id], child) for child in new.children)


def _reject_small_gain(steps: Sequence[Sequence[Sequence[_CopyStep]]], *, decodes_together: bool) -> None:
    """Reject a copy of few pages: decoding whole rows is faster than decoding columns one by one, file by file.

    Small files are in memory as a whole, so that many megabytes of them are not opened to decode their pages together.
    """
    all_steps = [step for of_column in steps for of_source in of_column for step in of_source]
    if decodes_together and sum(step.size for step in all_steps) <= _TOTAL_BUFFERED:
        return
    copied = sum(step.size for step in all_steps if step.page is not None and not step.is_small)
    if copied < WORTH_COPYING * sum(step.size for step in all_steps):
        raise UnsupportedError("too few pages can be copied unchanged")


def _decode_small_neighbours(steps: list[list[_CopyStep]]) -> list[list[_CopyStep]]:
    """The steps, with small pages to be decoded if a page next to them is small or is decoded anyway."""
    flat = [(i, j) for i, runs in enumerate(steps) for j in range(len(runs))]
    result = [list(runs) for runs in steps]
    for position, (i, j) in enumerate(flat):
        neighbour_positions = flat[max(0, position - 1) : position] + flat[position + 1 : position + 2]
        neighbours = (steps[a][b] for a, b in neighbour_positions)
        if steps[i][j].is_small and any(near.is_small or near.page is None for near in neighbours):
            result[i][j] = replace(steps[i][j], page=None)
    return result


def _plan_steps(column: _CopiedColumn, source: CopySource, version: FileVersion) -> Iterator[_CopyStep]:
    source_column = source.columns.get(column.field.id)
    if source_column is None:
        yield _CopyStep(0, source.num_rows, None, 0)
        return
    pages: ColumnPages = source_column[2].metadata.columns[source_column[3]]
    start = 0
    for index, (message, items) in enumerate(zip(pages.messages, pages.num_items.tolist(), strict=True)):
        end = start + items // column.items_per_row
        num_kept = end - start if source.keep is None else int(np.count_nonzero(source.keep[start:end]))
        if message.encoding.WhichOneof("location") != "direct":
            raise UnsupportedError(
                f"pages of {source_column[1]} cannot be copied: their descriptions are outside of the column metadata"
            )
        if num_kept:
            is_copied = num_kept == end - start and not _is_misread(pages, index, column, version)
            yield _CopyStep(start, end, message if is_copied else None, sum(message.buffer_sizes))
        start = end


def _is_misread(pages: ColumnPages, index: int, column: _CopiedColumn, version: FileVersion) -> bool:
    """Whether the reference library misreads or rejects a page."""
    is_nested, may_be_draft = column.top is not column.field, version is FileVersion.V2_2
    if not is_nested and not may_be_draft:
        return False
    description = pages.page(index, 0, 0).encoding
    return (is_nested and hides_nulls(description)) or (may_be_draft and is_draft(description))


class _WaitingRows(NamedTuple):
    """Rows of a source that are decoded in a column, and the bytes of their pages."""

    source: CopySource
    rows: range
    size: int


@dataclass(frozen=True, slots=True)
class _CopiedPage:
    """A page of the new file.

    Attributes:
        buffers: The ranges of its buffers: in the new file once they are written; before in its source, or from 0 on.
        encoding: Its description.
        length: The length to record for it.
        num_rows: Rows in it.
    """

    buffers: list[ByteRange]
    encoding: Encoding
    length: int
    num_rows: int


class _Copier:
    """Runs the steps of all columns and keeps the pages of each column in order.

    The pages of the new file are in no particular order: large regions are copied as they come; encoded pages and small
    regions are collected and written between them, because object storage copies no small parts.

    Args:
        file: The new file.
        columns: Its columns.
        version: Its version.
        read_bytes: Bytes per read.
    """

    def __init__(self, file: PageFile, columns: Sequence[_CopiedColumn], version: FileVersion, read_bytes: int) -> None:
        self._file = file
        self._columns = columns
        self._limits = Limits(large_chunks=version is FileVersion.V2_2)
        self._read_bytes = read_bytes
        self._page_bytes = max(_MIN_PAGE_BYTES, min(DEFAULT_PAGE_BYTES, _TOTAL_BUFFERED // max(len(columns), 1)))
        self._waiting: list[list[_WaitingRows]] = [[] for _ in columns]
        self._arrays: list[list[pa.Array]] = [[] for _ in columns]
        self._num_bytes = [0] * len(columns)
        self._pages: list[list[list[_CopiedPage]]] = [[] for _ in columns]
        self._pending: deque[tuple[list[_CopiedPage], Future[list[EncodedPage]]]] = deque()
        self._buffered: list[tuple[Region, BytesLike]] = []
        self._buffered_bytes = 0

    def copy(self, source: CopySource, steps: Sequence[Sequence[_CopyStep]]) -> None:
        """Add the rows of one source; `steps` has the steps of each column."""
        copied: dict[tuple[str, str], list[list[ByteRange]]] = {}
        places = {}
        for column, column_steps in enumerate(steps):
            for first, step in _merge_decoded(column_steps):
                if step.page is None:
                    self._wait(column, source, range(first, step.end), step.size)
                    continue
                self._start_encoding(column)
                page = _plan_copied_page(step.page, step.end - step.start)
                self._pages[column].append([page])
                store, key, reader, _ = source.columns[self._columns[column].field.id]
                places[store.root, key] = store, reader.metadata.size_bytes
                copied.setdefault((store.root, key), []).append(page.buffers)
        for place, pages in copied.items():
            store, size = places[place]
            self._copy(store, place[1], regions_of(pages, size, self._file.least_copy_bytes))

    def finish(self) -> None:
        """Write the remaining rows, and describe all pages."""
        for column in range(len(self._columns)):
            self._start_encoding(column)
        self._take_encoded(0)
        self._flush_buffered()
        for column, parts in enumerate(self._pages):
            for page in chain.from_iterable(parts):
                self._file.add_placed(column, page.buffers, page.encoding, page.length, page.num_rows)

    def _copy(self, store: ObjectStore, key: str, regions: Sequence[Region]) -> None:
        """Copy regions of a file; small regions are read together."""
        small: list[Region] = []
        for region in regions:
            if region.num_bytes >= self._file.least_copy_bytes:
                start, end = region.start, region.end
                region.move_to(self._file.append_range(store, key, start, end, read_bytes=self._read_bytes))
                continue
            small.append(region)
            if sum(each.num_bytes for each in small) >= self._read_bytes:
                self._fetch(store, key, small)
                small = []
        self._fetch(store, key, small)

    def _fetch(self, store: ObjectStore, key: str, regions: Sequence[Region]) -> None:
        if regions:
            pieces = store.get_ranges(key, [(region.start, region.end) for region in regions])
            for region, data in zip(regions, pieces, strict=True):
                self._buffer(region, data)

    def _buffer(self, region: Region, data: BytesLike) -> None:
        """Keep bytes until they are enough to be written."""
        self._buffered.append((region, data))
        self._buffered_bytes += region.num_bytes
        if self._buffered_bytes >= _BUFFER_BYTES:
            self._flush_buffered()

    def _flush_buffered(self) -> None:
        for region, data in self._buffered:
            region.move_to(self._file.append(data)[0])
        self._buffered, self._buffered_bytes = [], 0

    def _wait(self, column: int, source: CopySource, rows: range, size: int) -> None:
        """Decode rows later, together with those of the next sources."""
        waiting = self._waiting[column]
        if waiting and sum(each.size for each in waiting) + size > _DECODED_BYTES:
            self._decode(column)
        self._waiting[column].append(_WaitingRows(source, rows, size))

    def _decode(self, column: int) -> None:
        """Decode the rows that wait, and buffer those to keep, to be encoded with the following rows."""
        waiting, self._waiting[column] = self._waiting[column], []
        field, top = self._columns[column].field, self._columns[column].top
        together = _read_together(waiting, field, top) if len(waiting) > 1 else None
        if together is not None:
            self._add_decoded(column, together)
            return
        for source, rows, _ in waiting:
            place = source.columns.get(field.id)
            offsets = rows if source.keep is None else source.kept_offsets(rows)
            if place is None:
                self._add_decoded(column, pa.nulls(len(offsets), field_to_arrow(top).type))
                continue
            for batch in place[2].read(Schema(fields=(top,)), {field.id: place[3]}, offsets, batch_rows=None):
                self._add_decoded(column, batch.column(0))

    def _add_decoded(self, column: int, array: Any) -> None:
        if not len(array):
            return
        self._arrays[column].append(array)
        self._num_bytes[column] += array.nbytes
        if self._num_bytes[column] >= self._page_bytes:
            self._start_encoding(column)

    def _start_encoding(self, column: int) -> None:
        """Start to encode the rows of a column that are decoded, or wait for it."""
        if self._waiting[column]:
            self._decode(column)
        arrays, self._arrays[column], self._num_bytes[column] = self._arrays[column], [], 0
        if arrays:
            pages: list[_CopiedPage] = []
            self._pages[column].append(pages)
            self._pending.append((pages, submit(_encode_column, self._columns[column].top, arrays, self._limits)))
            self._take_encoded(num_threads() + 1)

    def _take_encoded(self, max_pending: int) -> None:
        """Take over encoded pages until at most `max_pending` are still being encoded."""
        while len(self._pending) > max_pending:
            pages, future = self._pending.popleft()
            for encoded in future.result():
                sizes = [memoryview(data).nbytes for data in encoded.buffers]
                page = _CopiedPage(
                    [(0, size) for size in sizes], page_encoding(encoded.encoding), encoded.length, encoded.num_rows
                )
                pages.append(page)
                for index, data in enumerate(encoded.buffers):
                    self._buffer(Region(0, sizes[index], [(page.buffers, index)]), data)


def _plan_copied_page(message: ColumnMetadata.Page, num_rows: int) -> _CopiedPage:
    ranges = zip(message.buffer_offsets, message.buffer_sizes, strict=True)
    return _CopiedPage(
        [(start, start + length) for start, length in ranges], message.encoding, message.length, num_rows
    )


def _merge_decoded(steps: Sequence[_CopyStep]) -> Iterator[tuple[int, _CopyStep]]:
    """The steps, with consecutive decoded rows merged into one: its first row, and its last step with their bytes."""
    first: int | None = None
    size = 0
    for position, step in enumerate(steps):
        if step.page is not None:
            yield step.start, step
            continue
        size = step.size if first is None else size + step.size
        first = step.start if first is None else first
        following = steps[position + 1] if position + 1 < len(steps) else None
        if following is None or following.page is not None or following.start != step.end:
            yield first, replace(step, size=size)
            first = None


def _read_together(waiting: Sequence[_WaitingRows], field: Field, top: Field) -> pa.Array | None:
    """The rows to keep of several files in one array; None if they have to be read one by one, which reports errors."""
    places = [source.columns.get(field.id) for source, _, _ in waiting]
    readers = [place[2] for place in places if place is not None]
    indices = {place[3] for place in places if place is not None}
    schema = Schema(fields=(top,))
    if len(readers) < len(places) or len(indices) > 1 or not readers[0].version.has_levels or not can_coalesce(schema):
        return None
    firsts = accumulate((reader.num_rows for reader in readers), initial=0)
    rows: Any = np.concatenate(
        [first + each.source.kept_offsets(each.rows) for first, each in zip(firsts, waiting, strict=False)]
    )
    start, end = int(rows[0]), int(rows[-1]) + 1
    if len(rows) == end - start:
        rows = range(start, end)
    try:
        batches = coalesce(readers).read(schema, {field.id: indices.pop()}, rows, batch_rows=max(1, len(rows)))
        return concatenate([batch.column(0) for batch in batches])
    except (LanceError, ValueError):
        return None


def _encode_column(top: Field, arrays: list[pa.Array], limits: Limits) -> list[EncodedPage]:
    (pages,) = encode_field(top, concatenate(arrays), limits)
    return pages


_MOST_UNUSED: Final = 1 / 32
"""Largest share of the bytes of regions that may be unused."""


@dataclass(slots=True)
class Region:
    """A range of a file that is copied as a whole.

    Attributes:
        start: Its first byte.
        end: The byte after its last.
        buffers: The buffers in it: for each the ranges of the buffers of its page, and its number among them.
    """

    start: int
    end: int
    buffers: list[tuple[list[ByteRange], int]] = dataclasses.field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    def move_to(self, position: int) -> None:
        """Change the ranges of the buffers to those in the new file, in which the region begins at `position`."""
        moved = position - self.start
        for ranges, index in self.buffers:
            start, end = ranges[index]
            ranges[index] = (start + moved, end + moved)


def regions_of(pages: Iterable[list[ByteRange]], size: int, least: int) -> list[Region]:
    """The regions for some pages of a file, in the order of the file.

    Args:
        pages: For each page the ranges of its buffers, which `Region.move_to` changes; empty buffers are in no region.
        size: Bytes of the file.
        least: The size below which a region is joined with the one before it, if few bytes lie between.
    """
    buffers = [(ranges[index], ranges, index) for ranges in pages for index in range(len(ranges))]
    regions: list[Region] = []
    for (start, end), ranges, index in sorted(buffers, key=lambda each: each[0]):
        if start == end:
            continue
        low, high = start - start % ALIGNMENT, max(end, min(end + -end % ALIGNMENT, size))
        if regions and low <= regions[-1].end:
            regions[-1].end = max(regions[-1].end, high)
        else:
            regions.append(Region(low, high))
        regions[-1].buffers.append((ranges, index))
    return _join_small(regions, least)


def _join_small(regions: list[Region], least: int) -> list[Region]:
    """Join small regions with the one before, as long as few unused bytes are copied."""
    left = int(_MOST_UNUSED * sum(region.num_bytes for region in regions))
    result = regions[:1]
    for region in regions[1:]:
        last, gap = result[-1], region.start - result[-1].end
        if gap <= left and min(last.num_bytes, region.num_bytes) < least:
            left -= gap
            last.end = region.end
            last.buffers += region.buffers
        else:
            result.append(region)
    return result

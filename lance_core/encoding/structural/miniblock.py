"""Reads mini-block pages: many small chunks, each decoded as a whole (see `chunk_layout`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, MiniBlockLayout, PageLayout
from lance_core.encoding.compression.chunks import ChunkBuffers, Counts
from lance_core.encoding.compression.registry import decode_block, decode_blocks, decode_miniblock
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock
from lance_core.encoding.page import (
    SMALL_PAGE,
    ByteRange,
    Bytes,
    BytesLike,
    DecodedRows,
    PageInfo,
    RowRuns,
    Steps,
    as_bytes,
    coalesce_pieces,
    merge_ranges,
)
from lance_core.encoding.repdef import Layer, LevelArray, Levels, count_lists
from lance_core.encoding.structural.chunk_layout import ChunkParts, take_apart
from lance_core.encoding.structural.gathered import can_gather, decode_some, decode_some_levels
from lance_core.errors import CorruptFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunks:
    """The chunks of a group of pages, from their chunk meta.

    Attributes:
        layout: The description that all pages share, except for counts.
        layers: The layers in the description.
        positions: The position of each chunk in the file.
        sizes: Bytes per chunk.
        counts: Values per chunk.
        first: First chunk of each page, and the number of chunks.
    """

    layout: MiniBlockLayout
    layers: tuple[Layer, ...]
    positions: Counts
    sizes: Counts
    counts: Counts
    first: Counts


def group_key(layout: MiniBlockLayout) -> bytes:
    """The key of a page: pages with the same key are decoded together, because only their counts differ."""
    shared = MiniBlockLayout()
    shared.CopyFrom(layout)
    shared.num_items = 0
    shared.num_dictionary_items = min(layout.num_dictionary_items, 1)
    return shared.SerializeToString(deterministic=True)


def decode(pages: Sequence[PageInfo], layers: tuple[Layer, ...], rows: RowRuns) -> Steps[DecodedRows]:
    """Read rows of a page, or of several consecutive pages with the same `group_key`.

    Args:
        pages: The pages.
        layers: The layers in the descriptions.
        rows: The wanted rows, counted from the first row of the first page.

    Returns:
        The rows of all chunks that hold a wanted row.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A compression is not known.
    """
    layouts = [_layout_of(page) for page in pages]
    num_rows = np.array([page.num_rows for page in pages], np.int64)
    total_rows = int(num_rows.sum())
    is_list = count_lists(layers) > 0
    has_items = layouts[0].num_dictionary_items > 0
    data_ranges = [page.buffer(1) for page in pages]
    whole = rows.covers(total_rows) or sum(end - start for start, end in data_ranges) <= SMALL_PAGE
    own_ranges = [[page.buffer(i) for i in (0, *range(2, 2 + has_items + is_list))] for page in pages]
    first_ranges = [r for page_ranges in own_ranges for r in page_ranges] + (data_ranges if whole else [])
    answers = yield first_ranges
    step = 1 + has_items + is_list
    metas = answers[: step * len(pages) : step]
    chunks = _read_meta(layouts, layers, metas, data_ranges)
    items: tuple[DataBlock, ...] = ()
    if has_items:
        stored = answers[1 : step * len(pages) : step]
        items = tuple(
            decode_block(layout.dictionary, as_bytes(buffer), layout.num_dictionary_items)
            for layout, buffer in zip(layouts, stored, strict=True)
        )
    index = _read_index(answers[step - 1 : step * len(pages) : step], chunks, num_rows) if is_list else None
    if index is None and bool((np.add.reduceat(chunks.counts, chunks.first[:-1]) != num_rows).any()):
        raise CorruptFileError(f"{int(chunks.counts.sum())} values in pages of {total_rows} rows")
    chunk_numbers = np.arange(chunks.counts.size, dtype=np.int64)
    if not rows.covers(total_rows):
        chunk_numbers = _find_chunks_of_values(chunks.counts, rows) if index is None else index.chunks_of_rows(rows)
    if whole:
        data, base = _join_whole(answers[step * len(pages) :], chunks, data_ranges)
        starts = base[chunk_numbers]
    else:
        starts = chunks.positions[chunk_numbers]
        owners = np.searchsorted(chunks.first, chunk_numbers, side="right")
        ranges, counts = merge_ranges(starts, starts + chunks.sizes[chunk_numbers], owners)
        data, places = coalesce_pieces((yield ranges))
        starts += np.repeat(places - np.array([start for start, _ in ranges], np.int64), counts)
    decoded = _decode_chunks(chunks, data, starts, chunk_numbers, index, rows)
    return _add_items(decoded, items, chunks, chunk_numbers, rows)


def _layout_of(page: PageInfo) -> MiniBlockLayout:
    assert isinstance(page.encoding, PageLayout)
    return page.encoding.mini_block_layout


def _read_meta(
    layouts: Sequence[MiniBlockLayout], layers: tuple[Layer, ...], metas: Sequence[BytesLike], data: Sequence[ByteRange]
) -> _Chunks:
    width = 4 if layouts[0].has_large_chunk else 2
    raw = [as_bytes(meta) for meta in metas]
    if any(part.size % width or not part.size for part in raw):
        raise CorruptFileError(f"the chunk meta is not a number of words of {width} bytes")
    first = np.zeros(len(raw) + 1, np.int64)
    np.cumsum([part.size // width for part in raw], out=first[1:])
    words = (raw[0] if len(raw) == 1 else np.concatenate(raw)).view(f"<u{width}").astype(np.int64)
    sizes = ((words >> 4) + 1) * 8
    counts = np.left_shift(1, words & 15)
    num_items = [layout.num_items for layout in layouts]
    if max(num_items) > 2**40:
        raise CorruptFileError(f"a page of {max(num_items)} values")
    last = first[1:] - 1
    counts[last] = 0
    counts[last] = np.array(num_items, np.int64) - np.add.reduceat(counts, first[:-1])
    if int(counts.min()) < 0:
        raise CorruptFileError("chunks for more values than the page has")
    room = np.array([end - start for start, end in data], np.int64)
    if bool((np.add.reduceat(sizes, first[:-1]) > room).any()):
        raise CorruptFileError(f"chunks of {int(sizes.sum())} bytes in buffers of {int(room.sum())}")
    before = np.cumsum(sizes) - sizes
    shift = np.array([start for start, _ in data], np.int64) - before[first[:-1]]
    positions = before + np.repeat(shift, np.diff(first))
    return _Chunks(layout=layouts[0], layers=layers, positions=positions, sizes=sizes, counts=counts, first=first)


def _join_whole(answers: Sequence[BytesLike], chunks: _Chunks, data: Sequence[ByteRange]) -> tuple[Bytes, Counts]:
    """The chunk data of all pages as one array, and the start of each chunk in it."""
    parts = [as_bytes(answer) for answer in answers]
    starts = np.array([start for start, _ in data], np.int64)
    # Parts begin at multiples of 8, like chunks.
    parts = [part[: part.size // 8 * 8] for part in parts]
    lengths = np.array([part.size for part in parts], np.int64)
    shift = np.cumsum(lengths) - lengths - starts
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined, chunks.positions + np.repeat(shift, np.diff(chunks.first))


def _find_chunks_of_values(counts: Counts, rows: RowRuns) -> Counts:
    """The chunks that hold some rows of pages without lists."""
    ends = np.cumsum(counts)
    first = np.searchsorted(ends, rows.starts, side="right")
    last = np.searchsorted(ends, rows.ends - 1, side="right")
    return _merge_ranges(first, last, counts.size)


def _merge_ranges(first: Counts, last: Counts, size: int) -> Counts:
    """All numbers in any of the ranges ``first[i] .. last[i]``, the last included."""
    marks = np.zeros(size + 1, np.int64)
    np.add.at(marks, first, 1)
    np.add.at(marks, last + 1, -1)
    return np.flatnonzero(np.cumsum(marks[:-1]) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowIndex:
    """The repetition index: for each chunk, how many rows ended before it, and whether it begins inside a row."""

    ended_before: Counts
    begins_inside: npt.NDArray[np.bool_]

    def chunks_of_rows(self, rows: RowRuns) -> Counts:
        # Row r ends in the chunk c with ended[c] <= r < ended[c + 1], and begins in the chunk in which row r - 1
        # ended, or in the next one if that row ended with its chunk.
        ended = self.ended_before
        last = np.searchsorted(ended, rows.ends - 1, side="right") - 1
        first = np.searchsorted(ended, rows.starts - 1, side="right") - 1
        at_start = rows.starts == 0
        first[at_start] = 0
        ends_with_chunk = ~at_start & (ended[np.minimum(first + 1, ended.size - 1)] == rows.starts)
        ends_with_chunk &= ~self.begins_inside[np.minimum(first + 1, self.begins_inside.size - 1)]
        first = first + ends_with_chunk
        return _merge_ranges(np.minimum(first, last), last, ended.size - 1)


def _read_index(buffers: Sequence[BytesLike], chunks: _Chunks, num_rows: Counts) -> _RowIndex:
    depth = chunks.layout.repetition_index_depth
    raw = [as_bytes(buffer) for buffer in buffers]
    num_chunks = np.diff(chunks.first)
    if not depth or any(
        part.size != count * (depth + 1) * 8 for part, count in zip(raw, num_chunks.tolist(), strict=True)
    ):
        raise CorruptFileError(f"the repetition index does not have {depth + 1} numbers per chunk")
    table = (raw[0] if len(raw) == 1 else np.concatenate(raw)).view("<u8").reshape(-1, depth + 1)
    if int(table[:, 0].max()) > int(num_rows.max()):
        raise CorruptFileError("the repetition index counts more rows than the page has")
    ended = np.zeros(chunks.counts.size + 1, np.int64)
    np.cumsum(table[:, 0].astype(np.int64), out=ended[1:])
    if bool((np.diff(ended[chunks.first]) != num_rows).any()):
        raise CorruptFileError(f"the repetition index counts {int(ended[-1])} rows, there are {int(num_rows.sum())}")
    begins_inside = np.zeros(chunks.counts.size, np.bool_)
    begins_inside[1:] = table[:-1, 1] > 0
    begins_inside[chunks.first[:-1]] = False
    return _RowIndex(ended_before=ended, begins_inside=begins_inside)


def _decode_chunks(
    chunks: _Chunks, data: Bytes, starts: Counts, chunk_numbers: Counts, index: _RowIndex | None, rows: RowRuns
) -> DecodedRows:
    layout = chunks.layout
    has_levels = layout.HasField("rep_compression"), layout.HasField("def_compression")
    counts = chunks.counts[chunk_numbers]
    parts = take_apart(
        data,
        starts,
        chunks.sizes[chunk_numbers],
        levels=has_levels,
        num_values=layout.num_buffers,
        wide_sizes=layout.has_large_chunk,
    )
    num_levels = parts.num_levels if any(has_levels) else counts
    if index is None:
        ends = np.cumsum(chunks.counts)
        runs = RowRuns.of_rows(chunk_numbers)
        covered = RowRuns(starts=ends[runs.starts] - chunks.counts[runs.starts], ends=ends[runs.ends - 1])
        if can_gather(layout.value_compression, rows.count, int(counts.sum())):
            return _gather(chunks, parts, counts, rows, rows.positions_in(covered))
    levels = Levels(
        layers=chunks.layers,
        num_levels=int(num_levels.sum()),
        repetition=_decode_levels(layout.rep_compression, parts.repetition, num_levels),
        definition=_decode_levels(layout.def_compression, parts.definition, num_levels),
    )
    if index is not None and chunk_numbers.size == chunks.counts.size:
        covered = RowRuns.of_range(0, int(index.ended_before[-1]))
    elif index is not None:
        levels, covered = _cover_lists(levels, num_levels, chunk_numbers, index)
    values = decode_miniblock(layout.value_compression, parts.values, counts)
    return DecodedRows(covered=covered, levels=levels, values=values)


def _gather(chunks: _Chunks, parts: ChunkParts, counts: Counts, rows: RowRuns, positions: Counts) -> DecodedRows:
    """Some rows of pages without lists, at `positions` among the values of the chunks."""
    layout = chunks.layout
    definition = None
    if parts.definition is not None:
        if bool((parts.num_levels != counts).any()):
            raise CorruptFileError(f"{int(parts.num_levels.sum())} levels for {int(counts.sum())} values")
        definition = _to_levels(decode_some_levels(layout.def_compression, parts.definition, counts, positions))
    levels = Levels(layers=chunks.layers, num_levels=positions.size, repetition=None, definition=definition)
    values = decode_some(layout.value_compression, parts.values, counts, positions)
    return DecodedRows(covered=rows, levels=levels, values=values)


def _add_items(
    decoded: DecodedRows, items: tuple[DataBlock, ...], chunks: _Chunks, chunk_numbers: Counts, rows: RowRuns
) -> DecodedRows:
    """Add the dictionaries of the pages, and make the indices count through all dictionaries."""
    values = decoded.values
    if len(items) > 1 and isinstance(values, FixedWidthBlock):
        sizes = np.array([block.num_values for block in items], np.int64)
        shift = np.cumsum(sizes) - sizes
        if values.bits_per_value != 32 or int(sizes.sum()) >= 2**32:
            raise CorruptFileError(f"indices of {values.bits_per_value} bits into {int(sizes.sum())} items")
        counts = chunks.counts[chunk_numbers]
        if values.num_values == int(counts.sum()):
            moved = np.repeat(shift[np.searchsorted(chunks.first, chunk_numbers, side="right") - 1], counts)
        else:  # only the wanted rows were decoded
            ends = np.cumsum(np.add.reduceat(chunks.counts, chunks.first[:-1]))
            moved = shift[np.searchsorted(ends, rows.rows(), side="right")]
        words = values.view() + moved.astype(np.uint32)
        values = FixedWidthBlock(data=words.view(np.uint8), bits_per_value=32, num_values=values.num_values)
    return DecodedRows(covered=decoded.covered, levels=decoded.levels, values=values, items=items)


def _decode_levels(encoding: CompressiveEncoding, buffers: ChunkBuffers | None, counts: Counts) -> LevelArray | None:
    if buffers is None:
        return None
    return _to_levels(decode_blocks(encoding, buffers, counts))


def _to_levels(block: DataBlock) -> LevelArray:
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != 16:
        raise CorruptFileError("levels are not 16 bits wide")
    return block.data.view("<u2")[: block.num_values]


def _cover_lists(levels: Levels, num_levels: Counts, chunk_numbers: Counts, index: _RowIndex) -> tuple[Levels, RowRuns]:
    """The rows of the levels of some chunks; a run of chunks may begin and end inside a row.

    Partial rows at both ends count as rows, so that the number of rows follows from the levels.
    """
    runs = RowRuns.of_rows(chunk_numbers)
    ends = np.cumsum(num_levels)
    position = np.cumsum(runs.ends - runs.starts)
    last_level = ends[position - 1]
    first_level = np.concatenate([[0], last_level[:-1]]).astype(np.int64)
    assert levels.repetition is not None
    row_level = count_lists(levels.layers)
    repetition = levels.repetition.copy()
    repetition[first_level] = row_level
    before = np.concatenate([[0], np.cumsum(repetition == row_level)])
    first_row = index.ended_before[runs.starts]
    count = before[last_level] - before[first_level]
    covered = RowRuns(starts=first_row, ends=first_row + count)
    return replace(levels, repetition=repetition), covered

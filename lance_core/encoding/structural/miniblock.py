"""Mini-block pages: many small chunks, each decoded as a whole.

    buffer 0        chunk meta      one word per chunk, u16 in 2.1 and u32 in 2.2:
                                        bits 4..   size of the chunk / 8, minus 1
                                        bits 0..3  log2 of the number of values; 0 in the last chunk, which has the
                                                   rest of the page's values
    buffer 1        chunks          back to back (see `chunk_layout`)
    next            dictionary      if the values are indices into one
    next            repetition index, in pages with list layers: per chunk two u64:
                                        how many rows end in the chunk
                                        levels of the row that goes on after it; all levels if none begins in it

Levels that have no value (null and empty lists) lie in the chunk of the last value before them. A row that ends with
its chunk leaves nothing over.
"""

__all__ = ["decode", "encode"]

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, MiniBlockLayout, PageLayout
from lance_core.encoding.compression import (
    ChunkBuffers,
    MiniBlockPage,
    decode_block,
    decode_blocks,
    decode_miniblock,
    encode_blocks,
)
from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock
from lance_core.encoding.page import Bytes, BytesLike, EncodedPage, PageInfo, Steps, as_bytes
from lance_core.encoding.repdef import Layer, LevelArray, Levels, count_lists, max_definition, slot_mask
from lance_core.encoding.structural.chunk_layout import ChunkParts, lay_out, take_apart
from lance_core.encoding.structural.decoded import DecodedRows, RowRuns
from lance_core.errors import CorruptFileError

Word: TypeAlias = type[np.uint16] | type[np.uint32]

_MAX_CHUNK_BYTES_2_1: Final = 32 * 1024
# Below this many bytes it is cheaper to read a page as a whole than to look up its chunks first.
_SMALL_PAGE: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Dictionary:
    """The dictionary of a page, encoded."""

    encoding: CompressiveEncoding
    data: Bytes
    num_items: int


def encode(
    levels: Levels, values: MiniBlockPage, *, num_rows: int, dictionary: Dictionary | None, large_chunks: bool
) -> EncodedPage | None:
    """Write a page.

    Args:
        levels: Nesting and nulls.
        values: The values of the slots, or the indices into the dictionary, in chunks.
        num_rows: Top-level rows.
        dictionary: What the values are indices into.
        large_chunks: Whether the file is 2.2 or later.

    Returns:
        The page; None if a chunk would become larger than the format allows.
    """
    bounds = _level_bounds(levels, values.counts)
    num_levels = np.diff(bounds)
    layout = MiniBlockLayout(
        value_compression=values.encoding,
        layers=[int(layer) for layer in levels.layers],
        num_buffers=len(values.buffers),
        num_items=int(values.counts.sum()),
        has_large_chunk=large_chunks,
    )
    parts: list[ChunkBuffers | None] = []
    for array, limit, target in (
        (levels.repetition, count_lists(levels.layers), layout.rep_compression),
        (levels.definition, max_definition(levels.layers), layout.def_compression),
    ):
        parts.append(None if array is None else _encode_levels(array, num_levels, limit, target))
    has_levels = levels.repetition is not None or levels.definition is not None
    chunk_parts = ChunkParts(
        num_levels=num_levels if has_levels else np.zeros_like(num_levels),
        repetition=parts[0],
        definition=parts[1],
        values=values.buffers,
    )
    laid_out = lay_out(chunk_parts, wide_sizes=large_chunks)
    if laid_out is None or (not large_chunks and int(laid_out[1].max()) > _MAX_CHUNK_BYTES_2_1):
        return None
    data, sizes = laid_out
    buffers: list[BytesLike] = [_chunk_meta(sizes, values.counts, np.uint32 if large_chunks else np.uint16), data]
    if dictionary is not None:
        layout.dictionary.CopyFrom(dictionary.encoding)
        layout.num_dictionary_items = dictionary.num_items
        buffers.append(dictionary.data)
    if levels.repetition is not None:
        layout.repetition_index_depth = 1
        buffers.append(_repetition_index(levels.repetition, bounds, count_lists(levels.layers)))
    return EncodedPage(
        num_rows=num_rows, length=num_rows, encoding=PageLayout(mini_block_layout=layout), buffers=tuple(buffers)
    )


def _level_bounds(levels: Levels, counts: Counts) -> Counts:
    """First level of each chunk, and the total."""
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    slots = slot_mask(levels)
    if slots is not None:
        positions = np.flatnonzero(slots)
        bounds[1:-1] = positions[bounds[1:-1]]
        bounds[0] = 0
    bounds[-1] = levels.num_levels
    return bounds


def _encode_levels(array: LevelArray, counts: Counts, limit: int, target: CompressiveEncoding) -> ChunkBuffers:
    block = FixedWidthBlock(data=array.view(np.uint8), bits_per_value=16, num_values=array.size)
    bits = limit.bit_length()
    packed = array.size >= 512 * counts.size and bits <= 4
    encoding, buffers = encode_blocks(block, "out_of_line_bitpacking" if packed else "flat", counts)
    target.CopyFrom(encoding)
    return buffers


def _chunk_meta(sizes: Counts, counts: Counts, word: Word) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
    logarithms = np.log2(counts).astype(np.int64)
    logarithms[-1:] = 0
    return ((sizes // 8 - 1) << 4 | logarithms).astype(word)


def _repetition_index(repetition: LevelArray, bounds: Counts, row_level: int) -> npt.NDArray[np.uint64]:
    row_starts = np.flatnonzero(repetition == row_level)
    ends = np.append(row_starts[1:], repetition.size)
    started_before = np.searchsorted(row_starts, bounds[1:], side="left")
    ended_before = np.searchsorted(ends, bounds[1:], side="right")
    index = np.zeros((bounds.size - 1, 2), np.uint64)
    index[:, 0] = np.diff(ended_before, prepend=0)
    last_start = np.maximum(row_starts[started_before - 1], bounds[:-1])
    index[:, 1] = np.where(started_before > ended_before, bounds[1:] - last_start, 0)
    return index.ravel()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A mini-block page, as its description and its chunk meta tell."""

    layout: MiniBlockLayout
    layers: tuple[Layer, ...]
    starts: Counts
    sizes: Counts
    counts: Counts


def decode(page: PageInfo, layout: MiniBlockLayout, layers: tuple[Layer, ...], rows: RowRuns) -> Steps[DecodedRows]:
    """Read rows of a page.

    Args:
        page: Where it is.
        layout: Its description.
        layers: The layers that the description names.
        rows: Which rows are wanted.

    Returns:
        The rows of all chunks that hold a wanted row.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A compression is not known.
    """
    is_list = count_lists(layers) > 0
    meta_range, data_range = page.buffer(0), page.buffer(1)
    others = [page.buffer(2 + i) for i in range((layout.num_dictionary_items > 0) + is_list)]
    whole = rows.covers(page.num_rows) or data_range[1] - data_range[0] <= _SMALL_PAGE
    first = [meta_range, *others, *([data_range] if whole else [])]
    answers = yield first
    chunks = _read_meta(layout, layers, answers[0], data_range)
    extra = list(answers[1 : 1 + len(others)])
    items = None
    if layout.num_dictionary_items:
        items = decode_block(layout.dictionary, as_bytes(extra.pop(0)), layout.num_dictionary_items)
    index = _read_index(extra[0], chunks, page.num_rows) if is_list else None
    if rows.covers(page.num_rows):
        wanted = None
    elif index is None:
        wanted = _chunks_of_values(chunks.counts, rows, page.num_rows)
    else:
        wanted = index.chunks_of_rows(rows)
    if whole:
        data = as_bytes(answers[-1])
        starts = chunks.starts
        if wanted is not None:
            starts = starts[wanted]
    else:
        assert wanted is not None
        runs = RowRuns.of_rows(wanted)
        first_byte, last_byte = chunks.starts[runs.starts], chunks.starts[runs.ends - 1] + chunks.sizes[runs.ends - 1]
        base = data_range[0]
        pieces = yield [(base + a, base + b) for a, b in zip(first_byte.tolist(), last_byte.tolist(), strict=True)]
        data = np.concatenate([as_bytes(piece) for piece in pieces]) if len(pieces) > 1 else as_bytes(pieces[0])
        sizes = chunks.sizes[wanted]
        starts = np.cumsum(sizes) - sizes
    return _decode_chunks(chunks, data, starts, wanted, index, items, page.num_rows)


def _read_meta(layout: MiniBlockLayout, layers: tuple[Layer, ...], buffer: BytesLike, data: tuple[int, int]) -> _Page:
    raw = as_bytes(buffer)
    width = 4 if layout.has_large_chunk else 2
    if raw.size % width or not raw.size:
        raise CorruptFileError(f"chunk meta of {raw.size} bytes, in words of {width}")
    words = raw.view("<u4" if width == 4 else "<u2").astype(np.int64)
    sizes = ((words >> 4) + 1) * 8
    counts = np.left_shift(1, words & 15)
    counts[-1] = layout.num_items - int(counts[:-1].sum())
    if counts[-1] < 0 or layout.num_items > 2**40:
        raise CorruptFileError(f"chunks for more than the {layout.num_items} values of the page")
    if int(sizes.sum()) > data[1] - data[0]:
        raise CorruptFileError(f"chunks of {int(sizes.sum())} bytes in a buffer of {data[1] - data[0]}")
    return _Page(layout=layout, layers=layers, starts=np.cumsum(sizes) - sizes, sizes=sizes, counts=counts)


def _chunks_of_values(counts: Counts, rows: RowRuns, num_rows: int) -> Counts:
    """The chunks that hold the rows of a page without lists."""
    if int(counts.sum()) != num_rows:
        raise CorruptFileError(f"{int(counts.sum())} values in a page of {num_rows} rows")
    ends = np.cumsum(counts)
    first = np.searchsorted(ends, rows.starts, side="right")
    last = np.searchsorted(ends, rows.ends - 1, side="right")
    return _union(first, last, counts.size)


def _union(first: Counts, last: Counts, size: int) -> Counts:
    """All numbers in any of the ranges ``first[i] .. last[i]``, the last included."""
    marks = np.zeros(size + 1, np.int64)
    np.add.at(marks, first, 1)
    np.add.at(marks, last + 1, -1)
    return np.flatnonzero(np.cumsum(marks[:-1]) > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowIndex:
    """The repetition index: per chunk, how many rows ended before it, and whether it begins inside a row."""

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
        return _union(np.minimum(first, last), last, ended.size - 1)


def _read_index(buffer: BytesLike, chunks: _Page, num_rows: int) -> _RowIndex:
    raw = as_bytes(buffer)
    depth = chunks.layout.repetition_index_depth
    if raw.size != chunks.counts.size * (depth + 1) * 8:
        raise CorruptFileError(f"a repetition index of {raw.size} bytes for {chunks.counts.size} chunks")
    table = raw.view("<u8").reshape(chunks.counts.size, depth + 1)
    if int(table[:, 0].max()) > num_rows:
        raise CorruptFileError("the repetition index counts more rows than the page has")
    ended = np.zeros(chunks.counts.size + 1, np.int64)
    np.cumsum(table[:, 0].astype(np.int64), out=ended[1:])
    if int(ended[-1]) != num_rows:
        raise CorruptFileError(f"the repetition index counts {int(ended[-1])} rows, the page has {num_rows}")
    begins_inside = np.zeros(chunks.counts.size, np.bool_)
    begins_inside[1:] = table[:-1, 1] > 0
    return _RowIndex(ended_before=ended, begins_inside=begins_inside)


def _decode_chunks(
    chunks: _Page,
    data: Bytes,
    starts: Counts,
    wanted: Counts | None,
    index: _RowIndex | None,
    items: DataBlock | None,
    num_rows: int,
) -> DecodedRows:
    layout = chunks.layout
    has_levels = layout.HasField("rep_compression"), layout.HasField("def_compression")
    counts, sizes = chunks.counts, chunks.sizes
    if wanted is not None:
        counts, sizes = counts[wanted], sizes[wanted]
    parts = take_apart(
        data, starts, sizes, levels=has_levels, num_values=layout.num_buffers, wide_sizes=layout.has_large_chunk
    )
    num_levels = parts.num_levels if any(has_levels) else counts
    levels = Levels(
        layers=chunks.layers,
        num_levels=int(num_levels.sum()),
        repetition=_decode_levels(layout.rep_compression, parts.repetition, num_levels),
        definition=_decode_levels(layout.def_compression, parts.definition, num_levels),
    )
    values = decode_miniblock(layout.value_compression, parts.values, counts)
    covered = RowRuns.of_range(0, num_rows)
    if wanted is not None and index is None:
        ends = np.cumsum(chunks.counts)
        runs = RowRuns.of_rows(wanted)
        covered = RowRuns(starts=ends[runs.starts] - chunks.counts[runs.starts], ends=ends[runs.ends - 1])
    elif wanted is not None and index is not None:
        levels, covered = _cover_lists(levels, num_levels, wanted, index)
    return DecodedRows(covered=covered, levels=levels, values=values, items=items)


def _decode_levels(
    encoding: CompressiveEncoding, buffers: ChunkBuffers | None, counts: Counts
) -> LevelArray | None:
    if buffers is None:
        return None
    block = decode_blocks(encoding, buffers, counts)
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != 16:
        raise CorruptFileError("levels are not 16 bits wide")
    return block.data.view("<u2")[: block.num_values]


def _cover_lists(
    levels: Levels, num_levels: Counts, wanted: Counts, index: _RowIndex
) -> tuple[Levels, RowRuns]:
    """Which rows the levels of some chunks belong to; a run of chunks may begin and end inside a row.

    Both ends count as rows of their own, so that the levels say how many rows there are.
    """
    runs = RowRuns.of_rows(wanted)
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
    patched = Levels(
        layers=levels.layers, num_levels=levels.num_levels, repetition=repetition, definition=levels.definition
    )
    return patched, covered

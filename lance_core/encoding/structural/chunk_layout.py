"""The layout of mini-block pages and of their chunks, and how they are written.

    buffer 0        chunk meta      one word per chunk, u16 in 2.1 and u32 in 2.2:
                                        bits 4..   size of the chunk / 8, minus 1
                                        bits 0..3  log2 of the number of values; 0 for the last chunk, which has the
                                                   rest of the page's values
    buffer 1        chunks          back to back
    next            dictionary      if the values are indices into one
    next            repetition index, in pages with list layers: per chunk two u64:
                                        how many rows end in the chunk
                                        how many of its levels belong to a row that continues in the next chunk

Levels that have no value (null and empty lists) are in the chunk of the last value before them.

A chunk has a header, levels, and value buffers, all padded to 8 bytes:

    u16                 number of levels; 0 in a page without levels
    u16                 size of the repetition levels    only in a page that has them
    u16                 size of the definition levels    only in a page that has them
    u16 (2.1) u32 (2.2) size of each value buffer
    padding             to 8 bytes, 0xFE
    repetition levels   padded to 8
    definition levels   padded to 8
    value buffers       each padded to 8

Sizes are without padding. Integers are little-endian. All chunks of a page are laid out and split together.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, MiniBlockLayout, PageLayout
from lance_core.encoding.compression.chunks import ChunkBuffers, Counts, MiniBlockPage, find_equal_step
from lance_core.encoding.compression.out_of_line_bitpacking import MIN_PACKED_LEVELS
from lance_core.encoding.compression.registry import encode_blocks
from lance_core.encoding.compression.rle import levels_are_runs
from lance_core.encoding.datablock import FixedWidthBlock
from lance_core.encoding.page import Bytes, BytesLike, EncodedPage, allocate_bytes
from lance_core.encoding.repdef import (
    LevelArray,
    Levels,
    count_lists,
    find_slots,
    list_layers_of_description,
    max_definition,
)
from lance_core.errors import CorruptFileError

_PADDING: Final = 0xFE
_ALIGNMENT: Final = 8
_FILLS: Final = tuple(bytes([_PADDING]) * length for length in range(_ALIGNMENT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkParts:
    """The parts of all chunks of a page.

    Attributes:
        num_levels: Levels per chunk.
        repetition: Their repetition levels, compressed; None in a page without.
        definition: Their definition levels, compressed; None in a page without.
        values: The value buffers.
    """

    num_levels: Counts
    repetition: ChunkBuffers | None
    definition: ChunkBuffers | None
    values: tuple[ChunkBuffers, ...]

    def buffers(self) -> list[ChunkBuffers]:
        """All parts in their order in a chunk."""
        levels = [part for part in (self.repetition, self.definition) if part is not None]
        return [*levels, *self.values]

    @property
    def num_level_buffers(self) -> int:
        """The number of parts that are levels."""
        return (self.repetition is not None) + (self.definition is not None)


def lay_out(parts: ChunkParts, *, wide_sizes: bool) -> tuple[Bytes, Counts] | None:
    """Assemble chunks.

    Args:
        parts: The parts of the chunks.
        wide_sizes: Whether sizes of value buffers take 32 bits (2.2).

    Returns:
        The bytes of all chunks and the size of each; None if a number does not fit its field in the header.
    """
    buffers = parts.buffers()
    num_chunks = parts.num_levels.size
    if num_chunks == 1:
        return _lay_out_one(parts, buffers, wide_sizes=wide_sizes)
    header = _header_size(parts.num_level_buffers, len(parts.values), wide_sizes=wide_sizes)
    limits = [2**16] * parts.num_level_buffers + [2**32 if wide_sizes else 2**16] * len(parts.values)
    if num_chunks and int(parts.num_levels.max()) >= 2**16:
        return None
    offsets: list[Counts] = []
    end = np.full(num_chunks, header, np.int64)
    for buffer, limit in zip(buffers, limits, strict=True):
        if num_chunks and int(buffer.sizes.max()) >= limit:
            return None
        offsets.append(end)
        end = end + _pad(buffer.sizes)
    starts = np.cumsum(end) - end
    out = allocate_bytes(int(end.sum()))
    out[:] = _PADDING
    _write_numbers(out, starts, parts.num_levels, 2)
    position = 2
    for index, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
        width = 4 if wide_sizes and index >= parts.num_level_buffers else 2
        _write_numbers(out, starts + position, buffer.sizes, width)
        position += width
        _copy_pieces(out, starts + offset, buffer)
    return out, end


def _lay_out_one(
    parts: ChunkParts, buffers: Sequence[ChunkBuffers], *, wide_sizes: bool
) -> tuple[Bytes, Counts] | None:
    """The only chunk of a small page, without the arrays that many chunks need."""
    num_levels = int(parts.num_levels[0])
    pieces = [buffer.piece(0) for buffer in buffers]
    sizes = [piece.size for piece in pieces]
    narrow = len(sizes) if not wide_sizes else parts.num_level_buffers
    if num_levels >= 2**16 or any(size >= 2**16 for size in sizes[:narrow]):
        return None
    header = struct.pack(f"<H{narrow}H{len(sizes) - narrow}I", num_levels, *sizes)
    chunk = bytearray()
    for part in (header, *(piece.tobytes() for piece in pieces)):
        chunk += part
        chunk += _FILLS[-len(chunk) % _ALIGNMENT]
    return np.frombuffer(chunk, np.uint8), np.array([len(chunk)], np.int64)


def take_apart(
    data: Bytes, starts: Counts, sizes: Counts, *, levels: tuple[bool, bool], num_values: int, wide_sizes: bool
) -> ChunkParts:
    """Find the parts of chunks.

    Args:
        data: The memory of the chunks, which begin at multiples of 8 bytes.
        starts: The start of each chunk.
        sizes: The size of each chunk.
        levels: Whether the page has repetition and definition levels.
        num_values: Value buffers per chunk.
        wide_sizes: See `lay_out`.

    Raises:
        CorruptFileError: A part would end after its chunk.
    """
    if starts.size and (int(starts.min()) < 0 or int((starts + sizes).max()) > data.size):
        raise CorruptFileError("a chunk ends after the chunk data")
    num_level_buffers = sum(levels)
    header = _header_size(num_level_buffers, num_values, wide_sizes=wide_sizes)
    if sizes.size and int(sizes.min()) < header:
        raise CorruptFileError("a chunk is smaller than its header")
    kind = _header_type(num_level_buffers, num_values, wide_sizes)
    headers = data[starts[:, None] + np.arange(header)].view(kind)[:, 0]
    num_levels = headers["levels"].astype(np.int64)
    end = np.full(starts.size, header, np.int64)
    buffers: list[ChunkBuffers] = []
    for name in map(str, range(num_level_buffers + num_values)):
        part = headers[name].astype(np.int64)
        buffers.append(ChunkBuffers(data=data, starts=starts + end, sizes=part))
        if sizes.size and int((end + part - sizes).max()) > 0:
            raise CorruptFileError("a buffer ends after its chunk")
        end = end + _pad(part)
    return ChunkParts(
        num_levels=num_levels,
        repetition=buffers.pop(0) if levels[0] else None,
        definition=buffers.pop(0) if levels[1] else None,
        values=tuple(buffers),
    )


def take_one_apart(chunk: memoryview, *, num_levels: int | None, num_values: int, wide_sizes: bool) -> list[memoryview]:
    """The parts of one chunk without repetition levels: its definition levels if it has some, and value buffers.

    Args:
        chunk: The chunk.
        num_levels: Expected number of definition levels; None in a page without.
        num_values: Value buffers per chunk.
        wide_sizes: See `lay_out`.

    Raises:
        CorruptFileError: The chunk has another number of levels, or a part would end after it.
    """
    has_levels = num_levels is not None
    end = _header_size(has_levels, num_values, wide_sizes=wide_sizes)
    if len(chunk) < end:
        raise CorruptFileError("a chunk is smaller than its header")
    stated, *sizes = _header(has_levels, num_values, wide_sizes).unpack_from(chunk)
    if has_levels and stated != num_levels:
        raise CorruptFileError(f"{stated} levels for {num_levels} values")
    parts = []
    for size in sizes:
        if end + size > len(chunk):
            raise CorruptFileError("a buffer ends after its chunk")
        parts.append(chunk[end : end + size])
        end += (size + _ALIGNMENT - 1) & -_ALIGNMENT
    return parts


@lru_cache(maxsize=64)
def _header(has_levels: bool, num_values: int, wide_sizes: bool) -> struct.Struct:
    return struct.Struct(f"<H{'H' * has_levels}{('I' if wide_sizes else 'H') * num_values}")


@lru_cache(maxsize=64)
def _header_type(num_level_buffers: int, num_values: int, wide_sizes: bool) -> np.dtype[Any]:
    """The header as a record: `levels`, and a number for the size of each buffer."""
    sizes = ["<u2"] * num_level_buffers + ["<u4" if wide_sizes else "<u2"] * num_values
    places = list(accumulate([2, *(int(size[-1]) for size in sizes)]))[:-1]
    return np.dtype(
        {
            "names": ["levels", *map(str, range(len(sizes)))],
            "formats": ["<u2", *sizes],
            "offsets": [0, *places],
            "itemsize": _header_size(num_level_buffers, num_values, wide_sizes=wide_sizes),
        }
    )


def _header_size(num_level_buffers: int, num_values: int, *, wide_sizes: bool) -> int:
    return -(-(2 + 2 * num_level_buffers + (4 if wide_sizes else 2) * num_values) // _ALIGNMENT) * _ALIGNMENT


def _pad(sizes: Counts) -> Counts:
    return (sizes + (_ALIGNMENT - 1)) & -_ALIGNMENT


def _write_numbers(out: Bytes, positions: Counts, numbers: Counts, width: int) -> None:
    for byte in range(width):
        out[positions + byte] = (numbers >> (8 * byte)) & 0xFF


def _copy_pieces(out: Bytes, targets: Counts, source: ChunkBuffers) -> None:
    """Copy every chunk's piece of `source` to its target; equally spaced pieces of one size at once."""
    count = targets.size
    if not count:
        return
    size = int(source.sizes[0])
    steps = find_equal_step(source.starts), find_equal_step(targets)
    done = 0
    if steps[0] is not None and steps[1] is not None and bool((source.sizes[:-1] == size).all()) and size:
        done = count - 1
        shape = (done, size)
        np.ndarray(shape, np.uint8, out, int(targets[0]), (steps[1], 1))[...] = np.ndarray(
            shape, np.uint8, source.data, int(source.starts[0]), (steps[0], 1)
        )
    to, origin = out.data, source.data.data
    rest: Sequence[tuple[int, int, int]] = list(
        zip(targets[done:].tolist(), source.starts[done:].tolist(), source.sizes[done:].tolist(), strict=True)
    )
    for target, start, length in rest:
        to[target : target + length] = origin[start : start + length]


_MAX_CHUNK_BYTES_2_1: Final = 32 * 1024


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
        dictionary: The dictionary of the indices; None if the chunks have the values themselves.
        large_chunks: Whether the file is 2.2 or later.

    Returns:
        The page; None if a chunk would become larger than the format allows.
    """
    bounds = _find_level_bounds(levels, values.counts)
    num_levels = bounds[1:] - bounds[:-1]
    layout = MiniBlockLayout(
        value_compression=values.encoding,
        layers=list_layers_of_description(levels.layers),
        num_buffers=len(values.buffers),
        num_items=int(values.counts.sum()),
        has_large_chunk=large_chunks,
    )
    parts: list[ChunkBuffers | None] = []
    for array, limit, target in (
        (levels.repetition, count_lists(levels.layers), layout.rep_compression),
        (levels.definition, max_definition(levels.layers), layout.def_compression),
    ):
        if array is None:
            parts.append(None)
            continue
        name = _choose_compression_of_levels(array, num_levels, limit, runs=large_chunks)
        parts.append(_encode_levels(array, num_levels, name, target))
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
    buffers: list[BytesLike] = [_build_chunk_meta(sizes, values.counts, "<u4" if large_chunks else "<u2"), data]
    if dictionary is not None:
        layout.dictionary.CopyFrom(dictionary.encoding)
        layout.num_dictionary_items = dictionary.num_items
        buffers.append(dictionary.data)
    if levels.repetition is not None:
        layout.repetition_index_depth = 1
        buffers.append(_build_repetition_index(levels.repetition, bounds, count_lists(levels.layers)))
    return EncodedPage(
        num_rows=num_rows, length=num_rows, encoding=PageLayout(mini_block_layout=layout), buffers=tuple(buffers)
    )


def _find_level_bounds(levels: Levels, counts: Counts) -> Counts:
    """First level of each chunk, and the total."""
    bounds = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    slots = find_slots(levels)
    if slots is not None:
        positions = np.flatnonzero(slots)
        bounds[1:-1] = positions[bounds[1:-1]]
        bounds[0] = 0
    bounds[-1] = levels.num_levels
    return bounds


def _choose_compression_of_levels(array: LevelArray, counts: Counts, limit: int, *, runs: bool) -> str:
    """The compression of levels; `runs` says whether the version of the file has runs of levels."""
    if array.size >= MIN_PACKED_LEVELS * counts.size and limit.bit_length() <= 4:
        return "out_of_line_bitpacking"
    return "rle" if runs and counts.size == 1 and levels_are_runs(array) else "flat"


def _encode_levels(array: LevelArray, counts: Counts, name: str, target: CompressiveEncoding) -> ChunkBuffers:
    block = FixedWidthBlock(data=array.view(np.uint8), bits_per_value=16, num_values=array.size)
    encoding, buffers = encode_blocks(block, name, counts)
    target.CopyFrom(encoding)
    return buffers


def _build_chunk_meta(sizes: Counts, counts: Counts, word: str) -> npt.NDArray[Any]:
    logarithms = np.zeros(counts.size, np.int64)
    if counts.size > 1:
        logarithms[:-1] = np.log2(counts[:-1])
    return ((sizes // 8 - 1) << 4 | logarithms).astype(word)


def _build_repetition_index(repetition: LevelArray, bounds: Counts, row_level: int) -> npt.NDArray[np.uint64]:
    row_starts = np.flatnonzero(repetition == row_level)
    ends = np.append(row_starts[1:], repetition.size)
    started_before = np.searchsorted(row_starts, bounds[1:], side="left")
    ended_before = np.searchsorted(ends, bounds[1:], side="right")
    index = np.zeros((bounds.size - 1, 2), np.uint64)
    index[:, 0] = np.diff(ended_before, prepend=0)
    last_start = np.maximum(row_starts[started_before - 1], bounds[:-1])
    index[:, 1] = np.where(started_before > ended_before, bounds[1:] - last_start, 0)
    return index.ravel()

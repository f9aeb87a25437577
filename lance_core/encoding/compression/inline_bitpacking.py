"""Inline bit packing: blocks of 1024 values, each led by its own bit width.

    chunk   |width, one word of T bits|1024 * width / 8 bytes, see fastlanes|

T is the width of the values themselves (8, 16, 32 or 64). Every chunk holds 1024 values; the last chunk, and a block of
levels, may hold fewer and is then padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, InlineBitpacking
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    chunk_counts,
    find_equal_step,
    gather_bytes,
    sum_counts,
    view_as_words,
)
from lance_core.encoding.compression.fastlanes import (
    BLOCK_VALUES,
    Words,
    locate_values,
    measure_bit_widths,
    pack,
    pack_one,
    packed_bytes,
    unpack_at,
    unpack_some,
)
from lance_core.encoding.compression.registry import Compression, with_one_buffer
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, require_fixed_width
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_MANY: Final = 8
"""Number of values of a chunk from which they are unpacked together."""


def word_type(bits: int) -> np.dtype[Any]:
    """The unsigned words of 8, 16, 32 or 64 bits that values are packed from.

    Raises:
        CorruptFileError: The width is not 8, 16, 32 or 64 bits.
    """
    if bits not in (8, 16, 32, 64):
        raise CorruptFileError(f"words of {bits} bits cannot be bit-packed")
    return np.dtype(f"<u{bits // 8}")


def coalesce_rows(rows: Words, counts: Counts) -> Bytes:
    """The first ``counts[i]`` values of every row, back to back; a view if all rows but the last are full."""
    width = rows.shape[1]
    flat = rows.reshape(-1)
    if bool((counts[:-1] == width).all()):
        return flat[: sum_counts(counts)].view(np.uint8)
    runs = []  # each: some full rows, and the values of the next row, which is not full
    start = 0
    for place in np.flatnonzero(counts != width).tolist():
        runs.append(flat[start * width : place * width + int(counts[place])])
        start = place + 1
    return np.concatenate([*runs, flat[start * width :]]).view(np.uint8)


def spread_rows(values: Words, counts: Counts, width: int) -> Words:
    """Rows of `width` values with the first ``counts[i]`` taken from `values` in order, the others zero."""
    if bool((counts == width).all()):
        return values.reshape(counts.size, width)
    rows = np.zeros((counts.size, width), values.dtype)
    if bool((counts[:-1] == width).all()):
        rows.reshape(-1)[: values.size] = values
    else:
        rows[np.arange(width) < counts[:, None]] = values
    return rows


def _read_widths(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> tuple[np.dtype[Any], Counts]:
    """The words that values are packed from, and the bits per value of each chunk."""
    description = encoding.inline_bitpacking
    if description.HasField("values"):
        raise UnsupportedError("inline bit packing with a buffer compression of its own")
    bits = description.uncompressed_bits_per_value
    dtype = word_type(bits)
    if not counts.size:
        return dtype, counts
    if counts.max() > BLOCK_VALUES:
        raise CorruptFileError(f"{int(counts.max())} values in a bit-packed chunk of {BLOCK_VALUES}")
    heads = gather_bytes(buffers, np.full(counts.size, dtype.itemsize, np.int64)).view(dtype)
    if heads.max() > bits:
        raise CorruptFileError(f"values of {bits} bits packed in {int(heads.max())}")
    widths = heads.astype(np.int64)
    if (buffers.sizes < dtype.itemsize + packed_bytes(1) * widths).any():
        raise CorruptFileError("a bit-packed chunk is shorter than its width says")
    return dtype, widths


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    dtype, widths = _read_widths(encoding, buffers, counts)
    rows = unpack_at(buffers.data, buffers.starts + dtype.itemsize, widths, dtype)
    data = coalesce_rows(rows, counts) if counts.size else np.empty(0, np.uint8)
    return FixedWidthBlock(data=data, bits_per_value=dtype.itemsize * 8, num_values=sum_counts(counts))


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, places: Counts, counts: Counts
) -> FixedWidthBlock | None:
    dtype, widths = _read_widths(encoding, buffers, counts)
    words = view_as_words(buffers, dtype)
    if words is None:
        return None
    starts = buffers.starts // dtype.itemsize + 1
    values = unpack_some(words, starts[chunks], widths[chunks], places)
    return FixedWidthBlock(data=values.view(np.uint8), bits_per_value=dtype.itemsize * 8, num_values=places.size)


def _make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    bits = encoding.inline_bitpacking.uncompressed_bits_per_value
    is_plain = bits in (8, 16, 32, 64) and not encoding.inline_bitpacking.HasField("values")
    if num_buffers != 1 or not is_plain:
        return None
    size = bits // 8

    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        data = buffers[0]
        width = int.from_bytes(data[:size], "little")
        if count > BLOCK_VALUES:
            raise CorruptFileError(f"{count} values in a bit-packed chunk of {BLOCK_VALUES}")
        if width > bits:
            raise CorruptFileError(f"values of {bits} bits packed in {width}")
        if len(data) < size + packed_bytes(width):
            raise CorruptFileError("a bit-packed chunk is shorter than its width says")
        if not width:
            return [bytes(size * len(places))]
        return _unpack_places(data, width, size, places)

    return gather, bits


def _unpack_places(data: bytes | memoryview, width: int, size: int, places: Sequence[int]) -> list[bytes | memoryview]:
    """Values of one block, unpacked from `width` bits to words of `size` bytes each."""
    word, following, shift, back = locate_values(width, size * 8)
    mask = (1 << width) - 1
    if len(places) >= _MANY:
        dtype = np.dtype(f"<u{size}")
        words = np.frombuffer(data[size : size + packed_bytes(width)], dtype)
        at: Any = slice(places.start, places.stop) if isinstance(places, range) else np.array(places)
        values_of_block = (words[word[at]] >> shift[at] | words[following[at]] << back[at]) & dtype.type(mask)
        return [values_of_block.tobytes()]
    values: list[bytes | memoryview] = []
    for place in places:
        low, high = (int(first[place] + 1) * size for first in (word, following))
        value = int.from_bytes(data[low : low + size], "little") >> int(shift[place])
        value |= int.from_bytes(data[high : high + size], "little") << int(back[place])
        values.append((value & mask).to_bytes(size, "little"))
    return values


def _encode_words(words: npt.NDArray[Any]) -> bytes:
    width = int(np.maximum.reduce(words)).bit_length()
    return width.to_bytes(words.itemsize, "little") + pack_one(words, width)


def _encode_blocks(block: DataBlock, _argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    values = require_fixed_width(block)
    if values.bits_per_value not in (8, 16, 32, 64):
        raise InvalidInputError(f"values of {values.bits_per_value} bits cannot be bit-packed")
    if counts.size and counts.max() > BLOCK_VALUES:
        raise InvalidInputError(f"inline bit packing has at most {BLOCK_VALUES} values per block")
    description = InlineBitpacking(uncompressed_bits_per_value=values.bits_per_value)
    encoding = CompressiveEncoding(inline_bitpacking=description)
    rows = spread_rows(values.view(), counts, BLOCK_VALUES)
    return encoding, _pack_chunks(rows)


def _pack_chunks(rows: Words) -> ChunkBuffers:
    """Pack each row with the smallest width and put the width before it; chunks start at multiples of 8."""
    if not rows.shape[0]:
        return ChunkBuffers(data=np.empty(0, np.uint8), starts=np.empty(0, np.int64), sizes=np.empty(0, np.int64))
    dtype = rows.dtype
    widths = measure_bit_widths(rows)
    sizes = dtype.itemsize + packed_bytes(1) * widths
    ends = np.cumsum((sizes + 7) // 8 * 8)
    starts = ends - (sizes + 7) // 8 * 8
    data = np.zeros(int(ends[-1]), np.uint8)
    words = data.view(dtype)
    words[starts // dtype.itemsize] = widths.astype(dtype)
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        if width == 0:
            continue
        members = np.flatnonzero(widths == width)
        places = starts[members] // dtype.itemsize + 1
        count = packed_bytes(width) // dtype.itemsize
        step = find_equal_step(places) if members.size > 1 else count
        chosen = rows if members.size == rows.shape[0] else rows[members]
        if step is not None:
            strides = (step * dtype.itemsize, dtype.itemsize)
            pack(
                chosen, width, np.ndarray((members.size, count), dtype, data, int(places[0]) * dtype.itemsize, strides)
            )
        else:
            packed = np.empty((members.size, count), dtype)
            pack(chosen, width, packed)
            for place, row in zip(places.tolist(), packed, strict=True):
                words[place : place + count] = row
    return ChunkBuffers(data=data, starts=starts, sizes=sizes)


def _encode_miniblock(block: DataBlock, argument: str, limits: ChunkLimits) -> MiniBlockPage:
    if limits.max_values < BLOCK_VALUES:
        raise InvalidInputError(f"bit-packed chunks hold {BLOCK_VALUES} values, not at most {limits.max_values}")
    counts = chunk_counts(block.num_values, BLOCK_VALUES)
    encoding, buffers = _encode_blocks(block, argument, counts)
    if counts.size and buffers.sizes.max() > limits.max_bytes + 8:
        raise InvalidInputError(f"{BLOCK_VALUES} packed values do not fit chunks of {limits.max_bytes} bytes")
    return MiniBlockPage(encoding=encoding, buffers=(buffers,), counts=counts)


COMPRESSION = Compression(
    name="inline_bitpacking",
    decode_miniblock=with_one_buffer(_decode_blocks),
    decode_blocks=_decode_blocks,
    gather=_gather,
    chunk_gatherer=_make_chunk_gatherer,
    gives_plain_values=True,
    encode_miniblock=_encode_miniblock,
    encode_blocks=_encode_blocks,
    encode_words=_encode_words,
)

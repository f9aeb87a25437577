"""Out-of-line bit packing: one bit width for all values, in the page description. Used for levels.

    block   |1024 values packed|1024 values packed|...|tail|       see fastlanes; W * 128 bytes for 1024 values

The tail of t = n % 1024 values is either one more packed block, padded with zeros, or t raw words; the size of the
block decides which of the two. W is the `bits_per_value` of the flat `values` in the description; a name such as
``"out_of_line_bitpacking:4"`` requests at least this W.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, OutOfLineBitpacking
from lance_core.encoding.compression.chunks import ChunkBuffers, Counts, require_room, sum_counts, view_as_words
from lance_core.encoding.compression.fastlanes import (
    BLOCK_VALUES,
    Words,
    measure_bit_widths,
    order_by_rows,
    pack,
    packed_bytes,
    unpack_at,
    unpack_some,
)
from lance_core.encoding.compression.flat import flat_encoding
from lance_core.encoding.compression.inline_bitpacking import coalesce_rows, spread_rows, word_type
from lance_core.encoding.compression.registry import Compression
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, require_fixed_width
from lance_core.errors import CorruptFileError, InvalidInputError

MIN_PACKED_LEVELS: Final = 512
"""Pages whose chunks have at least this many levels on average store them bit-packed."""


def _read_packed_width(encoding: CompressiveEncoding, bits: int) -> int:
    values = encoding.out_of_line_bitpacking.values
    if values.WhichOneof("compression") != "flat" or values.flat.HasField("data"):
        raise CorruptFileError("out-of-line bit packing without a packed width")
    if values.flat.bits_per_value > bits:
        raise CorruptFileError(f"values of {bits} bits packed in {values.flat.bits_per_value}")
    return values.flat.bits_per_value


def _count_packed_and_raw(
    buffers: ChunkBuffers, counts: Counts, size: int, item_size: int
) -> tuple[Counts, npt.NDArray[np.bool_]]:
    """How many packed blocks of `size` bytes each chunk has, and whether it ends in raw words."""
    whole, tail = counts // BLOCK_VALUES, counts % BLOCK_VALUES
    raw = (tail > 0) & (buffers.sizes == whole * size + tail * item_size)
    packed = np.where(raw | (tail == 0), whole, whole + 1)
    if (buffers.sizes < packed * size + np.where(raw, tail * item_size, 0)).any():
        raise CorruptFileError("a bit-packed block is too short for its values")
    return packed, raw


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    bits = encoding.out_of_line_bitpacking.uncompressed_bits_per_value
    dtype = word_type(bits)
    width = _read_packed_width(encoding, bits)
    if width == 0:
        require_room(sum_counts(counts) * dtype.itemsize)
        return FixedWidthBlock(
            data=np.zeros(sum_counts(counts) * dtype.itemsize, np.uint8),
            bits_per_value=bits,
            num_values=sum_counts(counts),
        )
    size = packed_bytes(width)
    tail = counts % BLOCK_VALUES
    packed, raw = _count_packed_and_raw(buffers, counts, size, dtype.itemsize)
    first = np.cumsum(packed) - packed
    number = np.arange(int(packed.sum()), dtype=np.int64) - np.repeat(first, packed)
    starts = np.repeat(buffers.starts, packed) + number * size
    rows = unpack_at(buffers.data, starts, np.full(starts.size, width, np.int64), dtype)
    if raw.any():
        data = _add_raw_tails(buffers, counts, rows, raw, size)
    else:
        last = number == np.repeat(packed, packed) - 1
        block_counts = np.where(last & np.repeat(tail > 0, packed), np.repeat(tail, packed), BLOCK_VALUES)
        data = coalesce_rows(rows, block_counts) if rows.size else np.empty(0, np.uint8)
    return FixedWidthBlock(data=data, bits_per_value=bits, num_values=sum_counts(counts))


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, positions: Counts, counts: Counts
) -> FixedWidthBlock | None:
    bits = encoding.out_of_line_bitpacking.uncompressed_bits_per_value
    dtype = word_type(bits)
    width = _read_packed_width(encoding, bits)
    words = view_as_words(buffers, dtype)
    if width == 0 or words is None:
        return None
    size = packed_bytes(width)
    packed, raw = _count_packed_and_raw(buffers, counts, size, dtype.itemsize)
    blocks, offsets_in_block = np.divmod(positions, BLOCK_VALUES)
    starts = (buffers.starts[chunks] + blocks * size) // dtype.itemsize
    values = unpack_some(words, starts, np.full(positions.size, width, np.int64), offsets_in_block)
    is_raw = raw[chunks] & (blocks == packed[chunks])
    values[is_raw] = words[starts[is_raw] + offsets_in_block[is_raw]]
    return FixedWidthBlock(data=values.view(np.uint8), bits_per_value=bits, num_values=int(positions.size))


def _add_raw_tails(buffers: ChunkBuffers, counts: Counts, rows: Words, raw: Any, size: int) -> Bytes:
    """The values of all blocks, where some end in raw words."""
    unpacked = rows.reshape(-1).view(np.uint8)
    width = rows.dtype.itemsize
    pieces: list[Bytes] = []
    row = 0
    for index, (count, is_raw) in enumerate(zip(counts.tolist(), raw.tolist(), strict=True)):
        whole, tail = divmod(count, BLOCK_VALUES)
        begin = row * BLOCK_VALUES * width
        if is_raw:
            pieces.append(unpacked[begin : begin + whole * BLOCK_VALUES * width])
            start = int(buffers.starts[index]) + whole * size
            pieces.append(buffers.data[start : start + tail * width])
        else:
            pieces.append(unpacked[begin : begin + count * width])
        row += whole + (tail > 0 and not is_raw)
    return np.concatenate(pieces)


def _parse_width(argument: str) -> int:
    """The least width, from a name like ``"out_of_line_bitpacking:4"``; 1 without a width."""
    width = argument.removeprefix(":")
    if not argument:
        return 1
    if not width.isdecimal() or not 1 <= int(width) <= 64:
        raise InvalidInputError(f"{argument!r} is not a bit width")
    return int(width)


def _encode_blocks(block: DataBlock, argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    values = require_fixed_width(block)
    bits = values.bits_per_value
    if bits not in (8, 16, 32, 64):
        raise InvalidInputError(f"values of {bits} bits cannot be bit-packed")
    words = values.view()
    width = _parse_width(argument)
    if words.size:
        width = max(width, int(measure_bit_widths(words.reshape(1, -1))[0]))
    if width > bits:
        raise InvalidInputError(f"values of {bits} bits cannot be packed in {width}")
    encoding = CompressiveEncoding(
        out_of_line_bitpacking=OutOfLineBitpacking(uncompressed_bits_per_value=bits, values=flat_encoding(width))
    )
    whole, tail = counts // BLOCK_VALUES, counts % BLOCK_VALUES
    # Raw unless packing is shorter: a packed tail of the same length would be read as raw words.
    raw = (tail > 0) & (tail * words.dtype.itemsize <= packed_bytes(width))
    if raw.any():
        return encoding, _pack_with_raw_tails(words, counts, raw, width)
    blocks = whole + (tail > 0)
    last = np.cumsum(blocks) - 1
    block_counts = np.full(int(blocks.sum()), BLOCK_VALUES, np.int64)
    block_counts[last[tail > 0]] = tail[tail > 0]
    rows = spread_rows(words, block_counts, BLOCK_VALUES)
    packed = np.empty((rows.shape[0], packed_bytes(width) // words.dtype.itemsize), words.dtype)
    pack(rows, width, packed)
    sizes = blocks * packed_bytes(width)
    starts = np.cumsum(sizes) - sizes
    return encoding, ChunkBuffers(data=packed.reshape(-1).view(np.uint8), starts=starts, sizes=sizes)


def _pack_with_raw_tails(words: Words, counts: Counts, raw: Any, width: int) -> ChunkBuffers:
    pieces: list[Bytes] = []
    sizes: list[int] = []
    at = 0
    for count, is_raw in zip(counts.tolist(), raw.tolist(), strict=True):
        values = words[at : at + count]
        at += count
        num_packed = count // BLOCK_VALUES * BLOCK_VALUES if is_raw else count
        full = -(-num_packed // BLOCK_VALUES)
        rows = np.zeros((full, BLOCK_VALUES), words.dtype)
        rows.reshape(-1)[:num_packed] = values[:num_packed]
        packed = np.empty((full, packed_bytes(width) // words.dtype.itemsize), words.dtype)
        pack(rows, width, packed)
        pieces += [packed.reshape(-1).view(np.uint8), np.ascontiguousarray(values[num_packed:]).view(np.uint8)]
        sizes.append(pieces[-2].size + pieces[-1].size)
    lengths = np.array(sizes, np.int64)
    return ChunkBuffers(data=np.concatenate(pieces), starts=np.cumsum(lengths) - lengths, sizes=lengths)


def pack_one_bit_levels(flags: npt.NDArray[np.bool_]) -> bytes:
    """Pack one block of at most 1024 words of 16 bits that are 0 or 1, in one bit each."""
    whole = flags
    if flags.size < BLOCK_VALUES:
        whole = np.zeros(BLOCK_VALUES, np.bool_)
        whole[: flags.size] = flags
    return np.packbits(whole.take(_order_of_flags()), bitorder="little").tobytes()


@lru_cache(maxsize=1)
def _order_of_flags() -> npt.NDArray[np.intp]:
    return order_by_rows(16).reshape(16, BLOCK_VALUES // 16).T.ravel()


COMPRESSION = Compression(
    name="out_of_line_bitpacking",
    takes_argument=True,
    decode_blocks=_decode_blocks,
    gather=_gather,
    gives_plain_values=True,
    encode_blocks=_encode_blocks,
)

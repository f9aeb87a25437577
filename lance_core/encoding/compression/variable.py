"""Variable: values of varying length, with offsets.

    mini-block chunk   |u32 o0|u32 o1|...|u32 on|bytes|pad|       offsets count from the start of this buffer, so that
                                                                  o0 = 4 * (n + 1); size is a multiple of 4
    block              |u32 32|u32 start|u32 o0|...|u32 on|bytes| offsets count from `start`, o0 = 0
    block, early files |u8 32|u32 n|u32 start|u32 o0|...|bytes|

With offsets of 64 bits (`offsets = flat{64}`) all u32 are u64. Values that are stored one by one are raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Variable
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    check_length,
    chunk_counts,
    expand_runs,
    gather_bytes,
    gather_ranges,
    sum_counts,
    view_as_words,
)
from lance_core.encoding.compression.flat import flat_bits, flat_encoding
from lance_core.encoding.compression.registry import Compression, with_one_buffer
from lance_core.encoding.datablock import (
    Bytes,
    DataBlock,
    FixedWidthBlock,
    Offsets,
    VariableBlock,
    ascends,
    compute_offsets,
    require_variable,
)
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_INT32_MAX = 2**31 - 1
_PAD = 0x48
_PADDINGS: Final = tuple(bytes([_PAD]) * length for length in range(8))


def variable_encoding(bits_per_offset: int) -> CompressiveEncoding:
    """The description of values with flat offsets of that width (32 or 64)."""
    return CompressiveEncoding(variable=Variable(offsets=flat_encoding(bits_per_offset)))


def read_offset_bits(encoding: CompressiveEncoding) -> int:
    """The width of the offsets: 32 or 64 bits.

    Raises:
        UnsupportedError: The values or the offsets are compressed.
        CorruptFileError: The width is not 32 or 64 bits.
    """
    if encoding.variable.HasField("values"):
        raise UnsupportedError("variable values with a buffer compression of their own")
    bits = flat_bits(encoding.variable.offsets)
    if bits not in (32, 64):
        raise CorruptFileError(f"offsets of {bits} bits")
    return bits


def _decode_miniblock(encoding: CompressiveEncoding, chunks: ChunkBuffers, counts: Counts) -> VariableBlock:
    width = read_offset_bits(encoding) // 8
    num_values = sum_counts(counts)
    if (num_values + counts.size) * width > chunks.data.size:
        raise CorruptFileError(f"{num_values} values in {chunks.data.size} bytes")
    if not num_values:
        return VariableBlock(offsets=np.zeros(1, np.int32), data=np.empty(0, np.uint8), num_values=0)
    if not counts.all():
        has_values = counts > 0
        chunks = ChunkBuffers(data=chunks.data, starts=chunks.starts[has_values], sizes=chunks.sizes[has_values])
        counts = counts[has_values]
    raw = gather_bytes(chunks, (counts + 1) * width).view(f"<i{width}")
    ends = np.cumsum(counts + 1) - 1
    first = raw[ends - counts].astype(np.int64)
    last = raw[ends].astype(np.int64)
    if (first < 0).any() or (last < first).any() or (last > chunks.sizes).any():
        raise CorruptFileError("the offsets of a chunk point outside of it")
    data = gather_ranges(chunks.data, chunks.starts + first, last - first)
    return VariableBlock(offsets=_join_offsets(raw, counts, first, last), data=data, num_values=num_values)


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, positions: Counts, counts: Counts
) -> VariableBlock | None:
    width = read_offset_bits(encoding) // 8
    words = view_as_words(buffers, np.dtype(f"<i{width}"))
    if words is None:
        return None
    starts, sizes = buffers.starts[chunks], buffers.sizes[chunks]
    if ((counts[chunks] + 1) * width > sizes).any():
        raise CorruptFileError("a chunk is too short for the values it should hold")
    first_word = starts // width + positions
    first, last = words[first_word].astype(np.int64), words[first_word + 1].astype(np.int64)
    if (first < 0).any() or (last < first).any() or (last > sizes).any():
        raise CorruptFileError("the offsets of a chunk point outside of it")
    lengths = last - first
    if int(lengths.sum()) > buffers.data.size:
        raise CorruptFileError("the values of a chunk overlap")
    data = buffers.data[expand_runs(starts + first, lengths)]
    return VariableBlock(offsets=compute_offsets(lengths), data=data, num_values=int(positions.size))


def _make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    width = read_offset_bits(encoding) // 8
    if num_buffers != 1:
        return None
    bounds = struct.Struct("<2Q" if width == 8 else "<2I")

    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        data = buffers[0]
        check_length(data, (count + 1) * width)
        values, size = [], len(data)
        for place in places:
            start, end = bounds.unpack_from(data, place * width)
            if not start <= end <= size:
                raise CorruptFileError("the offsets of a chunk point outside of it")
            values.append(data[start:end])
        return values

    return gather, 0


def _join_offsets(raw: npt.NDArray[Any], counts: Counts, first: Counts, last: Counts) -> Offsets:
    """Offsets of all chunks (`raw`: n + 1 per chunk) as one ascending list that starts at 0."""
    sizes = last - first
    bases = np.cumsum(sizes) - sizes
    total = int(bases[-1] + sizes[-1])
    dtype = raw.dtype if total <= _INT32_MAX else np.dtype(np.int64)
    shift = (bases - first).astype(dtype)
    num_values = sum_counts(counts)
    out: npt.NDArray[Any] = np.empty(num_values + 1, dtype)
    per_chunk = int(counts[0])
    if bool((counts[:-1] == per_chunk).all()):
        full = counts.size - 1
        rows = raw[: full * (per_chunk + 1)].reshape(full, per_chunk + 1)[:, :per_chunk]
        np.add(rows, shift[:-1, None], out=out[: full * per_chunk].reshape(full, per_chunk), dtype=dtype)
        np.add(raw[full * (per_chunk + 1) :], shift[-1], out=out[full * per_chunk :], dtype=dtype)
    else:
        is_start = np.ones(raw.size, np.bool_)
        is_start[np.cumsum(counts + 1)[:-1] - 1] = False
        repeats = counts.copy()
        repeats[-1] += 1
        np.add(raw[is_start], np.repeat(shift, repeats), out=out, dtype=dtype)
    if not ascends(out):
        raise CorruptFileError("the offsets of a chunk do not ascend")
    return out


def _decode_block(encoding: CompressiveEncoding, data: Bytes, num_values: int) -> VariableBlock:
    bits = read_offset_bits(encoding)
    width = bits // 8
    if data.size < 2 * width:
        raise CorruptFileError(f"a block of {data.size} bytes has no header")
    # The second to fourth byte are low bytes of the count in early files, and zero in later ones.
    early = bool(data[1:4].any())
    stated = int(data[0]) if early else int(data[:width].view(f"<u{width}")[0])
    if stated != bits:
        raise CorruptFileError(f"offsets of {stated} bits in a block described with {bits}")
    at = 1 + 2 * width if early else 2 * width
    if at + (num_values + 1) * width > data.size:
        raise CorruptFileError(f"{num_values} values in a block of {data.size} bytes")
    start = int(data[at - width : at].view(f"<u{width}")[0])
    if not at + (num_values + 1) * width <= start <= data.size:
        raise CorruptFileError(f"values that start at {start} in a block of {data.size} bytes")
    raw = data[at : at + (num_values + 1) * width]
    offsets = (raw.copy() if early else raw).view(f"<i{width}")
    values = data[start:]
    if offsets[0] < 0 or offsets[-1] > values.size or not ascends(offsets):
        raise CorruptFileError("the offsets of a block do not ascend within it")
    return VariableBlock(offsets=offsets, data=values, num_values=num_values)


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> VariableBlock:
    read_offset_bits(encoding)
    if not isinstance(block, VariableBlock):
        raise CorruptFileError("the page holds values of one width, not of varying length")
    return block


def _encode_miniblock(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    values = require_variable(block)
    width = values.offsets.itemsize
    counts = _choose_chunk_counts(values.offsets, limits)
    ends = np.cumsum(counts)
    low = values.offsets[ends - counts].astype(np.int64)
    high = values.offsets[ends].astype(np.int64)
    offset_bytes = (counts + 1) * width
    sizes = -(-(offset_bytes + high - low) // width) * width
    # Chunks start at multiples of 8, as in the page.
    stops = np.cumsum((sizes + 7) // 8 * 8)
    starts = stops - (sizes + 7) // 8 * 8
    out = np.full(int(stops[-1]) if counts.size else 0, _PAD, np.uint8)
    _fill_offsets(out, values.offsets, counts, starts, offset_bytes - low)
    source = memoryview(values.data)  # type: ignore[arg-type]
    target = memoryview(out)  # type: ignore[arg-type]
    places = zip((starts + offset_bytes).tolist(), low.tolist(), high.tolist(), strict=True)
    for at, begin, end in places:
        target[at : at + end - begin] = source[begin:end]
    buffers = ChunkBuffers(data=out, starts=starts, sizes=sizes)
    return MiniBlockPage(encoding=variable_encoding(width * 8), buffers=(buffers,), counts=counts)


def _fill_offsets(out: Bytes, offsets: Offsets, counts: Counts, starts: Counts, shift: Counts) -> None:
    """Write each chunk's offsets, moved by its `shift`, to its start."""
    words: npt.NDArray[Any] = out[: out.size // offsets.itemsize * offsets.itemsize].view(offsets.dtype)
    at = 0
    places = zip((starts // offsets.itemsize).tolist(), counts.tolist(), shift.tolist(), strict=True)
    for start, count, delta in places:
        np.add(offsets[at : at + count + 1], delta, out=words[start : start + count + 1], casting="unsafe")
        at += count


def _choose_chunk_counts(offsets: Offsets, limits: ChunkLimits) -> Counts:
    """Values per chunk: powers of two (at least 2) such that offsets and bytes stay within the limits."""
    num_values = offsets.size - 1
    width = offsets.itemsize
    room = limits.max_bytes // 8 * 8
    per_chunk = 1 << (limits.max_values.bit_length() - 1)
    counts = chunk_counts(num_values, per_chunk)
    ends = np.cumsum(counts)
    spans = offsets[ends].astype(np.int64) - offsets[ends - counts].astype(np.int64)
    if not num_values or int((spans + (counts + 1) * width).max()) <= room:
        return counts
    chunk_sizes: list[int] = []
    at = 0
    count = per_chunk
    while at < num_values:
        count = min(count * 2, per_chunk)
        while count >= 2:
            stop = min(at + count, num_values)
            if int(offsets[stop]) - int(offsets[at]) + (stop - at + 1) * width <= room:
                break
            count //= 2
        else:
            raise InvalidInputError(f"a value of more than {room // 2} bytes does not fit a chunk of {room} bytes")
        chunk_sizes.append(stop - at)
        at = stop
    return np.array(chunk_sizes, np.int64)


def _encode_block(block: DataBlock, _argument: str) -> tuple[CompressiveEncoding, Bytes]:
    values = require_variable(block)
    offsets = values.offsets - values.offsets[0]
    width = offsets.itemsize
    start = (values.num_values + 3) * width
    out = np.empty(start + int(offsets[-1]), np.uint8)
    head = out[:start].view(offsets.dtype)
    if start > np.iinfo(offsets.dtype).max:
        raise InvalidInputError(f"{values.num_values} values are too many for offsets of {width * 8} bits")
    head[:2] = (width * 8, start)
    head[2:] = offsets
    out[start:] = values.data[int(values.offsets[0]) : int(values.offsets[-1])]
    return variable_encoding(width * 8), out


def build_chunk_of_values(offsets: Offsets, values: bytes) -> bytes:
    """The buffer of a mini-block chunk of values.

    Args:
        offsets: Ascending offsets; the first may be non-zero.
        values: The bytes of the values.
    """
    head, first, width = offsets.nbytes, int(offsets[0]), offsets.itemsize
    return b"".join(((offsets + (head - first)).tobytes(), values, _PADDINGS[-len(values) % width]))


def build_block_of_values(offsets: Offsets, values: bytes) -> bytes:
    """The buffer of a block of values, with the arguments of `build_chunk_of_values`."""
    width = offsets.itemsize
    head = struct.pack("<2Q" if width == 8 else "<2I", 8 * width, (offsets.size + 2) * width)
    return b"".join((head, (offsets - int(offsets[0])).tobytes(), values))


def _encode_per_value(block: DataBlock, _argument: str) -> tuple[CompressiveEncoding, VariableBlock]:
    values = require_variable(block)
    return variable_encoding(values.offsets.itemsize * 8), values


COMPRESSION = Compression(
    name="variable",
    decode_miniblock=with_one_buffer(_decode_miniblock),
    gather=_gather,
    chunk_gatherer=_make_chunk_gatherer,
    gives_plain_values=True,
    decode_block=_decode_block,
    decode_per_value=_decode_per_value,
    encode_miniblock=_encode_miniblock,
    encode_block=_encode_block,
    encode_per_value=_encode_per_value,
)

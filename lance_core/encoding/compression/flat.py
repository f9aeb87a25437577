"""Values of fixed width: as they are (flat), or with their bytes sorted by place (byte stream split).

    8, 16, 24 ... bits   |v0 (LE)|v1|v2|...
    1 bit                |v7 ... v0|v15 ... v8|...      least significant bit first, padded to a byte per chunk

The flat mini-block, block and per-value form are the same. Reading and writing copy nothing if chunks lie back to back.

Byte stream split has first all first bytes, then all second bytes, and so on. It is stored inside general compression.

    chunk   |byte 0 of v0|byte 0 of v1|...|byte 0 of vn|byte 1 of v0|...|       4 or 8 bytes per value

Each chunk is split by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import ByteStreamSplit, CompressiveEncoding, Flat
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    check_length,
    chunk_counts,
    gather_bytes,
    is_run,
    split_evenly,
    sum_counts,
    view_as_words,
)
from lance_core.encoding.compression.registry import Compression, with_one_buffer
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, VariableBlock, require_fixed_width
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_MAX_BITS = 2**31
_MANY: Final = 8
"""Number of values of a chunk from which numpy takes less time than slices."""


def flat_encoding(bits_per_value: int) -> CompressiveEncoding:
    """The description of flat values of that width."""
    return CompressiveEncoding(flat=Flat(bits_per_value=bits_per_value))


def flat_bits(encoding: CompressiveEncoding) -> int:
    """The width of flat values in bits: 1, or a multiple of 8.

    Raises:
        UnsupportedError: The values are not flat, or their buffer is compressed.
        CorruptFileError: No value has that width.
    """
    if encoding.WhichOneof("compression") != "flat":
        raise UnsupportedError(f"{encoding.WhichOneof('compression')} where only flat values are supported")
    if encoding.flat.HasField("data"):
        raise UnsupportedError("flat values with a buffer compression of their own")
    bits = encoding.flat.bits_per_value
    if not 0 < bits <= _MAX_BITS or (bits != 1 and bits % 8):
        raise CorruptFileError(f"flat values of {bits} bits")
    return bits


def gather_flat(buffers: ChunkBuffers, counts: Counts, bits: int) -> Bytes:
    """The values of all chunks back to back; see `gather_bytes`.

    Raises:
        CorruptFileError: A chunk is too short.
    """
    if sum_counts(counts) * bits > buffers.data.size * 8:
        raise CorruptFileError(f"{sum_counts(counts)} values of {bits} bits in {buffers.data.size} bytes")
    if bits != 1:
        return gather_bytes(buffers, counts * (bits // 8))
    lengths = (counts + 7) // 8
    if not (counts[:-1] % 8).any():
        return gather_bytes(buffers, lengths)
    loose = np.unpackbits(gather_bytes(buffers, lengths), bitorder="little")
    starts = np.cumsum(lengths * 8) - lengths * 8
    inside = np.concatenate([loose[s : s + n] for s, n in zip(starts.tolist(), counts.tolist(), strict=True)])
    return np.packbits(inside, bitorder="little")


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    bits = flat_bits(encoding)
    data = gather_flat(buffers, counts, bits)
    return FixedWidthBlock(data=data, bits_per_value=bits, num_values=sum_counts(counts))


def _gather(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, chunks: Counts, places: Counts, counts: Counts
) -> FixedWidthBlock | None:
    bits = flat_bits(encoding)
    if bits not in (8, 16, 32, 64):
        return None
    width = bits // 8
    words = view_as_words(buffers, np.dtype(f"<u{width}"))
    if words is None:
        return None
    if (counts * width > buffers.sizes).any():
        raise CorruptFileError("a chunk is too short for the values it should hold")
    values = words[buffers.starts[chunks] // width + places]
    return FixedWidthBlock(data=values.view(np.uint8), bits_per_value=bits, num_values=int(places.size))


def _make_chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    bits = flat_bits(encoding)
    if num_buffers != 1:
        return None
    return (_gather_bits if bits == 1 else _gatherer_of_bytes(bits // 8)), bits


def _gatherer_of_bytes(width: int) -> ChunkGatherer:
    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        data = buffers[0]
        check_length(data, count * width)
        if is_run(places):
            return [data[places[0] * width : (places[-1] + 1) * width]]
        if len(places) < _MANY:
            return [data[place * width : (place + 1) * width] for place in places]
        return [np.frombuffer(data, np.uint8, count * width).reshape(count, width)[places].tobytes()]

    return gather


def _gather_bits(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
    data = buffers[0]
    check_length(data, (count + 7) // 8)
    if isinstance(places, range):
        first = places.start // 8
        bits = np.unpackbits(np.frombuffer(data[first : (places.stop + 7) // 8], np.uint8), bitorder="little")
        return [bits[places.start - first * 8 : places.stop - first * 8].tobytes()]
    return [bytes([data[place >> 3] >> (place & 7) & 1 for place in places])]


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> FixedWidthBlock:
    bits = flat_bits(encoding)
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != bits:
        raise CorruptFileError(f"the page does not hold values of {bits} bits")
    return block


def _encode_miniblock(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    values = require_fixed_width(block)
    bits = values.bits_per_value
    per_chunk = limits.values_per_chunk(bits)
    if bits == 1 and per_chunk < 8 and values.num_values > per_chunk:
        raise UnsupportedError("several chunks of fewer than 8 single bits are not supported")
    counts = chunk_counts(values.num_values, per_chunk)
    buffers = split_evenly(values.data, counts, bits)
    return MiniBlockPage(encoding=flat_encoding(bits), buffers=(buffers,), counts=counts)


def _encode_blocks(block: DataBlock, _argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    values = require_fixed_width(block)
    bits = values.bits_per_value
    if bits % 8 and counts.size > 1:
        raise UnsupportedError("several blocks of single bits are not supported")
    ends = np.cumsum(counts)
    buffers = ChunkBuffers(data=values.data, starts=(ends - counts) * bits // 8, sizes=(counts * bits + 7) // 8)
    return flat_encoding(bits), buffers


def _encode_per_value(block: DataBlock, _argument: str) -> tuple[CompressiveEncoding, FixedWidthBlock]:
    values = require_fixed_width(block)
    return flat_encoding(values.bits_per_value), values


COMPRESSION = Compression(
    name="flat",
    decode_miniblock=with_one_buffer(_decode_blocks),
    decode_blocks=_decode_blocks,
    decode_per_value=_decode_per_value,
    gather=_gather,
    chunk_gatherer=_make_chunk_gatherer,
    gives_plain_values=True,
    encode_miniblock=_encode_miniblock,
    encode_blocks=_encode_blocks,
    encode_per_value=_encode_per_value,
    encode_words=np.ndarray.tobytes,
)


def _transpose(data: Bytes, counts: Counts, width: int, *, split: bool) -> Bytes:
    """Every chunk transposed from values to planes of bytes (`split`) or back."""
    out = np.empty_like(data)
    per_chunk = int(counts[0]) if counts.size else 0
    even = counts.size > 1 and bool((counts[:-1] == per_chunk).all())
    at = 0
    if even:
        at = (counts.size - 1) * per_chunk * width
        _transpose_chunks(data[:at], out[:at], counts.size - 1, width, split=split)
    for count in counts[-1:].tolist() if even else counts.tolist():
        end = at + count * width
        _transpose_chunks(data[at:end], out[at:end], 1, width, split=split)
        at = end
    return out


def _transpose_chunks(data: Bytes, out: Bytes, chunks: int, width: int, *, split: bool) -> None:
    values, planes = (data, out) if split else (out, data)
    rows = values.reshape(chunks, -1, width)
    streams = planes.reshape(chunks, width, -1)
    for byte in range(width):  # a byte at a time is faster than numpy's transposition of all
        if split:
            streams[:, byte] = rows[:, :, byte]
        else:
            rows[:, :, byte] = streams[:, byte]


def _decode_split(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedWidthBlock:
    bits = flat_bits(encoding.byte_stream_split.values)
    if bits % 8:
        raise CorruptFileError(f"values of {bits} bits are not split into byte streams")
    data = gather_flat(buffers, counts, bits)
    joined = _transpose(data, counts, bits // 8, split=False)
    return FixedWidthBlock(data=joined, bits_per_value=bits, num_values=sum_counts(counts))


def _encode_split(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    values = require_fixed_width(block)
    bits = values.bits_per_value
    if bits not in (32, 64):
        raise InvalidInputError(f"values of {bits} bits are not split into byte streams")
    counts = chunk_counts(values.num_values, limits.values_per_chunk(bits))
    data = _transpose(values.data, counts, bits // 8, split=True)
    encoding = CompressiveEncoding(byte_stream_split=ByteStreamSplit(values=flat_encoding(bits)))
    return MiniBlockPage(encoding=encoding, buffers=(split_evenly(data, counts, bits),), counts=counts)


def _gatherer_of_split(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
    bits = flat_bits(encoding.byte_stream_split.values)
    if num_buffers != 1 or bits % 8:
        return None
    width = bits // 8

    def gather(buffers: Sequence[bytes | memoryview], count: int, places: Sequence[int]) -> list[bytes | memoryview]:
        data = buffers[0]
        end = count * width
        check_length(data, end)
        planes = np.frombuffer(data, np.uint8, end).reshape(width, count)
        if isinstance(places, range):
            return [planes[:, places.start : places.stop].T.tobytes()]
        if len(places) < _MANY:
            return [bytes(data[place:end:count]) for place in places]
        return [planes[:, places].T.tobytes()]

    return gather, bits


def _split_words(words: npt.NDArray[Any]) -> bytes | None:
    if words.itemsize < 4:
        return None
    return words.view(np.uint8).reshape(words.size, words.itemsize).T.tobytes()


def estimate_compressed_bits(sample: npt.NDArray[Any]) -> float:
    """Bits per value of a sample whose byte streams are compressed with LZ4."""
    planes = np.ascontiguousarray(sample.view(np.uint8).reshape(-1, sample.itemsize).T)
    return len(pa.Codec("lz4_raw").compress(planes.tobytes(), asbytes=True)) * 8 / max(sample.size, 1)


BYTE_STREAM_SPLIT = Compression(
    name="byte_stream_split",
    decode_miniblock=with_one_buffer(_decode_split),
    chunk_gatherer=_gatherer_of_split,
    gives_plain_values=True,
    encode_miniblock=_encode_split,
    encode_words=_split_words,
)

"""Byte stream split: first all first bytes, then all second bytes, and so on. Stored inside general compression.

    chunk   |byte 0 of v0|byte 0 of v1|...|byte 0 of vn|byte 1 of v0|...|       4 or 8 bytes per value

Each chunk is split by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import ByteStreamSplit, CompressiveEncoding
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkGatherer,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    check_length,
    chunk_counts,
    split_evenly,
    total_count,
)
from lance_core.encoding.compression.flat import flat_bits, flat_encoding, gather_flat
from lance_core.encoding.compression.registry import Compression
from lance_core.encoding.datablock import Bytes, DataBlock, FixedWidthBlock, require_fixed_width
from lance_core.errors import CorruptFileError, InvalidInputError

__all__ = ["COMPRESSION", "compressed_bits"]

_MANY = 8
"""Number of values of a chunk from which numpy takes less time than slices."""


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


def _decode_miniblock(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts
) -> FixedWidthBlock:
    bits = flat_bits(encoding.byte_stream_split.values)
    if len(buffers) != 1 or bits % 8:
        raise CorruptFileError(
            f"byte stream split chunks have {len(buffers)} buffers, not one, or values of {bits} bits"
        )
    data = gather_flat(buffers[0], counts, bits)
    joined = _transpose(data, counts, bits // 8, split=False)
    return FixedWidthBlock(data=joined, bits_per_value=bits, num_values=total_count(counts))


def _encode_miniblock(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    values = require_fixed_width(block)
    bits = values.bits_per_value
    if bits not in (32, 64):
        raise InvalidInputError(f"values of {bits} bits are not split into byte streams")
    counts = chunk_counts(values.num_values, limits.values_per_chunk(bits))
    data = _transpose(values.data, counts, bits // 8, split=True)
    encoding = CompressiveEncoding(byte_stream_split=ByteStreamSplit(values=flat_encoding(bits)))
    return MiniBlockPage(encoding=encoding, buffers=(split_evenly(data, counts, bits),), counts=counts)


def _chunk_gatherer(encoding: CompressiveEncoding, num_buffers: int) -> tuple[ChunkGatherer, int] | None:
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


def _encode_words(words: npt.NDArray[Any]) -> bytes | None:
    if words.itemsize < 4:
        return None
    return words.view(np.uint8).reshape(words.size, words.itemsize).T.tobytes()


def compressed_bits(sample: npt.NDArray[Any]) -> float:
    """Bits per value of a sample whose byte streams are compressed with LZ4."""
    planes = np.ascontiguousarray(sample.view(np.uint8).reshape(-1, sample.itemsize).T)
    return len(pa.Codec("lz4_raw").compress(planes.tobytes(), asbytes=True)) * 8 / max(sample.size, 1)


COMPRESSION = Compression(
    name="byte_stream_split",
    decode_miniblock=_decode_miniblock,
    chunk_gatherer=_chunk_gatherer,
    gives_plain_values=True,
    encode_miniblock=_encode_miniblock,
    encode_words=_encode_words,
)

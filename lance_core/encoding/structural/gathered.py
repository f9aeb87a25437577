"""Values of a few rows out of chunks: what is decoded beside them is dropped as early as possible.

flat, variable      the wanted values, or their offsets and the bytes between these, are fetched
bit packing         the words that hold the wanted values are fetched
fsst                each value is compressed by itself: the wanted ones are fetched, and only these are expanded
general             chunk by chunk: decompress one, cut the wanted values out, forget it
all others          all values are decoded, and the wanted ones cut out before levels and dictionaries see them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression import (
    ChunkBuffers,
    decode_blocks,
    decode_miniblock,
    decode_per_value,
    pick_values,
)
from lance_core.encoding.compression.chunks import Counts, check_chunks, expand_runs
from lance_core.encoding.compression.flat import flat_bits
from lance_core.encoding.compression.general import decompressor
from lance_core.encoding.compression.variable import offset_bits
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, VariableBlock, offsets_of
from lance_core.errors import CorruptFileError

__all__ = ["can_pick", "decode_picked", "picked_levels"]

_LEAST_VALUES_PER_ROW: Final = 4
"""Fewer values than this for each wanted row are decoded all, which costs less than to cut some out."""

_PLAIN: Final = frozenset(
    {"flat", "inline_bitpacking", "out_of_line_bitpacking", "byte_stream_split", "variable", "rle"}
)
"""Compressions whose values are of one width, or have offsets."""

_Positions = npt.NDArray[np.int64]


def can_pick(encoding: CompressiveEncoding, num_rows: int, num_values: int) -> bool:
    """Whether it pays to cut the values of so many rows out of all the values of their chunks."""
    if not 0 < num_rows * _LEAST_VALUES_PER_ROW <= num_values:
        return False
    name = encoding.WhichOneof("compression")
    if name == "general":
        name = encoding.general.values.WhichOneof("compression")
    return name in _PLAIN or name == "fsst"


def decode_picked(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts, positions: _Positions
) -> DataBlock:
    """Decode some values of chunks.

    Args:
        encoding: How the values are compressed; `can_pick` holds for it.
        buffers: The value buffers of the chunks.
        counts: Values per chunk.
        positions: Which values, counted through all the chunks; ascending.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A compression is not known.
    """
    name = encoding.WhichOneof("compression")
    if name == "fsst":
        codes = decode_picked(encoding.fsst.values, buffers, counts, positions)
        if isinstance(codes, VariableBlock):
            return decode_per_value(encoding, codes)
        # Broken bytes: the decoder of all values says why.
    elif name == "general" and len(buffers) == 1:
        inner = encoding.general.values
        if inner.WhichOneof("compression") in ("flat", "byte_stream_split", "variable") and _width(inner):
            return _from_compressed(encoding, buffers[0], counts, positions)
    elif len(buffers) == 1:
        found = pick_values(encoding, buffers[0], counts, positions)
        if found is not None:
            return found
    return _cut_out(decode_miniblock(encoding, buffers, counts), positions)


def picked_levels(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts, positions: _Positions
) -> DataBlock:
    """Decode some levels of chunks; arguments and errors as `decode_picked`."""
    found = pick_values(encoding, buffers, counts, positions)
    return _cut_out(decode_blocks(encoding, buffers, counts), positions) if found is None else found


def _cut_out(block: DataBlock, positions: _Positions) -> DataBlock:
    count = int(positions.size)
    if isinstance(block, VariableBlock):
        starts = block.offsets[positions].astype(np.int64)
        lengths = block.offsets[positions + 1].astype(np.int64) - starts
        offsets = np.zeros(count + 1, block.offsets.dtype)
        np.cumsum(lengths, out=offsets[1:])
        return VariableBlock(offsets=offsets, data=block.data[expand_runs(starts, lengths)], num_values=count)
    if not isinstance(block, FixedWidthBlock):
        raise CorruptFileError(f"a {type(block).__name__} where plain values are expected")
    bits = block.bits_per_value
    if bits == 1:
        loose = np.unpackbits(block.data, bitorder="little")
        return FixedWidthBlock(
            data=np.packbits(loose[positions], bitorder="little"), bits_per_value=1, num_values=count
        )
    if bits in (8, 16, 32, 64):
        found = block.view()[positions].view(np.uint8)
    else:
        found = block.data[: block.num_values * (bits // 8)].reshape(-1, bits // 8)[positions].reshape(-1)
    return FixedWidthBlock(data=found, bits_per_value=bits, num_values=count)


def _width(inner: CompressiveEncoding) -> int:
    """Bytes of a value, or of its offset; 0 for values of one bit."""
    name = inner.WhichOneof("compression")
    if name == "variable":
        return offset_bits(inner) // 8
    return flat_bits(inner.byte_stream_split.values if name == "byte_stream_split" else inner) // 8


def _from_compressed(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts, positions: _Positions
) -> DataBlock:
    check_chunks(buffers, counts)
    inner = encoding.general.values
    name, width = inner.WhichOneof("compression"), _width(inner)
    decompress = decompressor(encoding, int(buffers.sizes.sum()))
    ends = np.cumsum(counts)
    chunks, first, wanted = np.unique(
        np.searchsorted(ends, positions, side="right"), return_index=True, return_counts=True
    )
    places = positions - np.repeat(ends[chunks] - counts[chunks], wanted)
    bounds = pairwise([*first.tolist(), int(positions.size)])
    neighbours = Struct("<2q" if width == 8 else "<2i")
    values: list[bytes] = []
    for chunk, count, (start, end) in zip(chunks.tolist(), counts[chunks].tolist(), bounds, strict=True):
        plain = decompress.to_bytes(buffers.piece(chunk))
        if (count + (name == "variable")) * width > len(plain):
            raise CorruptFileError("a chunk is too short for the values it should hold")
        some = places[start:end]
        if name == "variable":
            values += _texts(plain, some.tolist(), neighbours)
            continue
        data = np.frombuffer(plain, np.uint8, count * width)
        if name == "flat":
            values.append(data.reshape(count, width)[some].tobytes())
        else:
            values.append(data.reshape(width, count)[:, some].T.tobytes())
    data = np.frombuffer(b"".join(values), np.uint8)
    if name != "variable":
        return FixedWidthBlock(data=data, bits_per_value=width * 8, num_values=int(positions.size))
    offsets = offsets_of(np.fromiter(map(len, values), np.int64, len(values)))
    return VariableBlock(offsets=offsets, data=data, num_values=int(positions.size))


def _texts(data: bytes, some: Sequence[int], neighbours: Struct) -> Iterator[bytes]:
    """Copies of some values of varying length out of one chunk, mostly of one or two: the chunk's memory is let go."""
    width, size = neighbours.size // 2, len(data)
    for place in some:
        start, end = neighbours.unpack_from(data, place * width)
        if not 0 <= start <= end <= size:
            raise CorruptFileError("the offsets of a chunk point outside of it")
        yield data[start:end]

"""Decodes the values of a few rows of mini-block chunks, without work on the other values where possible.

A compression that can gather values decodes only the wanted values. Other compressions decode all values of a chunk;
the wanted values are then copied before levels and dictionaries are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression.chunks import ChunkBuffers, Counts, expand_runs
from lance_core.encoding.compression.registry import COMPRESSIONS, decode_blocks, decode_miniblock, gather_values
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, VariableBlock
from lance_core.errors import CorruptFileError

_LEAST_VALUES_PER_ROW: Final = 4
"""If chunks have fewer values per wanted row than this, decoding all values costs less than gathering some."""

_Positions = npt.NDArray[np.int64]


def can_gather(encoding: CompressiveEncoding, num_rows: int, num_values: int) -> bool:
    """Whether gathering the values of some rows costs less than decoding all values of their chunks.

    Args:
        encoding: How the values are compressed.
        num_rows: The rows.
        num_values: The values of their chunks.
    """
    if not 0 < num_rows * _LEAST_VALUES_PER_ROW <= num_values:
        return False
    name = encoding.WhichOneof("compression")
    if name == "general":
        name = encoding.general.values.WhichOneof("compression")
    return name is not None and COMPRESSIONS[name].gives_plain_values


def decode_some(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts, positions: _Positions
) -> DataBlock:
    """Decode some values of chunks.

    Args:
        encoding: How the values are compressed; `can_gather` holds for it.
        buffers: The value buffers of the chunks.
        counts: Values per chunk.
        positions: Numbers of the values, counted through all chunks; ascending.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A compression is not known.
    """
    if len(buffers) == 1:
        gathered = gather_values(encoding, buffers[0], counts, positions)
        if gathered is not None:
            return gathered
    return _take_values(decode_miniblock(encoding, buffers, counts), positions)


def decode_some_levels(
    encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts, positions: _Positions
) -> DataBlock:
    """Decode some levels of chunks, with the arguments and errors of `decode_some`."""
    gathered = gather_values(encoding, buffers, counts, positions)
    return _take_values(decode_blocks(encoding, buffers, counts), positions) if gathered is None else gathered


def _take_values(block: DataBlock, positions: _Positions) -> DataBlock:
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
        values = block.view()[positions].view(np.uint8)
    else:
        values = block.data[: block.num_values * (bits // 8)].reshape(-1, bits // 8)[positions].reshape(-1)
    return FixedWidthBlock(data=values, bits_per_value=bits, num_values=count)

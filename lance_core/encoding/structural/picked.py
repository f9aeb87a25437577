"""Values of a few rows out of chunks, where they can be cut out before they are decoded.

codes of all chunks   |v0|v1|v2|v3|v4|v5|v6|...          FSST compresses each value by itself
codes of the rows            |v2|      |v5|              cut out, and only these are expanded
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_core.encoding.compression import ChunkBuffers, decode_miniblock, decode_per_value
from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.datablock import DataBlock, VariableBlock
from lance_core.encoding.structural.decoded import expand_runs

__all__ = ["can_pick", "decode_picked"]

_LEAST_VALUES_PER_ROW: Final = 4
"""Fewer values than this for each wanted row are decoded all, which costs less than to cut some out."""


def can_pick(encoding: CompressiveEncoding, num_rows: int, num_values: int) -> bool:
    """Whether it pays to cut the values of so many rows out of all the values of their chunks."""
    return encoding.WhichOneof("compression") == "fsst" and num_rows * _LEAST_VALUES_PER_ROW <= num_values


def decode_picked(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts, positions: npt.NDArray[np.int64]
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
    codes = decode_miniblock(encoding.fsst.values, buffers, counts)
    if not isinstance(codes, VariableBlock):
        # Broken bytes: the decoder of all values says why.
        return decode_miniblock(encoding, buffers, counts)
    starts = codes.offsets[positions].astype(np.int64)
    lengths = codes.offsets[positions + 1].astype(np.int64) - starts
    offsets = np.zeros(positions.size + 1, codes.offsets.dtype)
    np.cumsum(lengths, out=offsets[1:])
    picked = VariableBlock(
        offsets=offsets, data=codes.data[expand_runs(starts, lengths)], num_values=int(positions.size)
    )
    return decode_per_value(encoding, picked)

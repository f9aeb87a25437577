"""Constant: one value for all, in the page description; no bytes in the page.

    constant.value   |the value, little endian|       absent: all values are null

Mini-block chunks, levels and full-zip pages can be constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Constant
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    chunk_counts,
    require_room,
    sum_counts,
)
from lance_core.encoding.compression.registry import Compression
from lance_core.encoding.datablock import (
    Bytes,
    DataBlock,
    FixedWidthBlock,
    NullBlock,
    VariableBlock,
    require_fixed_width,
)
from lance_core.errors import CorruptFileError, InvalidInputError


def _repeat_value(value: bytes, num_values: int) -> FixedWidthBlock:
    """A block that holds one value `num_values` times.

    Args:
        value: Its little-endian bytes.
        num_values: The number of values.

    Raises:
        CorruptFileError: The value is empty, or the block would have more than 8 GiB.
    """
    if not value:
        raise CorruptFileError("a constant of 0 bytes")
    require_room(num_values * len(value))
    data = np.empty(num_values * len(value), np.uint8)
    data.reshape(num_values, len(value))[...] = np.frombuffer(value, np.uint8)
    return FixedWidthBlock(data=data, bits_per_value=len(value) * 8, num_values=num_values)


def _decode_constant(encoding: CompressiveEncoding, num_values: int) -> DataBlock:
    if not encoding.constant.HasField("value"):
        return NullBlock(num_values=num_values)
    return _repeat_value(encoding.constant.value, num_values)


def _decode_miniblock(encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts) -> DataBlock:
    if buffers:
        raise CorruptFileError(f"constant chunks have no buffer, not {len(buffers)}")
    return _decode_constant(encoding, sum_counts(counts))


def _decode_blocks(encoding: CompressiveEncoding, _buffers: ChunkBuffers, counts: Counts) -> DataBlock:
    return _decode_constant(encoding, sum_counts(counts))


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> DataBlock:
    return _decode_constant(encoding, block.num_values)


def _describe_constant(block: DataBlock) -> CompressiveEncoding:
    if isinstance(block, NullBlock):
        return CompressiveEncoding(constant=Constant())
    values = require_fixed_width(block)
    width = values.bits_per_value // 8
    if values.bits_per_value % 8 or not values.num_values:
        raise InvalidInputError(f"{values.num_values} values of {values.bits_per_value} bits are no constant")
    rows = values.data.reshape(values.num_values, width)
    if (rows != rows[0]).any():
        raise InvalidInputError("the values are not all the same")
    return CompressiveEncoding(constant=Constant(value=rows[0].tobytes()))


def _encode_miniblock(block: DataBlock, _argument: str, limits: ChunkLimits) -> MiniBlockPage:
    per_chunk = 1 << (limits.max_values.bit_length() - 1)
    counts = chunk_counts(block.num_values, per_chunk)
    return MiniBlockPage(encoding=_describe_constant(block), buffers=(), counts=counts)


def _encode_blocks(block: DataBlock, _argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    zeros = np.zeros(counts.size, np.int64)
    data: Bytes = np.empty(0, np.uint8)
    return _describe_constant(block), ChunkBuffers(data=data, starts=zeros, sizes=zeros)


COMPRESSION = Compression(
    name="constant",
    decode_miniblock=_decode_miniblock,
    decode_blocks=_decode_blocks,
    decode_per_value=_decode_per_value,
    encode_miniblock=_encode_miniblock,
    encode_blocks=_encode_blocks,
)

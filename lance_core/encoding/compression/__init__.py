"""Compressions of values and levels: one module each, one line each in the table below."""

__all__ = [
    "COMPRESSIONS",
    "ChunkBuffers",
    "MiniBlockPage",
    "decode_block",
    "decode_blocks",
    "decode_miniblock",
    "decode_per_value",
    "encode_block",
    "encode_blocks",
    "encode_miniblock",
    "encode_per_value",
]

from lance_core.encoding.compression import flat, variable
from lance_core.encoding.compression.chunks import ChunkBuffers, MiniBlockPage
from lance_core.encoding.compression.registry import (
    COMPRESSIONS,
    decode_block,
    decode_blocks,
    decode_miniblock,
    decode_per_value,
    encode_block,
    encode_blocks,
    encode_miniblock,
    encode_per_value,
)

# By the name of the member in the CompressiveEncoding message.
COMPRESSIONS.update(
    {
        "flat": flat.COMPRESSION,
        "variable": variable.COMPRESSION,
    }
)

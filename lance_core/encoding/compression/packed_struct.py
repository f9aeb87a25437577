"""Packed structs: the fields of a row are adjacent, and rows are back to back.

    chunk   |a0|b0|c0|a1|b1|c1|...|       bits_per_value has the width of each field, `values` is flat

All fields have one width each and no nulls. Structs with strings are `variable_packed_struct`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, PackedStruct
from lance_core.encoding.compression import registry
from lance_core.encoding.compression.chunks import ChunkBuffers, ChunkLimits, Counts, MiniBlockPage
from lance_core.encoding.datablock import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    PackedStructBlock,
    VariableBlock,
)
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError


def _split_rows(encoding: CompressiveEncoding, rows: DataBlock) -> PackedStructBlock:
    widths = list(encoding.packed_struct.bits_per_value)
    if not isinstance(rows, FixedWidthBlock) or not widths or any(bits == 0 or bits % 8 for bits in widths):
        raise CorruptFileError(f"packed fields of {widths} bits")
    if sum(widths) != rows.bits_per_value:
        raise CorruptFileError(f"packed fields of {sum(widths)} bits in rows of {rows.bits_per_value}")
    size = rows.bits_per_value // 8
    table = rows.data[: rows.num_values * size].reshape(rows.num_values, size)
    children: list[DataBlock] = []
    at = 0
    for bits in widths:
        column = np.ascontiguousarray(table[:, at : at + bits // 8]).reshape(-1)
        children.append(FixedWidthBlock(data=column, bits_per_value=bits, num_values=rows.num_values))
        at += bits // 8
    return PackedStructBlock(children=tuple(children), num_values=rows.num_values)


def join_rows(block: DataBlock) -> tuple[list[int], FixedWidthBlock]:
    """The widths of the fields of structs in bits, and their values row by row.

    Raises:
        InvalidInputError: The block is not a struct.
        UnsupportedError: The width of a field is not in whole bytes.
    """
    if not isinstance(block, PackedStructBlock) or not block.children:
        raise InvalidInputError(f"a {type(block).__name__} is not a struct that could be packed")
    columns = [_flatten(child) for child in block.children]
    rows = [column.data.reshape(block.num_values, column.bits_per_value // 8) for column in columns]
    joined = np.concatenate(rows, axis=1)
    widths = [column.bits_per_value for column in columns]
    return widths, FixedWidthBlock(data=joined.reshape(-1), bits_per_value=sum(widths), num_values=block.num_values)


def _flatten(block: DataBlock) -> FixedWidthBlock:
    """A field as values of one width; a fixed size list without null items is one wide value."""
    items = 1
    num_values = block.num_values
    while isinstance(block, FixedSizeListBlock) and block.validity is None:
        items *= block.dimension
        block = block.items
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value % 8:
        raise UnsupportedError("a packed struct holds only numbers of whole bytes and fixed size lists of them")
    return FixedWidthBlock(data=block.data, bits_per_value=block.bits_per_value * items, num_values=num_values)


def _decode_miniblock(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts
) -> PackedStructBlock:
    return _split_rows(encoding, registry.decode_miniblock(encoding.packed_struct.values, buffers, counts))


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> PackedStructBlock:
    return _split_rows(encoding, registry.decode_per_value(encoding.packed_struct.values, block))


def _encode_miniblock(block: DataBlock, argument: str, limits: ChunkLimits) -> MiniBlockPage:
    widths, rows = join_rows(block)
    page = registry.encode_miniblock(
        rows, registry.parse_inner_name(argument, "flat"), max_values=limits.max_values, max_bytes=limits.max_bytes
    )
    encoding = CompressiveEncoding(packed_struct=PackedStruct(bits_per_value=widths, values=page.encoding))
    return MiniBlockPage(encoding=encoding, buffers=page.buffers, counts=page.counts)


def _encode_per_value(block: DataBlock, argument: str) -> tuple[CompressiveEncoding, FixedWidthBlock | VariableBlock]:
    widths, rows = join_rows(block)
    inner, values = registry.encode_per_value(rows, registry.parse_inner_name(argument, "flat"))
    return CompressiveEncoding(packed_struct=PackedStruct(bits_per_value=widths, values=inner)), values


COMPRESSION = registry.Compression(
    name="packed_struct",
    takes_argument=True,
    decode_miniblock=_decode_miniblock,
    decode_per_value=_decode_per_value,
    encode_miniblock=_encode_miniblock,
    encode_per_value=_encode_per_value,
)

"""Fixed size lists: the items of all lists back to back, with the validity of the items where some are null.

    mini-block chunk, buffer 0     |validity bitmap of the items|       if has_validity; n * dimension bits, LSB first
                      buffer 1 ..  the buffers of the encoded items
    per value                      |validity, ceil(dimension / 8) bytes|items|     zipped, one value after the other

Lists of lists nest this encoding once per dimension; the bitmaps come first, from the outermost to the innermost, each
with one bit per item of its dimension. Without validity, lists and their items differ only in the description, and
nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, Constant, FixedSizeList
from lance_core.encoding.compression import registry
from lance_core.encoding.compression.chunks import (
    ChunkBuffers,
    ChunkLimits,
    Counts,
    MiniBlockPage,
    chunk_counts,
    split_evenly,
    sum_counts,
)
from lance_core.encoding.compression.flat import flat_bits, flat_encoding, gather_flat
from lance_core.encoding.datablock import (
    Bytes,
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    NullBlock,
    VariableBlock,
)
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_MOST_ITEMS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListDimension:
    """One dimension of nested lists.

    Attributes:
        dimension: Items per list.
        items_per_value: Items of this dimension in a whole value.
        validity: Bitmap of the items; None when all are valid.
    """

    dimension: int
    items_per_value: int
    validity: Bytes | None


def _dimension(encoding: CompressiveEncoding, num_values: int) -> int:
    dimension = encoding.fixed_size_list.items_per_value
    if dimension == 0 or dimension * max(num_values, 1) > _MOST_ITEMS:
        raise CorruptFileError(f"{num_values} lists of {dimension} items")
    return dimension


def _decode_miniblock(
    encoding: CompressiveEncoding, buffers: Sequence[ChunkBuffers], counts: Counts
) -> FixedSizeListBlock:
    num_values = sum_counts(counts)
    dimension = _dimension(encoding, num_values)
    items = counts * dimension
    validity = None
    if encoding.fixed_size_list.has_validity:
        if not buffers:
            raise CorruptFileError("the buffer with the validity of list items is missing")
        validity = gather_flat(buffers[0], items, 1)
        buffers = buffers[1:]
    values = registry.decode_miniblock(encoding.fixed_size_list.values, buffers, items)
    return FixedSizeListBlock(items=values, dimension=dimension, validity=validity, num_values=num_values)


def _decode_blocks(encoding: CompressiveEncoding, buffers: ChunkBuffers, counts: Counts) -> FixedSizeListBlock:
    if encoding.fixed_size_list.has_validity:
        raise UnsupportedError("a block of lists with null items is not supported")
    num_values = sum_counts(counts)
    dimension = _dimension(encoding, num_values)
    values = registry.decode_blocks(encoding.fixed_size_list.values, buffers, counts * dimension)
    return FixedSizeListBlock(items=values, dimension=dimension, validity=None, num_values=num_values)


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> DataBlock:
    if not isinstance(block, FixedWidthBlock):
        raise CorruptFileError("fixed size lists in a page of values of varying length")
    layers: list[tuple[int, bool]] = []
    items = 1
    while encoding.WhichOneof("compression") == "fixed_size_list":
        dimension = _dimension(encoding, block.num_values * items)
        items *= dimension
        layers.append((dimension, encoding.fixed_size_list.has_validity))
        encoding = encoding.fixed_size_list.values
    bits = 0 if encoding.WhichOneof("compression") == "constant" else flat_bits(encoding)
    validity_bytes = _validity_bytes(layers)
    if block.bits_per_value != sum(validity_bytes) * 8 + bits * items:
        raise CorruptFileError(f"values of {block.bits_per_value} bits for lists of {items} items of {bits} bits")
    data, bitmaps = _unzip(block, layers, validity_bytes)
    total = block.num_values * items
    items_block: DataBlock
    if bits:
        items_block = FixedWidthBlock(data=data, bits_per_value=bits, num_values=total)
    else:
        empty = FixedWidthBlock(data=data[:0], bits_per_value=8, num_values=total)
        items_block = registry.decode_per_value(encoding, empty)
    for (dimension, _), validity in zip(reversed(layers), reversed(bitmaps), strict=True):
        total //= dimension
        items_block = FixedSizeListBlock(items=items_block, dimension=dimension, validity=validity, num_values=total)
    return items_block


def _validity_bytes(layers: Sequence[tuple[int, bool]]) -> list[int]:
    """Bytes of validity that one zipped value has for each layer."""
    items = 1
    sizes: list[int] = []
    for dimension, has_validity in layers:
        items *= dimension
        sizes.append((items + 7) // 8 if has_validity else 0)
    return sizes


def _unzip(
    block: FixedWidthBlock, layers: Sequence[tuple[int, bool]], validity_bytes: Sequence[int]
) -> tuple[Bytes, list[Bytes | None]]:
    """Split zipped values: the items, and one bitmap per layer, None for a layer without nulls."""
    if not any(validity_bytes):
        return block.data, [None] * len(layers)
    if block.bits_per_value % 8:
        raise UnsupportedError("lists of single bits with null items in a full-zip page")
    width = block.bits_per_value // 8
    rows = block.data[: block.num_values * width].reshape(block.num_values, width)
    bitmaps: list[Bytes | None] = []
    at = 0
    items = 1
    for (dimension, has_validity), size in zip(layers, validity_bytes, strict=True):
        items *= dimension
        if not has_validity:
            bitmaps.append(None)
            continue
        bits = np.ascontiguousarray(rows[:, at : at + size])
        if items % 8:
            loose = np.unpackbits(bits, axis=1, count=items, bitorder="little")
            bitmaps.append(np.packbits(loose.reshape(-1), bitorder="little"))
        else:
            bitmaps.append(bits.reshape(-1))
        at += size
    return np.ascontiguousarray(rows[:, at:]).reshape(-1), bitmaps


def _peel(block: DataBlock) -> tuple[list[_ListDimension], DataBlock]:
    """The layers of lists of lists, from the outermost, and the items at the bottom."""
    layers: list[_ListDimension] = []
    items = 1
    while isinstance(block, FixedSizeListBlock):
        items *= block.dimension
        layers.append(_ListDimension(dimension=block.dimension, items_per_value=items, validity=block.validity))
        block = block.items
    if not layers:
        raise InvalidInputError(f"a {type(block).__name__} is not a list")
    return layers, block


def _describe(layers: Sequence[_ListDimension], inner: CompressiveEncoding) -> CompressiveEncoding:
    for layer in reversed(layers):
        has_validity = layer.validity is not None
        inner = CompressiveEncoding(
            fixed_size_list=FixedSizeList(items_per_value=layer.dimension, values=inner, has_validity=has_validity)
        )
    return inner


def _take_fixed_items(argument: str, items: DataBlock) -> FixedWidthBlock:
    inner = registry.parse_inner_name(argument, "flat")
    if inner != "flat" or not isinstance(items, FixedWidthBlock):
        raise UnsupportedError(f"lists of {type(items).__name__} items compressed with {inner}")
    return items


def _encode_miniblock(block: DataBlock, argument: str, limits: ChunkLimits) -> MiniBlockPage:
    layers, bottom = _peel(block)
    items = _take_fixed_items(argument, bottom)
    width = layers[-1].items_per_value * items.bits_per_value
    bits = width + sum(layer.items_per_value for layer in layers if layer.validity is not None)
    padding = 16 * len(layers)
    room = ChunkLimits(max_values=limits.max_values, max_bytes=max(limits.max_bytes - padding, 16))
    per_chunk = room.values_per_chunk(bits)
    whole_bytes = items.bits_per_value % 8 == 0 and all(layer.validity is None for layer in layers)
    if per_chunk < 8 and block.num_values > per_chunk and not whole_bytes:
        raise InvalidInputError(f"lists of {layers[-1].items_per_value} bits are too wide for chunks of whole bytes")
    counts = chunk_counts(block.num_values, per_chunk)
    buffers = [split_evenly(x.validity, counts * x.items_per_value, 1) for x in layers if x.validity is not None]
    buffers.append(split_evenly(items.data, counts * layers[-1].items_per_value, items.bits_per_value))
    encoding = _describe(layers, flat_encoding(items.bits_per_value))
    return MiniBlockPage(encoding=encoding, buffers=tuple(buffers), counts=counts)


def _encode_blocks(block: DataBlock, argument: str, counts: Counts) -> tuple[CompressiveEncoding, ChunkBuffers]:
    layers, bottom = _peel(block)
    if any(layer.validity is not None for layer in layers):
        raise UnsupportedError("a block of lists with null items is not supported")
    inner = registry.parse_inner_name(argument, "flat")
    encoding, buffers = registry.encode_blocks(bottom, inner, counts * layers[-1].items_per_value)
    return _describe(layers, encoding), buffers


def _encode_per_value(block: DataBlock, argument: str) -> tuple[CompressiveEncoding, FixedWidthBlock]:
    layers, bottom = _peel(block)
    if isinstance(bottom, NullBlock):
        # Only the validity of such items is stored.
        data, inner, width = np.empty(0, np.uint8), CompressiveEncoding(constant=Constant()), 0
        nothing = np.zeros((bottom.num_values + 7) // 8, np.uint8)
        layers[-1] = replace(layers[-1], validity=nothing)
    else:
        items = _take_fixed_items(argument, bottom)
        data, inner, width = items.data, flat_encoding(items.bits_per_value), items.bits_per_value
        width *= layers[-1].items_per_value
    encoding = _describe(layers, inner)
    if all(layer.validity is None for layer in layers):
        return encoding, FixedWidthBlock(data=data, bits_per_value=width, num_values=block.num_values)
    if width % 8:
        raise UnsupportedError("lists of single bits with null items in a full-zip page")
    parts: list[Bytes] = []
    for layer in layers:
        if layer.validity is not None:
            bits = np.unpackbits(layer.validity, count=block.num_values * layer.items_per_value, bitorder="little")
            rows = bits.reshape(block.num_values, layer.items_per_value)
            parts.append(np.packbits(rows, axis=1, bitorder="little"))
    parts.append(data[: block.num_values * width // 8].reshape(block.num_values, width // 8))
    zipped = np.concatenate(parts, axis=1)
    return encoding, FixedWidthBlock(
        data=zipped.reshape(-1), bits_per_value=zipped.shape[1] * 8, num_values=block.num_values
    )


COMPRESSION = registry.Compression(
    name="fixed_size_list",
    takes_argument=True,
    decode_miniblock=_decode_miniblock,
    decode_blocks=_decode_blocks,
    decode_per_value=_decode_per_value,
    encode_miniblock=_encode_miniblock,
    encode_blocks=_encode_blocks,
    encode_per_value=_encode_per_value,
)

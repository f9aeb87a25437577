"""Values of one column as plain memory, between Arrow arrays and page buffers.

    FixedWidthBlock       data  |v0|v1|v2|...     bits_per_value bits each; 1 bit: LSB first, else whole bytes
    VariableBlock         offsets |o0|o1|...|on|  value i = data[o_i : o_i+1]; o0 need not be 0
    FixedSizeListBlock    items = num_values * dimension items; validity = one LSB-first bit per item
    PackedStructBlock     one child block per field
    NullBlock             no bytes at all

A block has no nulls: the definition levels of the page mark null slots, which hold any value. The only exception is
the items of fixed size lists, which have no levels; their validity is part of the block. All numbers are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedWidthBlock:
    """Values of one width, back to back.

    Attributes:
        data: The bytes, ``ceil(num_values * bits_per_value / 8)`` of them.
        bits_per_value: 1 (bits, least significant first) or a multiple of 8.
        num_values: Number of values.
    """

    data: Bytes
    bits_per_value: int
    num_values: int

    def view(self) -> npt.NDArray[Any]:
        """The values as unsigned integers, without a copy.

        Raises:
            UnsupportedError: The width is not 8, 16, 32 or 64 bits.
        """
        if self.bits_per_value not in (8, 16, 32, 64):
            raise UnsupportedError(f"values of {self.bits_per_value} bits are not machine words")
        width = self.bits_per_value // 8
        return self.data[: self.num_values * width].view(f"<u{width}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableBlock:
    """Values of varying length.

    Attributes:
        offsets: ``num_values + 1`` ascending positions in `data`; the first may be non-zero.
        data: The bytes of all values.
        num_values: Number of values.
    """

    offsets: Offsets
    data: Bytes
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedSizeListBlock:
    """Lists that all have the same number of items.

    Attributes:
        items: The ``num_values * dimension`` items.
        dimension: Items per list.
        validity: Bitmap of the items (LSB first, 1 = valid); None when all are valid.
        num_values: Number of lists.
    """

    items: DataBlock
    dimension: int
    validity: Bytes | None
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStructBlock:
    """Structs that are stored row by row; every child holds `num_values` values."""

    children: tuple[DataBlock, ...]
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NullBlock:
    """Values of the null type."""

    num_values: int


DataBlock: TypeAlias = FixedWidthBlock | VariableBlock | FixedSizeListBlock | PackedStructBlock | NullBlock


def view_array_as_block(array: pa.Array) -> DataBlock:
    """View the values of an Arrow array; the validity of the array is not part of the block.

    Nothing is copied, except for bits that do not start at a byte, views, and dictionaries (which are expanded).

    Args:
        array: Any array but a list or a map; it may be a slice.

    Returns:
        A block over the array's own memory.

    Raises:
        UnsupportedError: The type has no block form.
    """
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return view_array_as_block(array.storage)
    if pa.types.is_null(kind):
        return NullBlock(num_values=len(array))
    if pa.types.is_dictionary(kind):
        return view_array_as_block(array.dictionary_decode())
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return view_array_as_block(
            array.cast(pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary())
        )
    if pa.types.is_fixed_size_list(kind):
        return _fixed_size_list_to_block(array)
    if pa.types.is_struct(kind):
        children = tuple(view_array_as_block(array.field(i)) for i in range(kind.num_fields))
        return PackedStructBlock(children=children, num_values=len(array))
    if _is_variable(kind):
        return _variable_to_block(array)
    if pa.types.is_nested(kind):
        raise UnsupportedError(f"a {kind} array has no block of its own: lists are made of levels and items")
    return _fixed_width_to_block(array)


def block_to_array(block: DataBlock, kind: pa.DataType, validity: pa.Buffer | None = None) -> pa.Array:
    """Turn a block into an Arrow array over the same memory.

    Args:
        block: The values.
        kind: The Arrow type of the result.
        validity: Bitmap (LSB first, 1 = valid) of the array's slots, None when all are valid.

    Returns:
        An array of `kind` with ``block.num_values`` slots.

    Raises:
        CorruptFileError: The block cannot hold values of that type.
        UnsupportedError: The values take more than 2 GiB, and `kind` has 32-bit offsets.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, block_to_array(block, kind.storage_type, validity))
    count = block.num_values
    if isinstance(block, NullBlock) or pa.types.is_null(kind):
        return pa.nulls(count, kind)
    if validity is not None and validity.size * 8 < count:
        raise CorruptFileError(f"validity of {validity.size} bytes is too short for {count} values")
    if isinstance(block, FixedWidthBlock):
        if isinstance(kind, pa.FixedSizeListType):
            return _wide_values_to_lists(block, kind, validity)
        return _fixed_width_to_array(block, kind, validity)
    if isinstance(block, VariableBlock):
        return _variable_to_array(block, kind, validity)
    if isinstance(block, FixedSizeListBlock) and isinstance(kind, pa.FixedSizeListType):
        return _fixed_size_list_to_array(block, kind, validity)
    if isinstance(block, PackedStructBlock) and isinstance(kind, pa.StructType):
        return _packed_struct_to_array(block, kind, validity)
    raise CorruptFileError(f"a {type(block).__name__} cannot be read as {kind}")


def compute_offsets(lengths: npt.NDArray[np.int64]) -> Offsets:
    """Ascending offsets from 0 for values of these lengths: 32 bits wide if they fit, else 64."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets.astype(np.int32) if offsets[-1] <= _INT32_MAX else offsets


def _is_variable(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _buffer_bytes(buffer: pa.Buffer | None) -> Bytes:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _check_count(count: int, expected: int) -> None:
    if count != expected:
        raise CorruptFileError(f"{count} values where {expected} are expected")


def _slice_bits(buffer: pa.Buffer | None, offset: int, count: int) -> Bytes:
    """Bits ``offset .. offset + count`` of a bitmap, starting at bit 0; a copy only if they do not start at a byte."""
    data = _buffer_bytes(buffer)
    end = (offset + count + 7) // 8
    if offset % 8 == 0:
        return data[offset // 8 : end]
    bits = np.unpackbits(data[offset // 8 : end], bitorder="little")
    return np.packbits(bits[offset % 8 : offset % 8 + count], bitorder="little")


def _fixed_width_to_block(array: pa.Array) -> FixedWidthBlock:
    count = len(array)
    buffer = array.buffers()[1]
    bits = array.type.bit_width
    if bits == 1:
        return FixedWidthBlock(data=_slice_bits(buffer, array.offset, count), bits_per_value=1, num_values=count)
    width = bits // 8
    data = _buffer_bytes(buffer)[array.offset * width : (array.offset + count) * width]
    return FixedWidthBlock(data=data, bits_per_value=bits, num_values=count)


def _variable_to_block(array: pa.Array) -> VariableBlock:
    count = len(array)
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    dtype: Any = np.int64 if large else np.int32
    _, offset_buffer, data = array.buffers()
    if count == 0 or offset_buffer is None:
        return VariableBlock(offsets=np.zeros(1, dtype), data=np.empty(0, np.uint8), num_values=0)
    offsets = np.frombuffer(offset_buffer, dtype)[array.offset : array.offset + count + 1]
    return VariableBlock(offsets=offsets, data=_buffer_bytes(data), num_values=count)


def _fixed_size_list_to_block(array: pa.Array) -> FixedSizeListBlock:
    count, dimension = len(array), array.type.list_size
    values = array.values.slice(array.offset * dimension, count * dimension)
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    validity = None
    if values.null_count and not pa.types.is_null(values.type):
        validity = _slice_bits(values.buffers()[0], values.offset, len(values))
    return FixedSizeListBlock(
        items=view_array_as_block(values), dimension=dimension, validity=validity, num_values=count
    )


def _align(data: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """The bytes, copied if Arrow cannot read words of `width` bytes at their address."""
    return data if data.ctypes.data % width == 0 else data.copy()


def _fixed_width_to_array(block: FixedWidthBlock, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    try:
        bits = kind.bit_width
    except ValueError:
        bits = -1
    if bits == 1 and block.bits_per_value == 8:
        # Booleans of a full-zip page are bytes.
        if block.data.size and int(block.data.max()) > 1:
            raise CorruptFileError(f"a boolean is {int(block.data.max())}, neither 0 nor 1")
        packed = np.packbits(block.data, bitorder="little")
        block = FixedWidthBlock(data=packed, bits_per_value=1, num_values=block.num_values)
    if bits != block.bits_per_value or pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        raise CorruptFileError(f"values of {block.bits_per_value} bits in a column of type {kind}")
    if block.data.size * 8 < bits * block.num_values:
        raise CorruptFileError(f"{block.data.size} bytes are too few for {block.num_values} values of {bits} bits")
    width = 1 if bits < 16 or pa.types.is_fixed_size_binary(kind) else 8 if bits > 64 else bits // 8
    data = pa.py_buffer(_align(block.data, width))
    return pa.Array.from_buffers(kind, block.num_values, [validity, data])


def _variable_to_array(block: VariableBlock, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    if not _is_variable(kind):
        raise CorruptFileError(f"values of varying length in a column of type {kind}")
    _check_count(block.offsets.size, block.num_values + 1)
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets: npt.NDArray[Any] = block.offsets
    data = block.data
    if large:
        offsets = offsets.astype(np.int64, copy=False)
    elif offsets.dtype != np.int32:
        if offsets[-1] > _INT32_MAX:
            data = data[int(offsets[0]) :]
            offsets = offsets - offsets[0]
        if offsets[-1] > _INT32_MAX:
            raise UnsupportedError(f"{int(offsets[-1])} bytes do not fit one {kind} array: read fewer rows at a time")
        offsets = offsets.astype(np.int32)
    if offsets[0] < 0 or offsets[-1] > data.size:
        raise CorruptFileError(f"offsets end at {int(offsets[-1])}, but there are {data.size} bytes of values")
    buffers = [validity, pa.py_buffer(_align(offsets, offsets.itemsize)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, block.num_values, buffers)


def _fixed_size_list_to_array(
    block: FixedSizeListBlock, kind: pa.FixedSizeListType, validity: pa.Buffer | None
) -> pa.Array:
    if kind.list_size != block.dimension:
        raise CorruptFileError(f"lists of {block.dimension} items in a column of type {kind}")
    items = block_to_array(
        block.items, kind.value_type, None if block.validity is None else pa.py_buffer(block.validity)
    )
    _check_count(len(items), block.num_values * block.dimension)
    return pa.Array.from_buffers(kind, block.num_values, [validity], children=[items])


def _wide_values_to_lists(block: FixedWidthBlock, kind: pa.FixedSizeListType, validity: pa.Buffer | None) -> pa.Array:
    """Fixed size lists in packed structs, whose description has only the width of a whole list."""
    size = kind.list_size
    if size == 0 or block.bits_per_value % size:
        raise CorruptFileError(f"values of {block.bits_per_value} bits in a column of type {kind}")
    items = FixedWidthBlock(
        data=block.data, bits_per_value=block.bits_per_value // size, num_values=block.num_values * size
    )
    lists = FixedSizeListBlock(items=items, dimension=size, validity=None, num_values=block.num_values)
    return _fixed_size_list_to_array(lists, kind, validity)


def _packed_struct_to_array(block: PackedStructBlock, kind: pa.StructType, validity: pa.Buffer | None) -> pa.Array:
    if kind.num_fields != len(block.children):
        raise CorruptFileError(f"{len(block.children)} packed fields in a column of type {kind}")
    children = [block_to_array(child, kind.field(i).type) for i, child in enumerate(block.children)]
    for child in children:
        _check_count(len(child), block.num_values)
    return pa.Array.from_buffers(kind, block.num_values, [validity], children=children)


def ascends(offsets: npt.NDArray[np.integer[Any]]) -> bool:
    """Whether numbers ascend; computed without differences, which may overflow for numbers of a corrupt file."""
    return bool((offsets[1:] >= offsets[:-1]).all())


def count_runs(values: npt.NDArray[Any]) -> int:
    """The number of runs of equal values."""
    return 1 + int(np.count_nonzero(values[1:] != values[:-1]))


def require_fixed_width(block: DataBlock) -> FixedWidthBlock:
    """The block itself, if its values have one width.

    Raises:
        InvalidInputError: The values differ in width.
    """
    if not isinstance(block, FixedWidthBlock):
        raise InvalidInputError(f"a {type(block).__name__} has no fixed width")
    return block


def require_variable(block: DataBlock) -> VariableBlock:
    """The block itself, if its values vary in length.

    Raises:
        InvalidInputError: The values have a fixed width.
    """
    if not isinstance(block, VariableBlock):
        raise InvalidInputError(f"a {type(block).__name__} has no offsets")
    return block

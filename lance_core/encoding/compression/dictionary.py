"""Dictionaries: values as indices into a list of distinct items.

In 2.1 and 2.2 pages the list of items is a buffer of the page (`MiniBlockLayout.dictionary`), and the indices are in
the chunks. `expand` looks the items up. The format has a `CompressiveEncoding` for dictionaries as well, but no writer
uses it and its bytes are not specified: it is rejected by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.compression.registry import Compression
from lance_core.encoding.datablock import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    VariableBlock,
)
from lance_core.errors import CorruptFileError, UnsupportedError

__all__ = ["COMPRESSION", "expand"]

_INT32_MAX = 2**31 - 1


def expand(items: DataBlock, indices: DataBlock) -> DataBlock:
    """The items that the indices point at.

    Args:
        items: The distinct values.
        indices: Unsigned integers of 8 to 64 bits, one per value; each of them must point at an item.

    Raises:
        CorruptFileError: An index is beyond the items.
        UnsupportedError: The items are of an unsupported kind.
    """
    if not isinstance(indices, FixedWidthBlock) or indices.bits_per_value not in (8, 16, 32, 64):
        raise CorruptFileError("the indices of a dictionary are not integers")
    numbers = indices.view()
    if numbers.size and int(numbers.max()) >= items.num_values:
        raise CorruptFileError(f"index {int(numbers.max())} into a dictionary of {items.num_values} items")
    if isinstance(items, VariableBlock):
        return _expand_variable(items, numbers)
    if isinstance(items, FixedWidthBlock):
        return _expand_fixed(items, numbers)
    if isinstance(items, FixedSizeListBlock) and items.validity is None:
        return _expand_lists(items, indices)
    raise UnsupportedError(f"dictionaries of {type(items).__name__} items")


def _expand_variable(items: VariableBlock, numbers: npt.NDArray[Any]) -> VariableBlock:
    lengths = np.diff(items.offsets)
    longest = int(lengths.max()) if lengths.size else 0
    large = longest * numbers.size > _INT32_MAX or items.offsets.itemsize == 8
    offsets = items.offsets.astype(np.int64 if large else np.int32, copy=False)
    kind = pa.large_binary() if large else pa.binary()
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(items.data)]
    values = pa.Array.from_buffers(kind, items.num_values, buffers)
    taken = pc.take(values, pa.array(numbers), boundscheck=False)
    if isinstance(taken, pa.ChunkedArray):
        taken = taken.combine_chunks()
    found = np.frombuffer(taken.buffers()[1], offsets.dtype)[: numbers.size + 1]
    data = taken.buffers()[2]
    return VariableBlock(
        offsets=found,
        data=np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
        num_values=numbers.size,
    )


def _expand_fixed(items: FixedWidthBlock, numbers: npt.NDArray[Any]) -> FixedWidthBlock:
    bits = items.bits_per_value
    values: npt.NDArray[Any]
    if bits == 1:
        values = np.unpackbits(items.data, count=items.num_values, bitorder="little")
        data = np.packbits(values.take(numbers), bitorder="little")
        return FixedWidthBlock(data=data, bits_per_value=1, num_values=numbers.size)
    size = items.num_values * (bits // 8)
    if bits in (8, 16, 32, 64):
        values = items.data[:size].view(f"<u{bits // 8}")
    else:
        values = items.data[:size].reshape(items.num_values, bits // 8)
    # `expand` has checked the indices; numpy is fastest if it clips them.
    data = values.take(numbers, axis=0, mode="clip").reshape(-1).view(np.uint8)
    return FixedWidthBlock(data=data, bits_per_value=bits, num_values=numbers.size)


def _expand_lists(items: FixedSizeListBlock, indices: FixedWidthBlock) -> FixedSizeListBlock:
    numbers = indices.view().astype(np.int64)
    inner = (numbers[:, None] * items.dimension + np.arange(items.dimension)).reshape(-1)
    block = FixedWidthBlock(data=inner.view(np.uint8), bits_per_value=64, num_values=inner.size)
    return FixedSizeListBlock(
        items=expand(items.items, block), dimension=items.dimension, validity=None, num_values=numbers.size
    )


COMPRESSION = Compression(name="dictionary")

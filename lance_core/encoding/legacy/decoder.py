"""Reads the pages of 0.1 files (see the package)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.encoding.concatenate import move_nulls_to_indices
from lance_core.encoding.datablock import FixedSizeListBlock, FixedWidthBlock, VariableBlock, ascends, block_to_array
from lance_core.encoding.page import ByteRange, Bytes, Steps, as_bytes, lock_step
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field, arrow_type_of

_LISTS = ("list", "list.struct", "large_list", "large_list.struct")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """The positions of the pages of a file.

    Attributes:
        pages: By field id: position and number of elements of the page of each batch.
        dictionaries: By field id: position and number of the values of a dictionary.
        size: Size of the file.
    """

    pages: Mapping[int, Any]
    dictionaries: Mapping[int, tuple[int, int]]
    size: int

    def page(self, field: Field, batch: int) -> tuple[int, int]:
        """Position and number of elements of one page.

        Raises:
            CorruptFileError: The page is outside the file.
        """
        if field.id not in self.pages:
            raise CorruptFileError(f"field {field.name!r} ({field.id}) is not in the file")
        position, length = self.pages[field.id][batch].tolist()
        if not 0 <= position <= self.size or not 0 <= length <= 2**40:
            raise CorruptFileError(f"a page of {length} values at {position} in a file of {self.size} bytes")
        return position, length

    def check(self, start: int, end: int) -> ByteRange:
        """The range, after a check that it is inside the file.

        Raises:
            CorruptFileError: The range is outside the file.
        """
        if not 0 <= start <= end <= self.size:
            raise CorruptFileError(f"bytes {start} to {end} of a file of {self.size}")
        return start, end


def read_field(field: Field, table: PageTable, batch: int, start: int, end: int) -> Steps[pa.Array]:
    """Read values of a field in one batch.

    Args:
        field: The field.
        table: The positions of the pages.
        batch: Number of the batch.
        start: First value.
        end: End of the values, excluded.

    Returns:
        An array of ``end - start`` values.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A 0.1 file cannot hold the type.
    """
    kind: Any = arrow_type_of(field)
    count = end - start
    if field.logical_type == "null" or count == 0:
        return pa.nulls(count, kind)
    if field.logical_type == "struct":
        children = yield from lock_step([read_field(child, table, batch, start, end) for child in field.children])
        return pa.Array.from_buffers(kind, count, [None], children=children)
    position, length = table.page(field, batch)
    if field.logical_type in _LISTS:
        return (yield from _read_list(field, table, batch, start, end))
    if field.children:
        raise UnsupportedError(f"a 0.1 file cannot hold the type {field.logical_type}")
    if end > length:
        raise CorruptFileError(f"a page of {length} values where {end} are expected")
    if _is_variable(kind):
        return (yield from _read_variable(kind, table, position, start, end, is_null_if_empty=field.nullable))
    if pa.types.is_dictionary(kind):
        return (yield from _read_dictionary(field, kind, table, position, start, end))
    return (yield from _read_plain(kind, table, position, start, end))


def _is_variable(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _plain_bits(kind: Any) -> int:
    if pa.types.is_fixed_size_list(kind):
        return _plain_bits(kind.value_type) * int(kind.list_size)
    return int(kind.bit_width)


def _read_plain(kind: Any, table: PageTable, position: int, start: int, end: int) -> Steps[pa.Array]:
    bits = _plain_bits(kind)
    first, last = start * bits // 8, -(-end * bits // 8)
    answers = yield [table.check(position + first, position + last)]
    data = as_bytes(answers[0])
    shift = start * bits - first * 8
    if shift:
        unpacked = np.unpackbits(data, bitorder="little")[shift : shift + (end - start) * bits]
        data = np.packbits(unpacked, bitorder="little")
    return block_to_array(_plain_block(kind, data, end - start), kind)


def _plain_block(kind: Any, data: Bytes, count: int) -> FixedWidthBlock | FixedSizeListBlock:
    if not pa.types.is_fixed_size_list(kind):
        return FixedWidthBlock(data=data, bits_per_value=kind.bit_width, num_values=count)
    items = _plain_block(kind.value_type, data, count * kind.list_size)
    return FixedSizeListBlock(items=items, dimension=kind.list_size, validity=None, num_values=count)


def _read_variable(
    kind: Any, table: PageTable, position: int, start: int, end: int, *, is_null_if_empty: bool = True
) -> Steps[pa.Array]:
    answers = yield [table.check(position + start * 8, position + (end + 1) * 8)]
    offsets = as_bytes(answers[0]).view("<i8")
    if int(offsets[0]) < 0 or int(offsets[-1]) > table.size or not ascends(offsets):
        raise CorruptFileError("the offsets of values do not ascend, or point outside the file")
    ranges = [table.check(int(offsets[0]), int(offsets[-1]))]
    data = np.empty(0, np.uint8)
    if ranges[0][0] < ranges[0][1]:
        answers = yield ranges
        data = as_bytes(answers[0])
    block = VariableBlock(offsets=offsets - offsets[0], data=data, num_values=end - start)
    empty = offsets[1:] == offsets[:-1]
    has_nulls = is_null_if_empty and bool(empty.any())
    bitmap = pa.py_buffer(np.packbits(~empty, bitorder="little")) if has_nulls else None
    return block_to_array(block, kind, bitmap)


def _read_list(field: Field, table: PageTable, batch: int, start: int, end: int) -> Steps[pa.Array]:
    kind: Any = arrow_type_of(field)
    position, length = table.page(field, batch)
    if end + 1 > length:
        raise CorruptFileError(f"{length} offsets where {end + 1} are expected")
    width = 8 if pa.types.is_large_list(kind) else 4
    answers = yield [table.check(position + start * width, position + (end + 1) * width)]
    offsets = as_bytes(answers[0]).view(f"<i{width}")
    if int(offsets[0]) < 0 or not ascends(offsets):
        raise CorruptFileError("the offsets of lists do not ascend")
    items = yield from read_field(field.children[0], table, batch, int(offsets[0]), int(offsets[-1]))
    shifted = offsets - offsets[0]
    return pa.Array.from_buffers(kind, end - start, [None, pa.py_buffer(shifted)], children=[items])


def _read_dictionary(field: Field, kind: Any, table: PageTable, position: int, start: int, end: int) -> Steps[pa.Array]:
    if field.id not in table.dictionaries:
        raise CorruptFileError(f"field {field.name!r} has no dictionary in the file")
    values_at, count = table.dictionaries[field.id]
    if not 0 <= count <= 2**40:
        raise CorruptFileError(f"a dictionary of {count} values")
    parts: Sequence[Any] = yield from lock_step(
        [
            _read_plain(kind.index_type, table, position, start, end),
            read_dictionary_values(kind.value_type, table, values_at, count),
        ]
    )
    return move_nulls_to_indices(pa.DictionaryArray.from_arrays(parts[0], parts[1]))


def read_dictionary_values(kind: pa.DataType, table: PageTable, position: int, count: int) -> Steps[pa.Array]:
    """Read the values of a dictionary.

    Args:
        kind: Their type.
        table: The page table, whose size of the file bounds the values.
        position: Position of the values, or of the offsets of strings.
        count: Number of values.

    Raises:
        CorruptFileError: The bytes do not follow the format.
    """
    read = _read_variable if _is_variable(kind) else _read_plain
    return (yield from read(kind, table, position, 0, count))

"""Writes the pages of 0.1 files (see the package)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.encoding.datablock import FixedWidthBlock, VariableBlock, view_array_as_block
from lance_core.encoding.page import Bytes
from lance_core.encoding.repdef import find_nulls
from lance_core.errors import SchemaError, UnsupportedError
from lance_core.schema import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFieldPage:
    """The page of one field in one batch.

    Attributes:
        field: The field.
        length: Elements in the page, as the page table counts them: offsets for lists, else values.
        data: The bytes of the page; of values of varying length only the values.
        offsets: For values of varying length, n + 1 offsets into `data`, which become positions in the file.
    """

    field: Field
    length: int
    data: Bytes
    offsets: npt.NDArray[np.int64] | None


def encode_batch(field: Field, array: Any, path: str = "") -> Iterator[EncodedFieldPage]:
    """The pages of a field and all fields below it.

    Args:
        field: The field.
        array: Its values in one batch; dictionary arrays have the dictionary of the file.
        path: The path of the field's parent, with a dot; for error messages.

    Raises:
        UnsupportedError: The version cannot store the type.
        SchemaError: A value of fixed width is null.
    """
    path += field.name
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if field.logical_type == "null":
        yield EncodedFieldPage(field=field, length=len(array), data=np.empty(0, np.uint8), offsets=None)
        return
    if field.logical_type == "struct":
        # The nulls of the struct become nulls of its children.
        for child, values in zip(field.children, array.flatten(), strict=True):
            yield from encode_batch(child, values, f"{path}.")
    elif field.children:
        offsets, values = _list_parts(array)
        yield EncodedFieldPage(field=field, length=offsets.size, data=offsets.view(np.uint8), offsets=None)
        yield from encode_batch(field.children[0], values, f"{path}.")
    else:
        if not is_null_stored(array.type) and _has_nulls(array):
            raise make_null_error(path, array.type)
        yield encode_page(field, array)


def make_null_error(path: str, kind: pa.DataType) -> SchemaError:
    """The error for a null that would be read as another value."""
    return SchemaError(
        f"column {path!r}: a file of version 0.1 cannot hold a null of type {kind}: fill the nulls, or write a dataset "
        "of a later version"
    )


def is_null_stored(kind: pa.DataType) -> bool:
    """Whether nulls among values without children are read as null: other values have no bytes that stand for it."""
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return is_large or kind in (pa.string(), pa.binary(), pa.null())


def _has_nulls(array: Any) -> bool:
    """Whether a value is null, or an item of a list of fixed size."""
    if array.null_count:
        return True
    if not pa.types.is_fixed_size_list(array.type):
        return False
    size = array.type.list_size
    return _has_nulls(array.values.slice(array.offset * size, len(array) * size))


def encode_page(field: Field, array: Any) -> EncodedFieldPage:
    """The page of a field without children."""
    if pa.types.is_dictionary(array.type):
        array = array.indices
    if pa.types.is_fixed_size_list(array.type):
        data = _fixed_size_list_data(array)
        return EncodedFieldPage(field=field, length=len(array), data=data, offsets=None)
    block = view_array_as_block(array)
    nulls = find_nulls(array)
    if isinstance(block, VariableBlock):
        return _variable_page(field, block, nulls)
    if not isinstance(block, FixedWidthBlock):
        raise UnsupportedError(f"field {field.name!r}: a 0.1 file cannot hold the type {field.logical_type}")
    return EncodedFieldPage(field=field, length=len(array), data=_zero_nulls(block, nulls), offsets=None)


def _zero_nulls(block: FixedWidthBlock, nulls: Any) -> Bytes:
    """The values with zero bits for nulls."""
    if nulls is None:
        return block.data
    if block.bits_per_value == 1:
        bits = np.unpackbits(block.data, count=block.num_values, bitorder="little")
        bits[nulls] = 0
        return np.packbits(bits, bitorder="little")
    table = block.data[: block.num_values * block.bits_per_value // 8].reshape(block.num_values, -1).copy()
    table[nulls] = 0
    return table.ravel()


def _fixed_size_list_data(array: Any) -> Bytes:
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if pa.types.is_fixed_size_list(items.type):
        return _fixed_size_list_data(items)
    block = view_array_as_block(items)
    if not isinstance(block, FixedWidthBlock):
        raise UnsupportedError(f"a 0.1 file cannot hold fixed size lists of {items.type}")
    return block.data


def _variable_page(field: Field, block: VariableBlock, nulls: Any) -> EncodedFieldPage:
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    lengths = np.diff(block.offsets).astype(np.int64)
    data = block.data[first:last]
    if nulls is not None and bool(lengths[nulls].any()):
        data = data[np.repeat(~nulls, lengths)]
        lengths[nulls] = 0
    offsets = np.zeros(block.num_values + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return EncodedFieldPage(field=field, length=block.num_values, data=data, offsets=offsets)


def _list_parts(array: Any) -> tuple[Any, pa.Array]:
    """Offsets from 0 on, and the items of the lists that are not null."""
    large = pa.types.is_large_list(array.type)
    dtype = np.int64 if large else np.int32
    lengths = np.asarray(array.value_lengths().fill_null(0)).astype(np.int64)
    offsets = np.zeros(len(array) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, array.flatten()

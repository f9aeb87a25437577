"""Encodes the pages of 2.0 files (see `decoder`): plain, unless the compression of strings is requested.

Lists restart their offsets in every page; a list column and the column of its items have independent pages. A struct
column has one page without buffers for all its rows, which is written when the file is finished.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core.encoding.choosing.options import EncodingOptions, check_packed_values, read_encoding_options
from lance_core.encoding.compression import fsst
from lance_core.encoding.compression.general import compress_with_size
from lance_core.encoding.compression.packed_struct import join_rows
from lance_core.encoding.datablock import Bytes, FixedWidthBlock, VariableBlock, view_array_as_block
from lance_core.encoding.page import BytesLike, EncodedPage
from lance_core.encoding.repdef import find_nulls
from lance_core.errors import SchemaError, UnsupportedError
from lance_core.schema import Field
from lance_core.schema.field import is_packed

_MOST_STRINGS: Final = 100
_MANY_ROWS: Final = 100
_LOOKED_AT: Final = 4096
"""The reference library writes dictionaries of fewer than 100 strings, for at least as many rows."""


def encode_field(field: Field, array: pa.Array) -> list[list[EncodedPage]]:
    """Encode some rows of a top-level field.

    Args:
        field: The field.
        array: Its values; the array may be empty only for items of lists.

    Returns:
        The pages of each column of the field, depth-first; a packed struct is one column.

    Raises:
        SchemaError: A struct is null, which 2.0 cannot store.
        UnsupportedError: The version cannot store the type.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if is_packed(field):
        return [[_encode_packed(field, array)]]
    if field.logical_type == "struct":
        return _encode_struct(field, array)
    if field.children:
        return _encode_list(field, array)
    return (
        [[_PageBuffers(len(array), read_encoding_options(field)).finish(_encode_values, array)]] if len(array) else [[]]
    )


def encode_blobs(table: npt.NDArray[np.int64]) -> EncodedPage:
    """A page of descriptors of blobs: shape (blobs, 2), position and size."""
    encoding = ArrayEncoding()
    encoding.packed_struct.inner.extend([_packed_field(pa.uint64())] * 2)
    encoding.packed_struct.buffer.SetInParent()
    rows = table.shape[0]
    return EncodedPage(num_rows=rows, length=rows, encoding=encoding, buffers=(table.ravel().view(np.uint8),))


def _encode_packed(field: Field, array: Any) -> EncodedPage:
    """A page of a packed struct; a fixed size list in it is one wide value."""
    _check_no_null_struct(field, array)
    check_packed_values(field, array)
    encoding = ArrayEncoding()
    encoding.packed_struct.inner.extend(_packed_field(child.type) for child in array.type)
    encoding.packed_struct.buffer.SetInParent()
    _, rows = join_rows(view_array_as_block(array))
    return EncodedPage(num_rows=len(array), length=len(array), encoding=encoding, buffers=(rows.data,))


def _packed_field(kind: Any) -> ArrayEncoding:
    encoding = ArrayEncoding()
    values = encoding.nullable.no_nulls.values
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_fixed_size_list(kind):
        values.fixed_size_list.dimension = kind.list_size
        values.fixed_size_list.items.CopyFrom(_packed_field(kind.value_type))
    else:
        values.flat.bits_per_value = kind.bit_width
        values.flat.buffer.SetInParent()
    return encoding


class _PageBuffers:
    """The buffers of a page whose encoding is being built."""

    def __init__(self, num_rows: int, options: EncodingOptions | None = None) -> None:
        self.num_rows = num_rows
        self.options = options or EncodingOptions()
        self.buffers: list[BytesLike] = []

    def add(self, data: BytesLike) -> int:
        self.buffers.append(data)
        return len(self.buffers) - 1

    def flat(self, data: BytesLike, bits: int) -> ArrayEncoding:
        encoding = ArrayEncoding()
        encoding.flat.bits_per_value = bits
        encoding.flat.buffer.buffer_index = self.add(data)
        return encoding

    def finish(self, encode: Any, array: pa.Array) -> EncodedPage:
        encoding = encode(self, array)
        return EncodedPage(num_rows=self.num_rows, length=self.num_rows, encoding=encoding, buffers=tuple(self.buffers))


def _check_no_null_struct(field: Field, array: Any) -> None:
    if array.null_count:
        raise SchemaError(f"field {field.name!r}: null structs need version 2.1 or later")


def _encode_struct(field: Field, array: Any) -> list[list[EncodedPage]]:
    _check_no_null_struct(field, array)
    encoding = ArrayEncoding()
    encoding.struct.SetInParent()
    page = EncodedPage(num_rows=len(array), length=len(array), encoding=encoding, buffers=())
    columns = [[page]]
    for index, child in enumerate(field.children):
        columns += encode_field(child, array.field(index))
    return columns


def _encode_list(field: Field, array: Any) -> list[list[EncodedPage]]:
    large = pa.types.is_large_list(array.type)
    count = len(array)
    if not count:
        return [[], *encode_field(field.children[0], array.values.slice(0, 0))]
    raw: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)[
        array.offset : array.offset + count + 1
    ]
    nulls = find_nulls(array)
    lengths: npt.NDArray[np.int64] = np.diff(raw.astype(np.int64)).astype(np.int64)
    if nulls is not None:
        lengths[nulls] = 0
    values = array.values.slice(int(raw[0]), int(raw[-1] - raw[0]))
    total = int(lengths.sum())
    if total != len(values):
        # Items below null lists are dropped.
        before = np.cumsum(lengths) - lengths
        values = values.take(pa.array(np.repeat(raw[:-1] - raw[0] - before, lengths) + np.arange(total)))
    ends = np.cumsum(lengths).astype(np.uint64)
    if nulls is not None:
        ends[nulls] += np.uint64(total + 1)
    page = _PageBuffers(count)
    encoding = ArrayEncoding()
    encoding.list.offsets.nullable.no_nulls.values.CopyFrom(page.flat(ends, 64))
    encoding.list.null_offset_adjustment = total + 1
    encoding.list.num_items = total
    list_page = EncodedPage(num_rows=count, length=count, encoding=encoding, buffers=tuple(page.buffers))
    return [[list_page], *encode_field(field.children[0], values)]


def _encode_values(page: _PageBuffers, array: Any) -> ArrayEncoding:
    """Values with their nulls."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    encoding = ArrayEncoding()
    if pa.types.is_null(kind) or array.null_count == len(array):
        encoding.nullable.all_nulls.SetInParent()
        return encoding
    if pa.types.is_dictionary(kind):
        return _encode_dictionary(page, array)
    if pa.types.is_string(kind) and (few := _encode_few_strings(array, page.options)) is not None:
        return _encode_few(page, few)
    block = None if pa.types.is_fixed_size_list(kind) else view_array_as_block(array)
    if isinstance(block, VariableBlock):
        return _encode_binary(page, block, find_nulls(array))
    nulls = find_nulls(array)
    if nulls is not None:
        bitmap = np.packbits(~nulls, bitorder="little")
        encoding.nullable.some_nulls.validity.CopyFrom(page.flat(bitmap, 1))
        target = encoding.nullable.some_nulls.values
    else:
        target = encoding.nullable.no_nulls.values
    if isinstance(block, FixedWidthBlock):
        target.CopyFrom(page.flat(block.data, block.bits_per_value))
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        target.fixed_size_list.dimension = size
        items = array.values.slice(array.offset * size, len(array) * size)
        target.fixed_size_list.items.CopyFrom(_encode_values(page, items))
    else:
        raise UnsupportedError(f"a 2.0 file cannot hold values of type {kind}")
    return encoding


def _encode_few_strings(array: Any, options: EncodingOptions) -> Any:
    """The strings as a dictionary of at most `_MOST_STRINGS`; None if there are more, or the field has requests."""
    if options != EncodingOptions() or len(array) < _MANY_ROWS:
        return None
    if len(array.slice(0, _LOOKED_AT).unique()) > _MOST_STRINGS:
        return None
    encoded = array.dictionary_encode()
    return encoded if len(encoded.dictionary) <= _MOST_STRINGS else None


def _encode_few(page: _PageBuffers, array: Any) -> ArrayEncoding:
    """Few strings: indices of 8 bits, in which 0 is null and 1 the first item."""
    indices = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False) + 1
    encoding = ArrayEncoding()
    encoding.dictionary.indices.nullable.no_nulls.values.CopyFrom(page.flat(indices.astype(np.uint8), 8))
    items = view_array_as_block(array.dictionary)
    assert isinstance(items, VariableBlock)
    encoding.dictionary.items.CopyFrom(_encode_binary(page, items, None))
    encoding.dictionary.num_dictionary_items = len(array.dictionary)
    return encoding


def _encode_binary(page: _PageBuffers, block: VariableBlock, nulls: Any) -> ArrayEncoding:
    # The reference library reads FSST of 2.0 with offsets of 32 bits only.
    pair = fsst.compress_values(block) if page.options.compression == "fsst" and block.offsets.itemsize == 4 else None
    if pair is None:
        return _encode_variable(page, block, nulls)
    table, codes = pair
    encoding = ArrayEncoding()
    encoding.fsst.symbol_table = table
    encoding.fsst.binary.CopyFrom(_encode_variable(page, codes, nulls))
    return encoding


def _encode_variable(page: _PageBuffers, block: VariableBlock, nulls: Any) -> ArrayEncoding:
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    total = last - first
    ends = (block.offsets[1:].astype(np.int64) - first).astype(np.uint64)
    if nulls is not None:
        ends[nulls] += np.uint64(total + 1)
    encoding = ArrayEncoding()
    encoding.binary.indices.nullable.no_nulls.values.CopyFrom(page.flat(ends, 64))
    encoding.binary.bytes.CopyFrom(_encode_bytes(page, block.data[first:last]))
    encoding.binary.null_adjustment = total + 1
    return encoding


def _encode_bytes(page: _PageBuffers, data: Bytes) -> ArrayEncoding:
    """The bytes of all values, compressed if the field requests it and they shrink."""
    if page.options.scheme is None:
        return page.flat(data, 8)
    packed = compress_with_size(page.options.scheme, data)
    if len(packed) >= data.size:
        return page.flat(data, 8)
    encoding = page.flat(packed, 8)
    encoding.flat.compression.scheme = page.options.scheme.partition(":")[0]
    if page.options.level is not None:
        encoding.flat.compression.level = page.options.level
    return encoding


def _encode_dictionary(page: _PageBuffers, array: Any) -> ArrayEncoding:
    """A dictionary column: nulls point to one more item, which is null."""
    if array.dictionary.null_count:
        array = array.dictionary_decode().dictionary_encode().cast(array.type)
    items = array.dictionary
    indices = array.indices
    if array.null_count:
        indices = indices.fill_null(0).cast(pa.int64())
        raw = indices.to_numpy(zero_copy_only=False).copy()
        raw[find_nulls(array)] = len(items)
        items = pa.concat_arrays([items, pa.nulls(1, items.type)])
        kind = array.type.index_type
        if len(items) > 2 ** (kind.bit_width - pa.types.is_signed_integer(kind)):
            raise UnsupportedError(
                f"a dictionary of {len(items) - 1} items and null does not fit indices of type {kind} in version 2.0: "
                "use a wider index type, or version 2.1 or later"
            )
    else:
        raw = indices.to_numpy(zero_copy_only=False)
    bits = array.type.index_type.bit_width
    encoding = ArrayEncoding()
    encoding.dictionary.indices.nullable.no_nulls.values.CopyFrom(page.flat(raw.astype(f"<u{bits // 8}"), bits))
    encoding.dictionary.items.CopyFrom(_encode_values(page, items))
    encoding.dictionary.num_dictionary_items = len(items)
    return encoding

"""Builds Arrow arrays from decoded levels and values; the reading counterpart of `repdef`.

A column is one path from a top-level field to a leaf. Its array is built from the leaf outwards, one layer at a time,
with structs that hold only the child on the path; `merge_columns` merges the columns of one top-level field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, block_to_array
from lance_core.encoding.page import DecodedRows, RowRuns
from lance_core.encoding.repdef import ItemLayer, ListLayer, Mask, unravel
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field, arrow_type_of, field_to_arrow
from lance_core.schema.field import is_column, is_packed, layer_kind, list_size


def assemble(path: Sequence[Field], decoded: DecodedRows) -> pa.Array:
    """Build the array of a column.

    Args:
        path: The fields from the top-level one down to the column.
        decoded: The result of a structural decoder.

    Returns:
        An array with one slot per covered row.

    Raises:
        CorruptFileError: Levels and values contradict each other or the path.
    """
    unraveled = unravel(decoded.levels)
    layers = unraveled.layers
    if len(layers) == 1 and path[-1].logical_type == "struct" and not path[-1].children:
        # The reference library writes one layer for a struct without fields, whatever structs enclose it.
        layers = (ItemLayer(validity=None, length=unraveled.num_slots),) * len(path)
    if len(layers) != len(path):
        raise CorruptFileError(f"{len(layers)} layers for {len(path)} levels of nesting")
    leaf_layer = layers[0]
    if not isinstance(leaf_layer, ItemLayer):
        raise CorruptFileError("the innermost layer is a list")
    array = _assemble_leaf(path[-1], decoded, unraveled.num_slots, leaf_layer.validity)
    child = path[-1]
    # Fixed size lists of structs have no levels of their own: they and the layers around them have one level per item.
    step = 1
    for field, layer in zip(reversed(path[:-1]), layers[1:], strict=True):
        if layer_kind(field) == "fixed_size_list":
            step *= list_size(field)
        array = _wrap(field, field_to_arrow(child), layer, array, step)
        child = field
    return array


def take_rows(array: pa.Array, covered: RowRuns, rows: RowRuns) -> pa.Array:
    """The slots of the wanted rows, from an array with one slot per covered row."""
    if covered.starts.size == rows.starts.size and bool(
        (covered.starts == rows.starts).all() and (covered.ends == rows.ends).all()
    ):
        return array
    if covered.is_one_run and rows.is_one_run:
        return array.slice(int(rows.starts[0] - covered.starts[0]), rows.count)
    return array.take(pa.array(rows.positions_in(covered)))


def merge_columns(field: Field, arrays: Sequence[pa.Array]) -> pa.Array:
    """Merge the arrays of the columns of one field, in the order of `leaf_paths`, row by row.

    Raises:
        CorruptFileError: The columns do not agree on the nesting.
    """
    if is_column(field):
        return arrays[0]
    merged, rest = _merge(field, list(arrays))
    if rest:
        raise CorruptFileError(f"field {field.name!r} has more columns than its type")
    return merged


def _merge(field: Field, arrays: list[Any]) -> tuple[Any, list[Any]]:
    """Merge the arrays that belong to `field`; return the merged array and the remaining ones."""
    if is_column(field):
        return arrays[0], arrays[1:]
    first = arrays[0]
    target = arrow_type_of(field)
    if layer_kind(field) == "item":
        children, rest = [], arrays
        for child in field.children:
            num_columns = _num_columns(child)
            below = [array.field(0) for array in rest[:num_columns]]
            children.append(_merge(child, below)[0])
            rest = rest[num_columns:]
        if any(len(child) != len(first) for child in children):
            raise CorruptFileError(f"the children of {field.name!r} have different lengths")
        return pa.Array.from_buffers(target, len(first), [_validity(first)], children=children), rest
    num_columns = _num_columns(field)
    mine, rest = arrays[:num_columns], arrays[num_columns:]
    if num_columns == 1 and first.type == target:
        return first, rest
    if layer_kind(field) == "fixed_size_list":
        size = first.type.list_size
        values = [array.values.slice(array.offset * size, len(array) * size) for array in mine]
        child, _ = _merge(field.children[0], values)
        return pa.Array.from_buffers(target, len(first), [_validity(first)], children=[child]), rest
    parts = [_list_parts(array) for array in mine]
    offsets = [own_offsets for own_offsets, _ in parts]
    if any(not np.array_equal(offsets[0], other) for other in offsets[1:]):
        raise CorruptFileError(f"the columns of {field.name!r} do not have the same lists")
    child, _ = _merge(field.children[0], [own_values for _, own_values in parts])
    return pa.Array.from_buffers(
        target, len(first), [_validity(first), pa.py_buffer(offsets[0])], children=[child]
    ), rest


def _num_columns(field: Field) -> int:
    return 1 if is_column(field) else sum(_num_columns(child) for child in field.children)


def _validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap of an array, beginning at its first slot."""
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return None
    if array.offset == 0:
        return bitmap
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8)[array.offset // 8 :], bitorder="little")
    start = array.offset % 8
    return pa.py_buffer(np.packbits(bits[start : start + len(array)], bitorder="little"))


def _list_parts(array: Any) -> tuple[Any, Any]:
    """Offsets from 0 on, and the values that they point into."""
    large = pa.types.is_large_list(array.type)
    raw = np.frombuffer(array.buffers()[1], np.int64 if large else np.int32)
    offsets = raw[array.offset : array.offset + len(array) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0] if first else offsets, array.values.slice(first, last - first)


def _wrap(field: Field, child: pa.Field, layer: ItemLayer | ListLayer, array: pa.Array, step: int) -> pa.Array:
    """The array of a field, from the array of its child; every `step`-th slot of its layer counts."""
    kind = layer_kind(field)
    if (kind == "list") != isinstance(layer, ListLayer):
        raise CorruptFileError(f"field {field.name!r} of type {field.logical_type} does not fit its layer")
    child = child.with_type(array.type)
    if isinstance(layer, ListLayer):
        return _wrap_list(field, child, layer, array)
    if step == 0 or layer.length % step:
        raise CorruptFileError(f"{layer.length} items do not make lists of {step}")
    length = layer.length // step
    size = list_size(field) if kind == "fixed_size_list" else 1
    _check_length(len(array), length * size)
    target: pa.DataType = pa.struct([child]) if kind == "item" else pa.list_(child, size)
    bitmap = _bitmap(None if layer.validity is None else layer.validity[::step])
    return pa.Array.from_buffers(target, length, [bitmap], children=[array])


def _wrap_list(field: Field, child: pa.Field, layer: ListLayer, array: pa.Array) -> pa.Array:
    _check_length(len(array), int(layer.offsets[-1]))
    large = field.logical_type.startswith("large_list")
    if not large and int(layer.offsets[-1]) > 2**31 - 1:
        raise UnsupportedError(f"field {field.name!r}: more than 2^31 items in one array; read fewer rows at a time")
    offsets = layer.offsets if large else layer.offsets.astype(np.int32)
    if field.logical_type == "map":
        # Arrow's map type needs both children of the entries: until `merge_columns` a map is a list of structs.
        target: pa.DataType = pa.list_(child)
        if pa.types.is_struct(child.type) and child.type.num_fields == 2:
            target = arrow_type_of(field)
    else:
        target = pa.large_list(child) if large else pa.list_(child)
    buffers = [_bitmap(layer.validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(target, layer.length, buffers, children=[array])


def _check_length(length: int, expected: int) -> None:
    if length != expected:
        raise CorruptFileError(f"the levels describe {expected} items, but there are {length}")


def _bitmap(valid: Mask | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _assemble_leaf(field: Field, decoded: DecodedRows, num_slots: int, validity: Mask | None) -> pa.Array:
    kind = arrow_type_of(field)
    values = decoded.values
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        # Pages of structs without fields are pages of nulls, because they have no values.
        return pa.Array.from_buffers(kind, num_slots, [None])
    if values is None or pa.types.is_null(kind):
        return pa.nulls(num_slots, kind)
    _check_length(values.num_values, num_slots)
    bitmap = _bitmap(validity)
    if pa.types.is_dictionary(kind):
        if not decoded.items:
            return block_to_array(values, kind.value_type, bitmap).dictionary_encode().cast(kind)
        dictionary = _assemble_items(decoded.items, kind.value_type)
        indices = _indices(values, len(dictionary), bitmap).cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, dictionary)
    if not decoded.items:
        return block_to_array(values, kind, bitmap)
    if is_packed(field):
        raise CorruptFileError(f"field {field.name!r}: packed structs have no dictionary")
    items = _assemble_items(decoded.items, kind)
    return items.take(_indices(values, len(items), bitmap))


def _assemble_items(items: Sequence[DataBlock], kind: pa.DataType) -> pa.Array:
    first = items[0]
    if pa.types.is_boolean(kind) and isinstance(first, FixedWidthBlock) and first.num_values == 1:
        # The value of a constant page takes a whole byte.
        first = FixedWidthBlock(data=first.data, bits_per_value=1, num_values=1)
        return block_to_array(first, kind)
    arrays = [block_to_array(block, kind) for block in items]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _indices(values: DataBlock, num_items: int, bitmap: pa.Buffer | None) -> pa.Array:
    if not isinstance(values, FixedWidthBlock) or values.bits_per_value not in (8, 16, 32, 64):
        raise CorruptFileError("the indices of a dictionary are not integers")
    kind = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[values.bits_per_value]
    indices = block_to_array(values, kind, bitmap)
    highest = values.view().max() if values.num_values and bitmap is None else None
    if bitmap is not None and len(indices) > indices.null_count:
        highest = pa.compute.max(indices).as_py()
    if highest is not None and highest >= num_items:
        raise CorruptFileError(f"index {highest} into a dictionary of {num_items} items")
    return indices

"""Converts arrays to another type with the same stored form: names, order, extension types, views, JSON, blobs.

Arrow's cast does the same, but it copies, and loses the length of arrays of the null type within lists (pyarrow 26).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaError
from lance_core.extension_types import is_json_type
from lance_core.schema.jsonb import json_strings, jsonb_array

_VIEWS: Final = (
    (pa.string_view(), pa.string()),
    (pa.string_view(), pa.large_string()),
    (pa.binary_view(), pa.binary()),
    (pa.binary_view(), pa.large_binary()),
)


_BLOB_PARTS: Final = {
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), "data"),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), "uri"),
}
"""The part of a blob of 2.2 that values of a type are."""


def relabel(array: pa.Array, target: pa.DataType, *, fills_structs: bool = False) -> pa.Array:
    """The values of an array as another type; only views and JSON, which is stored as JSONB, are copied.

    Fields of structs are matched by name, in any order; items of lists and of maps may have other names.

    Args:
        array: Any array; it may be a slice.
        target: The type of the result.
        fills_structs: Whether fields that a struct lacks are null.

    Raises:
        SchemaError: The target type has another stored form, or a struct has other fields.
        InvalidInputError: A string of JSON is not valid.
        CorruptFileError: A value is not JSONB.
    """
    if array.type == target:
        return array
    if is_json_type(array.type) and pa.types.is_large_binary(target):
        return jsonb_array(array.storage)
    if is_json_type(target) and pa.types.is_large_binary(array.type):
        return pa.ExtensionArray.from_storage(target, json_strings(array))
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, relabel(array, target.storage_type, fills_structs=fills_structs))
    if isinstance(array, pa.ExtensionArray):
        return relabel(array.storage, target, fills_structs=fills_structs)
    return _relabel_stored(array, target, fills_structs)


def _relabel_stored(array: Any, target: Any, fills_structs: bool) -> pa.Array:
    """The values of an array as another type; neither type is an extension type."""
    if (array.type, target) in _VIEWS:
        return array.cast(target)
    part = _BLOB_PARTS.get(array.type)
    if part is not None and pa.types.is_struct(target) and target.names[:2] == ["data", "uri"]:
        return _relabel_blobs(array, target, part)
    if not _is_like(array.type, target):
        raise SchemaError(f"values of type {array.type} are not stored as {target}")
    if pa.types.is_dictionary(target):
        # The target's flag `ordered` is not stored.
        indices, values = relabel(array.indices, target.index_type), relabel(array.dictionary, target.value_type)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=target.ordered)
    if pa.types.is_struct(target):
        return _relabel_struct(array, target, _find_order(array.type.names, target.names, fills_structs), fills_structs)
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(target) else 2]
    if pa.types.is_map(target):
        items = _relabel_struct(array.values, pa.struct([target.key_field, target.item_field]), (0, 1), fills_structs)
    else:
        items = relabel(array.values, target.value_type, fills_structs=fills_structs)
    return pa.Array.from_buffers(target, len(array), buffers, offset=array.offset, children=[items])


def _relabel_blobs(array: Any, target: Any, name: str) -> pa.Array:
    """Blobs of 2.2 as structs, from payloads or URIs: the other parts are null; a null is a null struct."""
    parts = {part.name: pa.nulls(len(array), part.type) for part in target}
    parts[name] = array.cast(parts[name].type)
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(list(parts.values()), fields=list(target), mask=mask)


def _is_like(kind: Any, target: Any) -> bool:
    """Whether two nested types have the same stored form if their children do."""
    if kind.id != target.id or not (pa.types.is_nested(target) or pa.types.is_dictionary(target)):
        return False
    return not pa.types.is_fixed_size_list(target) or bool(kind.list_size == target.list_size)


def _find_order(names: Sequence[str], target_names: Sequence[str], fills_structs: bool) -> Sequence[int | None]:
    """The number of each wanted field among the names; None for one that is filled with nulls."""
    if set(names) - set(target_names) if fills_structs else sorted(names) != sorted(target_names):
        raise SchemaError(f"the struct has the fields {names}, not {target_names}")
    return [names.index(name) if name in names else None for name in target_names]


def _relabel_struct(array: Any, target: Any, order: Sequence[int | None], fills_structs: bool) -> pa.Array:
    children = [
        pa.nulls(len(array), field.type)
        if index is None
        else relabel(array.field(index), field.type, fills_structs=fills_structs)
        for index, field in zip(order, target, strict=True)
    ]
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

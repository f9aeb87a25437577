"""Rejects nulls in fields that are not nullable, at every level of nesting."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_core.encoding.levels.shred import has_nulls_inside
from lance_core.errors import SchemaError
from lance_core.schema import Field
from lance_core.schema.arrow_types import is_any_list

__all__ = ["check_nulls", "has_strict_items"]


def check_nulls(field: Field, array: pa.Array) -> None:
    """Make sure that values are null only where nulls are allowed; values below a null struct are not checked.

    Args:
        field: A top-level field.
        array: Values of its Arrow type.

    Raises:
        SchemaError: A value is null where nulls are not allowed.
    """
    if not field.nullable and array.null_count:
        raise SchemaError(f"column {field.name!r} is not nullable, but the data has nulls in it")
    if has_strict_items(field):
        _check_items(array, field.name)


def has_strict_items(field: Field) -> bool:
    """Whether a field below this one is not nullable, besides the entries and keys of maps, which are never null."""
    if field.logical_type == "map":
        key, value = field.children[0].children
        return not value.nullable or has_strict_items(key) or has_strict_items(value)
    return any(not child.nullable or has_strict_items(child) for child in field.children)


def _check_items(array: pa.Array, name: str) -> None:
    """Check the children of a type: Arrow's cast accepts null items in a list that must not have them."""
    kind = array.type
    if pa.types.is_struct(kind):
        # Flattened children are null where the struct is null, so that inner levels know the outer nulls.
        for index, (child, values) in enumerate(zip(kind, array.flatten(), strict=True)):
            if not child.nullable and has_nulls_inside(array, index):
                raise SchemaError(
                    f"column {name!r}: field {child.name!r} is not nullable, but the data has nulls in it"
                )
            _check_items(values, name)
    elif pa.types.is_map(kind):
        # As lists of structs, which can be flattened: maps cannot.
        entries = array.values
        lists: Any = pa.Array.from_buffers(
            pa.list_(entries.type), len(array), array.buffers()[:2], offset=array.offset, children=[entries]
        )
        _check_items(lists, name)
    elif is_any_list(kind):
        _check_item(kind.value_field, array.flatten(), name)


def _check_item(field: pa.Field, items: pa.Array, name: str) -> None:
    if not field.nullable and items.null_count:
        raise SchemaError(f"column {name!r}: items of the list are not nullable, but the data has nulls in it")
    _check_items(items, name)

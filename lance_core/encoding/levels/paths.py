"""The fields of a schema that have a column of their own.

In 2.1 and 2.2 files only leaves have columns; lists, structs and maps exist as layers of the repetition and
definition levels of the leaves below them:

    schema                      columns         layers of that column, from the leaf outwards
    a: int64                    a               item
    b: struct<x, y>             b.x, b.y        item (x or y), item (b)
    c: list<struct<x>>          c.item.x        item (x), item (struct), list
    m: map<key, value>          key, value      item (key or value), item (entries), list
    f: fixed_size_list<T, n>    f               item
    p: packed struct            p               item
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from lance_core.errors import UnsupportedError
from lance_core.schema import Field, Schema

__all__ = [
    "BLOB_KEY",
    "LIST_TYPES",
    "column_fields",
    "is_blob",
    "is_blob_v2",
    "is_blob_v2_payload",
    "is_column",
    "is_packed",
    "items_per_row",
    "layer_kind",
    "leaf_paths",
    "list_size",
    "plain_columns",
]

LIST_TYPES: Final = ("list", "list.struct", "large_list", "large_list.struct", "map")
"""Logical types that are a layer of lists."""

BLOB_KEY: Final = "lance-encoding:blob"
_PACKED: Final = ("lance-encoding:packed", "packed", BLOB_KEY)
BLOB_V2_NAME: Final = "lance.blob.v2"


def is_packed(field: Field) -> bool:
    """Whether the field is a struct that is stored row by row in one column, as descriptors of blobs are."""
    if field.logical_type != "struct":
        return False
    if is_blob_v2(field):
        return True
    return any(field.metadata.get(key, b"").lower() == b"true" for key in _PACKED)


def is_blob(field: Field) -> bool:
    """Whether the values of the field are stored as blobs of 2.0 and 2.1."""
    return field.logical_type == "large_binary" and field.metadata.get(BLOB_KEY, b"").lower() == b"true"


def is_blob_v2(field: Field) -> bool:
    """Whether the field holds blobs of 2.2: payloads, or their descriptors."""
    names = (field.extension_name.encode(), field.metadata.get("ARROW:extension:name", b""))
    return field.logical_type == "struct" and BLOB_V2_NAME.encode() in names


def is_blob_v2_payload(field: Field) -> bool:
    """Whether the field holds only the payloads of blobs of 2.2."""
    return field.logical_type == "large_binary" and field.extension_name == BLOB_V2_NAME


def is_column(field: Field) -> bool:
    """Whether the field has a column of its own in 2.1 and later files."""
    return not field.children or is_packed(field)


def leaf_paths(field: Field) -> Iterator[tuple[Field, ...]]:
    """The columns below a field, depth-first, each as the fields from `field` down to the column."""
    if is_column(field):
        yield (field,)
        return
    for child in field.children:
        for path in leaf_paths(child):
            yield (field, *path)


def column_fields(schema: Schema) -> list[Field]:
    """The fields of a schema that have columns, in the order of their columns."""
    return [path[-1] for top in schema.fields for path in leaf_paths(top)]


def plain_columns(field: Field) -> Iterator[Field]:
    """The fields that have a column in 2.0 files: all but the fields of packed structs, depth-first."""
    yield field
    if not is_packed(field):
        for child in field.children:
            yield from plain_columns(child)


def layer_kind(field: Field) -> Literal["list", "item", "fixed_size_list"]:
    """The kind of layer that a field adds to the levels."""
    if field.logical_type in LIST_TYPES:
        return "list"
    if field.children and field.logical_type.startswith("fixed_size_list:"):
        return "fixed_size_list"
    return "item"


def items_per_row(path: Sequence[Field]) -> int:
    """How many items a page counts per row: fixed size lists of structs are counted by their items.

    Raises:
        UnsupportedError: A fixed size list of structs is inside a list. The format does not specify its levels, and
            pylance 14 cannot read the levels that it writes.
    """
    factor = 1
    in_list = False
    for field in path:
        kind = layer_kind(field)
        in_list |= kind == "list"
        if kind == "fixed_size_list":
            if in_list:
                raise UnsupportedError(
                    f"field {field.name!r}: fixed size lists of structs inside lists are not supported"
                )
            factor *= list_size(field)
    return factor


def list_size(field: Field) -> int:
    """Items per list of a fixed size list."""
    return int(field.logical_type.rsplit(":", 1)[-1])

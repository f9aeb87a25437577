"""Arrow's types: predicates for groups of them, and the storage of extension types.

Extension types are unwrapped at every level of a type, because Arrow's functions support none of them:

    struct<u: arrow.uuid>    ->    struct<u: fixed_size_binary(16)>      u keeps ARROW:extension:* as its metadata

Metadata is read through Arrow's C data interface, which keeps the order of keys and repeated keys: pyarrow offers no
other access to the serialized parameters of an extension type. Layout (native byte order):

    struct ArrowSchema { const char* format; const char* name; const char* metadata; ... }

    metadata   int32 n, then n times: int32 length, key, int32 length, value
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    import polars as pl

_METADATA_MEMBER: Final = 2 * ctypes.sizeof(ctypes.c_void_p)
_LENGTH: Final = struct.Struct("=i")
_Memory = ctypes.c_char * (1 << 40)

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def exported_metadata(source: pa.Field | pa.Schema) -> list[tuple[bytes, bytes]]:
    """Keys and values; an extension type adds the keys ARROW:extension:name and ARROW:extension:metadata."""
    capsule = source.__arrow_c_schema__()  # the capsule owns the memory read below
    address = ctypes.c_void_p.from_address(_capsule_pointer(capsule, b"arrow_schema") + _METADATA_MEMBER).value
    if address is None:
        return []
    # The total size is recorded nowhere; only the bytes that the lengths span are read.
    memory = memoryview(_Memory.from_address(address)).cast("B")
    read = _LENGTH.unpack_from
    (count,), position = read(memory, 0), _LENGTH.size
    strings: list[bytes] = []
    for _ in range(2 * count):
        start = position + _LENGTH.size
        position = start + read(memory, position)[0]
        strings.append(bytes(memory[start:position]))
    return list(zip(strings[::2], strings[1::2], strict=True))


_LISTS: Final = {
    pa.lib.Type_LIST: pa.list_,
    pa.lib.Type_LARGE_LIST: pa.large_list,
    pa.lib.Type_LIST_VIEW: pa.list_view,
    pa.lib.Type_LARGE_LIST_VIEW: pa.large_list_view,
}


def has_extensions(kind: pa.DataType) -> bool:
    """Whether a type, or one at a level below it, is an extension type."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(has_extensions(kind.field(index).type) for index in range(kind.num_fields))


def is_json_type(kind: pa.DataType) -> bool:
    """Whether the type is Arrow's type of JSON strings."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json"


def contains_json(kind: pa.DataType) -> bool:
    """Whether a type, or one at a level below it, is Arrow's type of JSON strings."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_json_type(kind)
    return any(contains_json(kind.field(index).type) for index in range(kind.num_fields))


def with_fields(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """A nested type with other fields; those of a map are its entries, a struct."""
    if pa.types.is_map(kind):
        return pa.map_(*fields[0].type, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return _LISTS[kind.id](fields[0])


def storage_type(kind: pa.DataType) -> pa.DataType:
    """A type with storage types in place of extension types, which fields below the top level keep as metadata."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    if not has_extensions(kind):
        return kind
    return with_fields(kind, [_to_stored(kind.field(index)) for index in range(kind.num_fields)])


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table without rows; Arrow's own function fails for extension types below the top level."""
    return pa.Table.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _to_stored(field: pa.Field) -> pa.Field:
    """A field in its storage type; the metadata name the extension type that it has itself."""
    metadata = dict(field.metadata or {})
    if isinstance(field.type, pa.BaseExtensionType):
        metadata |= dict(exported_metadata(pa.field("", field.type)))
    return pa.field(field.name, storage_type(field.type), field.nullable, metadata or None)


def is_variable_list(kind: pa.DataType) -> bool:
    """Whether values are lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_any_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or of a fixed size."""
    return is_variable_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def is_date_or_timestamp(kind: pa.DataType) -> bool:
    """Whether values are dates or timestamps."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_string_like(kind: pa.DataType) -> bool:
    """Whether values are strings with offsets."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_any_string(kind: pa.DataType) -> bool:
    """Whether values are strings, with offsets or as views."""
    return is_string_like(kind) or bool(pa.types.is_string_view(kind))


def is_any_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes of any length, with offsets or as views."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def to_polars(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """A polars frame of rows, with strings in place of an Enum where a value is none of its categories.

    The categories are metadata of the field, which stay as they are when other values are appended; polars would load
    these values as nulls.
    """
    import polars as pl

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(
        _load_enums(column, rows.column(column.name)) for column in frame if _has_enums(column.dtype)
    )


def explain_polars_rejection(columns: Collection[tuple[str, Any]]) -> str | None:
    """Why polars' columns cannot become Arrow's; None if they can.

    Python objects would become their addresses in memory, and a NUL in a name would end the process.

    Args:
        columns: The name and the polars type of each column.
    """
    names = [name for name, _ in columns]
    objects = [name for name, kind in columns if str(kind) == "Object"]
    if objects:
        return f"columns {objects} are Python objects of polars: convert them to a type that Arrow has"
    if _has_nul_name(columns):
        return f"a name of the columns {names}, or of their fields, has a NUL; rename it"
    return None


def _has_nul_name(fields: Iterable[tuple[str, Any]]) -> bool:
    """Whether a name at any level of polars' fields has a NUL."""
    for name, kind in fields:
        inner = [(field.name, field.dtype) for field in getattr(kind, "fields", ())]
        items = getattr(kind, "inner", None)
        if "\0" in name or _has_nul_name(inner if items is None else [("", items)]):
            return True
    return False


def _has_enums(kind: Any) -> bool:
    import polars as pl

    if isinstance(kind, pl.Struct):
        return any(_has_enums(field.dtype) for field in kind.fields)
    return isinstance(kind, pl.Enum) or (isinstance(kind, pl.List | pl.Array) and _has_enums(kind.inner))


def _load_enums(loaded: pl.Series, column: pa.Array | pa.ChunkedArray) -> pl.Series:
    import polars as pl

    if isinstance(loaded.dtype, pl.Enum) and loaded.null_count() == column.null_count:
        return loaded
    strings = pl.Series(loaded.name, column.cast(_decoded(column.type)))
    try:
        return strings.cast(loaded.dtype)
    except pl.exceptions.InvalidOperationError:  # a value is no category
        return strings


def _decoded(kind: pa.DataType) -> pa.DataType:
    """A type with the type of their values in place of dictionaries."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if not pa.types.is_nested(kind):
        return kind
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return with_fields(kind, [field.with_type(_decoded(field.type)) for field in fields])

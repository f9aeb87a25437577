"""The two other forms of a schema: Arrow's, and the list of fields that the format writes.

Arrow types, and the logical types that the format writes for them:

    int8 .. uint64, bool, null               int8 .. uint64, bool, null
    float16, float32, float64                halffloat, float, double
    string, binary and their large forms     string, binary, large_string, large_binary
    fixed_size_binary(n)                     fixed_size_binary:n
    date32, date64                           date32:day, date64:ms
    time32(u), time64(u)                     time32:u, time64:u
    timestamp(u, tz)                         timestamp:u:tz          "-" without a zone; the zone may hold ":"
    duration(u)                              duration:u
    decimal128(p, s), decimal256(p, s)       decimal:128:p:s, decimal:256:p:s
    fixed_size_list(T, n)                    fixed_size_list:T:n     one field; T is primitive or a fixed size list
    fixed_size_list(struct, n)               fixed_size_list:struct:n, child struct
    list(T), large_list(T)                   list, large_list, child T; of structs list.struct, large_list.struct
    struct                                   struct, children
    map(K, V)                                map, child "entries": a struct of key and value
    dictionary(K, V)                         dict:V:K:false          one field
    extension types                          the storage type, with ARROW:extension:* in the field metadata

`string_view` and `binary_view` are stored as `string` and `binary`. decimal32, decimal64, list views,
run-end-encoded arrays and intervals cannot be stored. Source: what pylance 14.0.2 writes.

On the wire a schema is a flat list of fields, depth-first, each naming its parent by id:

    Field 0  "a"       parent -1
    Field 1  "b"       parent -1     list
    Field 2  "item"    parent  1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError

from lance_core._proto import file_pb2
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError, SchemaError, UnsupportedError
from lance_core.extension_types import exported_metadata, has_extensions, is_json_type, storage_type, with_fields
from lance_core.schema.field import (
    MOST_LEVELS,
    NO_MARK,
    Field,
    KeyMark,
    Schema,
    check_primary_key,
    clustering_key_mark,
    map_fields,
    primary_key_mark,
)
from lance_core.schema.relabel import relabel

TYPES_BY_NAME: Final[dict[str, pa.DataType]] = {
    **{f"{sign}int{bits}": pa.type_for_alias(f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u")},
    **{str(kind): kind for kind in (pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64())},
    **{str(kind): kind for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())},
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    **{f"time32:{unit}": pa.time32(unit) for unit in ("s", "ms")},
    **{f"time64:{unit}": pa.time64(unit) for unit in ("us", "ns")},
    **{f"duration:{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
}
"""The types without parameters of their own, by their names in schemas of the format and in JSON."""
JSON: Final = "json"
"""Logical type of JSON: `lance_core.schema.jsonb` in data files, `arrow.json` in Arrow schemas."""

NAMES_OF_TYPES: Final = {arrow_type: name for name, arrow_type in TYPES_BY_NAME.items()}

# The value of Field.encoding for a type: 0.1 readers need it, later ones ignore it.
_PLAIN, _VAR_BINARY, _DICTIONARY = 1, 2, 3

_EXTENSION_NAME: Final = "ARROW:extension:name"
_LANCE_JSON: Final = b"lance.json"


_MOST_BYTES = (1 << 31) // 8 - 1


def check_names(schema: Iterable[pa.Field]) -> None:
    """Check that the names of columns, and of fields in them, are UTF-8: in Python, any use of others is an error.

    Raises:
        SchemaError: A name is not, as files that Arrow reads may have it; the message has its bytes and its column.

    Examples:
        >>> lance.check_names(pa.schema({"id": pa.int64()}))
    """
    for position, column in enumerate(schema):
        fields, what = [column], "the name of column"
        while fields:
            inner = []
            for field in fields:
                try:
                    field.name  # noqa: B018 - it is decoded
                except UnicodeDecodeError as error:
                    raise SchemaError(
                        f"{what} {position}, counted from 0, is no UTF-8: {error.object!r:.100}; give the columns "
                        "other names first, for example by Table.rename_columns"
                    ) from None
                kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
                inner += [kind.field(index) for index in range(kind.num_fields)]
            fields, what = inner, "the name of a field in column"


def schema_from_arrow(schema: pa.Schema, first_id: int = 0) -> Schema:
    """The Lance schema of an Arrow schema, with field ids from `first_id` on.

    Raises:
        SchemaError: Two columns, or two fields of a struct, have the same name, a name or a key of metadata is not
            UTF-8, or a column cannot be part of the primary key.
        UnsupportedError: A type cannot be stored; the message names the column.
    """
    check_names(schema)
    reject_repeated(schema.names, "column name")
    fields = tuple(field_from_arrow(f) for f in schema)
    check_primary_key(fields)
    return Schema(fields=fields, metadata=_decode_keys(schema.metadata)).with_ids(first_id)


def reject_repeated(names: Iterable[str], what: str) -> None:
    """Check that all names differ.

    Raises:
        SchemaError: A name occurs twice; the message begins with `what`.
    """
    for name, count in Counter(names).items():
        if count > 1:
            raise SchemaError(f"{what} {name!r} occurs twice: rename one of the two")


def check_depth(field: pa.Field) -> None:
    """Reject a column that is nested too deep, before any function recurses into its levels.

    Raises:
        UnsupportedError: The column is nested more than `MOST_LEVELS` deep.
    """
    level = [field.type]
    for _ in range(MOST_LEVELS + 1):
        stored = (kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in level)
        level = [kind.field(index).type for kind in stored for index in range(kind.num_fields)]
        if not level:
            return
    raise UnsupportedError(f"column {field.name!r} is nested more than {MOST_LEVELS} deep")


def schema_to_arrow(schema: Schema) -> pa.Schema:
    """The Arrow schema, with storage types in place of extension types (see `resolve_extensions`)."""
    arrow_schema: pa.Schema | None = schema.memo.get("arrow")
    if arrow_schema is None:
        metadata = {k.encode(): v for k, v in schema.metadata.items()}
        arrow_schema = schema.memo["arrow"] = pa.schema(
            [field_to_arrow(f) for f in schema.fields], metadata=metadata or None
        )
    return arrow_schema


def typed_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema, with the extension types that pyarrow knows."""
    typed: pa.Schema | None = schema.memo.get("typed")
    if typed is None:
        typed = resolve_extensions(schema_to_arrow(schema))
        if all(map(_is_resolved, typed)):  # others may be registered later
            schema.memo["typed"] = typed
    return typed


def _is_resolved(field: pa.Field) -> bool:
    """Whether a field, and each one in it, has the type that its metadata name."""
    if _EXTENSION_NAME.encode() in (field.metadata or {}):
        return False
    return all(_is_resolved(field.type.field(index)) for index in range(field.type.num_fields))


def resolve_extensions(schema: pa.Schema) -> pa.Schema:
    """The schema with the extension types that pyarrow knows in place of their storage types."""
    resolved = pa.ipc.read_schema(schema.serialize())
    return pa.schema(map(_with_json_types, resolved), metadata=resolved.metadata)


def _with_json_types(field: pa.Field) -> pa.Field:
    """The field, and each one in it, with Arrow's type of JSON where its metadata name that of Lance."""
    kind = field.type
    if (field.metadata or {}).get(_EXTENSION_NAME.encode()) == _LANCE_JSON:
        metadata = {key: value for key, value in field.metadata.items() if not key.startswith(b"ARROW:extension:")}
        return pa.field(field.name, pa.json_(), field.nullable, metadata or None)
    if isinstance(kind, pa.BaseExtensionType) or not kind.num_fields:
        return field
    fields = [kind.field(index) for index in range(kind.num_fields)]
    typed_fields = list(map(_with_json_types, fields))
    return field if typed_fields == fields else field.with_type(with_fields(kind, typed_fields))


def field_from_arrow(field: pa.Field, path: str = "") -> Field:
    """The Lance field, without ids, of an Arrow field.

    Raises:
        SchemaError: Two fields of a struct have the same name, or a map is declared to have sorted keys.
        UnsupportedError: The type cannot be stored.
    """
    if not path:
        check_depth(field)
    path = f"{path}.{field.name}" if path else field.name
    metadata = _decode_keys(field.metadata)
    kind: pa.DataType = field.type
    if isinstance(kind, pa.BaseExtensionType):
        if is_json_type(kind):
            return _json_field(field, metadata)
        metadata |= _decode_keys(dict(exported_metadata(pa.field("", kind))))
        kind = kind.storage_type
    logical_type, child_fields, encoding = _describe(kind, path)
    reject_repeated((child.name for child in child_fields), f"column {path!r}: field name")
    return Field(
        name=field.name,
        logical_type=logical_type,
        nullable=field.nullable,
        children=tuple(field_from_arrow(c, path) for c in child_fields),
        metadata=metadata,
        extension_name=metadata.get(_EXTENSION_NAME, b"").decode(),
        encoding=encoding,
        primary_key=primary_key_mark(metadata),
        clustering_key=clustering_key_mark(metadata) or NO_MARK,
    )


def field_to_arrow(field: Field) -> pa.Field:
    """The Arrow field of a Lance field; an extension type is replaced by its storage type."""
    metadata = {k.encode(): v for k, v in field.metadata.items()}
    return pa.field(field.name, arrow_type_of(field), nullable=field.nullable, metadata=metadata or None)


def arrow_type_of(field: Field) -> pa.DataType:
    """The Arrow (storage) type of a field.

    Raises:
        UnsupportedError: The logical type is not known.
        CorruptFileError: The children do not fit the logical type.
    """
    kind = field.logical_type
    if kind == JSON:
        return pa.large_binary()
    head = kind.split(":", 1)[0]
    if head in _NESTED:
        if head != "struct" and len(field.children) != 1:
            raise CorruptFileError(f"schema: field {field.name!r} of type {kind!r} has {len(field.children)} children")
        return _NESTED[head]([field_to_arrow(c) for c in field.children])
    if head == "fixed_size_list" and field.children:
        return pa.list_(field_to_arrow(field.children[0]), _parse_length(kind.rsplit(":", 1)[-1], kind))
    return _parse(kind)


def _map_type(children: list[pa.Field]) -> pa.DataType:
    entries = children[0].type
    if not pa.types.is_struct(entries) or entries.num_fields != 2:
        raise CorruptFileError("schema: the child of a map is not a struct of key and value")
    return pa.map_(entries.field(0).with_nullable(False), entries.field(1))


_NESTED: Final[dict[str, Callable[[list[pa.Field]], pa.DataType]]] = {
    "struct": pa.struct,
    "list": lambda children: pa.list_(children[0]),
    "list.struct": lambda children: pa.list_(children[0]),
    "large_list": lambda children: pa.large_list(children[0]),
    "large_list.struct": lambda children: pa.large_list(children[0]),
    "map": _map_type,
}


def _describe(kind: pa.DataType, path: str) -> tuple[str, list[pa.Field], int]:
    """Logical type, child fields and 0.1 encoding of an Arrow type."""
    types = pa.types
    _check_parameters(kind, path)
    if types.is_struct(kind):
        return "struct", list(kind), 0
    if types.is_list(kind) or types.is_large_list(kind):
        name = "large_list" if types.is_large_list(kind) else "list"
        of_structs = types.is_struct(storage_type(kind.value_type))
        return f"{name}.struct" if of_structs else name, [kind.value_field], _PLAIN
    if types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        return "map", [pa.field("entries", entries, nullable=False)], _PLAIN
    if types.is_fixed_size_list(kind) and types.is_struct(kind.value_type) and kind.list_size:
        return f"fixed_size_list:struct:{kind.list_size}", [kind.value_field], _PLAIN
    return _logical_type(kind, path), [], _find_encoding(kind)


def _check_parameters(kind: pa.DataType, path: str) -> None:
    """Reject parameters of a type that would be lost."""
    if pa.types.is_map(kind) and kind.keys_sorted:
        raise SchemaError(
            f"column {path!r}: Lance has no maps whose keys are declared as sorted (keys_sorted); cast it to "
            f"pyarrow.map_({kind.key_type}, {kind.item_type})"
        )
    if pa.types.is_fixed_size_list(kind) and not pa.types.is_struct(kind.value_type) and has_extensions(kind):
        raise SchemaError(
            f"column {path!r}: lists of fixed size hold no extension type, as {kind.value_type}; cast it to a list of "
            "any length, or to a list of their storage"
        )


def _logical_type(kind: pa.DataType, path: str) -> str:
    """Logical type of an Arrow type that has no child fields."""
    types = pa.types
    if kind in NAMES_OF_TYPES:
        return NAMES_OF_TYPES[kind]
    if kind == pa.string_view():
        return "string"
    if kind == pa.binary_view():
        return "binary"
    if types.is_timestamp(kind):
        return f"timestamp:{kind.unit}:{kind.tz or '-'}"
    if types.is_decimal128(kind) or types.is_decimal256(kind):
        return f"decimal:{kind.bit_width}:{kind.precision}:{kind.scale}"
    if types.is_fixed_size_binary(kind):
        return f"fixed_size_binary:{kind.byte_width}"
    if types.is_fixed_size_list(kind) and kind.list_size:
        return f"fixed_size_list:{_logical_type(kind.value_type, path)}:{kind.list_size}"
    if types.is_dictionary(kind):
        value, index = _logical_type(kind.value_type, path), _logical_type(kind.index_type, path)
        # A colon in the value type would make the parts of the name ambiguous.
        if ":" not in value:
            return f"dict:{value}:{index}:false"
    raise UnsupportedError(f"column {path!r}: the Lance format has no type for Arrow {kind}")


def _find_encoding(kind: pa.DataType) -> int:
    types = pa.types
    if types.is_null(kind):
        return 0
    if types.is_dictionary(kind):
        return _DICTIONARY
    variable = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return _VAR_BINARY if variable or (binary and not types.is_fixed_size_binary(kind)) else _PLAIN


def _parse(kind: str) -> pa.DataType:
    """The Arrow type of a logical type that has no child fields."""
    if kind in TYPES_BY_NAME:
        return TYPES_BY_NAME[kind]
    head, _, rest = kind.partition(":")
    parser = _PARSERS.get(head)
    if parser is None:
        raise UnsupportedError(f"logical type {kind!r} is not known")
    try:
        return parser(rest, kind)
    except LanceError:
        raise
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise CorruptFileError(f"logical type {kind!r} cannot be parsed: {error}") from error


def _parse_timestamp(rest: str, kind: str) -> pa.DataType:
    unit, _, zone = rest.partition(":")
    if unit not in ("s", "ms", "us", "ns"):
        raise UnsupportedError(f"logical type {kind!r} is not known")
    return pa.timestamp(unit, None if zone in ("", "-") else zone)


def _parse_decimal(rest: str, kind: str) -> pa.DataType:
    parts = rest.split(":")
    if len(parts) != 3 or parts[0] not in ("128", "256"):
        raise UnsupportedError(f"logical type {kind!r} is not known")
    make = pa.decimal128 if parts[0] == "128" else pa.decimal256
    return make(_parse_int(parts[1], kind), _parse_int(parts[2], kind))


def _parse_fixed_size_list(rest: str, kind: str) -> pa.DataType:
    item, _, size = rest.rpartition(":")
    return pa.list_(_parse(item), _parse_length(size, kind))


def _parse_dictionary(rest: str, kind: str) -> pa.DataType:
    # The value type may contain colons; the index type never does.
    value, index, _ordered = rest.rsplit(":", 2) if rest.count(":") >= 2 else ("", "", "")
    if not value:
        raise UnsupportedError(f"logical type {kind!r} is not known")
    return pa.dictionary(_parse(index), _parse(value))


_PARSERS: Final[dict[str, Callable[[str, str], pa.DataType]]] = {
    "timestamp": _parse_timestamp,
    "decimal": _parse_decimal,
    "fixed_size_binary": lambda rest, kind: pa.binary(_parse_width(rest, kind)),
    "fixed_size_list": _parse_fixed_size_list,
    "dict": _parse_dictionary,
}


def _parse_width(string: str, kind: str) -> int:
    """The width of a value in bytes; Arrow counts its bits with 32 bits."""
    width = _parse_int(string, kind)
    if not 0 <= width <= _MOST_BYTES:
        raise CorruptFileError(f"schema: values of {width} bytes in the type {kind!r}")
    return width


def _parse_length(string: str, kind: str) -> int:
    """The number of items of a fixed size list; to Arrow a negative number means a list of any length."""
    length = _parse_int(string, kind)
    if not 0 <= length < 2**31:
        raise CorruptFileError(f"schema: lists of {length} items in the type {kind!r}")
    return length


def _parse_int(string: str, kind: str) -> int:
    try:
        return int(string)
    except ValueError:
        raise UnsupportedError(f"logical type {kind!r} is not known") from None


def _json_field(field: pa.Field, metadata: dict[str, bytes]) -> Field:
    metadata |= {_EXTENSION_NAME: _LANCE_JSON, "ARROW:extension:metadata": b""}
    return Field(
        name=field.name,
        logical_type=JSON,
        nullable=field.nullable,
        metadata=metadata,
        extension_name=_LANCE_JSON.decode(),
        encoding=_VAR_BINARY,
    )


def _decode_keys(metadata: Mapping[bytes, bytes] | None) -> dict[str, bytes]:
    try:
        return {k.decode(): v for k, v in (metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise SchemaError(f"a key of Arrow metadata is no UTF-8: {error.object!r:.100}") from None


_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def in_storage_types(rows: _Rows) -> _Rows:
    """The rows in the storage types of their extension types; nothing is copied."""
    if not any(map(has_extensions, rows.schema.types)):
        return rows
    return type(rows).from_arrays([unwrapped(column) for column in rows.columns], rows.schema.names)


def unwrapped(column: _Column) -> _Column:
    """A column in its storage type."""
    if not has_extensions(column.type):
        return column
    kind = storage_type(column.type)
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([relabel(chunk, kind) for chunk in column.chunks], kind)
    return relabel(column, kind)


_VALUES = "lance:dictionary:"  # and the id of a field, whose values the schemas of 0.1 have to repeat
_WITH_CHILDREN = ("struct", "list", "large_list", "map", "fixed_size_list:")


def schema_to_protobuf(schema: Schema, *, legacy: bool = False) -> list[file_pb2.Field]:
    """The flat field list of a schema, as manifests, transactions and data files carry it.

    Args:
        schema: The schema.
        legacy: Whether the schema is for 0.1 files, in which a dictionary is recorded once its values are stored. In
            later files an empty dictionary is always recorded: releases of the reference library up to 0.30 require it.

    Raises:
        CorruptFileError: An id is larger than the format can hold.
    """
    try:
        return [_to_protobuf(node, parent_id, legacy=legacy) for node, parent_id in schema.walk()]
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(f"the schema cannot be written: {error}") from error


def schema_from_protobuf(fields: Iterable[file_pb2.Field], metadata: Mapping[str, bytes]) -> Schema:
    """Build the tree from a flat field list.

    A parent is looked up among the fields *before* a child, nearest first: tables of 2023 can repeat an id.

    Raises:
        CorruptFileError: A field comes before its parent, is nested too deep, or has children though its type has none.
    """
    flat = list(fields)
    children: list[list[int]] = [[] for _ in flat]
    depth: list[int] = []
    position_of: dict[int, int] = {}
    top: list[int] = []
    for position, wire in enumerate(flat):
        parent_id = wire.parent_id
        if parent_id < 0:
            top.append(position)
            depth.append(0)
        elif parent_id in position_of:
            children[position_of[parent_id]].append(position)
            depth.append(depth[position_of[parent_id]] + 1)
            if depth[-1] > MOST_LEVELS:
                raise CorruptFileError(f"schema: field {wire.name!r} is nested more than {MOST_LEVELS} deep")
        else:
            raise CorruptFileError(f"schema: field {wire.name!r} comes before its parent {parent_id}")
        position_of[wire.id] = position

    def build(position: int) -> Field:
        below = children[position]
        if below and not flat[position].logical_type.startswith(_WITH_CHILDREN):
            raise CorruptFileError(
                f"schema: field {flat[position].name!r} of type {flat[position].logical_type!r} has children"
            )
        return _from_protobuf(flat[position], tuple(build(c) for c in below) if below else ())

    return Schema(fields=tuple(build(p) for p in top), metadata=dict(metadata))


def schema_to_bytes(schema: Schema) -> bytes:
    """A schema as one message (`lance.file.Schema`), for another process. Its metadata has values of dictionaries."""
    values = {f"{_VALUES}{field.id}": field.dictionary_values for field, _ in schema.walk()}
    recorded = {key: _array_to_bytes(array) for key, array in values.items() if array is not None}
    message = file_pb2.Schema(fields=schema_to_protobuf(schema), metadata={**schema.metadata, **recorded})
    return message.SerializeToString()


def schema_from_bytes(data: bytes) -> Schema:
    """The inverse of `schema_to_bytes`.

    Raises:
        InvalidInputError: The bytes are not a schema.
    """
    try:
        message = file_pb2.Schema.FromString(data)
    except DecodeError as error:
        raise InvalidInputError(f"{len(data)} bytes are not a schema as lance_schema_bytes returns it") from error
    metadata, values = dict(message.metadata), {}
    for key in [key for key in metadata if key.startswith(_VALUES)]:
        values[int(key.removeprefix(_VALUES))] = pa.ipc.open_stream(metadata.pop(key)).read_next_batch().column(0)
    schema = schema_from_protobuf(message.fields, metadata)
    return (
        map_fields(schema, lambda field: replace(field, dictionary_values=values.get(field.id))) if values else schema
    )


def _array_to_bytes(array: pa.Array) -> bytes:
    batch, sink = pa.record_batch([array], ["values"]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _to_protobuf(node: Field, parent_id: int, *, legacy: bool) -> file_pb2.Field:
    wire = file_pb2.Field(
        name=node.name,
        id=node.id,
        parent_id=parent_id,
        logical_type=node.logical_type,
        nullable=node.nullable,
        encoding=file_pb2.Encoding.ValueType(node.encoding),
        extension_name=node.extension_name,
        metadata=dict(node.metadata),
        unenforced_primary_key=node.primary_key.flag,
        unenforced_primary_key_position=node.primary_key.position,
        unenforced_clustering_key=node.clustering_key.flag,
        unenforced_clustering_key_position=node.clustering_key.position,
    )
    if node.dictionary is not None:
        wire.dictionary.offset, wire.dictionary.length = node.dictionary
    elif not legacy and node.logical_type.startswith("dict:"):
        wire.dictionary.SetInParent()
    return wire


def _from_protobuf(wire: file_pb2.Field, children: tuple[Field, ...]) -> Field:
    return Field(
        name=wire.name,
        id=wire.id,
        logical_type=wire.logical_type,
        nullable=wire.nullable,
        children=children,
        metadata=dict(wire.metadata) if wire.metadata else {},
        extension_name=wire.extension_name,
        encoding=int(wire.encoding),
        dictionary=_read_dictionary(wire),
        primary_key=_read_mark(wire.unenforced_primary_key, wire.unenforced_primary_key_position),
        clustering_key=_read_mark(wire.unenforced_clustering_key, wire.unenforced_clustering_key_position),
    )


def _read_dictionary(wire: file_pb2.Field) -> tuple[int, int] | None:
    """Position and length of the values of a dictionary; None for an empty message."""
    offset, length = wire.dictionary.offset, wire.dictionary.length
    return (offset, length) if offset or length else None


def _read_mark(flag: bool, position: int) -> KeyMark:
    return KeyMark(flag, position) if flag or position else NO_MARK

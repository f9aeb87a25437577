"""Schemas on the wire: a flat list of fields, depth-first, each naming its parent by id.

Field 0  "a"       parent -1
Field 1  "b"       parent -1     list
Field 2  "item"    parent  1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
from google.protobuf.message import DecodeError

from lance_core._proto import file_pb2
from lance_core.errors import CorruptFileError, InvalidInputError
from lance_core.schema.field import MOST_LEVELS, NO_MARK, Field, KeyMark, Schema

__all__ = ["schema_from_bytes", "schema_from_protobuf", "schema_to_bytes", "schema_to_protobuf"]

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
    return replace(schema, fields=tuple(_add_values(field, values) for field in schema.fields)) if values else schema


def _add_values(field: Field, values: Mapping[int, pa.Array]) -> Field:
    children = tuple(_add_values(child, values) for child in field.children)
    return replace(field, children=children, dictionary_values=values.get(field.id))


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

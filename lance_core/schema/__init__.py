"""Schemas: fields with ids, and their Arrow and protobuf forms."""

from lance_core.schema.arrow import (
    arrow_type_of,
    field_from_arrow,
    field_to_arrow,
    resolve_extensions,
    schema_from_arrow,
    schema_to_arrow,
    storage_type,
)
from lance_core.schema.c_data import exported_metadata
from lance_core.schema.field import UNASSIGNED, Field, Schema, quote_path, split_path
from lance_core.schema.lance_schema import LanceField, LanceSchema
from lance_core.schema.protobuf import schema_from_bytes, schema_from_protobuf, schema_to_bytes, schema_to_protobuf

__all__ = [
    "UNASSIGNED",
    "Field",
    "LanceField",
    "LanceSchema",
    "Schema",
    "arrow_type_of",
    "exported_metadata",
    "field_from_arrow",
    "field_to_arrow",
    "quote_path",
    "resolve_extensions",
    "schema_from_arrow",
    "schema_from_bytes",
    "schema_from_protobuf",
    "schema_to_arrow",
    "schema_to_bytes",
    "schema_to_protobuf",
    "split_path",
    "storage_type",
]

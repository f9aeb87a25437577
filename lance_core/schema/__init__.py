"""Schemas: fields with ids, and their Arrow and protobuf forms."""

from lance_core.schema.arrow import (
    JSON,
    arrow_type_of,
    field_from_arrow,
    field_to_arrow,
    is_json_type,
    resolve_extensions,
    schema_from_arrow,
    schema_to_arrow,
    typed_schema,
)
from lance_core.schema.field import UNASSIGNED, Field, Schema, quote_path, split_path
from lance_core.schema.json import json_to_schema, rust_name, schema_to_json
from lance_core.schema.key_marks import (
    CLUSTERING_KEY_POSITION,
    NO_MARK,
    PRIMARY_KEY,
    PRIMARY_KEY_POSITION,
    KeyMark,
    clustering_key_mark,
    primary_key_mark,
)
from lance_core.schema.keys import check_primary_key, clustering_key, primary_key
from lance_core.schema.lance_schema import LanceField, LanceSchema
from lance_core.schema.protobuf import schema_from_bytes, schema_from_protobuf, schema_to_bytes, schema_to_protobuf
from lance_core.schema.storage import in_storage_types, unwrapped

__all__ = [
    "CLUSTERING_KEY_POSITION",
    "JSON",
    "NO_MARK",
    "PRIMARY_KEY",
    "PRIMARY_KEY_POSITION",
    "UNASSIGNED",
    "Field",
    "KeyMark",
    "LanceField",
    "LanceSchema",
    "Schema",
    "arrow_type_of",
    "check_primary_key",
    "clustering_key",
    "clustering_key_mark",
    "field_from_arrow",
    "field_to_arrow",
    "in_storage_types",
    "is_json_type",
    "json_to_schema",
    "primary_key",
    "primary_key_mark",
    "quote_path",
    "resolve_extensions",
    "rust_name",
    "schema_from_arrow",
    "schema_from_bytes",
    "schema_from_protobuf",
    "schema_to_arrow",
    "schema_to_bytes",
    "schema_to_json",
    "schema_to_protobuf",
    "split_path",
    "typed_schema",
    "unwrapped",
]

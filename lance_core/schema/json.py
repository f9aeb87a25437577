"""Converts Arrow schemas to and from JSON as pylance does, and names Arrow types as pylance's messages do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from lance_core.errors import ArgumentTypeError, InvalidInputError, UnsupportedError
from lance_core.extension_types import exported_metadata
from lance_core.schema.field import MOST_LEVELS
from lance_core.schema.forms import NAMES_OF_TYPES, TYPES_BY_NAME, check_depth, check_names, resolve_extensions

_RUST: Final = {
    "null": "Null",
    "bool": "Boolean",
    "halffloat": "Float16",
    "float": "Float32",
    "double": "Float64",
    "string": "Utf8",
    "large_string": "LargeUtf8",
    "binary": "Binary",
    "large_binary": "LargeBinary",
    "date32:day": "Date32",
    "date64:ms": "Date64",
    **{f"{sign}int{width}": f"{'UI' if sign else 'I'}nt{width}" for sign in ("", "u") for width in (8, 16, 32, 64)},
}


def rust_name(kind: pa.DataType) -> str:
    """The name of a type in messages of pylance: Rust's for plain types, Arrow's for all others."""
    return _RUST.get(NAMES_OF_TYPES.get(kind, ""), str(kind))


def schema_to_json(schema: pa.Schema) -> dict[str, Any]:
    """A schema as a dictionary for `json.dumps`: `fields` with `name`, `type` and `nullable`, and the metadata.

    Raises:
        SchemaError: A name is not UTF-8.
        UnsupportedError: A type has no form in JSON (maps, views, intervals), or a column is nested too deep.
        ArgumentTypeError: The argument is not a pyarrow schema.

    Examples:
        >>> lance.schema_to_json(pa.schema({"id": pa.int64()}))
        {'fields': [{'name': 'id', 'type': {'type': 'int64'}, 'nullable': True}]}
    """
    if not isinstance(schema, pa.Schema):
        raise ArgumentTypeError(f"schema_to_json takes a pyarrow.Schema, not {type(schema).__name__}")
    check_names(schema)
    for field in schema:
        check_depth(field)
    description: dict[str, Any] = {"fields": [_field_to_json(field) for field in schema]}
    if schema.metadata:
        description["metadata"] = _strings(schema.metadata)
    return description


def json_to_schema(schema_json: Mapping[str, Any]) -> pa.Schema:
    """The inverse of `schema_to_json`.

    Raises:
        ArgumentTypeError: The argument is not a mapping.
        InvalidInputError: A field is missing, a type is unknown, or the schema is nested too deep.

    Examples:
        >>> schema = pa.schema({"id": pa.int64()})
        >>> lance.json_to_schema(lance.schema_to_json(schema)) == schema
        True
    """
    if not isinstance(schema_json, Mapping):
        raise ArgumentTypeError(
            f"Failed to convert json to schema: json_to_schema takes what schema_to_json gives, not {schema_json!r:.80}"
        )
    try:
        fields = [_field_from_json(field) for field in schema_json["fields"]]
        schema = pa.schema(fields, metadata=schema_json.get("metadata"))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        what = f"missing field {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidInputError(f"Failed to convert json to schema: {what}, in {schema_json!r}") from error
    return resolve_extensions(schema)


def _strings(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    kind, metadata = field.type, dict(exported_metadata(field))
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    description = {"name": field.name, "type": _type_to_json(kind), "nullable": field.nullable}
    return description | ({"metadata": _strings(metadata)} if metadata else {})


def _type_to_json(kind: pa.DataType) -> dict[str, Any]:
    if kind in NAMES_OF_TYPES:
        return {"type": NAMES_OF_TYPES[kind]}
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return {"type": "fixed_size_binary", "length": kind.byte_width}
    if pa.types.is_timestamp(kind):
        return {"type": f"timestamp:{kind.unit}:{kind.tz or '-'}"}
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return {"type": f"decimal:{kind.bit_width}:{kind.precision}:{kind.scale}"}
    if pa.types.is_dictionary(kind):
        names = [_type_to_json(part)["type"] for part in (kind.value_type, kind.index_type)]
        return {"type": f"dict:{names[0]}:{names[1]}:{'true' if kind.ordered else 'false'}"}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field_to_json(child) for child in kind]}
    for is_kind, name in ((pa.types.is_list, "list"), (pa.types.is_large_list, "large_list")):
        if is_kind(kind):
            return {"type": name, "fields": [_field_to_json(kind.value_field)]}
    if pa.types.is_fixed_size_list(kind):
        return {"type": "fixed_size_list", "fields": [_field_to_json(kind.value_field)], "length": kind.list_size}
    raise UnsupportedError(f"Failed to convert schema to json: {kind} has no form in JSON")


def _field_from_json(field: Mapping[str, Any], level: int = 0) -> pa.Field:
    if level > MOST_LEVELS:
        raise InvalidInputError(f"Failed to convert json to schema: the schema is nested more than {MOST_LEVELS} deep")
    metadata = dict(field.get("metadata") or {})
    return pa.field(field["name"], _type_from_json(field["type"], level + 1), field["nullable"], metadata or None)


def _type_from_json(data: Mapping[str, Any], level: int) -> pa.DataType:
    """The type; `level` is the nesting level of its children."""
    name = data["type"]
    if name in TYPES_BY_NAME:
        return TYPES_BY_NAME[name]
    if name == "fixed_size_binary":
        return pa.binary(data["length"])
    if name == "struct":
        return pa.struct([_field_from_json(child, level) for child in data["fields"]])
    if name in ("list", "large_list", "fixed_size_list"):
        (child,) = data["fields"]
        if name == "fixed_size_list":
            return pa.list_(_field_from_json(child, level), data["length"])
        return (pa.list_ if name == "list" else pa.large_list)(_field_from_json(child, level))
    head, _, rest = name.partition(":")
    if head == "timestamp":
        unit, _, zone = rest.partition(":")
        return pa.timestamp(unit, None if zone == "-" else zone)
    if head == "decimal":
        width, precision, scale = map(int, rest.split(":"))
        return (pa.decimal128 if width == 128 else pa.decimal256)(precision, scale)
    if head == "dict":
        values, index, ordered = rest.rsplit(":", 2)
        return pa.dictionary(TYPES_BY_NAME[index], TYPES_BY_NAME[values], ordered == "true")
    raise InvalidInputError(f"Failed to convert json to schema: unknown type {name!r}")

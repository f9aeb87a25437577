"""The form in which a scan returns blob columns, by its argument `blob_handling`: descriptions or payloads.

    blob_handling          blobs of 2.0 and 2.1           blobs of 2.2
    None, *_descriptions   struct of position and size    struct of kind, position, size, blob_id and blob_uri
    all_binary             large_binary                   large_binary
    as_stored              large_binary                   struct of data and uri, as in the table's schema

No payload is read for descriptions. Files of version 0.1 store payloads like other bytes, without descriptions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa

from lance_core.encoding.structural.blob import described
from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema
from lance_core.schema.field import BLOB_V2_NAME, is_blob, is_blob_v2
from lance_core.table.manifest.manifest import Manifest

__all__ = [
    "AS_BYTES",
    "AS_STORED",
    "check_blob_handling",
    "described_columns",
    "is_description",
    "scanned_columns",
]

AS_BYTES: Final = "all_binary"
"""The handling that returns payloads as bytes."""

AS_STORED: Final = "as_stored"
"""The handling that returns payloads in the types of the table's schema, which other tables accept; not in pylance."""

_HANDLINGS: Final = (AS_BYTES, "all_descriptions", "blobs_descriptions", AS_STORED)
_EXTENSION_NAME: Final = "ARROW:extension:name"
_DESCRIBED: Final = {"lance-encoding:blob": b"true"}


def check_blob_handling(handling: object) -> None:
    """Check that a value of `blob_handling` is known; None is the default.

    Raises:
        InvalidInputError: The value is unknown.
    """
    if handling is not None and handling not in _HANDLINGS:
        raise InvalidInputError(f"Invalid blob_handling: {handling}. Expected one of: {', '.join(_HANDLINGS)}")


def scanned_columns(manifest: Manifest, handling: str | None = None) -> Schema:
    """All columns of a version in the form that a scan returns, with the field ids of the files.

    Args:
        manifest: The version.
        handling: The form of blobs; None for descriptions.

    Raises:
        InvalidInputError: The value of `handling` is unknown.
    """
    check_blob_handling(handling)
    schema = manifest.schema
    if handling == AS_STORED:
        return schema
    name = f"scanned, {AS_BYTES if handling == AS_BYTES else 'described'}"
    columns: Schema | None = schema.memo.get(name)
    if columns is None:
        has_blobs = any(is_blob(field) or is_blob_v2(field) for field in schema.fields)
        columns = schema
        if has_blobs and manifest.data_storage_version not in ("0.1", "legacy"):
            view = _payload_field if handling == AS_BYTES else _describe_field
            columns = Schema(fields=tuple(map(view, schema.fields)), metadata=schema.metadata)
        schema.memo[name] = columns
    return columns


def described_columns(manifest: Manifest) -> Schema | None:
    """All columns with blobs as descriptions; None if these are the columns of the schema."""
    columns = scanned_columns(manifest)
    return None if columns is manifest.schema else columns


def is_description(field: pa.Field) -> bool:
    """Whether a column of a scan holds descriptions of blobs."""
    return pa.types.is_struct(field.type) and (field.metadata or {}).get(b"lance-encoding:blob") == b"true"


def _describe_field(field: Field) -> Field:
    if is_blob_v2(field):
        return replace(described(field), metadata={**_DESCRIBED, "lance-encoding:packed": b"true"}, extension_name="")
    if not is_blob(field):
        return field
    parts = tuple(Field(name=name, logical_type="uint64") for name in ("position", "size"))
    return replace(field, logical_type="struct", children=parts, encoding=0, metadata=_DESCRIBED)


def _payload_field(field: Field) -> Field:
    if not is_blob_v2(field):
        return field
    metadata = {key: value for key, value in field.metadata.items() if key != _EXTENSION_NAME}
    # The extension name makes the reader expect descriptors; the Arrow type does not have it.
    return replace(field, logical_type="large_binary", children=(), metadata=metadata, extension_name=BLOB_V2_NAME)

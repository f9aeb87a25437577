"""Columns of blobs, as each version stores them.

A large binary column with the metadata `lance-encoding:blob` stays one up to 2.1. In 2.2 it becomes a struct of `data`
and `uri` with the extension name `lance.blob.v2`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lance_core.encoding.paths import BLOB_V2_NAME
from lance_core.file.version import FileVersion

__all__ = ["with_blob_types"]

_KEY: Final = b"lance-encoding:blob"
_STORAGE: Final = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.string())])


def with_blob_types(schema: pa.Schema, version: FileVersion) -> pa.Schema:
    """The schema with columns of blobs as a new dataset of that version has them."""
    if version is not FileVersion.V2_2:
        return schema
    fields = [_blob_type(field) if _is_blob(field) else field for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _is_blob(field: pa.Field) -> bool:
    asked = bool((field.metadata or {}).get(_KEY, b"").lower() == b"true")
    return asked and field.type == pa.large_binary()


def _blob_type(field: pa.Field) -> pa.Field:
    kept = {key: value for key, value in (field.metadata or {}).items() if key != _KEY}
    metadata = {**kept, b"ARROW:extension:name": BLOB_V2_NAME.encode()}
    return pa.field(field.name, _STORAGE, field.nullable, metadata=metadata)

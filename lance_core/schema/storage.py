"""Columns in the storage types of their extension types; nothing is copied."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

from lance_core.extension_types import has_extensions, storage_type
from lance_core.schema.relabel import relabel

__all__ = ["in_storage_types", "unwrapped"]

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)


def in_storage_types(rows: _Rows) -> _Rows:
    """The rows in storage types."""
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

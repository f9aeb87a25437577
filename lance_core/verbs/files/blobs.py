"""Check that columns of blobs can be written: their types in each file version, and the URIs of external blobs.

A blob column is a column of bytes with the metadata `lance-encoding:blob`. In files of version

    0.1         rejected
    2.0, 2.1    large binary keeps its type; binary is rejected, as by the reference library
    2.2         binary and large binary become a struct of `data` and `uri` with the extension name `lance.blob.v2`

A blob of 2.2 may be given by a URI below a base path of the dataset, and by other URIs only if the caller allows it:
whoever reads the table also reads the URI, with their own credentials.

Blob columns of other types, and blobs inside of structs and lists, are rejected: no reader could read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from lance_core.encoding.levels.paths import BLOB_V2_NAME, is_blob_v2
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.file.version import FileVersion
from lance_core.schema import Schema
from lance_core.store import canonical_uri, split_uri
from lance_core.table.fragment import BasePath

__all__ = ["check_blobs", "check_external", "external_places", "with_blob_types"]

_NAME: Final = "lance-encoding:blob"
_KEY: Final = _NAME.encode()
_BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())
_STORAGE: Final = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.string())])


def with_blob_types(schema: pa.Schema, version: FileVersion) -> pa.Schema:
    """The schema of a new dataset, with the columns of blobs in the types that its file version has for them.

    Raises:
        SchemaError: A column of blobs is of another type.
        UnsupportedError: The version has no blobs, or a blob lies inside of another type.
    """
    check_blobs(schema, version, binary=version is FileVersion.V2_2)
    if version is not FileVersion.V2_2:
        return schema
    fields = [_blob_type(field) if _is_blob(field) else field for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def check_blobs(schema: pa.Schema, version: FileVersion, *, binary: bool = False) -> None:
    """Check that the columns that are marked as blobs can be stored as blobs.

    Args:
        schema: The columns.
        version: Version of the files.
        binary: Whether binary columns can be blobs, not just large binary ones.

    Raises:
        SchemaError: A column of blobs is of another type.
        UnsupportedError: The version has no blobs, or a blob lies inside of another type.
    """
    for field in schema:
        for below, path in _walk_children(field, field.name):
            if _asks_for_blobs(below):
                raise UnsupportedError(
                    f"field {path!r}: blobs inside of other types are not offered; make it a column of its own, or "
                    f"leave out the metadata {_NAME}"
                )
        if not _asks_for_blobs(field):
            continue
        if version is FileVersion.V0_1:
            raise UnsupportedError(
                f"column {field.name!r}: files of version 0.1 have no blobs; write with data_storage_version='2.2', or "
                f"leave out the metadata {_NAME}"
            )
        if not (field.type == pa.large_binary() or (binary and field.type in _BYTES)):
            if pa.types.is_struct(field.type):
                raise SchemaError(
                    f"column {field.name!r} holds descriptions of blobs, {field.type}, which say where payloads lie in "
                    "other files; scan with blob_handling='all_binary' (large_binary) to write the payloads, or leave "
                    f"out the metadata {_NAME} to write the descriptions as they are"
                )
            raise SchemaError(
                f"column {field.name!r} with the metadata {_NAME} must be of type large_binary, not {field.type}; cast "
                f"it, or leave out the metadata"
            )


def external_places(bases: Iterable[BasePath]) -> tuple[str, ...]:
    """The base paths below which blobs may be given by their URI: all that are not the root of a dataset."""
    return tuple(canonical_uri(base.path).rstrip("/") + "/" for base in bases if not base.is_dataset_root)


def check_external(rows: pa.Table | pa.RecordBatch, schema: Schema, places: Sequence[str] | None) -> None:
    """Check that blobs that are given by a URI lie in the places that the write allows.

    Args:
        rows: Rows in the types of the dataset.
        schema: The columns of the dataset.
        places: Canonical prefixes of the URIs that are allowed; None allows all, for rows read from the table.

    Raises:
        InvalidInputError: A URI lies elsewhere, is not absolute, or holds credentials.
    """
    if places is None:
        return
    for field in schema.fields:
        if not is_blob_v2(field) or field.name not in rows.schema.names:
            continue
        column = rows.column(field.name)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            storage = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
            for uri in storage.filter(storage.is_valid()).field("uri").drop_null():
                _check_place(field.name, uri.as_py(), tuple(places))


def _check_place(name: str, uri: str, places: tuple[str, ...]) -> None:
    # A path is an absolute URI to other readers only where a base path says so.
    if uri and not split_uri(uri)[0] and ("" in places or not uri.startswith("/")):
        raise InvalidInputError(
            f"column {name!r}: a blob is given by an absolute URI, a local file by file:///path, not as {uri!r}"
        )
    if uri and not canonical_uri(uri).startswith(places):
        raise InvalidInputError(
            f"column {name!r}: the blob {uri!r} lies outside of the dataset's base paths: "
            "add one with add_bases, or write with allow_external_blob_outside_bases=True"
        )


def _walk_children(field: pa.Field, path: str) -> Iterator[tuple[pa.Field, str]]:
    """Yield all fields below a field, with their paths."""
    kind = field.type
    if not pa.types.is_nested(kind):
        return
    for index in range(kind.num_fields):
        child = kind.field(index)
        yield child, f"{path}.{child.name}"
        yield from _walk_children(child, f"{path}.{child.name}")


def _asks_for_blobs(field: pa.Field) -> bool:
    return bool((field.metadata or {}).get(_KEY, b"").lower() == b"true")


def _is_blob(field: pa.Field) -> bool:
    return _asks_for_blobs(field) and field.type in _BYTES


def _blob_type(field: pa.Field) -> pa.Field:
    other_metadata = {key: value for key, value in (field.metadata or {}).items() if key != _KEY}
    metadata = {**other_metadata, b"ARROW:extension:name": BLOB_V2_NAME.encode()}
    return pa.field(field.name, _STORAGE, field.nullable, metadata=metadata)

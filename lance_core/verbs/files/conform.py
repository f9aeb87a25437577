"""Fit data to the schema of a dataset before any of it is written.

Columns are matched by name, at every level; order and nullability may differ. A nullable column that is missing from
the data is left out of the file and reads as null; nullable fields that structs of the data lack are null. Values are
relabelled with types that are stored alike (views and extension types); only JSON and blobs are converted.

Check that columns of blobs can be written: their types in each file version, and the URIs of external blobs.

A blob column is a column of bytes with the metadata `lance-encoding:blob`. In files of version

    0.1         rejected
    2.0, 2.1    large binary keeps its type; binary is rejected, as by the reference library
    2.2         binary and large binary become a struct of `data` and `uri` with the extension name `lance.blob.v2`

A blob of 2.2 may be given by a URI below a base path of the dataset, and by other URIs only if the caller allows it:
whoever reads the table also reads the URI, with their own credentials.

Blob columns of other types are rejected, and blobs inside of other types but in 2.2: no reader could read them.

Dictionary columns of datasets of version 0.1, whose manifest repeats the dictionary values of the data files.

Other readers use the manifest's values for all files, so each file's dictionary must be a prefix of the dataset's. The
files of a new dataset extend each other's values; an append adds no values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import is_json_type
from lance_core.file import DataFileReader
from lance_core.file.metadata import FileVersion
from lance_core.schema import (
    JSON,
    Field,
    Schema,
    check_names,
    field_from_arrow,
    field_to_arrow,
    resolve_extensions,
    schema_from_arrow,
    schema_to_arrow,
)
from lance_core.schema.field import BLOB_KEY, BLOB_V2_NAME, is_blob_v2, map_fields
from lance_core.schema.jsonb import jsonb_array
from lance_core.schema.relabel import relabel
from lance_core.store import ObjectStore, canonical_uri, split_uri
from lance_core.table.fragment import BasePath, Fragment
from lance_core.table.paths import data_key
from lance_core.verbs.scan.blob_payloads import blobs_inside
from lance_core.verbs.scan.projection import ROW_COLUMNS


def fit(dataset: Schema, data: pa.Schema, *, fills_structs: bool = False, keeps_structs: bool = False) -> Schema:
    """The fields of a dataset's schema that data of an Arrow schema has, in the dataset's order.

    Args:
        dataset: The dataset's columns.
        data: The columns of the data.
        fills_structs: Whether structs of the data may lack nullable fields, which `conform` then fills with nulls.
        keeps_structs: Whether structs may lack fields because rows of the dataset keep their values of these fields;
            structs inside of lists may then lack none, since the items of two lists do not correspond.

    Raises:
        SchemaError: A column is unknown, of another type, or missing although the dataset does not allow nulls.
        UnsupportedError: A type of the data cannot be stored.
    """
    data_fields = {field.name: field for field in schema_from_arrow(data).fields}
    dataset_names = set(dataset.names)
    unexpected = [name for name in data_fields if name not in dataset_names]
    missing = [field.name for field in dataset.fields if field.name not in data_fields and not field.nullable]
    if unexpected or missing:
        raise SchemaError(
            f"Append with different schema: fields did not match, missing={missing}, unexpected={unexpected}; "
            f"the dataset has {dataset.names}"
        )
    filled = (field for field in dataset.fields if field.name in data_fields)
    lenience = _Lenience(fills_structs, keeps_structs)
    return replace(
        dataset, fields=tuple(_fit_field(field, data_fields[field.name], field.name, lenience) for field in filled)
    )


def is_alike(dataset: Schema, data: pa.Schema) -> bool:
    """Whether data has exactly a dataset's columns, with their metadata: `fit` and `conform` then change nothing."""
    has_extensions: bool | None = dataset.memo.get("extensions")
    if has_extensions is None:
        nodes = [field for field, _ in dataset.walk()]
        has_extensions = any(node.extension_name or node.logical_type == JSON or node.dictionary for node in nodes)
        has_extensions |= any(is_blob_v2(node) for node in nodes)
        dataset.memo["extensions"] = has_extensions
    if has_extensions:
        return False
    arrow = schema_to_arrow(dataset)
    return bool(data.remove_metadata().equals(arrow.remove_metadata(), check_metadata=True))


def conform(data: pa.RecordBatch | pa.Table, schema: Schema) -> pa.Table:
    """The data with the columns, order and storage types of `schema`, which `fit` returned for its Arrow schema.

    Fields that structs of the data lack are null.

    Raises:
        SchemaError: A column has values that its type cannot take.
    """
    columns = [_conform_column(data.column(field.name), field) for field in schema.fields]
    return pa.table(columns, schema=schema_to_arrow(schema))


def check_new_columns(schema: pa.Schema) -> None:
    """Check that a new dataset can have these columns.

    Raises:
        SchemaError: There is no column, a name is empty, or a name or metadata are not UTF-8.
    """
    check_names(schema)
    if not schema.names:
        raise SchemaError("a dataset needs at least one column")
    for name in schema.names:
        if not name:
            raise SchemaError("a column has an empty name")
    check_metadata(schema.metadata)
    for field in schema:
        check_metadata(field.metadata)


def check_column_name(name: str) -> None:
    """Check that a new column can have this name: other tools cannot read columns of some names.

    Raises:
        SchemaError: The name is empty, that of a row column, or has a dot or a back-tick.
    """
    if not name:
        raise SchemaError("a column has an empty name")
    if name in ROW_COLUMNS:
        raise SchemaError(
            f"the column name {name!r} is reserved for a row column, which every dataset has without storing it: "
            f"leave the column out, or rename it, for example to {name.lstrip('_')!r}"
        )
    for sign, what in ((".", "a dot, which stands between a struct and its field"), ("`", "a back-tick")):
        if sign in name:
            raise SchemaError(
                f"the column name {name!r} cannot contain {what}: rename the column, for example to "
                f"{name.replace('.', '_').replace('`', '')!r}"
            )


def check_metadata(metadata: dict[bytes, bytes] | None) -> None:
    """Check that the metadata of an Arrow schema or field can be stored: Lance stores them as strings.

    Raises:
        SchemaError: A key or a value is not UTF-8.
    """
    for key, value in (metadata or {}).items():
        for part in (key, value):
            try:
                part.decode()
            except UnicodeDecodeError as error:
                raise SchemaError(
                    f"Metadata key {key!r} is not valid utf8. Consider base64 encode for generic binary metadata."
                ) from error


class _Lenience(NamedTuple):
    """What structs of the data may lack, see `fit`."""

    fills_structs: bool
    keeps_structs: bool

    def allows_lack(self, field: Field) -> bool:
        return (self.keeps_structs and not self.fills_structs) or (self.fills_structs and field.nullable)


def _fit_field(dataset: Field, data: Field, path: str, lenience: _Lenience, *, is_entries: bool = False) -> Field:
    if is_blob_v2(dataset) and data.logical_type in ("large_binary", "binary", "string", "large_string"):
        return dataset
    # The reference library writes "list" for lists of blobs, whose items become structs.
    if dataset.logical_type.removesuffix(".struct") != data.logical_type.removesuffix(".struct"):
        raise SchemaError(
            f"Append with different schema: `{path}` should have type {field_to_arrow(dataset).type} "
            f"but type was {field_to_arrow(data).type}"
        )
    check_extension(dataset, data, path)
    if not dataset.children:
        return dataset
    if dataset.logical_type != "struct" or is_entries:
        # Children of lists and maps are matched by position: writers name them "item" or "element", "key" or "keys".
        if len(dataset.children) != len(data.children):
            raise SchemaError(
                f"`{path}`: a {dataset.logical_type} has {len(dataset.children)} fields in the dataset, and "
                f"{len(data.children)} in the data"
            )
        pairs = zip(dataset.children, data.children, strict=True)
        inside = _Lenience(False, False) if lenience.keeps_structs else lenience
        is_map = dataset.logical_type == "map"
        children = (_fit_field(a, b, f"{path}.{a.name}", inside, is_entries=is_map) for a, b in pairs)
        return replace(dataset, children=tuple(children))
    by_name = {child.name: child for child in data.children}
    unexpected = sorted(by_name.keys() - {child.name for child in dataset.children})
    missing = [
        child.name for child in dataset.children if child.name not in by_name and not lenience.allows_lack(child)
    ]
    if unexpected or missing:
        raise SchemaError(
            f"Append with different schema: fields of `{path}` did not match, missing={missing}, "
            f"unexpected={unexpected}"
        )
    children = (
        _fit_field(child, by_name[child.name], f"{path}.{child.name}", lenience) if child.name in by_name else child
        for child in dataset.children
    )
    return replace(dataset, children=tuple(children))


def check_extension(dataset: Field, data: Field, path: str) -> None:
    """Reject values of another extension type, or of other parameters: the same storage would mean other values.

    Storage without an extension type is taken: Spark, among others, has none.

    Raises:
        SchemaError: The extension types differ.
    """
    if not data.extension_name or describe_extension(dataset) == describe_extension(data):
        return
    kinds = [resolve_extensions(pa.schema([field_to_arrow(field)])).types[0] for field in (dataset, data)]
    if isinstance(kinds[0], pa.BaseExtensionType) and kinds[0] == kinds[1]:  # parameters written in another way
        return
    raise SchemaError(
        f"`{path}` should have {describe_extension(dataset)} but has {describe_extension(data)}: convert the values, "
        "or give their storage if they mean the same"
    )


def describe_extension(field: Field) -> str:
    """The extension type of a field and its parameters, for messages."""
    keys = ("ARROW:extension:name", "ARROW:extension:metadata")
    name, parameters = (field.metadata.get(key, b"").decode(errors="replace") for key in keys)
    return f"the extension type {name} {parameters}".rstrip() if name else "no extension type"


def _conform_column(column: pa.Array | pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    target = field_to_arrow(field).type
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if chunked.type == target:
        return chunked
    if field.logical_type == JSON and is_json_type(chunked.type):
        return pa.chunked_array([jsonb_array(chunk.storage, field.name) for chunk in chunked.chunks], target)
    try:
        return pa.chunked_array([relabel(chunk, target, fills_structs=True) for chunk in chunked.chunks], target)
    except (SchemaError, InvalidInputError) as error:
        raise type(error)(f"column {field.name!r}: {error}") from error


_BYTES: Final = (pa.binary(), pa.large_binary(), pa.binary_view())
_STORAGE: Final = pa.struct([pa.field("data", pa.large_binary()), pa.field("uri", pa.string())])


def new_schema(schema: pa.Schema, version: FileVersion, first_field_id: int) -> Schema:
    """The schema of a new dataset, with the columns of blobs in the types that its file version has for them.

    Lists of bytes that become blobs keep their logical type, as in the reference library.

    Raises:
        SchemaError: A column of blobs is of another type, or the schema cannot be stored.
        UnsupportedError: The version has no blobs, or none inside of other types.
    """
    check_blobs(schema, version, is_new=True)
    fields = schema_from_arrow(schema, first_field_id)
    if version is not FileVersion.V2_2 or not any(map(_is_marked, (field for field, _ in fields.walk()))):
        return fields
    typed = map_fields(fields, lambda field: _blob_type(field) if _is_marked(field) else field)
    return replace(typed, fields=tuple(field.without_ids() for field in typed.fields)).with_ids(first_field_id)


def check_blobs(schema: pa.Schema, version: FileVersion, *, is_new: bool = False) -> None:
    """Check that the columns that are marked as blobs can be stored as blobs.

    Args:
        schema: The columns.
        version: Version of the files.
        is_new: Whether a dataset is created: in 2.2 binary columns can be blobs then, and blobs lie in other types.

    Raises:
        SchemaError: A column of blobs is of another type.
        UnsupportedError: The version has no blobs, or none inside of other types.
    """
    is_2_2 = is_new and version is FileVersion.V2_2
    for top in schema:
        for field, path in _walk(top, top.name):
            if (field.metadata or {}).get(BLOB_KEY.encode(), b"").lower() != b"true":
                continue
            if field is not top and not is_2_2:
                raise UnsupportedError(
                    f"field {path!r}: blobs inside of other types are offered in new tables of version 2.2 alone; make "
                    f"it a column of its own, or leave out the metadata {BLOB_KEY}"
                )
            _check_blob(field, path, version, binary=is_2_2)


def _check_blob(field: pa.Field, path: str, version: FileVersion, *, binary: bool) -> None:
    if version is FileVersion.V0_1:
        raise UnsupportedError(
            f"column {path!r}: files of version 0.1 have no blobs; write with data_storage_version='2.2', or "
            f"leave out the metadata {BLOB_KEY}"
        )
    if field.type == pa.large_binary() or (binary and field.type in _BYTES):
        return
    if pa.types.is_struct(field.type):
        raise SchemaError(
            f"column {path!r} holds descriptions of blobs, {field.type}, which say where payloads lie in "
            "other files; scan with blob_handling='all_binary' (large_binary) to write the payloads, or leave "
            f"out the metadata {BLOB_KEY} to write the descriptions as they are"
        )
    raise SchemaError(
        f"column {path!r} with the metadata {BLOB_KEY} must be of type large_binary, not {field.type}; cast "
        f"it, or leave out the metadata"
    )


def external_prefixes(bases: Iterable[BasePath]) -> tuple[str, ...]:
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
        if field.name not in rows.schema.names or not any(is_blob_v2(node) for node, _ in field.walk()):
            continue
        column = rows.column(field.name)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            for node, blobs in blobs_inside(field, chunk):
                for uri in blobs.filter(blobs.is_valid()).field("uri").drop_null():
                    _check_place(node.name, uri.as_py(), tuple(places))


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


def _walk(field: pa.Field, path: str) -> Iterator[tuple[pa.Field, str]]:
    """Yield a field and all fields below it, with their paths."""
    yield field, path
    kind = field.type
    for index in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        child = kind.field(index)
        yield from _walk(child, f"{path}.{child.name}")


def _is_marked(field: Field) -> bool:
    is_binary = field.logical_type in ("binary", "large_binary")
    return is_binary and field.metadata.get(BLOB_KEY, b"").lower() == b"true"


def _blob_type(field: Field) -> Field:
    metadata = {key: value for key, value in field.metadata.items() if key != BLOB_KEY}
    arrow = pa.field(field.name, _STORAGE, field.nullable, {**metadata, "ARROW:extension:name": BLOB_V2_NAME.encode()})
    return field_from_arrow(arrow)


def known_dictionaries(schema: Schema, values: Mapping[int, pa.Array]) -> Schema:
    """The schema with the dictionary values of some fields, given by field id."""
    if not values:
        return schema
    return map_fields(schema, lambda f: replace(f, dictionary_values=values[f.id]) if f.id in values else f)


def with_dictionaries(schema: Schema, fragments: Sequence[Fragment], store: ObjectStore) -> Schema:
    """The schema of a new dataset with the dictionary values of its 0.1 files.

    Raises:
        SchemaError: The dictionary of one file is not a prefix of that of another.
        UnsupportedError: A file lies in a base path.
    """
    pairs = list(_read_dictionaries(schema, fragments, store))
    longest: dict[int, pa.Array] = {}
    for field, values in pairs:
        if field.id not in longest or len(values) > len(longest[field.id]):
            longest[field.id] = values
    complete = known_dictionaries(schema, longest)
    for field, values in pairs:
        _check(field, values, longest[field.id])
    return complete


def check_dictionaries(schema: Schema, fragments: Sequence[Fragment], store: ObjectStore) -> None:
    """Check that the dictionaries of new 0.1 files are prefixes of those of the dataset.

    Raises:
        SchemaError: A file has a value that the dictionary of the dataset lacks, or has in another place.
        UnsupportedError: A file lies in a base path.
    """
    for field, values in _read_dictionaries(schema, fragments, store):
        _check(field, values, field.dictionary_values)


def _check(field: Field, values: pa.Array, recorded: pa.Array | None) -> None:
    if recorded is None or not recorded.slice(0, len(values)).equals(values):
        raise SchemaError(
            f"column {field.name!r}: all files of a dataset of version 0.1 share one dictionary, and the data has "
            "other values; write the column as plain values, or write a dataset of a later version"
        )


def _read_dictionaries(
    schema: Schema, fragments: Sequence[Fragment], store: ObjectStore
) -> Iterator[tuple[Field, pa.Array]]:
    """Yield the dictionary fields of a schema, each with the values that a 0.1 file has for it, file by file."""
    fields = {field.id: field for field, _ in schema.walk() if field.logical_type.startswith("dict:")}
    for file in (file for fragment in fragments for file in fragment.files) if fields else ():
        if file.file_major_version != 0 or fields.keys().isdisjoint(file.fields):
            continue
        if file.base_id is not None:
            raise UnsupportedError(
                f"{file.path} is a file of version 0.1 with dictionary columns, and cannot be in a base path; write a "
                "dataset of a later version"
            )
        reader = DataFileReader.open(store, data_key(file.path))
        for field_id, values in reader.dictionaries().items():
            if field_id in fields:
                yield fields[field_id], values

"""Fit data to the schema of a dataset before any of it is written.

Columns are matched by name, at every level; order and nullability may differ. A nullable column that is missing from
the data is left out of the file and reads as null; nullable fields that structs of the data lack are null. Values are
relabelled with types that are stored alike (views and extension types); only JSON and blobs are converted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.levels.paths import is_blob_v2
from lance_core.errors import SchemaError
from lance_core.extension_types import storage_type
from lance_core.schema import JSON, Field, Schema, field_to_arrow, is_json_type, schema_from_arrow, schema_to_arrow
from lance_core.schema.jsonb import jsonb_array
from lance_core.schema.relabel import relabel
from lance_core.verbs.scan.row_columns import ROW_COLUMNS

__all__ = ["check_column_name", "check_metadata", "check_new_columns", "conform", "fit", "is_alike"]


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
        SchemaError: There is no column, a name is empty, or metadata are not UTF-8.
    """
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


def _fit_field(dataset: Field, data: Field, path: str, lenience: _Lenience) -> Field:
    if is_blob_v2(dataset) and data.logical_type in ("large_binary", "binary", "string", "large_string"):
        return dataset
    if dataset.logical_type != data.logical_type:
        raise SchemaError(
            f"Append with different schema: `{path}` should have type {field_to_arrow(dataset).type} "
            f"but type was {field_to_arrow(data).type}"
        )
    if not dataset.children:
        return dataset
    if dataset.logical_type != "struct":
        # The one child of a list or map is matched by position: writers name it "item" or "element".
        if len(dataset.children) != len(data.children):
            raise SchemaError(
                f"`{path}`: a {dataset.logical_type} has {len(dataset.children)} fields in the dataset, and "
                f"{len(data.children)} in the data"
            )
        pairs = zip(dataset.children, data.children, strict=True)
        inside = _Lenience(False, False) if lenience.keeps_structs else lenience
        return replace(dataset, children=tuple(_fit_field(a, b, f"{path}.{a.name}", inside) for a, b in pairs))
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


def _conform_column(column: pa.Array | pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    target = field_to_arrow(field).type
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if chunked.type == target:
        return chunked
    if is_blob_v2(field) and not pa.types.is_struct(storage_type(chunked.type)):
        return pa.chunked_array([_as_blobs(chunk, target) for chunk in chunked.chunks], target)
    if field.logical_type == JSON and is_json_type(chunked.type):
        return pa.chunked_array([jsonb_array(chunk.storage, field.name) for chunk in chunked.chunks], target)
    try:
        return pa.chunked_array([relabel(chunk, target, fills_structs=True) for chunk in chunked.chunks], target)
    except SchemaError as error:
        raise SchemaError(f"column {field.name!r}: {error}") from error


def _as_blobs(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Blobs of 2.2 as structs, from payloads or URIs (strings): the other part is null; a null is a null struct."""
    storage = storage_type(kind)
    parts = {part.name: pa.nulls(len(values), part.type) for part in storage}
    name = "uri" if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) else "data"
    parts[name] = values.cast(parts[name].type)
    mask = pc.is_null(values) if values.null_count else None
    array = pa.StructArray.from_arrays(list(parts.values()), fields=list(storage), mask=mask)
    return pa.ExtensionArray.from_storage(kind, array) if isinstance(kind, pa.BaseExtensionType) else array

"""Fits the columns of Arrow frames to the table to which they are written.

    schema_mode    the frame's columns                                   the table's columns afterwards
    -----------    ---------------------------------------------------   ------------------------------------------
    strict         those of the table, in any order; nullable columns    as before
                   of other assets may be missing
    add_columns    those of the table, without some nullable ones,       with the new ones, null in rows that are kept
                   and new ones
    overwrite      any; only if the whole table is overwritten           those of the frame

A column whose type differs from the table's is cast if that keeps every value (`exact_cast`). Otherwise the write is
rejected; the error names the column and the first value that would change.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
import pyarrow as pa

import lance_core
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.extension_types import empty_table, is_any_list
from lance_dagster.handlers.base import CommitMode
from lance_dagster.handlers.exact_cast import CastRejectedError, can_cast, cast_exactly
from lance_dagster.properties import ASSET_KEY
from lance_dagster.tables.names import plain_metadata
from pyspark_lance import SchemaMode


def known_schema(metadata: Mapping[str, object], annotation: Mapping[str, object], label: str) -> pa.Schema:
    """The columns that the definition of an asset declares; empty if it declares none.

    Args:
        metadata: The asset's metadata, whose entry `lance/schema` is used first.
        annotation: The metadata of the Dagster type of the output or input, used second: its entry `lance/schema`, or a
            table schema, in which the type of a column is null if its name is unknown.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: `lance/schema` is neither a schema nor a mapping from columns to names of Arrow
            types.
    """
    for declared in (metadata, annotation):
        declared_schema = plain_metadata(declared.get("lance/schema"))
        if declared_schema is not None:
            return _schema_of(declared_schema, label)
    for key in _COLUMNS_OF_TYPES:
        shown = plain_metadata(annotation.get(key))
        if isinstance(shown, dg.TableSchema):
            return pa.schema([pa.field(column.name, _named_type(column.type)) for column in shown.columns])
    return pa.schema([])


def _schema_of(declared_schema: object, label: str) -> pa.Schema:
    try:
        if isinstance(declared_schema, pa.Schema):
            lance_core.check_names(declared_schema)
            return declared_schema.remove_metadata()
        return pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in dict(declared_schema).items()])  # type: ignore[call-overload]  # no mapping: the TypeError below
    except (TypeError, ValueError) as error:
        raise dg.DagsterInvalidDefinitionError(
            f"{label}: metadata lance/schema must be a pyarrow schema, or a mapping from columns to names of Arrow "
            f'types such as {{"id": "int64", "day": "date32"}}: {error}'
        ) from error


_COLUMNS_OF_TYPES = ("dagster/column_schema", "schema")
"""The metadata entries with the columns of Dagster types that are made from models of Patito and of Pandera."""

_OTHER_NAMES: Mapping[str, pa.DataType] = {
    "str": pa.string(),
    "date": pa.date32(),
    **{f"datetime64[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
}
"""Types by their names in pandas and polars, where these differ from Arrow's."""


def _named_type(name: str) -> pa.DataType:
    """The Arrow type of a name; null for an unknown name. Case is ignored: polars has "Int64"."""
    kind = _OTHER_NAMES.get(name.lower())
    if kind is not None:
        return kind
    try:
        return pa.type_for_alias(name.lower())
    except ValueError:
        return pa.null()


def owners(schema: pa.Schema) -> dict[str, str]:
    """The columns of a table that other assets than the table's own, each with its asset."""
    owner_by_column = {field.name: (field.metadata or {}).get(ASSET_KEY.encode()) for field in schema}
    return {name: owner.decode() for name, owner in owner_by_column.items() if owner is not None}


def drop_owners(frame: pa.Schema, table: pa.Schema | None = None) -> pa.Schema:
    """A frame's columns without the owners that they had in the table from which they were read.

    Args:
        frame: The frame's columns.
        table: The columns of the table to which the frame is written; owners that are the same there are kept.
    """
    table_owners = {} if table is None else owners(table)
    for name, owner in owners(frame).items():
        if table_owners.get(name) != owner:
            position = frame.get_field_index(name)
            field = frame.field(position)
            other_metadata = {key: value for key, value in field.metadata.items() if key != ASSET_KEY.encode()}
            frame = frame.set(position, field.with_metadata(other_metadata or None))
    return frame


def apply_vector_widths(schema: pa.Schema, widths: Mapping[str, int]) -> pa.Schema:
    """The schema with some list columns as fixed-size lists.

    Raises:
        SchemaError: A column is missing, or is not a list.
    """
    for name, width in widths.items():
        position = schema.get_field_index(name)
        if position < 0:
            raise SchemaError(f"vector column {name!r} is not among the columns {schema.names}")
        field = schema.field(position)
        if not is_any_list(field.type):
            raise SchemaError(f"vector column {name!r} is of type {field.type}, not a list")
        schema = schema.set(position, field.with_type(pa.list_(field.type.value_field, width)))
    return schema


def apply_known_types(frame: pa.Schema, schema: pa.Schema, table: pa.Schema | None, *, without_rows: bool) -> pa.Schema:
    """A frame's columns, with declared types or the table's for columns that have only nulls, or no rows.

    Args:
        frame: The frame's columns.
        schema: The columns that the asset's metadata or annotation declares.
        table: The table's columns, which take precedence; None if there is no table yet.
        without_rows: Whether the frame has no rows. Then its own types are ignored for known columns, and a frame
            without columns gets all columns of the table, or else of `schema`.
    """
    types = {field.name: field for field in [*schema, *(table or ())]}
    if without_rows and not len(frame):
        return table if table is not None else schema
    return pa.schema(
        [
            types[field.name] if field.name in types and (without_rows or pa.types.is_null(field.type)) else field
            for field in frame
        ],
        frame.metadata,
    )


def find_types_for_nulls(table: pa.Schema, frame: pa.Schema) -> dict[str, pa.DataType]:
    """The columns of a table that have type null so far, with the types of the frame's columns."""
    nulls = {field.name for field in table if pa.types.is_null(field.type)}
    return {field.name: field.type for field in frame if field.name in nulls and not pa.types.is_null(field.type)}


def predict_table_schema(table: pa.Schema, frame: pa.Schema) -> pa.Schema:
    """The table's columns after the commit of a frame: columns of type null get the frame's types."""
    types = find_types_for_nulls(table, frame)
    if not types:
        return table
    return pa.schema([field.with_type(types.get(field.name, field.type)) for field in table], table.metadata)


def target_schema(frame: pa.Schema, table: pa.Schema | None, mode: CommitMode, schema_mode: SchemaMode) -> pa.Schema:
    """The columns with which a frame is written.

    Args:
        frame: The frame's columns.
        table: The table's columns; None if there is no table yet.
        mode: The mode of the commit.
        schema_mode: See the head of the module.

    Raises:
        SchemaError: The frame does not fit the table; the error names the column.
        InvalidInputError: `schema_mode` is overwrite, and the write does not overwrite the whole table.
    """
    _reject_clashing_names(frame)
    frame = drop_owners(frame, table)
    if table is None or (schema_mode == "overwrite" and mode == "overwrite"):
        return frame
    if schema_mode == "overwrite":
        raise InvalidInputError("schema_mode overwrite is for writes that overwrite the whole table")
    _reject_missing(frame, table, schema_mode)
    frame_columns = set(frame.names)
    for field in table:
        if field.name not in frame_columns:
            continue
        frame_type = frame.field(field.name).type
        if frame_type != field.type and not can_cast(frame_type, field.type):
            raise CastRejectedError(field.name, frame_type, field.type)
    table_columns = set(table.names)
    added = [field for field in frame if field.name not in table_columns]
    if not added:
        return table
    names = [field.name for field in added]
    if schema_mode == "strict":
        raise SchemaError(f"columns {names} are not in the table; schema_mode add_columns would add them")
    strict = [field.name for field in added if not field.nullable]
    if strict and mode != "overwrite":
        raise SchemaError(f"the new columns {strict} must be nullable: rows that are kept have no value for them")
    return pa.schema([*table, *added], table.metadata)


def fit_batch(batch: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a batch to the columns with which it is written.

    Raises:
        SchemaError: A value cannot be stored exactly, or is null in a column that is not nullable; the error names the
            column.
    """
    if not batch.num_rows:
        return empty_table(schema)
    columns = []
    batch_columns = set(batch.schema.names)
    for field in schema:
        column = batch.column(field.name) if field.name in batch_columns else pa.nulls(batch.num_rows, field.type)
        if column.type != field.type:
            column = cast_exactly(column, field)
        if not field.nullable and column.null_count:
            raise SchemaError(f"column {field.name!r} has nulls, but the table allows none")
        columns.append(column)
    return pa.table(columns, schema=schema)


def _reject_clashing_names(frame: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in frame.names:
        other = seen.get(name.lower())
        if other is not None:
            clash = "appears twice" if other == name else f"differs from {other!r} only by case"
            raise SchemaError(f"column {name!r} {clash}")
        seen[name.lower()] = name


def _reject_missing(frame: pa.Schema, table: pa.Schema, schema_mode: SchemaMode) -> None:
    lenient, owner_by_column = schema_mode == "add_columns", owners(table)
    frame_columns = set(frame.names)
    missing = [
        field.name
        for field in table
        if field.name not in frame_columns and not (field.nullable and (lenient or field.name in owner_by_column))
    ]
    if missing:
        raise SchemaError(
            f"columns {missing} of the table are missing from the output; schema_mode add_columns would fill nullable "
            "ones with nulls"
        )

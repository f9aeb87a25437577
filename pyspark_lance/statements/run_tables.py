"""Runs CREATE, DROP and ALTER, by lance_core's functions on the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import lance_core
from lance_core import LanceDataset
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, SchemaError, UnsupportedError
from pyspark_lance.catalog import manifest
from pyspark_lance.catalog.tables import CatalogTable, TableName
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.statements import records
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.run_rows import check_not_partitioned_by
from pyspark_lance.statements.table_properties import TableProperties, with_encodings
from pyspark_lance.statements.tables_grammar import COMMENT
from pyspark_lance.statements.tokens import Piece
from pyspark_lance.types.column_names import case_sensitive, matched_names, spelled_path
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.schema_plan import plan_write
from pyspark_lance.writing.write import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "add_columns",
    "alter_column",
    "create_table",
    "create_view",
    "drop_columns",
    "drop_table",
    "list_table",
    "new_table",
    "rename_column",
    "set_properties",
    "unset_properties",
]


def create_table(context: Context, statement: records.CreateTable) -> DataFrame:
    """Run a CREATE TABLE."""
    location, exists = new_table(context, statement.table)
    if exists and statement.if_not_exists:
        list_table(location, is_new=False)
        return context.nothing()
    if exists and not statement.replaces:
        raise context.finder.exists_error(statement.table, location)
    if statement.must_exist and not exists:
        raise DatasetNotFoundError(
            f"there is no table {statement.table}: CREATE OR REPLACE TABLE creates it if need be"
        )
    create = _create_empty if statement.query is None else _create_as
    done = create(context, statement, location, TableProperties(statement))
    list_table(location, is_new=not exists)
    return done


def create_view(context: Context, statement: records.CreateView) -> DataFrame:
    """Run a CREATE TEMPORARY VIEW; the view keeps the versions that were the latest."""
    rows = context.sources.query(statement.query)
    rows = rows.toDF(*statement.columns) if statement.columns else rows
    if statement.is_global and statement.replaces:
        rows.createOrReplaceGlobalTempView(statement.name)
    elif statement.is_global:
        rows.createGlobalTempView(statement.name)
    elif statement.replaces:
        rows.createOrReplaceTempView(statement.name)
    else:
        rows.createTempView(statement.name)
    return context.nothing()


def _create_empty(
    context: Context, statement: records.CreateTable, location: CatalogTable, properties: TableProperties
) -> DataFrame:
    schema = with_encodings(_schema(context, statement.columns or (), properties.widths), properties.encodings)
    _check_partitions(statement, schema.names)
    lance_core.commit_fragments(
        location.uri,
        [],
        schema,
        mode="overwrite" if statement.replaces else "create",
        table_config=properties.config or None,
        storage_options=location.storage_options,
        data_storage_version=properties.version,
        enable_stable_row_ids=properties.stable,
    )
    return context.nothing()


def _create_as(
    context: Context, statement: records.CreateTable, location: CatalogTable, properties: TableProperties
) -> DataFrame:
    assert statement.query is not None, "the caller has checked"
    if properties.encodings:
        columns = sorted(properties.encodings)
        raise InvalidInputError(
            f"TBLPROPERTIES: encodings of {columns} need a table that is created with columns, then filled"
        )
    rows = context.sources.query(statement.query)
    _check_partitions(statement, rows.columns)
    done = write(
        rows,
        location.uri,
        mode="overwrite" if statement.replaces else "create",
        schema_mode="overwrite" if statement.replaces else "strict",
        vector_columns=properties.widths or None,
        partition_by=list(statement.partitioned_by) or None,
        table_config=properties.config or None,
        data_storage_version=properties.version,
        storage_options=location.storage_options,
    )
    written = 0 if done is None else done.rows_written
    return context.counts(num_affected_rows=written, num_inserted_rows=written)


def _check_partitions(statement: records.CreateTable, names: Iterable[str]) -> None:
    unknown = set(statement.partitioned_by) - set(names)
    if unknown:
        raise SchemaError(f"PARTITIONED BY: there are no columns {sorted(unknown)}; the columns are {list(names)}")


def new_table(context: Context, name: TableName) -> tuple[CatalogTable, bool]:
    """The place of a table that a statement creates, and whether it already exists."""
    if name.ref is not None:
        raise InvalidInputError(f"{name}: a branch is created by CREATE BRANCH {name.ref} ON {'.'.join(name.parts)}")
    return context.finder.to_create(name)


def list_table(location: CatalogTable, *, is_new: bool) -> None:
    """Enter a table into the manifest table of its root, where there is one.

    Args:
        location: The place.
        is_new: Whether the statement has created the table, which is dropped again if another one has its name.
    """
    if location.catalog is None or location.path is None or location.listing_id is None:
        return
    try:
        manifest.register(location.catalog, location.listing_id, location.path)
    except DatasetExistsError:
        if is_new:
            LanceDataset.drop(location.uri, storage_options=location.storage_options)
        raise


def _type(context: Context, column: str, piece: Piece) -> DataType:
    from pyspark.sql.types import DataType as AnyType

    del context  # Spark parses types by the session of the process
    with short_errors(f"the type of column {column!r}, {piece}"):
        found = AnyType.fromDDL(piece.text)
    if "char(" in found.simpleString():
        raise UnsupportedError(
            f"column {column!r}: strings have no length here, as {piece} has: declare it as STRING. Nothing was done"
        )
    return found


def _schema(context: Context, columns: Iterable[records.Column], widths: dict[str, int]) -> pa.Schema:
    """The columns as they are stored.

    Raises:
        SchemaError: Two names differ only in case, and the session does not distinguish case.
    """
    from pyspark.sql.types import StructField as Field
    from pyspark.sql.types import StructType

    given = list(columns)
    twins = [name for name, count in Counter(one.name.lower() for one in given).items() if count > 1]
    if twins and not case_sensitive(context.spark):
        names = [one.name for one in given if one.name.lower() == twins[0]]
        raise SchemaError(
            f"columns {names} differ only in case: Spark distinguishes them by name only with"
            " spark.sql.caseSensitive=true. Nothing was done"
        )
    fields = [Field(one.name, _type(context, one.name, one.type), True) for one in given]
    stored = plan_write(batch_schema(StructType(fields)), None, vector_columns=widths or None).stored
    made = []
    for field, one, asked in zip(stored, given, fields, strict=True):
        metadata = dict(field.metadata or {}) | ({} if one.comment is None else {COMMENT: one.comment})
        kind = _with_not_null(field.type, asked.dataType)
        made.append(pa.field(field.name, kind, one.nullable, metadata or None))
    return pa.schema(made)


def _with_not_null(stored: pa.DataType, asked: DataType) -> pa.DataType:
    """A stored type in which those fields of structs are NOT NULL that a statement declares so."""
    from pyspark.sql import types

    if isinstance(asked, types.StructType) and pa.types.is_struct(stored):
        return pa.struct(
            child.with_type(_with_not_null(child.type, one.dataType)).with_nullable(one.nullable)
            for child, one in zip(stored, asked, strict=True)
        )
    if isinstance(asked, types.ArrayType) and pa.types.is_list(stored):
        return pa.list_(stored.value_field.with_type(_with_not_null(stored.value_type, asked.elementType)))
    if isinstance(asked, types.MapType):
        item = stored.item_field.with_type(_with_not_null(stored.item_type, asked.valueType))
        return pa.map_(stored.key_field.with_type(_with_not_null(stored.key_type, asked.keyType)), item)
    return stored


def drop_table(context: Context, statement: records.DropTable) -> DataFrame:
    """Run a DROP TABLE."""
    name = statement.table
    if name.ref is not None:
        raise InvalidInputError(f"{name}: a branch is dropped by DROP BRANCH {name.ref} ON {'.'.join(name.parts)}")
    try:
        location = context.finder.to_drop(name)
    except DatasetNotFoundError:
        if statement.if_exists:
            return context.nothing()
        raise
    if location.catalog is not None and location.path is not None:
        manifest.deregister(location.catalog, location.path)
    try:
        LanceDataset.drop(location.uri, storage_options=location.storage_options)
    except DatasetNotFoundError:  # it was listed, and never made
        if location.object_id is None:
            raise
    return context.nothing()


def add_columns(context: Context, statement: records.AddColumns) -> DataFrame:
    """Run an ALTER TABLE ... ADD COLUMNS."""
    dataset, _ = context.target(statement.table)
    schema = _schema(context, statement.columns, {})
    strict = [field.name for field in schema if not field.nullable]
    if strict:
        raise SchemaError(f"ADD COLUMNS: {strict} would be null in the rows that are there: leave NOT NULL out")
    taken = matched_names(schema.names, dataset.schema.names, exact=case_sensitive(context.spark))
    if taken:
        raise SchemaError(f"{statement.table} has the columns {sorted(taken.values())} already")
    dataset.add_columns(schema)
    return context.nothing()


def _spelled(context: Context, dataset: LanceDataset, path: str) -> str:
    return path if case_sensitive(context.spark) else spelled_path(dataset.schema, path)


def drop_columns(context: Context, statement: records.DropColumns) -> DataFrame:
    """Run an ALTER TABLE ... DROP COLUMNS."""
    dataset, _ = context.target(statement.table)
    names = [_spelled(context, dataset, name) for name in statement.columns]
    if statement.if_exists:
        names = [name for name in names if name.partition(".")[0] in dataset.schema.names]
    check_not_partitioned_by(statement.table, dataset, names)
    if names:
        dataset.drop_columns(names)
    return context.nothing()


def rename_column(context: Context, statement: records.RenameColumn) -> DataFrame:
    """Run an ALTER TABLE ... RENAME COLUMN."""
    dataset, _ = context.target(statement.table)
    name = _spelled(context, dataset, statement.column)
    check_not_partitioned_by(statement.table, dataset, [name])
    dataset.alter_columns({"path": name, "name": statement.to})
    return context.nothing()


def alter_column(context: Context, statement: records.AlterColumn) -> DataFrame:
    """Run an ALTER TABLE ... ALTER COLUMN."""
    dataset, _ = context.target(statement.table)
    path = _spelled(context, dataset, statement.column)
    if statement.comment is not None:
        dataset.update_field_metadata({path: {COMMENT: statement.comment}})
        return context.nothing()
    change: dict[str, Any] = {"path": path}
    if statement.type is not None:
        column = records.Column(name="c", type=statement.type)
        change["data_type"] = _schema(context, [column], {}).field(0).type
    if statement.nullable is not None:
        change["nullable"] = statement.nullable
    dataset.alter_columns(change)
    return context.nothing()


def set_properties(context: Context, statement: records.SetProperties) -> DataFrame:
    """Run an ALTER TABLE ... SET TBLPROPERTIES."""
    dataset, _ = context.target(statement.table)
    dataset.update_config(statement.properties)
    return context.nothing()


def unset_properties(context: Context, statement: records.UnsetProperties) -> DataFrame:
    """Run an ALTER TABLE ... UNSET TBLPROPERTIES."""
    dataset, _ = context.target(statement.table)
    known = [key for key in statement.keys if key in dataset.config()]
    if len(known) < len(statement.keys) and not statement.if_exists:
        lacking = sorted(set(statement.keys) - set(known))
        raise InvalidInputError(f"{statement.table} has no properties {lacking}; UNSET ... IF EXISTS passes over them")
    if known:
        dataset.delete_config_keys(known)
    return context.nothing()

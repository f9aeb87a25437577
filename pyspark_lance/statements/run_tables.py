"""Runs CREATE, DROP and ALTER, by lance_core's functions on the table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

import lance_core
from lance_core import FileOptions, LanceDataset, catalog
from lance_core.errors import DatasetExistsError, DatasetNotFoundError, InvalidInputError, SchemaError, UnsupportedError
from pyspark_lance.catalog.tables import CatalogTable, TableName, open_listed
from pyspark_lance.engine.errors import short_errors
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.lazy import DataFrame, DataType, types
from pyspark_lance.releases import LOWEST, is_at_least, missing_release
from pyspark_lance.statements.context import Context
from pyspark_lance.statements.table_properties import COMMENT, TableProperties, with_encodings
from pyspark_lance.statements.tokens import Piece
from pyspark_lance.types.arrow_types import SPARK_TYPE
from pyspark_lance.types.column_names import case_sensitive, check_spellings, match_names, respell_path
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.options import PARTITIONED_BY, configured_partition_columns
from pyspark_lance.writing.schema_plan import plan_write

_BY_UPDATE: Final = "ADD COLUMN of the new type, UPDATE it by CAST, then DROP COLUMN and RENAME COLUMN"
_LATER_TYPES: Final = {
    "COLLATE": ((4, 0), "STRING"),
    "VARIANT": ((4, 0), "STRUCT<value: BINARY, metadata: BINARY>"),
    "GEOGRAPHY": ((4, 1), "BINARY"),
    "GEOMETRY": ((4, 1), "BINARY"),
    "TIME": ((4, 1), "INTERVAL DAY TO SECOND"),
}
"""By the word of a declared type, the release of Spark that has it first, and a type of each release."""
_REJECTED_TYPE: Final = re.compile(r"(?:data type \"|near ')(\w+)")
_Mode = Literal["overwrite", "create"]
_UNITS: Final = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of CREATE TABLE or ADD COLUMNS."""

    name: str
    type: Piece
    nullable: bool = True
    comment: str | None = None


def create_table(
    context: Context,
    *,
    table: TableName,
    columns: Sequence[Column] | None,
    query: Piece | None,
    if_not_exists: bool,
    replaces: bool,
    must_exist: bool,
    partitioned_by: Sequence[str],
    properties: Mapping[str, str],
) -> DataFrame:
    """Run a CREATE [OR REPLACE] TABLE or a REPLACE TABLE, of `columns` or of a query."""
    location, exists = new_table(context, table)
    if exists and if_not_exists:
        list_table(location, is_new=False)
        return context.nothing()
    if exists and not replaces:
        raise context.finder.exists_error(table, location)
    if must_exist and not exists:
        raise DatasetNotFoundError(f"there is no table {table}: CREATE OR REPLACE TABLE creates a missing table")
    context.changed = replaced = location.open() if exists else None
    rows = None if query is None else context.rows(query)
    if rows is not None:
        check_spellings(rows, rows.columns)
    names = [column.name for column in columns or ()] if rows is None else rows.columns
    partitions = _partitions(context, partitioned_by, names)
    table_properties = TableProperties(properties, partitions, has_query=rows is not None)
    old = [] if replaced is None else table_properties.find_dropped_keys(replaced.config())
    if PARTITIONED_BY in old:  # no later version of the table has the partitions of the old one
        table_properties.config[PARTITIONED_BY] = ""
    mode: _Mode = "overwrite" if replaces else "create"
    if rows is None:
        answer = _create_empty(context, columns or (), mode, location, table_properties)
    else:
        answer = _create_as(context, rows, mode, location, table_properties)
    if old:  # a commit that replaces a table sets keys, and removes none
        location.open().delete_config_keys(old)
    list_table(location, is_new=not exists)
    return answer


def create_view(
    context: Context, *, name: str, columns: Sequence[str], query: Piece, replaces: bool, is_global: bool
) -> DataFrame:
    """Run a CREATE TEMPORARY VIEW; the view always shows the versions that its query reads now."""
    rows = context.query(query)
    rows = rows.toDF(*columns) if columns else rows
    getattr(rows, f"create{'OrReplace' * replaces}{'Global' * is_global}TempView")(name)
    return context.nothing()


def _create_empty(
    context: Context, columns: Iterable[Column], mode: _Mode, location: CatalogTable, properties: TableProperties
) -> DataFrame:
    schema = with_encodings(_schema(context, columns, properties.widths), properties.encodings)
    check_keys_of("PARTITIONED BY", map(schema.field, properties.partitions))
    location = context.target_location = location.declared()
    lance_core.commit_fragments(
        location.uri,
        [],
        schema,
        mode=mode,
        table_config=properties.config or None,
        storage_options=location.storage_options,
        files=FileOptions(data_storage_version=properties.version, enable_stable_row_ids=properties.stable),
    )
    return context.nothing()


def _create_as(
    context: Context, rows: DataFrame, mode: _Mode, location: CatalogTable, properties: TableProperties
) -> DataFrame:
    if properties.encodings:
        columns = sorted(properties.encodings)
        raise InvalidInputError(
            f"TBLPROPERTIES: encodings of {columns} need a table that is created with columns, then filled"
        )
    batch_schema(rows.schema)  # what cannot be stored is rejected before a namespace declares the table
    location = context.target_location = location.declared()
    written = context.write(
        rows,
        location.uri,
        mode=mode,
        schema_mode="overwrite" if mode == "overwrite" else "strict",
        vector_columns=properties.widths or None,
        partition_by=tuple(properties.partitions) or None,
        partition_overwrite="static",
        table_config=properties.config or None,
        data_storage_version=properties.version,
        storage_options=location.storage_options,
    )
    return context.counts(num_affected_rows=written, num_inserted_rows=written)


def _partitions(context: Context, partitioned_by: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The columns of PARTITIONED BY as the table spells them."""
    spellings = match_names(partitioned_by, names, exact=case_sensitive(context.spark))
    unknown = set(partitioned_by) - set(spellings)
    if unknown:
        raise SchemaError(f"PARTITIONED BY: there are no columns {sorted(unknown)}; the columns are {list(names)}")
    return tuple(spellings[name] for name in partitioned_by)


def new_table(context: Context, name: TableName) -> tuple[CatalogTable, bool]:
    """The location of a table that a statement creates, and whether it already exists."""
    if name.ref is not None:
        raise InvalidInputError(f"{name}: a table has no branches before it exists: leave out @{name.ref}")
    return context.finder.locate_new_table(name)


def list_table(location: CatalogTable, *, is_new: bool) -> None:
    """Add a table to the manifest table of its root, if there is one.

    Args:
        location: The location of the table.
        is_new: Whether the statement has created the table; it is then dropped if another table has its name.

    Raises:
        DatasetExistsError: Another table, or a namespace, has the name.
    """
    if location.catalog is None or location.path is None or location.listing_id is None:
        return
    try:
        catalog.register(
            location.catalog.root,
            location.listing_id,
            location.path,
            storage_options=location.catalog.storage_options,
        )
    except DatasetExistsError:
        if is_new:
            LanceDataset.drop(location.uri, storage_options=location.storage_options)
        raise


def _type(context: Context, column: str, piece: Piece) -> DataType:
    at = context.describe_position(piece.start)
    parse: Any = types.StructType.fromDDL if is_at_least((4, 0)) else types._parse_datatype_string  # noqa: SLF001 - 3.5 has no other
    try:
        with short_errors(f"{at}: the type of column {column!r}, {piece}"):
            row = parse(f"`c` {piece}")  # alone, `a INT` would be a struct
    except InvalidInputError as error:
        _check_release(str(error), f"{at}: column {column!r}")
        raise
    spark_type: DataType = row[0].dataType
    if row != types.StructType([types.StructField("c", spark_type)]):
        raise InvalidInputError(f"{at}: {piece} is more than the type of column {column!r}. Nothing was done")
    if "char(" in spark_type.simpleString():
        raise UnsupportedError(
            f"column {column!r}: strings have no length here, and {piece} has one: declare it as STRING. Nothing was"
            " done"
        )
    return spark_type


def _check_release(message: str, where: str) -> None:
    """Make sure that a type that Spark rejects is not one of a later release.

    Args:
        message: Spark's message.
        where: The statement's line and column, and the name of the column.

    Raises:
        UnsupportedError: The type is one of a later release; the message names both.
    """
    rejected = _REJECTED_TYPE.search(message)
    name = rejected[1].upper() if rejected else ""
    release, instead = _LATER_TYPES.get(name, (LOWEST, ""))
    missing = missing_release(name, release)
    if missing is not None:
        raise UnsupportedError(f"{where}: {missing}; declare it as {instead}. Nothing was done")


def _schema(context: Context, columns: Iterable[Column], widths: dict[str, int]) -> pa.Schema:
    """The columns as they are stored.

    Raises:
        SchemaError: Two names differ only in case, and the session does not distinguish case.
    """
    declared_columns = list(columns)
    twins = [name for name, count in Counter(column.name.lower() for column in declared_columns).items() if count > 1]
    if twins and not case_sensitive(context.spark):
        names = [column.name for column in declared_columns if column.name.lower() == twins[0]]
        raise SchemaError(
            f"columns {names} differ only in case: Spark distinguishes them by name only with"
            " spark.sql.caseSensitive=true. Nothing was done"
        )
    fields = [
        types.StructField(column.name, _type(context, column.name, column.type), True) for column in declared_columns
    ]
    stored = plan_write(batch_schema(types.StructType(fields)), None, vector_columns=widths or None).stored
    schema_fields = []
    for field, column, spark_field in zip(stored, declared_columns, fields, strict=True):
        metadata = dict(field.metadata or {}) | ({} if column.comment is None else {COMMENT: column.comment})
        kind = _apply_not_null(field.type, spark_field.dataType)
        schema_fields.append(pa.field(field.name, kind, column.nullable, metadata or None))
    return pa.schema(schema_fields)


def _apply_not_null(stored: pa.DataType, spark_type: DataType) -> pa.DataType:
    """A stored type whose fields of structs are NOT NULL where the statement declares them so."""
    if isinstance(spark_type, types.StructType) and pa.types.is_struct(stored):
        return pa.struct(
            child.with_type(_apply_not_null(child.type, spark_field.dataType)).with_nullable(spark_field.nullable)
            for child, spark_field in zip(stored, spark_type, strict=True)
        )
    if isinstance(spark_type, types.ArrayType) and pa.types.is_list(stored):
        return pa.list_(stored.value_field.with_type(_apply_not_null(stored.value_type, spark_type.elementType)))
    if isinstance(spark_type, types.MapType):
        item = stored.item_field.with_type(_apply_not_null(stored.item_type, spark_type.valueType))
        return pa.map_(stored.key_field.with_type(_apply_not_null(stored.key_type, spark_type.keyType)), item)
    return stored


def drop_table(context: Context, *, table: TableName, if_exists: bool) -> DataFrame:
    """Run a DROP TABLE [IF EXISTS]."""
    if table.ref is not None:
        raise InvalidInputError(f"{table}: CALL {table.parts[0]}.system.delete_branch(...) drops a branch")
    try:
        location = context.finder.locate(table)
        if location.object_id is None:  # the manifest table does not list it
            open_listed(table, location)
    except DatasetNotFoundError:
        if if_exists:
            return context.nothing()
        raise
    try:
        LanceDataset.drop(location.uri, storage_options=location.storage_options)
    except DatasetNotFoundError:  # the table was listed, but never created
        if location.object_id is None:
            raise
    if location.catalog is not None and location.catalog.namespace is not None and location.object_id is not None:
        catalog.Namespace(location.catalog.namespace).deregister(location.object_id.split(catalog.DELIMITER))
    if location.catalog is not None and location.path is not None:
        root, options = location.catalog.root, location.catalog.storage_options
        catalog.deregister(root, location.path, missing_ok=True, storage_options=options)
    return context.nothing()


def add_columns(context: Context, *, table: TableName, columns: Sequence[Column]) -> DataFrame:
    """Run an ALTER TABLE ... ADD COLUMNS."""
    dataset, _ = context.target(table)
    schema = _schema(context, columns, {})
    strict = [field.name for field in schema if not field.nullable]
    if strict:
        raise SchemaError(f"ADD COLUMNS: {strict} would be null in the existing rows: leave NOT NULL out")
    existing_columns = match_names(schema.names, dataset.schema.names, exact=case_sensitive(context.spark))
    if existing_columns:
        raise SchemaError(f"ADD COLUMNS: {table} already has the columns {sorted(existing_columns.values())}")
    dataset.add_columns(schema)
    return context.nothing()


def respell_column(context: Context, dataset: LanceDataset, path: str) -> str:
    """A column, or a dotted path to a field, as the table spells it, by `spark.sql.caseSensitive`."""
    return path if case_sensitive(context.spark) else respell_path(dataset.schema, path)


def drop_columns(context: Context, *, table: TableName, columns: Sequence[str], if_exists: bool) -> DataFrame:
    """Run an ALTER TABLE ... DROP COLUMNS."""
    dataset, _ = context.target(table)
    names = [respell_column(context, dataset, name) for name in columns]
    if if_exists:
        names = [name for name in names if name.partition(".")[0] in dataset.schema.names]
    _check_not_partitioned_by(table, dataset, names)
    _check_fields_are_left(dataset, names)
    if names:
        dataset.drop_columns(names)
    return context.nothing()


def rename_column(context: Context, *, table: TableName, column: str, to: str) -> DataFrame:
    """Run an ALTER TABLE ... RENAME COLUMN."""
    dataset, _ = context.target(table)
    name = respell_column(context, dataset, column)
    _check_not_partitioned_by(table, dataset, [name])
    twins = [other_name for other_name in _list_siblings(dataset.schema, name) if other_name.lower() == to.lower()]
    if twins and not case_sensitive(context.spark):
        raise SchemaError(
            f"RENAME COLUMN: {twins[0]!r} and {to!r} differ only in case at most: Spark distinguishes them by"
            " name only with spark.sql.caseSensitive=true. Nothing was done"
        )
    dataset.alter_columns({"path": name, "name": to})
    return context.nothing()


def _check_not_partitioned_by(table: TableName, dataset: LanceDataset, names: Iterable[str]) -> None:
    """Make sure that a table is not partitioned by columns that are to be dropped or renamed.

    Raises:
        InvalidInputError: The table is partitioned by one of them, so that a dynamic overwrite would replace all rows.
    """
    partition_columns = sorted(set(names) & set(configured_partition_columns(dataset)))
    if partition_columns:
        raise InvalidInputError(
            f"{table} is PARTITIONED BY {', '.join(partition_columns)}: to drop or rename the column, first run"
            f" ALTER TABLE {table} UNSET TBLPROPERTIES ('{PARTITIONED_BY}'); SET TBLPROPERTIES ('{PARTITIONED_BY}' ="
            " 'column') partitions it again. Nothing was done"
        )


def _fields_with(schema: pa.Schema, path: str) -> dict[str, pa.Field]:
    """The columns, or the fields of the struct, of which a path names one; none if there is no such struct."""
    fields = {field.name: field for field in schema}
    for name in path.split(".")[:-1]:
        kind = fields[name].type if name in fields else None
        fields = {field.name: field for field in kind} if kind is not None and pa.types.is_struct(kind) else {}
    return fields


def _list_siblings(schema: pa.Schema, path: str) -> list[str]:
    """The names of the other columns, or of the other fields of the struct, beside the column or field of a path."""
    return [name for name in _fields_with(schema, path) if name != path.rpartition(".")[2]]


def _check_fields_are_left(dataset: LanceDataset, paths: Sequence[str]) -> None:
    """Make sure that no struct loses all of its fields: Lance would drop the struct as well.

    Raises:
        SchemaError: A struct would lose all of its fields.
    """
    for path in paths:
        above, _, field_name = path.rpartition(".")
        left = {f"{above}.{name}" for name in _list_siblings(dataset.schema, path)} - {*paths}
        if above and above not in paths and not left and field_name in _fields_with(dataset.schema, path):
            raise SchemaError(
                f"DROP COLUMN: no field of {above} would be left; DROP COLUMN {above} drops it as a whole. Nothing was"
                " done"
            )


def _check_retype(path: str, stored: pa.Field, new_field: pa.Field) -> None:
    """Make sure that a type holds all values of the type before it; casts check numbers themselves.

    Raises:
        SchemaError: Values would be rounded, a time would depend on the zone of the session, or a string would be
            compared differently.
    """
    types, old, new = pa.types, stored.type, new_field.type
    spark = [(field.metadata or {}).get(SPARK_TYPE) for field in (stored, new_field)]
    if spark[0] != spark[1]:
        kinds = [
            str(field.type) if spark_type is None else spark_type.decode()
            for field, spark_type in zip((stored, new_field), spark, strict=True)
        ]
        raise SchemaError(f"ALTER COLUMN {path}: {kinds[0]} cannot become {kinds[1]}; {_BY_UPDATE}. Nothing was done")
    is_kept = True
    if types.is_floating(old) and types.is_floating(new):
        is_kept = new.bit_width >= old.bit_width
    elif types.is_temporal(old) and types.is_temporal(new):
        is_day = types.is_date(old) and types.is_timestamp(new) and new.tz is None
        alike = type(old) is type(new) and getattr(old, "tz", None) == getattr(new, "tz", None)
        is_finer = alike and hasattr(old, "unit") and _UNITS.index(new.unit) >= _UNITS.index(old.unit)
        is_kept = old == new or is_day or is_finer
    if not is_kept:
        raise SchemaError(
            f"ALTER COLUMN {path}: {new} does not hold all values of {old}; {_BY_UPDATE}. Nothing was done"
        )


def alter_column(
    context: Context,
    *,
    table: TableName,
    column: str,
    kind: Piece | None = None,
    nullable: bool | None = None,
    comment: str | None = None,
) -> DataFrame:
    """Run an ALTER TABLE ... ALTER COLUMN."""
    dataset, _ = context.target(table)
    path = respell_column(context, dataset, column)
    if comment is not None:
        dataset.update_field_metadata({path: {COMMENT: comment}})
        return context.nothing()
    change: dict[str, Any] = {"path": path}
    if kind is not None:
        name = path.rpartition(".")[2]
        new_field = _schema(context, [Column(name=name, type=kind)], {}).field(0)
        stored = _fields_with(dataset.schema, path).get(name)
        if stored is not None:  # otherwise `alter_columns` names the existing columns
            _check_retype(path, stored, new_field)
        change["data_type"] = new_field.type
    if nullable is not None:
        change["nullable"] = nullable
    dataset.alter_columns(change)
    return context.nothing()


def set_properties(context: Context, *, table: TableName, properties: Mapping[str, str]) -> DataFrame:
    """Run an ALTER TABLE ... SET TBLPROPERTIES."""
    dataset, _ = context.target(table)
    dataset.update_config(properties)
    return context.nothing()


def unset_properties(context: Context, *, table: TableName, keys: Sequence[str], if_exists: bool) -> DataFrame:
    """Run an ALTER TABLE ... UNSET TBLPROPERTIES."""
    dataset, _ = context.target(table)
    existing_keys = [key for key in keys if key in dataset.config()]
    if len(existing_keys) < len(keys) and not if_exists:
        lacking = sorted(set(keys) - set(existing_keys))
        raise InvalidInputError(f"{table} has no properties {lacking}; UNSET ... IF EXISTS ignores them")
    if existing_keys:
        dataset.delete_config_keys(existing_keys)
    return context.nothing()

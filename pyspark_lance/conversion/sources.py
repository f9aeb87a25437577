"""The Parquet files and columns of a Delta or an Iceberg table, as their own libraries report them.

    Delta      the log names files, and gives partition columns and types; columns by name
    Iceberg    manifests name files, and give identity partition columns; columns by the ids in the files, so that
               renamed columns are found

A table that its Parquet files do not describe fully is rejected: separate files or deletion vectors delete some of its
rows, its files have other column names, or columns that were added later have default values.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from pyspark_lance.lazy import DataType, StructType, types
from pyspark_lance.types.arrow_types import from_arrow

BY_ID: Final = "spark.sql.parquet.fieldId.read.enabled"
"""The setting by which Spark finds columns in Parquet files by the ids of `SourceFiles.schema`."""

_ID: Final = "parquet.field.id"
_ARROW_ID: Final = b"PARQUET:field_id"
_ABSOLUTE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Start of a URI, by which a table names a file that is not in its folder, for example a clone."""
_VERSION: Final = re.compile(r"v?(\d+)[^/]*\.metadata\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """Parquet files of a source; a table that Spark's own reader reads as a whole counts as one file.

    Attributes:
        base: The folder below which folders name partitions; None if no folder names a partition.
        sizes: Bytes of the files, by name.
        times: Modification times of the files, by name, if files may be overwritten; of a whole table its version.
        schema: The columns, with ids if files are read by these; None if the files define them.
        is_whole: Whether Spark's own reader reads the table as a whole.
        constants: The columns that have one value in all rows of a file by the metadata of the table, by the file's
            name: the file itself may lack them, and folders are no values.
    """

    base: str | None
    sizes: Mapping[str, int]
    times: Mapping[str, int | str] = field(default_factory=dict)
    schema: StructType | None = None
    is_whole: bool = False
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_table(self) -> bool:
        """Whether a table format says which files are there, so that a file that disappears is not a mere clean-up."""
        return self.is_whole or self.schema is not None

    def state(self, name: str) -> str:
        """Size and time of a file, which change when the file is overwritten."""
        return f"{self.sizes[name]} {self.times.get(name, '')}"


def list_foreign_files(source: str, form: Literal["delta", "iceberg"]) -> SourceFiles:
    """The files of a table of another format.

    Raises:
        UnsupportedError: The library is not installed, or the files do not describe the table fully.
    """
    return _list_delta_files(source) if form == "delta" else _list_iceberg_files(source)


def filesystem_of(path: str) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and the URI."""
    uri = lance_core.canonical_uri(path)
    filesystem, inner = fs.FileSystem.from_uri(uri)
    return filesystem, inner, uri


def _list_delta_files(source: str) -> SourceFiles:
    table = _library("deltalake", "delta").DeltaTable(source)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise UnsupportedError(
            f"{source}: its files have other column names (column mapping by {mapping}), which only Spark with Delta's"
            " jar can read"
        )
    _reject_deletion_vectors(table, source)
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = map(unquote, actions.column("path").to_pylist())
    names = [path if _ABSOLUTE.match(path) else f"{source.rstrip('/')}/{path}" for path in paths]
    sizes = dict(sorted(zip(names, actions.column("size_bytes").to_pylist(), strict=True)))
    columns = {name: f"partition.{name}" for name in table.metadata().partition_columns}
    values = actions.select(list(columns.values())).rename_columns(list(columns)).to_pylist() if columns else []
    schema = types.StructType.fromJson(json.loads(table.schema().to_json()))
    return SourceFiles(base=None, sizes=sizes, schema=schema, constants=dict(zip(names, values, strict=False)))


def _reject_deletion_vectors(table: Any, source: str) -> None:
    """Reject a Delta table of whose files some rows are deleted.

    Raises:
        UnsupportedError: A file has a deletion vector, or the library cannot say whether one has.
    """
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return
    try:
        is_used = pa.table(table.deletion_vectors()).num_rows > 0
    except Exception as error:  # the library has no base class of its errors; earlier releases lack the method
        message = f"{source}: its deletion vectors cannot be read: {error}. Nothing was written"
        raise UnsupportedError(message) from error
    if is_used:
        raise UnsupportedError(
            f"{source}: deletion vectors of Delta can only be read by Spark with Delta's jar. Nothing was written:"
            " purge them first (REORG TABLE ... APPLY (PURGE) in Spark)"
        )


def _list_iceberg_files(source: str) -> SourceFiles:
    table = _library("pyiceberg.table", "iceberg").StaticTable.from_metadata(_find_newest_metadata(source))
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise UnsupportedError(f"{source}: delete files of Iceberg can only be read by Spark with Iceberg's jar")
    schema = table.schema()
    fields = _library("pyiceberg.schema", "iceberg").index_by_id(schema)  # also those of structs, lists and maps
    late = [schema.find_column_name(number) for number, field in fields.items() if field.initial_default is not None]
    if late:
        raise UnsupportedError(f"{source}: default values of the columns {late} can only be read with Iceberg's jar")
    sizes = {task.file.file_path: task.file.file_size_in_bytes for task in tasks}
    specs = {
        number: [
            (place, schema.find_field(partition_field.source_id))
            for place, partition_field in enumerate(spec.fields)
            if str(partition_field.transform) == "identity"
            and partition_field.source_id in {top.field_id for top in schema.fields}
        ]
        for number, spec in table.specs().items()
    }
    constants = {
        task.file.file_path: {
            field.name: _partition_value(task.file.partition[place], str(field.field_type), source)
            for place, field in specs[task.file.spec_id]
        }
        for task in tasks
    }
    arrow = pa.schema([_replace_uuids(field) for field in schema.as_arrow()])
    columns: Any = _with_ids(
        from_arrow(pa.schema([field.remove_metadata() for field in arrow])), pa.struct(list(arrow))
    )
    return SourceFiles(base=None, sizes=sizes, schema=columns, constants=constants)


def _partition_value(value: Any, kind: str, source: str) -> Any:
    """The value of an identity partition column, which Iceberg gives as it is stored.

    Raises:
        UnsupportedError: Values of the type are not known to Spark.
    """
    if value is None or kind in ("boolean", "int", "long", "float", "double", "string", "binary"):
        return value
    if kind == "date":
        return dt.date(1970, 1, 1) + dt.timedelta(days=value)
    if kind in ("timestamp", "timestamptz"):
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC if kind == "timestamptz" else None)
        return epoch + dt.timedelta(microseconds=value)
    if kind == "uuid":
        return value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    if kind.startswith(("decimal", "fixed")):
        return value
    raise UnsupportedError(f"{source}: partitions by a column of type {kind} cannot be read")


def _replace_uuids(field: pa.Field) -> pa.Field:
    """A field with 16 bytes in place of each UUID, a type that Spark does not have."""
    kind: Any = field.type
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_fixed_size_binary(kind):
        kind = pa.binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([_replace_uuids(child) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_replace_uuids(kind.key_field), _replace_uuids(kind.item_field))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_replace_uuids(kind.value_field))
    return field.with_type(kind)


def _find_newest_metadata(source: str) -> str:
    """The metadata file with the highest number in the folder of an Iceberg table."""
    if source.endswith(".metadata.json"):
        return source
    filesystem, inner, uri = filesystem_of(source)
    files_by_version: dict[int, list[str]] = {}
    for file_info in filesystem.get_file_info(fs.FileSelector(f"{inner}/metadata")):
        match = _VERSION.match(file_info.base_name)
        if match:
            files_by_version.setdefault(int(match.group(1)), []).append(uri + file_info.path.removeprefix(inner))
    newest = files_by_version[max(files_by_version)] if files_by_version else []
    if len(newest) != 1:
        raise InvalidInputError(
            f"{source}: {len(newest)} metadata files, {newest}, have the highest number, instead of one; name the"
            " newest metadata file as the source"
        )
    return str(newest[0])


def _with_ids(kind: DataType, arrow: pa.DataType) -> DataType:
    """A Spark type whose fields have the ids of the fields of an Arrow type."""
    if isinstance(kind, types.StructType):
        fields = [
            types.StructField(
                spark_field.name,
                _with_ids(spark_field.dataType, field.type),
                metadata={_ID: int((field.metadata or {})[_ARROW_ID])},
            )
            for spark_field, field in zip(kind.fields, arrow, strict=True)
        ]
        return types.StructType(fields)
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_with_ids(kind.elementType, arrow.value_type))
    if isinstance(kind, types.MapType):
        return types.MapType(_with_ids(kind.keyType, arrow.key_type), _with_ids(kind.valueType, arrow.item_type))
    return kind


def _library(name: str, form: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise UnsupportedError(
            f"{form}: this Spark session has no reader for it (its jar is missing), and the Python package"
            f" {package} is not installed: `pip install {package}`, or start Spark with the jar"
        ) from error

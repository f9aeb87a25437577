"""The Parquet files and columns of a Delta or an Iceberg table, as their own libraries report them.

    Delta      the log names files; columns by name, partitions by folders (`day=01/`), types from the log
    Iceberg    manifests name files; columns by the ids in the files, so that renamed columns are found

A table that its Parquet files do not describe fully is rejected: separate files delete some of its rows, its files have
other column names, or columns that were added later have default values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

import lance_core
from lance_core.errors import InvalidInputError, UnsupportedError
from pyspark_lance.types.arrow_types import from_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["BY_ID", "SourceFiles", "filesystem_of", "foreign_files"]

BY_ID: Final = "spark.sql.parquet.fieldId.read.enabled"
"""The setting by which Spark finds columns in Parquet files by the ids of `SourceFiles.schema`."""

_ID: Final = "parquet.field.id"
_ARROW_ID: Final = b"PARQUET:field_id"
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
    """

    base: str | None
    sizes: Mapping[str, int]
    times: Mapping[str, int | str] = field(default_factory=dict)
    schema: StructType | None = None
    is_whole: bool = False

    @property
    def is_table(self) -> bool:
        """Whether a table format says which files are there, so that a file that disappears is not a mere clean-up."""
        return self.is_whole or self.schema is not None

    def state(self, name: str) -> str:
        """Size and time of a file, which change when the file is overwritten."""
        return f"{self.sizes[name]} {self.times.get(name, '')}"


def foreign_files(source: str, form: Literal["delta", "iceberg"]) -> SourceFiles:
    """The files of a table of another format.

    Raises:
        UnsupportedError: The library is not installed, or the files do not describe the table fully.
    """
    return _delta(source) if form == "delta" else _iceberg(source)


def filesystem_of(path: str) -> tuple[Any, str, str]:
    """The file system of a path, the path in it, and the URI."""
    uri = lance_core.canonical_uri(path)
    filesystem, inner = fs.FileSystem.from_uri(uri)
    return filesystem, inner, uri


def _delta(source: str) -> SourceFiles:
    from pyspark.sql.types import StructType

    table = _library("deltalake", "delta").DeltaTable(source)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise UnsupportedError(
            f"{source}: its files have other column names (column mapping by {mapping}), which only Spark with Delta's"
            " jar can read"
        )
    actions = pa.table(table.get_add_actions(flatten=True))
    if any(
        "deletion" in name.lower() and actions.column(name).null_count < len(actions) for name in actions.schema.names
    ):
        raise UnsupportedError(f"{source}: deletion vectors of Delta can only be read by Spark with Delta's jar")
    names = [f"{source.rstrip('/')}/{unquote(path)}" for path in actions.column("path").to_pylist()]
    sizes = dict(sorted(zip(names, actions.column("size_bytes").to_pylist(), strict=True)))
    return SourceFiles(base=source, sizes=sizes, schema=StructType.fromJson(json.loads(table.schema().to_json())))


def _iceberg(source: str) -> SourceFiles:
    table = _library("pyiceberg.table", "iceberg").StaticTable.from_metadata(_newest_metadata(source))
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise UnsupportedError(f"{source}: delete files of Iceberg can only be read by Spark with Iceberg's jar")
    schema = table.schema()
    fields = _library("pyiceberg.schema", "iceberg").index_by_id(schema)  # also those of structs, lists and maps
    late = [schema.find_column_name(number) for number, one in fields.items() if one.initial_default is not None]
    if late:
        raise UnsupportedError(f"{source}: default values of the columns {late} can only be read with Iceberg's jar")
    sizes = {task.file.file_path: task.file.file_size_in_bytes for task in tasks}
    arrow = schema.as_arrow()
    columns: Any = _with_ids(from_arrow(pa.schema([one.remove_metadata() for one in arrow])), pa.struct(list(arrow)))
    return SourceFiles(base=None, sizes=sizes, schema=columns)


def _newest_metadata(source: str) -> str:
    """The metadata file with the highest number in the folder of an Iceberg table."""
    if source.endswith(".metadata.json"):
        return source
    filesystem, inner, uri = filesystem_of(source)
    found: dict[int, list[str]] = {}
    for one in filesystem.get_file_info(fs.FileSelector(f"{inner}/metadata")):
        match = _VERSION.match(one.base_name)
        if match:
            found.setdefault(int(match.group(1)), []).append(uri + one.path.removeprefix(inner))
    newest = found[max(found)] if found else []
    if len(newest) != 1:
        raise InvalidInputError(
            f"{source}: {len(newest)} metadata files, {newest}, have the highest number, instead of one; name the"
            " newest metadata file as the source"
        )
    return str(newest[0])


def _with_ids(kind: DataType, arrow: pa.DataType) -> DataType:
    """A Spark type whose fields have the ids of the fields of an Arrow type."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        fields = [
            types.StructField(
                one.name, _with_ids(one.dataType, field.type), metadata={_ID: int((field.metadata or {})[_ARROW_ID])}
            )
            for one, field in zip(kind.fields, arrow, strict=True)
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

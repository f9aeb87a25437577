"""SHOW CREATE TABLE: the statement that makes a table with the same columns, partitions and properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lance_core import LanceDataset
from pyspark_lance.catalog.tables import TableName
from pyspark_lance.statements.table_properties import COMMENT, format_properties
from pyspark_lance.types.column_names import quoted
from pyspark_lance.types.spark_types import spark_schema
from pyspark_lance.writing.partitioning import partition_by

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_ESCAPES: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})


def create_statement(name: TableName, dataset: LanceDataset, config: Mapping[str, str]) -> str:
    """The statement that creates a table such as this one.

    Args:
        name: The name of the table.
        dataset: The table.
        config: Its configuration, without the keys that these packages keep for themselves.
    """
    columns = [f"  {field_text}" for field_text in _fields(spark_schema(dataset.schema), list(dataset.schema), " ")]
    lines = [f"CREATE TABLE {'.'.join(map(_plain, name.parts))} (\n" + ",\n".join(columns) + ")", "USING lance"]
    partitions = partition_by(dataset)
    if partitions:
        lines.append(f"PARTITIONED BY ({', '.join(map(quoted, partitions))})")
    properties = {**config, **format_properties(dataset)}
    if properties:
        entries = ", ".join(f"{_string(key)} = {_string(value)}" for key, value in properties.items())
        lines.append(f"TBLPROPERTIES ({entries})")
    return "\n".join(lines)


def _fields(struct: StructType, stored: list[pa.Field], separator: str) -> Iterator[str]:
    """Columns, or the fields of a struct: name, type, NOT NULL and comment."""
    for field, arrow in zip(struct, stored, strict=True):
        strict = "" if arrow.nullable else " NOT NULL"
        comment = (arrow.metadata or {}).get(COMMENT.encode())
        remark = "" if comment is None else f" COMMENT {_string(comment.decode())}"
        yield f"{quoted(field.name)}{separator}{_type(field.dataType, arrow.type)}{strict}{remark}"


def _type(kind: DataType, stored: pa.DataType) -> str:
    """A type in SQL, with the names of fields as they are."""
    from pyspark.sql import types

    if isinstance(stored, pa.BaseExtensionType):
        stored = stored.storage_type
    if isinstance(kind, types.StructType) and pa.types.is_struct(stored):
        return f"STRUCT<{', '.join(_fields(kind, list(stored), ': '))}>"
    if isinstance(kind, types.ArrayType):
        return f"ARRAY<{_type(kind.elementType, stored.value_type)}>"
    if isinstance(kind, types.MapType):
        return f"MAP<{_type(kind.keyType, stored.key_type)}, {_type(kind.valueType, stored.item_type)}>"
    return kind.simpleString().upper()


def _plain(part: str) -> str:
    return part if part.isidentifier() else quoted(part)


def _string(value: str) -> str:
    return f"'{value.translate(_ESCAPES)}'"

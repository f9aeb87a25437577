"""Spark's own conversion between its types and Arrow's, with the same result in all versions of Spark.

Spark 4.1 leaves out the metadata of columns, which newer ones carry as JSON in one key of the Arrow field:

    StructField(metadata={"arrow.fixed-size-list.size": 32})   <->   {"SPARK::metadata::json": '{"arrow.fixed...": 32}'}

Facts that Arrow's types lack, the collation of a string and the precision of a time, are in a key of their own:

    StringType("UTF8_LCASE")                                   <->   {"spark.type": "string collate UTF8_LCASE"}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import pyarrow as pa

from pyspark_lance.lazy import DataType, StructField, StructType, types
from pyspark_lance.releases import is_at_least

SPARK_METADATA: Final = b"SPARK::metadata::json"
"""The key of an Arrow field that holds the metadata of Spark's field."""

SPARK_TYPE: Final = b"spark.type"
"""The key of an Arrow field that holds Spark's name of the type, where Arrow's type does not describe it fully."""


def describe_type(kind: DataType) -> str | None:
    """Spark's name of a type that Arrow's type does not describe fully; None for others."""
    name = kind.simpleString()
    if isinstance(kind, types.StringType):
        return name if " collate " in name else None
    return name if name.startswith("time(") and name != "time(6)" else None


def _parse_type_name(name: str, kind: DataType) -> DataType:
    """Parse a name from `describe_type`, such as "time(3)"; `kind` if this version of Spark has no such type."""
    if isinstance(kind, types.StringType) and is_at_least((4, 0)):
        return types.StringType(name.rpartition(" ")[2])
    if type(kind).__name__ == "TimeType" and (digits := name.removeprefix("time(").rstrip(")")).isdecimal():
        return type(kind)(int(digits))  # type: ignore[call-arg]  # a class of Spark 4.1
    return kind


def to_arrow(schema: StructType) -> pa.Schema:
    """Arrow types for Spark's, with UTC as the zone of timestamps.

    Args:
        schema: The columns.

    Raises:
        PySparkTypeError: Arrow has no equivalent of a type.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    convert: Any = to_arrow_schema
    # Spark 4.1 has no such parameter, and always uses UTC.
    zone = {"timezone": "UTC"} if "timezone" in signature(convert).parameters else {}
    arrow_schema = convert(schema, **zone)
    return pa.schema([_annotate(spark_field, field) for spark_field, field in zip(schema, arrow_schema, strict=True)])


def from_arrow(schema: pa.Schema) -> StructType:
    """Spark's types for Arrow's; timestamps without a zone become TIMESTAMP_NTZ."""
    from pyspark.sql.pandas.types import from_arrow_schema

    spark_fields = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return types.StructType(
        [_restore(spark_field, field) for spark_field, field in zip(spark_fields, schema, strict=True)]
    )


def _annotate(spark_field: StructField, field: pa.Field) -> pa.Field:
    metadata = dict(field.metadata or {})
    if spark_field.metadata:
        metadata[SPARK_METADATA] = json.dumps(spark_field.metadata).encode()
    if (name := describe_type(spark_field.dataType)) is not None:
        metadata[SPARK_TYPE] = name.encode()
    return field.with_type(_annotate_type(spark_field.dataType, field.type)).with_metadata(metadata or None)


def _annotate_type(spark_type: DataType, kind: pa.DataType) -> pa.DataType:
    if isinstance(spark_type, types.StructType):
        return pa.struct([_annotate(*pair) for pair in zip(spark_type, kind, strict=True)])
    if isinstance(spark_type, types.ArrayType):
        item = kind.value_field.with_type(_annotate_type(spark_type.elementType, kind.value_type))
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    if isinstance(spark_type, types.MapType):
        key = kind.key_field.with_type(_annotate_type(spark_type.keyType, kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_annotate_type(spark_type.valueType, kind.item_type)))
    return kind


def _restore(spark_field: StructField, field: pa.Field) -> StructField:
    value = (field.metadata or {}).get(SPARK_METADATA)
    kind = map_fields(spark_field.dataType, field.type, _restore)
    if (name := (field.metadata or {}).get(SPARK_TYPE)) is not None:
        kind = _parse_type_name(name.decode(), kind)
    return types.StructField(spark_field.name, kind, spark_field.nullable, json.loads(value) if value else {})


def map_fields(kind: DataType, arrow: pa.DataType, change: Callable[[StructField, pa.Field], StructField]) -> DataType:
    """A type of Spark whose fields of structs are changed, each by the field of an Arrow type of the same shape."""
    if isinstance(kind, types.StructType):
        return types.StructType([change(*pair) for pair in zip(kind, arrow, strict=True)])
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(map_fields(kind.elementType, arrow.value_type, change), kind.containsNull)
    if isinstance(kind, types.MapType):
        key = map_fields(kind.keyType, arrow.key_type, change)
        return types.MapType(key, map_fields(kind.valueType, arrow.item_type, change), kind.valueContainsNull)
    return kind

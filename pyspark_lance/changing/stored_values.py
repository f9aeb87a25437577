"""Values in the types of the columns that store them, by the rules of Spark's default store assignment policy.

int, bigint, ... -> int         value by value; a value that does not fit is an error in any mode of Spark
double -> float, decimal        rounded: an expression such as price * 1.1 has more digits than its column
date -> timestamp, x -> string  Spark's cast
string -> int, boolean -> int   rejected before any job: cast it in the expression
array, map, struct              each value in them, and the fields of structs
                                - by their names in UPDATE, MERGE and INSERT BY NAME
                                - by their positions in INSERT, which matches columns by position as well
binary, struct<data, uri> -> blob of 2.2
user-defined type               the type in which it stores its values, as in writes of a frame
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_core.errors import LanceError, SchemaError
from lance_core.extension_types import storage_type
from pyspark_lance.changing.struct_values import Value, as_column
from pyspark_lance.lazy import Column, DataFrame, functions, types
from pyspark_lance.releases import require_feature
from pyspark_lance.types.column_names import match_names, quoted
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.schema_plan import has_blobs, plan_write


@dataclass(frozen=True, slots=True)
class FieldOrder:
    """How the fields of a struct are matched with the fields of the table's struct.

    Attributes:
        by_name: Whether fields are matched by name, instead of by position.
        exact: Whether case matters.
    """

    by_name: bool = True
    exact: bool = False

    def of(self, value_type: Any, column_type: Any) -> list[Any] | None:
        """The field for each field of the table's struct; None if the structs have different fields.

        Args:
            value_type: Spark's type of the value.
            column_type: Spark's type of the column.

        Raises:
            SchemaError: A name could stand for two fields, or two names for one.
        """
        if len(value_type) != len(column_type):
            return None
        if not self.by_name:
            return list(value_type)
        names = match_names(value_type.names, column_type.names, exact=self.exact)
        fields = {names[field.name]: field for field in value_type if field.name in names}
        return [fields[field.name] for field in column_type] if len(fields) == len(column_type) else None


def cast_values(
    rows: DataFrame,
    values: Mapping[str, Value],
    table: pa.Schema,
    *,
    what: str,
    order: FieldOrder,
    expressions: Mapping[str, str] | None = None,
) -> dict[str, Column]:
    """Values in the types of the columns of a table that store them.

    Args:
        rows: The rows over which the values are computed.
        values: The values, by column.
        table: The schema of the table.
        what: The verb or the clause, for messages.
        order: How fields of structs are matched.
        expressions: What messages call a value, by column; by default its own expression.

    Raises:
        SchemaError: The type of a value cannot be stored in its column; the message names both.
    """
    columns = {name: as_column(value) for name, value in values.items()}
    schema = rows.select(*[column.alias(f"v{i}") for i, column in enumerate(columns.values())]).schema
    texts, stored = expressions or {}, spark_schema(table)
    casts = {}
    for (name, column), field in zip(columns.items(), schema, strict=True):
        text = texts.get(name, str(values[name]))
        storage = _storage_of(field.dataType)
        if storage != field.dataType:
            require_feature("a value of a user-defined type", f"{what}: {text!r}")
            as_stored: Any = functions.arrow_udf  # type: ignore[attr-defined]  # pyspark does not say that it exports it
            value = as_stored(_keep, storage)(column)  # Spark casts no such type
        else:
            value = column
        kinds = (storage, stored[name].dataType)
        casts[name] = _cast_value(value, text, kinds, table.field(name), what=what, order=order)
    return casts


def _storage_of(kind: Any) -> Any:
    """A type in which the types that store the values take the places of user-defined ones."""
    if isinstance(kind, types.UserDefinedType):
        return _storage_of(kind.sqlType())
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_storage_of(kind.elementType), kind.containsNull)
    if isinstance(kind, types.MapType):
        return types.MapType(_storage_of(kind.keyType), _storage_of(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, types.StructType):
        fields = [(field.name, _storage_of(field.dataType), field.nullable, field.metadata) for field in kind]
        return types.StructType([types.StructField(*field) for field in fields])
    return kind


def _keep(values: pa.Array) -> pa.Array:
    """The values of a user-defined type as they are: Spark's batches have them in their type of storage."""
    return values


def _cast_value(
    column: Column, expression: str, kinds: tuple[Any, Any], stored: pa.Field, *, what: str, order: FieldOrder
) -> Column:
    value_type, column_type = kinds
    misfit = _find_misfit((stored.name,), value_type, column_type, stored, order)
    if misfit is not None:
        path, inner, kind = misfit
        value = repr(expression) if len(path) == 1 else "its value"
        raise SchemaError(
            f"{what}: column {'.'.join(path)!r} is of type {kind.simpleString()}, {value} of type"
            f" {inner.simpleString()}: {_remedy(expression if len(path) == 1 else 'value', inner, kind)}"
        )
    return _convert_value(column, value_type, column_type, stored, order)


def wrap_blobs(source: DataFrame, table: pa.Schema) -> DataFrame:
    """A frame in which bytes for blobs of 2.2 are the structs as which Spark reads them, at any level of a column.

    Args:
        source: Rows with the table's column names.
        table: The schema of the table.
    """
    stored = pa.schema([field for field in table if field.name in set(source.columns) and _holds_blobs(field)])
    if not stored.names:
        return source
    columns = {}
    for field, column in zip(stored, spark_schema(stored), strict=True):
        kind = source.schema[field.name].dataType
        columns[field.name] = _wrap(functions.col(quoted(field.name)), kind, column.dataType, field)
    return source.withColumns(columns)


def _holds_blobs(stored: pa.Field) -> bool:
    kind = stored.type
    return has_blobs(stored) or any(_holds_blobs(kind.field(index)) for index in range(kind.num_fields))


def _wrap(column: Column, value_type: Any, column_type: Any, stored: pa.Field) -> Column:
    if has_blobs(stored):
        return _blob(column, value_type, column_type) if _blob_parts(value_type) else column
    if type(value_type) is not type(column_type) or not _holds_blobs(stored):
        return column
    if isinstance(value_type, types.ArrayType):
        items = (value_type.elementType, column_type.elementType, stored.type.value_field)
        return functions.transform(column, lambda element: _wrap(element, *items))
    stored_parts = {field.name: (field.dataType, child) for field, child in zip(column_type, stored.type, strict=True)}
    parts = []
    for field in value_type:
        part = column.getField(field.name)
        wrapped = _wrap(part, field.dataType, *stored_parts[field.name]) if field.name in stored_parts else part
        parts.append(wrapped.alias(field.name))
    return functions.when(column.isNotNull(), functions.struct(*parts))


def _blob_parts(value_type: Any) -> dict[str, str]:
    """The field of a value for each part of a blob that it has, "" for the value itself; empty for other types."""
    if isinstance(value_type, types.BinaryType):
        return {"data": ""}
    names = value_type.names if isinstance(value_type, types.StructType) else []
    parts = {name.lower(): name for name in names}
    return parts if parts.keys() == {"data", "uri"} else {}


def _blob(column: Column, value_type: Any, column_type: Any) -> Column:
    """The struct of a blob, from bytes or from a struct of `data` and `uri`."""
    parts = {part: column.getField(name) if name else column for part, name in _blob_parts(value_type).items()}
    missing = functions.lit(None)
    fields = [parts.get(field.name, missing).cast(field.dataType).alias(field.name) for field in column_type]
    return functions.when(column.isNotNull(), functions.struct(*fields))


def _find_misfit(
    path: tuple[str, ...], value_type: Any, column_type: Any, stored: pa.Field, order: FieldOrder
) -> tuple[tuple[str, ...], Any, Any] | None:
    """The first value in a value that cannot be stored: its path, its type, and the type of the field; None without.

    The rule is Spark's for values that are stored in a column of another type (`spark.sql.storeAssignmentPolicy=ANSI`).
    """
    if value_type.simpleString() == column_type.simpleString():  # the types may differ in nullability
        return None
    if has_blobs(stored) and _blob_parts(value_type):
        return None
    inner: list[tuple[Any, Any, pa.Field]] = []
    kind = storage_type(stored.type)
    if isinstance(value_type, types.StructType) and isinstance(column_type, types.StructType):
        fields = order.of(value_type, column_type)
        misfits = (
            _find_misfit((*path, field.name), value_field.dataType, field.dataType, child, order)
            for value_field, field, child in zip(fields or (), column_type, kind, strict=False)
        )
        return (path, value_type, column_type) if fields is None else next(filter(None, misfits), None)
    if isinstance(value_type, types.ArrayType) and isinstance(column_type, types.ArrayType):
        inner = [(value_type.elementType, column_type.elementType, kind.value_field)]
    elif isinstance(value_type, types.MapType) and isinstance(column_type, types.MapType):
        keys = (value_type.keyType, column_type.keyType, kind.key_field)
        inner = [keys, (value_type.valueType, column_type.valueType, kind.item_field)]
    fits = bool(inner) and not any(_find_misfit(path, *pair, order) for pair in inner)
    return None if fits or _is_assignable(value_type, column_type) else (path, value_type, column_type)


def _remedy(expression: str, value_type: Any, column_type: Any) -> str:
    if isinstance(column_type, types.StructType):
        return f"give it the fields {column_type.names}, named_struct('name', value, ...)"
    if not isinstance(value_type, types.AtomicType) or not isinstance(column_type, types.AtomicType):
        return "give it a value of that type"
    return f"write cast({expression} as {column_type.simpleString()}) if that is meant"


def _is_assignable(value_type: Any, column_type: Any) -> bool:
    """Whether a value that is not nested can be stored."""
    nested = types.ArrayType | types.MapType | types.StructType
    is_same_kind = type(value_type) is type(column_type) and not isinstance(value_type, nested)
    if is_same_kind or isinstance(value_type, types.NullType):
        return True
    if isinstance(value_type, types.NumericType) and isinstance(column_type, types.NumericType):
        return True
    if isinstance(column_type, types.StringType):
        return isinstance(value_type, types.AtomicType)
    times = types.TimestampType | types.TimestampNTZType | types.DateType
    return isinstance(value_type, times) and isinstance(column_type, times)


def _convert_value(column: Column, value_type: Any, column_type: Any, stored: pa.Field, order: FieldOrder) -> Column:
    """A value of a type that can be stored, value by value: a cast of the whole would wrap numbers without ANSI."""
    if value_type.simpleString() == column_type.simpleString():
        return column
    if has_blobs(stored) and _blob_parts(value_type):
        return _blob(column, value_type, column_type)
    if isinstance(value_type, types.ArrayType):
        items, item = (value_type.elementType, column_type.elementType), stored.type.value_field
        if isinstance(column_type.elementType, types.FloatType | types.DoubleType):
            return column.cast(types.ArrayType(column_type.elementType))
        return functions.transform(column, lambda element: _convert_value(element, *items, item, order))
    if isinstance(value_type, types.MapType):
        keys, key = (value_type.keyType, column_type.keyType), stored.type.key_field
        values, value = (value_type.valueType, column_type.valueType), stored.type.item_field
        column = functions.transform_keys(column, lambda map_key, _: _convert_value(map_key, *keys, key, order))
        return functions.transform_values(column, lambda _, map_value: _convert_value(map_value, *values, value, order))
    if isinstance(value_type, types.StructType):
        fields = order.of(value_type, column_type) or []
        parts = [
            _convert_value(column.getField(value_field.name), value_field.dataType, w.dataType, child, order).alias(
                w.name
            )
            for value_field, w, child in zip(fields, column_type, stored.type, strict=True)
        ]
        return functions.when(column.isNotNull(), functions.struct(*parts))
    return _convert_scalar(column, value_type, column_type, stored)


def _convert_scalar(column: Column, value_type: Any, column_type: Any, stored: pa.Field) -> Column:
    if isinstance(value_type, types.NullType):
        return null_column(column_type)
    numbers = isinstance(value_type, types.NumericType)
    if isinstance(column_type, types.DecimalType) and numbers and not isinstance(value_type, types.IntegralType):
        return functions.round(column, column_type.scale)
    if isinstance(column_type, types.FloatType | types.DoubleType) or not _fits(value_type, stored):
        return column.cast(column_type)
    return column


def _fits(value_type: Any, stored: pa.Field) -> bool:
    """Whether a column of a type can be written without a cast."""
    column_schema = pa.schema([stored])
    try:
        plan_write(batch_schema(types.StructType([types.StructField(stored.name, value_type)])), column_schema)
    except LanceError:
        return False
    return True


def null_column(kind: Any) -> Column:
    """Null as a column of a type of Spark, in any session.

    Spark casts no value to TIME unless `spark.sql.timeType.enabled` is true, also not null, though it reads and writes
    the type.
    """
    if "time(" in kind.simpleString():
        return functions.when(functions.lit(False), _value_with_times(kind))
    return functions.lit(None).cast(kind)


def _value_with_times(kind: Any) -> Column:
    """A value of a type that has times; its other parts are null."""
    if isinstance(kind, types.ArrayType):
        return functions.array(null_column(kind.elementType))
    if isinstance(kind, types.MapType):
        return functions.create_map(null_column(kind.keyType), null_column(kind.valueType))
    if isinstance(kind, types.StructType):
        return functions.struct(*[null_column(field.dataType).alias(field.name) for field in kind])
    return functions.current_time(int(re.sub(r"\D", "", kind.simpleString())))

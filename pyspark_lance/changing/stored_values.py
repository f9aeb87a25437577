"""Values in the types of the columns that store them, by the rules of Spark's default store assignment policy.

int, bigint, ... -> int         value by value; a value that does not fit is an error in any mode of Spark
double -> float, decimal        rounded: an expression such as price * 1.1 has more digits than its column
date -> timestamp, x -> string  Spark's cast
string -> int, boolean -> int   rejected before any job: cast it in the expression
array, map, struct              each value in them, and the fields of structs
                                - by their names in UPDATE, MERGE and INSERT BY NAME
                                - by their positions in INSERT, which matches columns by position as well
binary, struct<data, uri> -> blob of 2.2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core.errors import LanceError, SchemaError
from pyspark_lance.types.column_names import match_names, quoted
from pyspark_lance.types.null_columns import null_column
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.schema_plan import has_blobs, plan_write

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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


def cast_to_stored(
    column: Column,
    expression: str,
    value_type: Any,
    column_type: Any,
    stored: pa.Schema,
    *,
    what: str,
    order: FieldOrder,
) -> Column:
    """A value in the type of its column.

    Args:
        column: The value.
        expression: The value, for messages.
        value_type: Spark's type of the value.
        column_type: Spark's type of the column.
        stored: The schema of that column alone.
        what: The verb or the clause, for messages.
        order: How fields of structs are matched.

    Raises:
        SchemaError: The type cannot be stored in the column; the message names both.
    """
    blob = _blob(column, value_type, column_type) if has_blobs(stored.field(0)) else None
    if blob is not None:
        return blob
    if value_type.simpleString() == column_type.simpleString():  # the types may differ in nullability
        return column
    if not _can_be_stored(value_type, column_type, order):
        path, inner, kind = _find_misfit((stored.names[0],), value_type, column_type, order)
        value = repr(expression) if len(path) == 1 else "its value"
        raise SchemaError(
            f"{what}: column {'.'.join(path)!r} is of type {kind.simpleString()}, {value} of type"
            f" {inner.simpleString()}: {_remedy(expression if len(path) == 1 else 'value', inner, kind)}"
        )
    return _convert_value(column, value_type, column_type, stored.field(0), order)


def wrap_blobs(source: DataFrame, table: pa.Schema) -> DataFrame:
    """A frame in which bytes for blob columns of 2.2 are the structs as which Spark reads these columns.

    Args:
        source: Rows with the table's column names.
        table: The schema of the table.
    """
    from pyspark.sql import functions

    columns = set(source.columns)
    blobs = [field for field in table if has_blobs(field) and field.name in columns]
    if not blobs:
        return source
    blob_fields, source_types = spark_schema(pa.schema(blobs)), {field.name: field.dataType for field in source.schema}
    blob_columns = {
        field.name: _blob(functions.col(quoted(field.name)), source_types[field.name], field.dataType)
        for field in blob_fields
    }
    return source.withColumns({name: column for name, column in blob_columns.items() if column is not None})


def _blob(column: Column, value_type: Any, column_type: Any) -> Column | None:
    """The struct of a blob column, from bytes or from a struct of `data` and `uri`; None for other types."""
    from pyspark.sql import functions, types

    if isinstance(value_type, types.BinaryType):
        parts = {"data": column}
    elif isinstance(value_type, types.StructType) and {name.lower() for name in value_type.names} == {"data", "uri"}:
        parts = {name.lower(): column.getField(name) for name in value_type.names}
    else:
        return None
    missing = functions.lit(None)
    fields = [parts.get(field.name, missing).cast(field.dataType).alias(field.name) for field in column_type]
    return functions.when(column.isNotNull(), functions.struct(*fields))


def _find_misfit(
    path: tuple[str, ...], value_type: Any, column_type: Any, order: FieldOrder
) -> tuple[tuple[str, ...], Any, Any]:
    """The first value in a value that cannot be stored: its path, its type, and the type of the field."""
    from pyspark.sql import types

    if isinstance(value_type, types.StructType) and isinstance(column_type, types.StructType):
        for value_field, field in zip(order.of(value_type, column_type) or [], column_type, strict=False):
            if not _can_be_stored(value_field.dataType, field.dataType, order):
                return _find_misfit((*path, field.name), value_field.dataType, field.dataType, order)
    return path, value_type, column_type


def _remedy(expression: str, value_type: Any, column_type: Any) -> str:
    from pyspark.sql import types

    if isinstance(column_type, types.StructType):
        return f"give it the fields {column_type.names}, named_struct('name', value, ...)"
    if not isinstance(value_type, types.AtomicType) or not isinstance(column_type, types.AtomicType):
        return "give it a value of that type"
    return f"write cast({expression} as {column_type.simpleString()}) if that is meant"


def _can_be_stored(value_type: Any, column_type: Any, order: FieldOrder) -> bool:
    """Spark's rule for values that are stored in a column of another type (`spark.sql.storeAssignmentPolicy=ANSI`)."""
    from pyspark.sql import types

    if type(value_type) is type(column_type) and not isinstance(
        value_type, types.ArrayType | types.MapType | types.StructType
    ):
        return True
    if isinstance(value_type, types.NullType):
        return True
    if isinstance(value_type, types.ArrayType) and isinstance(column_type, types.ArrayType):
        return _can_be_stored(value_type.elementType, column_type.elementType, order)
    if isinstance(value_type, types.MapType) and isinstance(column_type, types.MapType):
        is_key = _can_be_stored(value_type.keyType, column_type.keyType, order)
        return is_key and _can_be_stored(value_type.valueType, column_type.valueType, order)
    if isinstance(value_type, types.StructType) and isinstance(column_type, types.StructType):
        fields = order.of(value_type, column_type)
        if fields is None:
            return False
        return all(_can_be_stored(f.dataType, w.dataType, order) for f, w in zip(fields, column_type, strict=True))
    if isinstance(value_type, types.NumericType) and isinstance(column_type, types.NumericType):
        return True
    if isinstance(column_type, types.StringType):
        return isinstance(value_type, types.AtomicType)
    times = types.TimestampType | types.TimestampNTZType | types.DateType
    return isinstance(value_type, times) and isinstance(column_type, times)


def _convert_value(column: Column, value_type: Any, column_type: Any, stored: pa.Field, order: FieldOrder) -> Column:
    """A value of a type that can be stored, value by value: a cast of the whole would wrap numbers without ANSI."""
    from pyspark.sql import functions, types

    if value_type.simpleString() == column_type.simpleString():
        return column
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
    from pyspark.sql import functions, types

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
    from pyspark.sql import types

    column_schema = pa.schema([stored])
    try:
        plan_write(batch_schema(types.StructType([types.StructField(stored.name, value_type)])), column_schema)
    except LanceError:
        return False
    return True

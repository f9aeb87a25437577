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
from pyspark_lance.types.column_names import matched_names, quoted
from pyspark_lance.types.null_columns import null_column
from pyspark_lance.types.spark_types import batch_schema, spark_schema
from pyspark_lance.writing.schema_plan import has_blobs, plan_write

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FieldOrder", "stored_as", "with_blobs"]


@dataclass(frozen=True, slots=True)
class FieldOrder:
    """How the fields of a struct are matched with the fields of the table's struct.

    Attributes:
        by_name: Whether fields are matched by name, instead of by position.
        exact: Whether case matters.
    """

    by_name: bool = True
    exact: bool = False

    def of(self, given: Any, wanted: Any) -> list[Any] | None:
        """The field for each field of the table's struct; None if the structs have different fields.

        Args:
            given: Spark's type of the value.
            wanted: Spark's type of the column.

        Raises:
            SchemaError: A name could stand for two fields, or two names for one.
        """
        if len(given) != len(wanted):
            return None
        if not self.by_name:
            return list(given)
        names = matched_names(given.names, wanted.names, exact=self.exact)
        fields = {names[one.name]: one for one in given if one.name in names}
        return [fields[one.name] for one in wanted] if len(fields) == len(wanted) else None


def stored_as(
    column: Column,
    expression: str,
    given: Any,
    wanted: Any,
    stored: pa.Schema,
    *,
    what: str,
    order: FieldOrder,
) -> Column:
    """A value in the type of its column.

    Args:
        column: The value.
        expression: The value, for messages.
        given: Spark's type of the value.
        wanted: Spark's type of the column.
        stored: The schema of that column alone.
        what: The verb or the clause, for messages.
        order: How fields of structs are matched.

    Raises:
        SchemaError: The type cannot be stored in the column; the message names both.
    """
    blob = _blob(column, given, wanted) if has_blobs(stored.field(0)) else None
    if blob is not None:
        return blob
    if given.simpleString() == wanted.simpleString():  # the types may differ in nullability
        return column
    if not _can_be_stored(given, wanted, order):
        path, inner, kind = _misfit((stored.names[0],), given, wanted, order)
        value = repr(expression) if len(path) == 1 else "its value"
        raise SchemaError(
            f"{what}: column {'.'.join(path)!r} is of type {kind.simpleString()}, {value} of type"
            f" {inner.simpleString()}: {_remedy(expression if len(path) == 1 else 'value', inner, kind)}"
        )
    return _converted(column, given, wanted, stored.field(0), order)


def with_blobs(source: DataFrame, table: pa.Schema) -> DataFrame:
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
    wanted, given = spark_schema(pa.schema(blobs)), {one.name: one.dataType for one in source.schema}
    made = {one.name: _blob(functions.col(quoted(one.name)), given[one.name], one.dataType) for one in wanted}
    return source.withColumns({name: column for name, column in made.items() if column is not None})


def _blob(column: Column, given: Any, wanted: Any) -> Column | None:
    """The struct of a blob column, from bytes or from a struct of `data` and `uri`; None for other types."""
    from pyspark.sql import functions, types

    if isinstance(given, types.BinaryType):
        parts = {"data": column}
    elif isinstance(given, types.StructType) and {one.lower() for one in given.names} == {"data", "uri"}:
        parts = {name.lower(): column.getField(name) for name in given.names}
    else:
        return None
    missing = functions.lit(None)
    fields = [parts.get(one.name, missing).cast(one.dataType).alias(one.name) for one in wanted]
    return functions.when(column.isNotNull(), functions.struct(*fields))


def _misfit(path: tuple[str, ...], given: Any, wanted: Any, order: FieldOrder) -> tuple[tuple[str, ...], Any, Any]:
    """The first value in a value that cannot be stored: its path, its type, and the type of the field."""
    from pyspark.sql import types

    if isinstance(given, types.StructType) and isinstance(wanted, types.StructType):
        for one, field in zip(order.of(given, wanted) or [], wanted, strict=False):
            if not _can_be_stored(one.dataType, field.dataType, order):
                return _misfit((*path, field.name), one.dataType, field.dataType, order)
    return path, given, wanted


def _remedy(expression: str, given: Any, wanted: Any) -> str:
    from pyspark.sql import types

    if isinstance(wanted, types.StructType):
        return f"give it the fields {wanted.names}, named_struct('name', value, ...)"
    if not isinstance(given, types.AtomicType) or not isinstance(wanted, types.AtomicType):
        return "give it a value of that type"
    return f"write cast({expression} as {wanted.simpleString()}) if that is meant"


def _can_be_stored(given: Any, wanted: Any, order: FieldOrder) -> bool:
    """Spark's rule for values that are stored in a column of another type (`spark.sql.storeAssignmentPolicy=ANSI`)."""
    from pyspark.sql import types

    if type(given) is type(wanted) and not isinstance(given, types.ArrayType | types.MapType | types.StructType):
        return True
    if isinstance(given, types.NullType):
        return True
    if isinstance(given, types.ArrayType) and isinstance(wanted, types.ArrayType):
        return _can_be_stored(given.elementType, wanted.elementType, order)
    if isinstance(given, types.MapType) and isinstance(wanted, types.MapType):
        is_key = _can_be_stored(given.keyType, wanted.keyType, order)
        return is_key and _can_be_stored(given.valueType, wanted.valueType, order)
    if isinstance(given, types.StructType) and isinstance(wanted, types.StructType):
        fields = order.of(given, wanted)
        if fields is None:
            return False
        return all(_can_be_stored(one.dataType, w.dataType, order) for one, w in zip(fields, wanted, strict=True))
    if isinstance(given, types.NumericType) and isinstance(wanted, types.NumericType):
        return True
    if isinstance(wanted, types.StringType):
        return isinstance(given, types.AtomicType)
    times = types.TimestampType | types.TimestampNTZType | types.DateType
    return isinstance(given, times) and isinstance(wanted, times)


def _converted(column: Column, given: Any, wanted: Any, stored: pa.Field, order: FieldOrder) -> Column:
    """A value of a type that can be stored, value by value: a cast of the whole would wrap numbers without ANSI."""
    from pyspark.sql import functions, types

    if given.simpleString() == wanted.simpleString():
        return column
    if isinstance(given, types.ArrayType):
        items, item = (given.elementType, wanted.elementType), stored.type.value_field
        if isinstance(wanted.elementType, types.FloatType | types.DoubleType):
            return column.cast(types.ArrayType(wanted.elementType))
        return functions.transform(column, lambda one: _converted(one, *items, item, order))
    if isinstance(given, types.MapType):
        keys, key = (given.keyType, wanted.keyType), stored.type.key_field
        values, value = (given.valueType, wanted.valueType), stored.type.item_field
        column = functions.transform_keys(column, lambda one, _: _converted(one, *keys, key, order))
        return functions.transform_values(column, lambda _, one: _converted(one, *values, value, order))
    if isinstance(given, types.StructType):
        fields = order.of(given, wanted) or []
        parts = [
            _converted(column.getField(one.name), one.dataType, w.dataType, child, order).alias(w.name)
            for one, w, child in zip(fields, wanted, stored.type, strict=True)
        ]
        return functions.when(column.isNotNull(), functions.struct(*parts))
    return _converted_scalar(column, given, wanted, stored)


def _converted_scalar(column: Column, given: Any, wanted: Any, stored: pa.Field) -> Column:
    from pyspark.sql import functions, types

    if isinstance(given, types.NullType):
        return null_column(wanted)
    numbers = isinstance(given, types.NumericType)
    if isinstance(wanted, types.DecimalType) and numbers and not isinstance(given, types.IntegralType):
        return functions.round(column, wanted.scale)
    if isinstance(wanted, types.FloatType | types.DoubleType) or not _fits(given, stored):
        return column.cast(wanted)
    return column


def _fits(given: Any, stored: pa.Field) -> bool:
    """Whether a column of a type can be written without a cast."""
    from pyspark.sql import types

    own = pa.schema([stored])
    try:
        plan_write(batch_schema(types.StructType([types.StructField(stored.name, given)])), own)
    except LanceError:
        return False
    return True

"""The values of an update, converted to the types of their columns as Spark does when it stores values.

int, bigint, ... -> int         value by value; a value that does not fit is an error in any mode of Spark
double -> float, decimal        rounded: an expression such as price * 1.1 has more digits than its column
date -> timestamp, x -> string  Spark's cast
string -> int, boolean -> int   rejected before any job: cast it in the expression
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core.errors import InvalidInputError, LanceError, SchemaError
from pyspark_lance.changing.struct_values import Value, as_column, whole_values
from pyspark_lance.types.column_names import unquoted
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.schema_plan import plan_write

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["assigned", "is_column", "spelled_values", "stored_as"]


def spelled_values(
    values: Mapping[str, Value], table: pa.Schema, what: str, *, alias: str | None, exact: bool
) -> dict[str, Value]:
    """Values by the table's own names of the columns; those of fields of structs become values of the columns.

    Args:
        values: The values, by names as the user writes them, or dotted paths of fields.
        table: The schema of the table.
        what: The clause, for messages.
        alias: The name that may qualify the columns.
        exact: Whether case matters.

    Raises:
        SchemaError: The table lacks a column, or a column has two values.
        InvalidInputError: There are no values, or they are not expressions by name of the column.
    """
    _check_values(values, what)
    plain: dict[str, Value] = {}
    for given, value in values.items():
        first, dot, rest = given.partition(".")
        is_own = dot and alias is not None and (first == alias or (not exact and first.lower() == alias.lower()))
        name = rest if is_own and given not in table.names else given
        plain[name if name in table.names else unquoted(name)] = value
    if len(plain) < len(values):
        raise SchemaError(f"{what}: a column has two values: {list(values)}")
    return whole_values(plain, list(table), what, () if alias is None else (alias,), exact=exact)


def _check_values(values: Any, what: str) -> None:
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{what}: set is a dict of values by name of the column, not {values!r}")
    if not values:
        raise InvalidInputError(f"{what}: set gives no column a value")
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidInputError(f"{what}: {name!r} is not the name of a column")
        if not isinstance(value, str) and not is_column(value):
            raise InvalidInputError(
                f"{what}: the value of {name!r} is an expression in Spark SQL, or a column of Spark's, such as"
                f" functions.lit({value!r}), not {value!r}"
            )


def is_column(value: Any) -> bool:
    """Whether a value is a column of Spark's, classic or Connect."""
    from pyspark.sql import Column

    return isinstance(value, Column)


def assigned(
    rows: DataFrame, values: Mapping[str, Value], stored: pa.Schema, kinds: Mapping[str, Any]
) -> dict[str, Column]:
    """The new values of an update, each in the type of its column.

    Args:
        rows: The rows of the table.
        values: Expressions in Spark SQL or columns, by name of the column.
        stored: The schema of the table.
        kinds: Spark's types of its columns.

    Raises:
        SchemaError: The type of an expression cannot be stored in its column; the message names both.
    """
    found = {}
    for name, expression in values.items():
        column = as_column(expression).alias(name)
        given = rows.select(column).schema[0].dataType
        own = pa.schema([stored.field(name)])
        found[name] = stored_as(column, str(expression), given, kinds[name], own, what="update").alias(name)
    return found


def stored_as(column: Column, expression: str, given: Any, wanted: Any, stored: pa.Schema, *, what: str) -> Column:
    """A value in the type of its column.

    Args:
        column: The value.
        expression: The value, for messages.
        given: Its type.
        wanted: Spark's type of the column that it is for.
        stored: The schema of that column alone.
        what: The verb or the clause, for messages.

    Raises:
        SchemaError: The type cannot be stored in the column; the message names both.
    """
    from pyspark.sql import functions, types

    if given == wanted:
        return column
    if not _can_be_stored(given, wanted):
        remedy = f"write cast({expression} as {wanted.simpleString()}) if that is meant"
        if isinstance(wanted, types.StructType) and isinstance(given, types.StructType):
            remedy = f"give it the fields {wanted.names} in this order, named_struct('name', value, ...)"
            if given.names == wanted.names:
                remedy = "cast the value of the field whose type is another one"
        raise SchemaError(
            f"{what}: column {stored.names[0]!r} is of type {wanted.simpleString()}, {expression!r} of type"
            f" {given.simpleString()}: {remedy}"
        )
    numbers = isinstance(given, types.NumericType)
    if isinstance(wanted, types.DecimalType) and numbers and not isinstance(given, types.IntegralType):
        return functions.round(column, wanted.scale)
    if _rounds(wanted) or not _fits(given, stored):
        return column.cast(wanted)
    return column


def _fits(given: Any, stored: pa.Schema) -> bool:
    """Whether a column of a type can be written as it is."""
    from pyspark.sql import types

    try:
        plan_write(batch_schema(types.StructType([types.StructField(stored.names[0], given)])), stored)
    except LanceError:
        return False
    return True


def _rounds(kind: Any) -> bool:
    """Whether a type has floats or decimals in it."""
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        return _rounds(kind.elementType)
    if isinstance(kind, types.MapType):
        return _rounds(kind.keyType) or _rounds(kind.valueType)
    if isinstance(kind, types.StructType):
        return any(_rounds(field.dataType) for field in kind)
    return isinstance(kind, types.FloatType | types.DoubleType | types.DecimalType)


def _can_be_stored(given: Any, wanted: Any) -> bool:
    """Spark's rule for values that are stored in a column of another type (`spark.sql.storeAssignmentPolicy=ANSI`)."""
    from pyspark.sql import types

    if type(given) is type(wanted) and not isinstance(given, types.ArrayType | types.MapType | types.StructType):
        return True
    if isinstance(given, types.NullType):
        return True
    if isinstance(given, types.ArrayType) and isinstance(wanted, types.ArrayType):
        return _can_be_stored(given.elementType, wanted.elementType)
    if isinstance(given, types.MapType) and isinstance(wanted, types.MapType):
        return _can_be_stored(given.keyType, wanted.keyType) and _can_be_stored(given.valueType, wanted.valueType)
    if isinstance(given, types.StructType) and isinstance(wanted, types.StructType):
        pairs = zip(given, wanted, strict=False)
        return len(given) == len(wanted) and all(_can_be_stored(g.dataType, w.dataType) for g, w in pairs)
    if isinstance(given, types.NumericType) and isinstance(wanted, types.NumericType):
        return True
    if isinstance(wanted, types.StringType):
        return isinstance(given, types.AtomicType)
    times = types.TimestampType | types.TimestampNTZType | types.DateType
    return isinstance(given, times) and isinstance(wanted, times)

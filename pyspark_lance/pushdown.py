"""Spark's filters as Arrow expressions, where both keep the same rows.

Spark takes NaN for equal to itself and greater than all other numbers, Arrow for neither: comparisons of floats that
could meet one stay with Spark. So do filters inside of structs, and on types that are widened on the way to Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark  # noqa: TID253 - loaded by the data source only

from lance_core.errors import UnsupportedError
from pyspark_lance.spark_types import spark_view

__all__ = ["expression"]

_COMPARISONS: Final[dict[type, Callable[[pc.Expression, Any], pc.Expression]]] = {
    spark.EqualTo: lambda column, value: column == value,
    spark.GreaterThan: lambda column, value: column > value,
    spark.GreaterThanOrEqual: lambda column, value: column >= value,
    spark.LessThan: lambda column, value: column < value,
    spark.LessThanOrEqual: lambda column, value: column <= value,
}
_TEXTS: Final[dict[type, Callable[[pc.Expression, str], pc.Expression]]] = {
    spark.StringStartsWith: pc.starts_with,
    spark.StringEndsWith: pc.ends_with,
    spark.StringContains: pc.match_substring,
}


def expression(condition: spark.Filter, schema: pa.Schema) -> pc.Expression | None:
    """The expression that keeps the rows for which Spark's filter is true; None if there is none.

    Args:
        condition: One of the filters that Spark offers to a reader; all of them must hold.
        schema: Stored schema of the table.
    """
    if isinstance(condition, spark.Not):
        inner = expression(condition.child, schema)
        return None if inner is None else ~inner
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1 or schema.get_field_index(path[0]) < 0:
        return None
    kind = schema.field(path[0]).type
    column = pc.field(path[0])
    if isinstance(condition, spark.IsNull):
        return column.is_null()
    if isinstance(condition, spark.IsNotNull):
        return column.is_valid()
    return _comparison(condition, column, kind) if _same_to_spark(kind) else None


def _comparison(condition: Any, column: pc.Expression, kind: pa.DataType) -> pc.Expression | None:
    values = list(condition.value) if isinstance(condition, spark.In) else [condition.value]
    if any(value is None for value in values):
        return None
    if pa.types.is_floating(kind):
        above = isinstance(condition, spark.GreaterThan | spark.GreaterThanOrEqual)
        if above or any(isinstance(value, float) and math.isnan(value) for value in values):
            return None
    try:
        literals = [pa.scalar(value, type=kind) for value in values]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
    if isinstance(condition, spark.In):
        return reduce(or_, [column == literal for literal in literals]) if literals else None
    if type(condition) in _TEXTS:
        return _TEXTS[type(condition)](column, condition.value)
    compare = _COMPARISONS.get(type(condition))
    return None if compare is None else compare(column, literals[0])


def _same_to_spark(kind: pa.DataType) -> bool:
    """Whether Spark compares the values as Arrow does, unchanged."""
    if pa.types.is_nested(kind) or pa.types.is_null(kind) or isinstance(kind, pa.BaseExtensionType):
        return False
    try:
        return bool(spark_view(kind, "") == kind)
    except UnsupportedError:
        return False

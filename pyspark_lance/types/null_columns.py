"""Null in a type of Spark.

Spark casts no value to TIME unless `spark.sql.timeType.enabled` is true, also not null, though it reads and writes the
type.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


def null_column(kind: Any) -> Column:
    """Null as a column of a type of Spark, in any session."""
    from pyspark.sql import functions

    return functions.when(functions.lit(False), _value(kind)) if _has_time(kind) else functions.lit(None).cast(kind)


def _has_time(kind: Any) -> bool:
    return "time(" in kind.simpleString()


def _value(kind: Any) -> Column:
    """A value of a type that has times; its other parts are null."""
    from pyspark.sql import functions, types

    if isinstance(kind, types.ArrayType):
        return functions.array(null_column(kind.elementType))
    if isinstance(kind, types.MapType):
        return functions.create_map(null_column(kind.keyType), null_column(kind.valueType))
    if isinstance(kind, types.StructType):
        return functions.struct(*[null_column(field.dataType).alias(field.name) for field in kind])
    return functions.current_time(int(re.sub(r"\D", "", kind.simpleString())))

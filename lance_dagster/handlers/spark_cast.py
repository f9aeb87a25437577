"""Casts of Spark columns to the types of the table, by value: the job that writes the rows compares them.

    cast(column as the table's type), cast back, is the column again    the value is written
    otherwise                                                          the job fails, naming column and value

Spark looks at each value as it is written, so there is no job of its own for it. Columns of structs, arrays and maps
are left to `pyspark_lance.write`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lance_core.errors import SchemaError
from lance_dagster.handlers.exact_cast import CastRejectedError, can_cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["cast_in_job", "lossy_values"]

_SPARK_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
}
"""What Spark hands over for columns of these types; the narrower ranges of some are checked as they are written."""

_START, _END = "lance-lossy-cast<<", ">>lance-lossy-cast"
_FOUND: Final = re.compile(f"{_START}(.*?)\\|(.*?)\\|(.*?)\\|(.*?){_END}", re.DOTALL)


def cast_in_job(frame: DataFrame, given: pa.Schema, table: pa.Schema) -> DataFrame:
    """A frame whose plain columns are of the types of the table, as far as these differ.

    Args:
        frame: The frame.
        given: The Arrow types of its columns; null for those that are not known.
        table: The table's columns.

    Raises:
        CastRejectedError: No value of a column's type can be stored in the table's type.
    """
    changed: dict[str, Any] = {}
    for field in table:
        if given.get_field_index(field.name) < 0 or len(given.get_all_field_indices(field.name)) > 1:
            continue
        kind = given.field(field.name).type
        if kind == field.type or not (_is_plain(kind) and _is_plain(field.type)):
            continue
        if not can_cast(kind, field.type):
            if frame.isEmpty():
                continue  # no rows, no values: the table's type stands
            raise CastRejectedError(field.name, kind, field.type)
        target = _spark_type(field.type)
        if target is not None and target != frame.schema[field.name].dataType.simpleString():
            changed[field.name] = _cast(frame, field.name, kind, field.type, target)
    return frame.withColumns(changed) if changed else frame


def _is_plain(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(kind)
        or pa.types.is_null(kind)
        or pa.types.is_dictionary(kind)
        or isinstance(kind, pa.BaseExtensionType)
    )


def _spark_type(kind: pa.DataType) -> str | None:
    """The name of a type in Spark; None for types that Spark need not cast: strings, bytes, times of other units."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    return _SPARK_TYPES.get(kind)


def _cast(frame: DataFrame, name: str, source: pa.DataType, target: pa.DataType, wanted: str) -> Any:
    from pyspark.sql import functions

    quoted = "`" + name.replace("`", "``") + "`"
    column = functions.col(quoted)
    own = frame.schema[name].dataType.simpleString()
    done = column.try_cast(wanted)
    parts = [functions.lit(f"{_START}{name}|{source}|{target}|"), column.cast("string"), functions.lit(_END)]
    failed = functions.raise_error(functions.concat(*parts))
    return functions.when(done.try_cast(own).eqNullSafe(column), done).otherwise(failed)


@contextmanager
def lossy_values() -> Iterator[None]:
    """Turn the failure of such a job into an error of our own.

    Raises:
        CastRejectedError: A value would change; the error names column and value.
    """
    try:
        yield
    except SchemaError:
        raise
    except Exception as error:
        found = _FOUND.search(str(error))
        if found is None:
            raise
        name, source, target, value = found.groups()
        raise CastRejectedError(name, source, target, value) from None

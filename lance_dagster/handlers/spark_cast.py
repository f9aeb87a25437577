"""Casts of Spark columns to the types of the table, by value: the job that writes the rows checks each value.

    the value, cast to the table's type and back, is unchanged    the value is written
    otherwise                                                     the job fails, naming the column and the value

No other job is needed for this. `pyspark_lance.write` casts columns of structs, arrays and maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lance_core.errors import SchemaError
from lance_dagster.handlers.exact_cast import CastRejectedError, can_cast
from pyspark_lance.types.column_names import quoted
from pyspark_lance.types.number_casts import are_numbers
from pyspark_lance.types.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_START, _END = "lance-lossy-cast<<", ">>lance-lossy-cast"
_FOUND: Final = re.compile(f"{_START}(.*?)\\|(.*?)\\|(.*?)\\|(.*?){_END}", re.DOTALL)


def cast_in_job(frame: DataFrame, frame_schema: pa.Schema, table: pa.Schema) -> DataFrame:
    """The frame with its columns of plain types cast to the types of the table.

    Args:
        frame: The frame.
        frame_schema: The Arrow types of the frame's columns; null for unknown types.
        table: The table's columns.

    Raises:
        CastRejectedError: No value of a column's type can be stored in the table's type.
    """
    changed: dict[str, Any] = {}
    for field in table:
        if frame_schema.get_field_index(field.name) < 0 or len(frame_schema.get_all_field_indices(field.name)) > 1:
            continue
        kind = frame_schema.field(field.name).type
        if kind == field.type or not (_is_plain(kind) and _is_plain(field.type)):
            continue
        if not can_cast(kind, field.type):
            if frame.isEmpty():
                continue  # without rows the table's type is used
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
    """The Spark type as which a column of numbers, dates or timestamps is written; None for other types.

    The write checks the narrower ranges of some types.
    """
    if not (are_numbers(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return None
    return spark_schema(pa.schema([pa.field("value", kind)]))["value"].dataType.simpleString()


def _cast(frame: DataFrame, name: str, source: pa.DataType, target: pa.DataType, target_name: str) -> Any:
    from pyspark.sql import functions

    column = functions.col(quoted(name))
    source_name = frame.schema[name].dataType.simpleString()
    done = functions.expr(f"try_cast({quoted(name)} AS {target_name})")
    parts = [functions.lit(f"{_START}{name}|{source}|{target}|"), column.cast("string"), functions.lit(_END)]
    failed = functions.raise_error(functions.concat(*parts))
    back = functions.expr(f"try_cast(try_cast({quoted(name)} AS {target_name}) AS {source_name})")
    return functions.when(back.eqNullSafe(column), done).otherwise(failed)


@contextmanager
def name_lossy_values() -> Iterator[None]:
    """Turn the failure of a job that `cast_in_job` has made fail into an error that names the value.

    Raises:
        CastRejectedError: A value would change; the error names column and value.
    """
    try:
        yield
    except SchemaError:
        raise
    except Exception as error:
        match = _FOUND.search(str(error))
        if match is None:
            raise
        name, source, target, value = match.groups()
        raise CastRejectedError(name, source, target, value) from None

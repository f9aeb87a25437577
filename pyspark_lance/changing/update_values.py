"""The values of an update, by the table's names of columns and in the types of these columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.changing.stored_values import FieldOrder, cast_to_stored
from pyspark_lance.changing.struct_values import Value, as_column, collect_whole_values
from pyspark_lance.types.column_names import case_sensitive, unquoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def respell_values(
    values: Mapping[str, Value], table: pa.Schema, what: str, *, alias: str | None, exact: bool, has_rows: bool = True
) -> dict[str, Value]:
    """Values by the table's own column names; values of fields of structs become values of the whole columns.

    Args:
        values: The values, by names as the user writes them, or dotted paths of fields.
        table: The schema of the table.
        what: The clause, for messages.
        alias: The name that may qualify the columns.
        exact: Whether case matters.
        has_rows: Whether there are rows, whose other fields of structs stay.

    Raises:
        SchemaError: The table lacks a column, a column has two values, or a value is for a field of an inserted row.
        InvalidInputError: There are no values, or they are not expressions by column name.
    """
    _check_values(values, what)
    plain: dict[str, Value] = {}
    for name, value in values.items():
        plain[name if name in table.names else strip_alias(name, table.names, alias, exact=exact)] = value
    if len(plain) < len(values):
        raise SchemaError(f"{what}: a column has two values: {list(values)}")
    return collect_whole_values(
        plain, list(table), what, () if alias is None else (alias,), exact=exact, has_rows=has_rows
    )


def strip_alias(written_name: str, column_names: Sequence[str], alias: str | None, *, exact: bool) -> str:
    """The name of a column or the path of a field without the alias before it, and without backticks around it.

    Args:
        written_name: The name as the user writes it.
        column_names: The table's columns, whose names may have backticks of their own.
        alias: The name that may qualify the columns.
        exact: Whether case matters.
    """
    first, dot, rest = written_name.partition(".")
    is_own = dot and alias is not None and (first == alias or (not exact and first.lower() == alias.lower()))
    name = rest if is_own else written_name
    return name if name in column_names else unquoted(name)


def _check_values(values: Any, what: str) -> None:
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{what}: set must be a dict of values by column name, not {values!r}")
    if not values:
        raise InvalidInputError(f"{what}: set gives no column a value")
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidInputError(f"{what}: {name!r} is not the name of a column")
        if not isinstance(value, str) and not is_column(value):
            raise InvalidInputError(
                f"{what}: the value of {name!r} must be an expression in Spark SQL, or a Spark Column such as"
                f" functions.lit({value!r}), not {value!r}"
            )


def is_column(value: Any) -> bool:
    """Whether a value is a Spark `Column`, classic or Connect."""
    from pyspark.sql import Column

    return isinstance(value, Column)


def build_assigned_values(
    rows: DataFrame, values: Mapping[str, Value], stored: pa.Schema, kinds: Mapping[str, Any]
) -> dict[str, Column]:
    """The new values of an update, each in the type of its column.

    Args:
        rows: The rows of the table.
        values: Expressions in Spark SQL or Spark columns, by column name.
        stored: The schema of the table.
        kinds: Spark's types of its columns.

    Raises:
        SchemaError: The type of an expression cannot be stored in its column; the message names both.
    """
    order = FieldOrder(exact=case_sensitive(rows.sparkSession))
    new_values = {}
    for name, expression in values.items():
        column = as_column(expression).alias(name)
        value_type = rows.select(column).schema[0].dataType
        column_schema = pa.schema([stored.field(name)])
        new_values[name] = cast_to_stored(
            column, str(expression), value_type, kinds[name], column_schema, what="update", order=order
        ).alias(name)
    return new_values

"""Expressions over columns, as SQL text or as Arrow's: made and evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import ArgumentTypeError, InvalidInputError
from lance_core.schema import Schema, storage_type
from lance_core.verbs.expressions.arrow import check_filter, columns_of, evaluated, stored_types
from lance_core.verbs.expressions.sql_meaning import with_sql_meaning
from lance_core.verbs.scan.projection import with_row_fields

__all__ = ["evaluate", "predicate_text", "to_condition", "to_expression"]


def to_expression(value: str | pc.Expression, schema: pa.Schema, kind: pa.DataType | None = None) -> pc.Expression:
    """The expression that a user gave.

    Args:
        value: SQL text, or an expression.
        schema: The columns that it can refer to.
        kind: Type that SQL's CAST gives the values of a text; None leaves them as they are.

    Raises:
        InvalidInputError: It is no expression, or refers to a column that is not in `schema`.
        UnsupportedError: The SQL uses something that is not offered.
    """
    if isinstance(value, str):
        from lance_core.verbs.expressions.sql import parse_expression, parse_value  # noqa: PLC0415 - it imports the SQL parser

        return parse_expression(value, schema) if kind is None else parse_value(value, schema, kind)
    if not isinstance(value, pc.Expression):
        raise ArgumentTypeError(f"an expression is SQL text or a pyarrow expression, not {type(value).__name__}")
    for name in columns_of(value):
        if name not in schema.names:
            raise InvalidInputError(f"{value}: no column {name!r}; the columns are {schema.names}")
    return with_sql_meaning(value, stored_types(schema))


def to_condition(value: str | pc.Expression, schema: Schema) -> pc.Expression:
    """The condition that a user gave, over columns and row columns such as `_rowid`.

    Raises:
        InvalidInputError: It is no condition, or refers to a column that there is not.
        UnsupportedError: The SQL uses something that is not offered.
    """
    condition = check_filter(value, with_row_fields(schema))
    if condition is None:
        raise InvalidInputError("a condition is SQL text or a pyarrow expression, not None")
    return condition


def predicate_text(value: str | pc.Expression) -> str:
    """The text of a predicate for the history."""
    return value if isinstance(value, str) else str(value)


def evaluate(rows: pa.Table | pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Columns computed from others, in the order of `expressions`.

    Raises:
        InvalidInputError: An expression does not fit the columns, or fails for some value.
    """
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not expressions:
        return table.select([])
    return evaluated(_in_storage_types(table), expressions)


def _in_storage_types(table: pa.Table) -> pa.Table:
    """Expressions are made for these: functions know no extension types."""
    for position, field in enumerate(table.schema):
        plain = storage_type(field.type)
        if plain != field.type:
            table = table.set_column(position, field.name, table.column(position).cast(plain))
    return table

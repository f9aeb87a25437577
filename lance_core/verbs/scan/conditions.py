"""Parse, check and evaluate the conditions and values that users give in SQL or as Arrow expressions."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import ArgumentTypeError, InvalidInputError
from lance_core.schema import Schema, in_storage_types
from lance_core.verbs.expressions.arrow import check_filter, columns_of, evaluated, stored_types
from lance_core.verbs.expressions.sql_meaning import with_sql_meaning
from lance_core.verbs.scan.projection import with_row_fields


def to_expression(value: str | pc.Expression, schema: pa.Schema, kind: pa.DataType | None = None) -> pc.Expression:
    """The Arrow expression for a value that a user gave.

    Args:
        value: SQL, or a pyarrow expression.
        schema: The columns that it can refer to.
        kind: The type to which values of SQL are cast; None leaves them as they are.

    Raises:
        ArgumentTypeError: The value is not an expression.
        InvalidInputError: The expression refers to a column that is not in `schema`.
        UnsupportedError: The SQL uses a function or syntax that is not supported.
    """
    if isinstance(value, str):
        from lance_core.verbs.expressions.sql import parse_expression, parse_value  # noqa: PLC0415 - it imports the SQL parser

        return parse_expression(value, schema) if kind is None else parse_value(value, schema, kind)
    if not isinstance(value, pc.Expression):
        raise ArgumentTypeError(f"an expression is an SQL string or a pyarrow expression, not {type(value).__name__}")
    for name in columns_of(value):
        if name not in schema.names:
            raise InvalidInputError(f"{value}: no column {name!r}; the columns are {schema.names}")
    return with_sql_meaning(value, stored_types(schema))


def to_condition(value: str | pc.Expression, schema: Schema) -> pc.Expression:
    """The Arrow expression for a condition that a user gave, over columns and row columns such as `_rowid`.

    Raises:
        InvalidInputError: The value is not a condition, or the SQL refers to an unknown column or has no boolean value;
            an Arrow expression is only checked when it is evaluated.
        UnsupportedError: The SQL uses a function or syntax that is not supported.
    """
    condition = check_filter(value, with_row_fields(schema))
    if condition is None:
        raise InvalidInputError("a condition is an SQL string or a pyarrow expression, not None")
    return condition


def evaluate(rows: pa.Table | pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Compute columns, in the order of `expressions`.

    Raises:
        InvalidInputError: An expression does not fit the columns, or fails for some value.
    """
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not expressions:
        return table.select([])
    return evaluated(in_storage_types(table), expressions)

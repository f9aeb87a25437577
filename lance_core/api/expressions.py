"""Expressions over columns, as SQL text or as Arrow's: made and evaluated."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.api.filter import columns_of
from lance_core.errors import InvalidInputError

__all__ = ["evaluate", "predicate_text", "to_expression"]


def to_expression(value: str | pc.Expression, schema: pa.Schema) -> pc.Expression:
    """The expression that a user gave.

    Raises:
        InvalidInputError: It is no expression, or refers to a column that is not in `schema`.
        UnsupportedError: The SQL uses something that is not offered.
    """
    if isinstance(value, str):
        from lance_core.api.sql import parse_expression  # noqa: PLC0415 - it imports the SQL parser

        return parse_expression(value, schema)
    if not isinstance(value, pc.Expression):
        raise InvalidInputError(f"an expression is SQL text or a pyarrow expression, not {type(value).__name__}")
    for name in columns_of(value):
        if name not in schema.names:
            raise InvalidInputError(f"{value}: no column {name!r}; the columns are {schema.names}")
    return value


def predicate_text(value: str | pc.Expression) -> str:
    """How a predicate is recorded in the history."""
    return value if isinstance(value, str) else str(value)


def evaluate(rows: pa.Table | pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """Columns computed from others, in the order of `expressions`.

    Raises:
        InvalidInputError: An expression does not fit the columns.
    """
    from pyarrow import acero  # noqa: PLC0415 - it imports pandas

    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not expressions:
        return table.select([])
    try:
        options = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
        project = acero.Declaration("project", options)
        return acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"{', '.join(map(str, expressions.values()))}: {error}") from error

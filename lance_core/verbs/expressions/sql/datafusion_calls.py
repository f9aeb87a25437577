"""Functions that this library has no code for: DataFusion computes them, with pylance's results (the extra `[sql]`).

    lpad(s, n + 1, '*')  ->  datafusion.lpad.<the types of s and n + 1, and the SQL lpad(x0, x1, '*')>

A plain literal stands in the SQL, as some functions accept nothing else there; other arguments are columns of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import UnsupportedError
from lance_core.verbs.expressions.sql.compiler_protocol import Guard, guarded
from lance_core.verbs.expressions.sql.python_functions import evaluate_sql, open_session, python_call, type_of_sql
from lance_core.verbs.expressions.sql.typed import MISSING, NumberLiteral, Typed
from lance_core.verbs.expressions.sql.zones import check_parts

INTERVAL: Final = pa.month_day_nano_interval()

_ALIASES: Final = {"list_min": "array_min", "sign": "signum"}
"""Functions that DataFusion has under another name alone."""
_UNITS: Final = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_VOLATILE: Final = frozenset({"current_time", "rand", "random", "uuid"})
"""Functions that give other values when the same rows are read again."""


def find_function(function: str) -> str:
    """DataFusion's name of a function.

    Raises:
        UnsupportedError: DataFusion has no such function, or is not installed.
    """
    name = _ALIASES.get(function.lower(), function.lower())
    if name in _VOLATILE or name not in open_session(f"the function {function}").udfs():
        raise UnsupportedError(f"the function {function} is not supported")
    return name


def compute_call(function: str, arguments: Sequence[Typed], guard: Guard | None) -> Typed:
    """A call of a function by its name, with the errors of `find_function` and `compute`."""
    name = find_function(function)
    return compute(name, f"{name}({', '.join(['{}'] * len(arguments))})", arguments, guard)


def compute(name: str, sql: str, arguments: Sequence[Typed], guard: Guard | None = None) -> Typed:
    """An expression in DataFusion's SQL; one of literals alone is computed at once.

    Args:
        name: A word for the expression, for messages and plans.
        sql: The expression, with braces for each argument.
        arguments: The arguments.
        guard: Rows for which the value is needed; what cannot be computed elsewhere is not an error.

    Raises:
        InvalidInputError: DataFusion rejects the arguments.
        UnsupportedError: DataFusion is not installed.
    """
    columns: list[Typed] = []
    operands: list[str] = []
    for argument in arguments:
        check_parts(argument.type, f"the value of {name}")
        operand = _write_literal(argument)
        if operand is None:
            same_columns = [i for i, column in enumerate(columns) if column.expression.equals(argument.expression)]
            operand = f"x{same_columns[0] if same_columns else len(columns)}"
            columns += [] if same_columns else [argument]
        operands.append(operand)
    sql = sql.format(*operands)
    if all(argument.is_literal for argument in arguments):
        values = evaluate_sql(name, sql, [pa.array([argument.value], argument.type) for argument in columns], 1)
        kind = _without_views(values.type)
        scalar = values.cast(kind)[0]
        return Typed(pc.scalar(scalar), kind, scalar if pa.types.is_temporal(kind) else MISSING)
    kind = _without_views(type_of_sql(name, sql, [argument.type for argument in columns]))
    return python_call(name, [guarded(argument, guard) for argument in columns], kind, sql=sql)


def _write_literal(argument: Typed) -> str | None:
    """A literal in DataFusion's SQL, where that gives it the same type; None for all else."""
    value, kind = argument.value, argument.type
    if not argument.is_literal:
        return None
    if kind == INTERVAL:
        parts = value.as_py()
        return f"INTERVAL '{parts.months} months {parts.days} days {parts.nanoseconds} nanoseconds'"
    if pa.types.is_null(kind):
        return "NULL"
    if pa.types.is_timestamp(kind) and value is not None:
        zone = f'Some("{kind.tz}")' if kind.tz else "None"
        return f"arrow_cast({value.value}, 'Timestamp({_UNITS[kind.unit]}, {zone})')"
    if isinstance(value, str) and pa.types.is_string(kind):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, NumberLiteral) and pa.types.is_float64(kind):
        return value.literal
    if isinstance(value, int) and kind in (pa.int64(), pa.bool_()):
        return str(value)
    return None


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type with strings in place of views of strings, which no column has."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return pa.binary() if pa.types.is_binary_view(kind) else kind

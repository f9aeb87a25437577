"""The protocol of the SQL compiler, as handlers of nodes and functions call it; `compile.py` implements it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa
from sqlglot import exp

from lance_core.verbs.expressions.sql.typed import Typed, call, literal

_BOOL: Final = pa.bool_()


@dataclass(frozen=True, slots=True)
class Guard:
    """The rows for which a part of an expression is needed; used only for operations that could fail on other rows.

    Attributes:
        outer: The rows for which the expression around the part is needed; None for all.
        condition: Makes the condition that is true where the part is needed.
    """

    outer: Guard | None
    condition: Callable[[], Typed]


def guarded(value: Typed, guard: Guard | None) -> Typed:
    """The value for the rows of the guard, null for others, so that it cannot fail there."""
    rows: Typed | None = None
    while guard is not None:
        guard_condition = call("coalesce", [guard.condition(), literal(False, _BOOL)], _BOOL)
        rows = guard_condition if rows is None else call("and", [guard_condition, rows], _BOOL)
        guard = guard.outer
    if rows is None:
        return value
    return call("if_else", [rows, Typed(value.expression, value.type), literal(None, value.type)], value.type)


class Compiler(Protocol):
    """Compiles one SQL expression.

    Attributes:
        sql: The SQL.
        guard: The rows for which the expression being compiled is needed; None for all.
    """

    sql: str
    guard: Guard | None

    def value(self, node: exp.Expr) -> Typed:
        """Compile a node with the nodes below it; values of a dictionary type are decoded."""
        ...

    def truth(self, node: exp.Expr) -> Typed:
        """Compile a node whose values must be true, false or null."""
        ...

    def as_truth(self, node: exp.Expr, value: Typed) -> Typed:
        """Check that the values of a compiled node are true, false or null; NULL becomes a boolean null."""
        ...

    def only_where(self, condition: Callable[[], Typed]) -> AbstractContextManager[None]:
        """While the body runs, compile for only the rows where a condition is true."""
        ...

    def column(self, names: list[str], node: exp.Expr) -> Typed:
        """A column, or a field of a struct column, by its path.

        Raises:
            SchemaError: The data has no column, or the struct no field, of that name.
        """
        ...

    def field(self, value: Typed, name: str, node: exp.Expr) -> Typed:
        """A field of a struct."""
        ...

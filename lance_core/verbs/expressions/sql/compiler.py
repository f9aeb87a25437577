"""The protocol of the compiler of one text, as handlers of nodes and functions call it; `compile.py` implements it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlglot import exp

from lance_core.verbs.expressions.sql.typed import Typed

__all__ = ["Compiler"]


class Compiler(Protocol):
    """Compiles one text.

    Attributes:
        text: The SQL.
        guard: The rows for which the expression being compiled is needed; None for all.
    """

    text: str
    guard: Typed | None

    def value(self, node: exp.Expr) -> Typed:
        """One node and what is below it; a dictionary is decoded."""
        ...

    def truth(self, node: exp.Expr) -> Typed:
        """A node that must be true, false or null."""
        ...

    def as_truth(self, node: exp.Expr, found: Typed) -> Typed:
        """A compiled node, which must be true, false or null."""
        ...

    def only_where(self, condition: Typed) -> AbstractContextManager[None]:
        """Compile an expression that is needed only for rows where this is true."""
        ...

    def column(self, names: list[str], node: exp.Expr) -> Typed:
        """A column, or a field inside of one.

        Raises:
            SchemaError: There is none.
        """
        ...

    def field(self, value: Typed, name: str, node: exp.Expr) -> Typed:
        """A field of a struct."""
        ...

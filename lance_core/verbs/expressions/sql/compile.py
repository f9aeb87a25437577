"""Compile the tree of an SQL expression to a typed Arrow expression.

`nodes.py` has a handler for each kind of node; what is not in it is rejected by name. SQL evaluates the branches of
CASE and COALESCE, and the right side of AND and OR, only where it needs them, Arrow everywhere: while such a part is
compiled, `guard` says for which rows it is needed, and what could fail (a division, a cast) is given nulls elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.verbs.expressions.sql.compiler_protocol import Guard
from lance_core.verbs.expressions.sql.dialect import invalid, is_located, locate, parse, unsupported
from lance_core.verbs.expressions.sql.nodes import NODES, ROOT_NODES, logic, name_of
from lance_core.verbs.expressions.sql.typed import Typed, call, literal

_BOOL: Final = pa.bool_()


class SqlCompiler:
    """Compiles one SQL expression.

    Args:
        sql: The SQL.
        schema: Columns that it can refer to, in storage types.
    """

    def __init__(self, sql: str, schema: pa.Schema) -> None:
        self.sql = sql
        self.guard: Guard | None = None
        self._schema = schema

    def compile(self) -> Typed:
        """The expression.

        Raises:
            InvalidInputError: The string is not an expression, or its types do not fit.
            SchemaError: A column does not exist.
            UnsupportedError: A construct is not known.
        """
        return self._compile_top(parse(self.sql))

    def condition(self) -> tuple[Typed, list[Typed]]:
        """Compile the SQL as a condition, and each of the conditions that AND joins at its top.

        In conditions `regexp_match` stands for "matches". Errors are those of `compile`.
        """
        tree = _with_matches_as_truth(parse(self.sql))
        whole, parts = self._compile_top(tree), _split_and(tree)
        if len(parts) == 1:
            return whole, [whole]
        return whole, [self.as_truth(part, self._compile_top(part)) for part in parts]

    def value(self, node: exp.Expr) -> Typed:
        """Compile a node with the nodes below it; values of a dictionary type are decoded."""
        handler = NODES.get(type(node))
        if handler is None:
            unsupported(node, self.sql, name_of(node))
        with self._locate_errors(node):
            typed = handler(self, node)
        return _decode(typed)

    @contextmanager
    def only_where(self, condition: Callable[[], Typed]) -> Iterator[None]:
        """While the body runs, compile for only the rows where a condition is true, which is made when it is needed."""
        before = self.guard
        self.guard = Guard(before, condition)
        try:
            yield
        finally:
            self.guard = before

    def truth(self, node: exp.Expr) -> Typed:
        """Compile a node whose values must be true, false or null."""
        return self.as_truth(node, self.value(node))

    def as_truth(self, node: exp.Expr, value: Typed) -> Typed:
        """Check that the values of a compiled node are true, false or null; NULL becomes a boolean null."""
        if pa.types.is_null(value.type):
            return literal(None, _BOOL)
        if not pa.types.is_boolean(value.type):
            invalid(node, self.sql, f"expected true or false, found {value.type}")
        return value

    def column(self, names: list[str], node: exp.Expr) -> Typed:
        """A column, or a field of a struct column, by its path.

        Raises:
            SchemaError: The data has no column, or the struct no field, of that name.
        """
        first = _find(names[0], self._schema.names)
        if first is None:
            name = ".".join(names)
            holders = [
                column.name
                for column in self._schema
                if pa.types.is_struct(column.type) and names[0] in column.type.names
            ]
            remedy = f"write {' or '.join(f'{holder}.{name}' for holder in holders)}" if holders else ""
            raise SchemaError(
                f"No field named {name}: no column {name!r}, in {self.sql!r}; "
                + (remedy or f"the columns are {list(self._schema.names)}")
            )
        typed = Typed(pc.field(first), self._schema.field(first).type, is_column=True)
        for name in names[1:]:
            typed = self.field(typed, name, node)
        return typed

    def field(self, value: Typed, name: str, node: exp.Expr) -> Typed:
        """A field of a struct."""
        if not pa.types.is_struct(value.type):
            invalid(node, self.sql, f"a {value.type} has no field {name!r}")
        children = [child.name for child in value.type]
        child_name = _find(name, children)
        if child_name is None:
            raise SchemaError(f"no field {name!r}, in {self.sql!r}; the fields are {children}")
        index = children.index(child_name)
        child_value = call("struct_field", [value], value.type.field(index).type, pc.StructFieldOptions([index]))
        return Typed(child_value.expression, child_value.type, is_column=value.is_column)

    def _compile_top(self, node: exp.Expr) -> Typed:
        """Compile the top of the tree, where pylance gives a literal beside a column the type of the column."""
        if isinstance(node, exp.Paren):
            return self._compile_top(node.this)
        if type(node) in (exp.And, exp.Or):
            return logic(self, node, self._compile_top)
        if type(node) in ROOT_NODES:
            with self._locate_errors(node):
                return ROOT_NODES[type(node)](self, node, root=True)
        # A dictionary column by itself stays one.
        return NODES[exp.Column](self, node) if isinstance(node, exp.Column) else self.value(node)

    @contextmanager
    def _locate_errors(self, node: exp.Expr) -> Iterator[None]:
        """Add the position in the expression to an error that does not name one."""
        try:
            yield
        except (InvalidInputError, UnsupportedError) as error:
            if isinstance(error, SchemaError) or is_located(error):
                raise
            locate(node, self.sql, error)


def _split_and(tree: exp.Expr) -> list[exp.Expr]:
    parts, left = [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, exp.Paren):
            left.append(node.this)
        elif isinstance(node, exp.And):
            left += [node.expression, node.this]
        else:
            parts.append(node)
    return parts


def _find(name: str, names: list[str]) -> str | None:
    """The name as the schema spells it: the same, else the only one that differs in case alone; None if neither."""
    if name in names:
        return name
    alike = [candidate for candidate in names if candidate.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _decode(value: Typed) -> Typed:
    if not pa.types.is_dictionary(value.type):
        return value
    return Typed(value.expression.cast(value.type.value_type), value.type.value_type, is_column=value.is_column)


def _with_matches_as_truth(tree: exp.Expr) -> exp.Expr:
    """Replace `regexp_match`, which gives a list, by whether there is a match, wherever a truth value is expected."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "regexp_match":
            node.set("this", "_matches")
        elif isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            # The list itself may be null, what is computed with it is another matter.
            left += [] if isinstance(node.this.unnest(), exp.Anonymous) else [node.this]
        elif isinstance(node, exp.Connector | exp.Is):
            left += [node.this, node.expression]
        elif isinstance(node, exp.Not | exp.Paren):
            left.append(node.this)
    return tree

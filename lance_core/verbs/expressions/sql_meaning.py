"""Give Arrow expressions SQL's meaning: NaN equals NaN and is above every number, and IN is null for null.

Arrow's kernels follow IEEE 754, where every comparison with NaN except `<>` is false. They fail where an unsigned
integer of 64 bits or a decimal is compared with an integer of another type, into which it does not fit. Such
comparisons in a user's expression are replaced by those of the SQL compiler. So is `is_in`, for which Arrow matches
null with null where SQL's `IN` is null. Long chains of AND or OR become trees of few levels. Nothing recurses.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.verbs.expressions.large_conditions import in_deep_thread
from lance_core.verbs.expressions.serialized import Entry, Node, Pieces, deserialize, parse_serialized, serialize

_SMALL: Final = 4096
"""Bytes of a serialized expression up to which the rewritten expression is cached."""
_FLAT: Final = 16_384
"""A serialized expression of at most this many bytes has few levels."""
_MOST_LEVELS: Final = 1000
"""The most levels of an expression: Arrow recurses into each, and a stack overflow ends the process."""
_SHORT: Final = 64
"""A chain of AND or OR of at most this many levels stays as it was written."""
_CHAINS: Final = (b"and_kleene", b"or_kleene", b"and", b"or")
_OPERATORS: Final = {
    b"equal": "=",
    b"not_equal": "<>",
    b"less": "<",
    b"less_equal": "<=",
    b"greater": ">",
    b"greater_equal": ">=",
}
_KEEP_INTEGERS: Final = frozenset(
    {
        *_CHAINS,
        *_OPERATORS,
        *(b"invert", b"is_null", b"is_valid", b"coalesce", b"if_else", b"binary_length", b"utf8_length"),
        *(name + end for name in (b"add", b"subtract", b"multiply", b"divide") for end in (b"", b"_checked")),
    }
)
"""Functions that return floats, decimals or uint64 only if an argument is one."""
_TEMPLATE_LEVELS: Final = 5
"""The most levels above the sides of a comparison of floats."""
_SIDES: Final = ("left side", "right side")


@dataclass(slots=True)
class _ExpressionPart:
    """A part of an expression.

    Attributes:
        node: Its entries.
        kind: The type of its values; None if it is not known yet.
        value: The value of a literal; None for other parts.
        levels: How many levels it has.
        chain: The function, if it is AND or OR; otherwise empty.
        links: The parts that AND or OR joins; a nested chain of the same function is replaced by its own parts.
    """

    node: Node
    kind: pa.DataType | None = None
    value: pa.Scalar | None = None
    levels: int = 1
    chain: bytes = b""
    links: deque[_ExpressionPart] = field(default_factory=deque)


@dataclass(slots=True)
class _Call:
    """A call whose arguments are being read."""

    start: Entry
    arguments: list[_ExpressionPart] = field(default_factory=list)
    options: Entry | None = None


def with_sql_meaning(expression: pc.Expression, schema: pa.Schema) -> pc.Expression:
    """Rewrite an expression so that its comparisons follow SQL.

    Args:
        expression: A condition or a value.
        schema: The columns, in storage types.

    Raises:
        InvalidInputError: The expression refers to a column by its position, or has too many levels.
    """
    buffer = serialize(expression, in_deep_thread)
    data = memoryview(buffer).tobytes()
    if buffer.size <= _FLAT and b"is_in" not in data:
        compares = any(name in data for name in _OPERATORS)
        if not (compares and _may_be_floats(buffer, schema)):
            return expression
    return _rewrite_cached(data, schema) if buffer.size <= _SMALL else _rewrite(buffer, schema)


@lru_cache(maxsize=256)
def _rewrite_cached(data: bytes, schema: pa.Schema) -> pc.Expression:
    return _rewrite(pa.py_buffer(data), schema)


def _may_be_floats(buffer: pa.Buffer, schema: pa.Schema) -> bool:
    """Whether the expression may compare floats, decimals or uint64, which come from a column, a literal or a call."""
    pieces = parse_serialized(buffer)
    if any(_has_such_numbers(column.type) for column in pieces.columns):
        return True
    for key, value in pieces.entries:
        if key == b"call" and value not in _KEEP_INTEGERS:
            return True
        position = schema.get_field_index(value.decode()) if key == b"field_ref" else -1
        if position >= 0 and _has_such_numbers(schema.field(position).type):
            return True
    return False


def _has_such_numbers(kind: pa.DataType) -> bool:
    left = [kind]
    while left:
        part_type = left.pop()
        if pa.types.is_floating(part_type) or _is_wide(part_type):
            return True
        if pa.types.is_dictionary(part_type):
            left.append(part_type.value_type)
        left.extend(part_type.field(position).type for position in range(part_type.num_fields))
    return False


def _is_wide(kind: pa.DataType) -> bool:
    """Whether the type has values that fit into no signed integer of 64 bits."""
    return bool(pa.types.is_uint64(kind) or pa.types.is_decimal(kind))


def _rewrite(buffer: pa.Buffer, schema: pa.Schema) -> pc.Expression:
    pieces = parse_serialized(buffer)
    writer = _SqlRewriter(schema, pieces.columns)
    root = writer.read(pieces.entries)
    if root.levels > _MOST_LEVELS:
        raise InvalidInputError(
            f"the expression is nested too deep: it has {root.levels} levels, and at most {_MOST_LEVELS} are possible; "
            "chains of AND and OR may have any length, and is_in takes any number of values"
        )
    if writer.changed:
        return deserialize(root.node, writer.columns)
    return pc.Expression._deserialize(buffer)  # noqa: SLF001 - Arrow has no public way


def _link(call: _Call, end: Entry) -> _ExpressionPart:
    """AND or OR of two parts; a part that is a chain of the same function is replaced by its links."""
    name = end[1]
    left, right = call.arguments
    if left.chain == name:
        links = left.links
        links.extend(right.links if right.chain == name else (right,))
    elif right.chain == name:
        links = right.links
        links.appendleft(left)
    else:
        links = deque((left, right))
    joined = _join(name, left, right)
    return _ExpressionPart(joined.node, pa.bool_(), levels=joined.levels, chain=name, links=links)


def _join(name: bytes, left: _ExpressionPart, right: _ExpressionPart) -> _ExpressionPart:
    node = [(b"call", name), left.node, right.node, (b"end", name)]
    return _ExpressionPart(node, pa.bool_(), levels=1 + max(left.levels, right.levels))


class _SqlRewriter:
    """Reads the entries of an expression, and replaces its comparisons by those of SQL.

    Args:
        schema: The columns of the data.
        columns: The values of literals and options.
    """

    def __init__(self, schema: pa.Schema, columns: list[pa.Array]) -> None:
        self.columns = list(columns)
        self.changed = False
        self._schema = schema

    def read(self, entries: list[Entry]) -> _ExpressionPart:
        """The whole expression, with its comparisons replaced."""
        calls = [_Call((b"", b""))]
        parts = iter(entries)
        for entry in parts:
            kind, value = entry
            top = calls[-1]
            if kind == b"call":
                calls.append(_Call(entry))
            elif kind == b"end":
                calls.pop()
                calls[-1].arguments.append(self._end_call(top, entry))
            elif kind == b"options":
                top.options = entry
            elif kind == b"literal":
                scalar = self.columns[int(value)][0]
                top.arguments.append(_ExpressionPart(entry, scalar.type, scalar))
            else:
                path = [entry, *(next(parts) for _ in range(int(value)))] if kind == b"nested_field_ref" else [entry]
                top.arguments.append(
                    _ExpressionPart(path, self._type_of_field([name for key, name in path if key == b"field_ref"]))
                )
        return self._close_chain(calls[0].arguments[0])

    def _end_call(self, call: _Call, end: Entry) -> _ExpressionPart:
        name = end[1]
        if name in _CHAINS and len(call.arguments) == 2:
            return _link(call, end)
        call.arguments = [self._close_chain(part) for part in call.arguments]
        node: list[Any] = [call.start, *(part.node for part in call.arguments)]
        if call.options is not None:
            node.append(call.options)
        plain = _ExpressionPart(
            [*node, end], levels=1 + max((argument.levels for argument in call.arguments), default=0)
        )
        if name in _OPERATORS and len(call.arguments) == 2:
            return self._compare(_OPERATORS[name], call.arguments) or plain
        if name == b"is_in" and len(call.arguments) == 1 and call.options is not None:
            return self._look_up(call.arguments[0], self.columns[int(call.options[1])][0]) or plain
        return plain

    def _close_chain(self, part: _ExpressionPart) -> _ExpressionPart:
        """A part that is complete: a long chain becomes a tree of few levels with the same value, null included."""
        if not part.chain or part.levels <= _SHORT:
            return part
        self.changed = True
        links = [self._close_chain(link) if link.chain else link for link in part.links]
        while len(links) > 1:
            pairs = [_join(part.chain, *links[position : position + 2]) for position in range(0, len(links) - 1, 2)]
            links = [*pairs, *links[2 * len(pairs) :]]
        return links[0]

    def _compare(self, operator: str, sides: list[_ExpressionPart]) -> _ExpressionPart | None:
        """SQL's comparison of floats, or of uint64 or decimals with other integers; None for all other types."""
        kinds = [self._kind(side) for side in sides]
        floats = any(map(pa.types.is_floating, kinds))
        wide = kinds[0] != kinds[1] and any(map(_is_wide, kinds)) and any(map(pa.types.is_integer, kinds))
        if not (floats or wide):
            return None
        from lance_core.verbs.expressions.sql.compare import compare, compare_floats  # noqa: PLC0415 - the SQL parser
        from lance_core.verbs.expressions.sql.typed import MISSING, Typed, is_number  # noqa: PLC0415 - the SQL parser

        if not all(map(is_number, kinds)):
            return None
        typed = [
            Typed(pc.field(name), kind, MISSING if side.value is None else side.value.as_py())
            for name, side, kind in zip(_SIDES, sides, kinds, strict=True)
        ]
        if any(side.is_null for side in typed):
            return None
        return self._of_template((compare_floats if floats else compare)(operator, *typed).expression, sides)

    def _look_up(self, side: _ExpressionPart, options: Any) -> _ExpressionPart | None:
        """SQL's `IN`, null where the result depends on a null; None if the expression does not fit the columns."""
        from lance_core.verbs.expressions.sql.compare import in_set  # noqa: PLC0415 - it imports the SQL parser
        from lance_core.verbs.expressions.sql.typed import Typed  # noqa: PLC0415 - it imports the SQL parser

        kind = self._kind(side)
        if pa.types.is_null(kind):
            return None
        return self._of_template(
            in_set(Typed(pc.field(_SIDES[0]), kind), options["value_set"].values).expression, [side]
        )

    def _of_template(self, template: pc.Expression, sides: list[_ExpressionPart]) -> _ExpressionPart:
        """The template, whose placeholder columns are replaced by the sides."""
        pieces: Pieces = parse_serialized(serialize(template))
        entries = pieces.after(len(self.columns))
        self.columns += pieces.columns
        self.changed = True
        places = dict(zip((name.encode() for name in _SIDES), sides, strict=False))
        node = [
            places[value].node if key == b"field_ref" and value in places else (key, value) for key, value in entries
        ]
        return _ExpressionPart(node, pa.bool_(), levels=_TEMPLATE_LEVELS + max(side.levels for side in sides))

    def _type_of_field(self, path: list[bytes]) -> pa.DataType | None:
        kind: Any = None
        children: Any = self._schema
        for name in path:
            position = children.get_field_index(name.decode())
            if position < 0:
                return None
            kind = children.field(position).type
            children = kind if pa.types.is_struct(kind) else pa.schema([])
        return kind

    def _kind(self, part: _ExpressionPart) -> pa.DataType:
        """The type of the values; null if the expression does not fit the columns, as its evaluation will show."""
        if part.kind is None:
            from pyarrow import acero  # noqa: PLC0415 - it imports pandas

            nothing = acero.TableSourceNodeOptions(self._schema.empty_table())
            try:
                project = acero.ProjectNodeOptions([deserialize(part.node, self.columns)], ["value"])
                nodes = [acero.Declaration("table_source", nothing), acero.Declaration("project", project)]
                part.kind = acero.Declaration.from_sequence(nodes).to_table(use_threads=False).schema.field(0).type
            except pa.ArrowException:
                part.kind = pa.null()
        return part.kind

"""The handlers that compile the kinds of nodes of an SQL tree, one line of a table each.

A handler gets the compiler and its node, and has the compiler compile the nodes below.

Patterns of LIKE that are literals are evaluated by Arrow, others by DataFusion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from decimal import Decimal, DecimalException
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lance_core.errors import UnsupportedError
from lance_core.extension_types import is_any_list
from lance_core.verbs.expressions.sql.arithmetic import arithmetic, bitwise, concatenated, minus
from lance_core.verbs.expressions.sql.casts import cast, try_cast, type_of
from lance_core.verbs.expressions.sql.compare import (
    all_of,
    both,
    chain,
    common_of,
    compare,
    either,
    is_in,
    is_null,
    negate,
    same,
)
from lance_core.verbs.expressions.sql.compiler_protocol import Compiler
from lance_core.verbs.expressions.sql.datafusion_calls import compute, compute_call
from lance_core.verbs.expressions.sql.dialect import follows_not, invalid, is_in_parentheses, unsupported
from lance_core.verbs.expressions.sql.functions import SYNTAX, call_function
from lance_core.verbs.expressions.sql.time_coercion import coerced_pairs
from lance_core.verbs.expressions.sql.typed import (
    NumberLiteral,
    Typed,
    as_string,
    call,
    integer,
    literal,
    number_literal,
)
from lance_core.verbs.expressions.sql.words import CLOCKS

_BOOL: Final = pa.bool_()
_MOST_DIGITS: Final = 4_000
_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: Final[dict[type[exp.Expr], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%"}
_BITWISE: Final[dict[type[exp.Expr], str]] = {
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
}
# To the right of a comparison these would bind differently here than in pylance.
_AMBIGUOUS: Final[tuple[type[exp.Expr], ...]] = (
    exp.Is,
    exp.Like,
    exp.ILike,
    exp.In,
    exp.Between,
    exp.Not,
    exp.Escape,
    *_COMPARISONS,
)


def logic(c: Compiler, node: exp.Expr, part: Callable[[exp.Expr], Typed]) -> Typed:
    """Compile AND or OR, each side by `part`. `a OR b OR c` is one chain of any length: its tree leans to the left."""
    first, right_sides = node, []
    while type(first) is type(node):
        right_sides.append(first.expression)
        first = first.this
    join = both if isinstance(node, exp.And) else either
    parts = [c.as_truth(first, part(first))]
    for other in reversed(right_sides):
        # A side matters where those to its left do not decide.
        num_before = len(parts)
        with c.only_where(lambda num_before=num_before: _is_undecided(parts[:num_before], join)):  # type: ignore[misc]  # bound now
            parts.append(c.as_truth(other, part(other)))
    return chain(parts, join)


def _is_undecided(parts: Sequence[Typed], join: Callable[[Typed, Typed], Typed]) -> Typed:
    """Whether a chain of AND is true or null, or a chain of OR is false or null."""
    left = chain(parts, join)
    undecided = left if join is both else negate(left)
    return call("coalesce", [undecided, literal(True, _BOOL)], _BOOL)


def _comparison(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    right_side = node.expression
    if isinstance(right_side, exp.Paren) and not is_in_parentheses(right_side.this, c.sql):
        right_side = right_side.this
    if isinstance(right_side, _AMBIGUOUS):
        invalid(node.expression, c.sql, "ambiguous without parentheses")
    left, right = c.value(node.this), c.value(node.expression)
    return compare(_COMPARISONS[type(node)], left, right, narrow_floats=root)


def _pass_through(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    return same(c.value(node.this), c.value(node.expression), narrow_floats=root)


def _calculation(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    left, right = c.value(node.this), c.value(node.expression)
    return arithmetic(_ARITHMETIC[type(node)], left, right, guard=c.guard, root=root)


def _bits(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    return bitwise(_BITWISE[type(node)], c.value(node.this), c.value(node.expression), root=root)


def _in(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
        unsupported(node, c.sql, "IN with a query")
    if not node.expressions:
        invalid(node, c.sql, "IN needs at least one value")
    value = c.value(node.this)
    return is_in(value, [c.value(candidate) for candidate in node.expressions], narrow_floats=root)


def _between(c: Compiler, node: exp.Expr, *, root: bool = False) -> Typed:
    value, low, high = c.value(node.this), c.value(node.args["low"]), c.value(node.args["high"])
    narrows = root and value.is_column
    short = [side.type for side in (low, high) if side.type in (pa.float16(), pa.float32()) and not side.is_literal]
    if short and pa.types.is_integer(value.type):
        value = value.to(short[0])  # one type for all three, as in pylance
    above, below = coerced_pairs(value, [low, high], each=True)
    return both(compare(">=", *above, narrow_floats=narrows), compare("<=", *below, narrow_floats=narrows))


def _not_at_root(c: Compiler, node: exp.Expr, *, root: bool) -> Typed:
    """Compile NOT at the top: to pylance `x NOT IN` and `x NOT BETWEEN` are one operator each, `NOT x IN` is two."""
    inner = node.this
    if isinstance(inner, exp.In | exp.Between) and not follows_not(inner, c.sql):
        return negate(ROOT_NODES[type(inner)](c, inner, root=root))
    return NODES[exp.Not](c, node)


def _is(c: Compiler, node: exp.Expr) -> Typed:
    other = node.expression
    if isinstance(other, exp.Null):
        value = c.value(node.this)
        return literal(False, _BOOL) if _is_never_null(node.this) else is_null(value)
    if isinstance(other, exp.Boolean):
        value = c.truth(node.this)
        truth = value if other.this else negate(value)
        return call("coalesce", [truth, literal(False, _BOOL)], _BOOL)
    return unsupported(node, c.sql, f"IS {other.sql()}")


def _is_never_null(node: exp.Expr) -> bool:
    """Whether a node is never null, as it consists of IS tests alone: then `IS NULL` is false without its values."""
    left = [node]
    while left:
        node = left.pop()
        if isinstance(node, exp.Not | exp.Paren):
            left.append(node.this)
        elif isinstance(node, exp.Connector):
            left += [node.this, node.expression]
        elif not isinstance(node, exp.Is):
            return False
    return True


def _literal(c: Compiler, node: exp.Expr) -> Typed:
    string = str(node.this)
    if node.is_string:
        return literal(string, pa.string())
    if not _has_possible_size(string):
        return unsupported(node, c.sql, f"a number beyond 1e{_MOST_DIGITS} or below 1e-{_MOST_DIGITS}")
    try:
        number = int(string)
    except ValueError:
        return number_literal(NumberLiteral(string))
    return integer(number)


def _has_possible_size(number: str) -> bool:
    """Whether a number can be computed with: Python converts integers of 4,300 digits at most."""
    try:
        return len(number) <= _MOST_DIGITS and abs(Decimal(number).adjusted()) <= _MOST_DIGITS
    except DecimalException:
        return False


def _hexadecimal(c: Compiler, node: exp.Expr) -> Typed:
    digits = str(node.this)
    try:
        return literal(bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}"), pa.binary())
    except ValueError:
        invalid(node, c.sql, f"{digits!r} is not a hexadecimal number")


def _interval(c: Compiler, node: exp.Expr) -> Typed:
    if not isinstance(node.this, exp.Literal):
        unsupported(node, c.sql, "an INTERVAL that is not a literal")
    unit = node.args.get("unit")
    words = f"{node.this.this} {unit.name}" if unit is not None else str(node.this.this)
    return compute("INTERVAL", "INTERVAL {}", [literal(words, pa.string())])


def _cast(c: Compiler, node: exp.Expr) -> Typed:
    if node.args.get("format"):
        unsupported(node, c.sql, "CAST with FORMAT")
    kind = type_of(node.args["to"], c.sql)
    return (try_cast if isinstance(node, exp.TryCast) else cast)(c.value(node.this), kind, guard=c.guard)


def _case(c: Compiler, node: exp.Expr) -> Typed:
    subject = c.value(node.this) if node.this is not None else None
    conditions: list[Typed] = []
    values: list[Typed] = []

    def none_of(count: int) -> Typed:
        return all_of([negate(condition) for condition in conditions[:count]])

    for count, branch in enumerate(node.args["ifs"]):
        with c.only_where(lambda count=count: none_of(count)) if count else nullcontext():  # type: ignore[misc]  # bound now
            branch_condition = c.truth(branch.this) if subject is None else compare("=", subject, c.value(branch.this))
        condition = call("coalesce", [branch_condition, literal(False, _BOOL)], _BOOL)
        conditions.append(condition)
        with c.only_where(lambda count=count: both(none_of(count), conditions[count]) if count else conditions[0]):  # type: ignore[misc]
            values.append(c.value(branch.args["true"]))
    default = node.args.get("default")
    with c.only_where(lambda: none_of(len(conditions))):
        values.append(c.value(default) if default is not None else literal(None, pa.null()))
    values = common_of(values)
    names = [str(position) for position in range(len(conditions))]
    kind = pa.struct([pa.field(name, _BOOL) for name in names])
    chosen = call("make_struct", conditions, kind, pc.MakeStructOptions(names))
    return call("case_when", [chosen, *values], values[0].type)


def _array(c: Compiler, node: exp.Expr) -> Typed:
    items = common_of([c.value(element) for element in node.expressions]) if node.expressions else []
    kind = pa.list_(items[0].type if items else pa.int64())
    if all(item.is_literal for item in items):
        return literal([item.value for item in items], kind)
    return compute_call("make_array", items, c.guard)


def _bracket(c: Compiler, node: exp.Expr) -> Typed:
    (key,) = node.expressions if len(node.expressions) == 1 else (None,)
    value = c.value(node.this)
    if isinstance(key, exp.Literal) and key.is_string:
        return c.field(value, str(key.this), node)
    if not is_any_list(value.type) or key is None:
        invalid(node, c.sql, f"a {value.type} has no items")
    if isinstance(key, exp.Slice):
        if key.this is None or key.expression is None or key.args.get("step"):
            unsupported(node, c.sql, "a slice without both ends")
        return compute_call("array_slice", [value, c.value(key.this), c.value(key.expression)], c.guard)
    return compute_call("array_element", [value, c.value(key)], c.guard)


def _dot(c: Compiler, node: exp.Expr) -> Typed:
    if not isinstance(node.expression, exp.Identifier):
        unsupported(node, c.sql, node.sql())
    return c.field(c.value(node.this), node.expression.name, node)


def _column(c: Compiler, node: exp.Column) -> Typed:
    names = [part.name for part in node.parts]
    if len(names) == 1 and not node.this.quoted and names[0].lower() in CLOCKS:
        return call_function(c, node, names[0], [])
    return c.column(names, node)


def _function(c: Compiler, node: exp.Expr) -> Typed:
    return call_function(c, node, str(node.this), node.expressions)


def _syntax(c: Compiler, node: exp.Expr) -> Typed:
    return SYNTAX[type(node)](c, node)


def _like(c: Compiler, node: exp.Expr) -> Typed:
    escape = None
    if isinstance(node, exp.Escape):
        escape, node = node.expression, node.this
        if not (isinstance(escape, exp.Literal) and len(escape.name) == 1):
            invalid(node, c.sql, "ESCAPE takes one character")
    if isinstance(node.expression, exp.Any | exp.All) or not isinstance(node, exp.Like | exp.ILike):
        unsupported(node, c.sql, name_of(node))
    matches = like(
        c.value(node.this),
        c.value(node.expression),
        escape=escape.name if escape is not None else "\\",
        ignore_case=isinstance(node, exp.ILike),
    )
    return negate(matches) if node.args.get("negate") else matches


def _concatenation(c: Compiler, node: exp.Expr) -> Typed:
    if any(type(side) in _ARITHMETIC for side in (node.this, node.expression)):
        invalid(node, c.sql, "ambiguous without parentheses")
    return concatenated(c.value(node.this), c.value(node.expression))


def name_of(node: exp.Expr) -> str:
    """How messages name a node: by the kind of its syntax, or by its SQL."""
    words = {"SimilarTo": "SIMILAR TO", "Select": "a query", "Subquery": "a query", "Window": "a window function"}
    return words.get(type(node).__name__, node.sql())


NODES: Final[dict[type[exp.Expr], Callable[[Compiler, Any], Typed]]] = {
    exp.And: lambda c, node: logic(c, node, c.value),
    exp.Or: lambda c, node: logic(c, node, c.value),
    exp.Not: lambda c, node: negate(c.truth(node.this)),
    exp.Paren: lambda c, node: c.value(node.this),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _calculation),
    **dict.fromkeys(_BITWISE, _bits),
    **dict.fromkeys(SYNTAX, _syntax),
    exp.Neg: lambda c, node: minus(c.value(node.this)),
    exp.NullSafeEQ: _pass_through,
    exp.NullSafeNEQ: lambda c, node: negate(_pass_through(c, node)),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like,
    exp.DPipe: _concatenation,
    exp.Literal: _literal,
    exp.HexString: _hexadecimal,
    exp.Boolean: lambda _, node: literal(bool(node.this), _BOOL),
    exp.Null: lambda *_: literal(None, pa.null()),
    exp.Interval: _interval,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Case: _case,
    exp.Array: _array,
    exp.Bracket: _bracket,
    exp.Dot: _dot,
    exp.Column: _column,
    exp.Anonymous: _function,
}

ROOT_NODES: Final[dict[type[exp.Expr], Callable[..., Typed]]] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _calculation),
    exp.BitwiseLeftShift: _bits,
    exp.BitwiseRightShift: _bits,
    exp.In: _in,
    exp.Between: _between,
    exp.Not: _not_at_root,
    exp.NullSafeEQ: _pass_through,
    exp.NullSafeNEQ: lambda c, node, *, root: negate(_pass_through(c, node, root=root)),
}
"""Handlers that give a literal beside a column the type of the column if they are called with `root`."""


def like(value: Typed, pattern: Typed, *, escape: str, ignore_case: bool) -> Typed:
    """`value LIKE pattern`: % is anything, _ is one character.

    Raises:
        InvalidInputError: The value or the pattern is not a string.
    """
    value, pattern = as_string(value), as_string(pattern)
    if value.is_null or pattern.is_null:
        return literal(None, _BOOL)
    if not pattern.is_literal:
        if escape != "\\":
            raise UnsupportedError("ESCAPE with a pattern that is not a literal is not supported")
        operator = "ILIKE" if ignore_case else "LIKE"
        return compute(operator, f"{{}} {operator} {{}}", [value, pattern])
    like_pattern = _with_backslash(pattern.value, escape)
    if "\\" in like_pattern:  # Arrow takes the escape for a character where % stands at an end of the pattern alone
        expression = pc.MatchSubstringOptions(_as_expression(like_pattern), ignore_case=ignore_case)
        return call("match_substring_regex", [value], _BOOL, expression)
    return call("match_like", [value], _BOOL, pc.MatchSubstringOptions(like_pattern, ignore_case=ignore_case))


def _as_expression(pattern: str) -> str:
    """The regular expression of a pattern of LIKE."""
    wild = {"%": ".*", "_": "."}
    parts = [wild.get(part) or re.escape(part[-1]) for part in re.findall(r"\\?.|\\$", pattern, re.DOTALL)]
    return rf"(?s)\A{''.join(parts)}\z"


def _with_backslash(pattern: str, escape: str) -> str:
    """The pattern with a backslash as its escape character."""
    if escape == "\\":
        return pattern
    parts, escaped = [], False
    for character in pattern:
        if character == escape and not escaped:
            escaped = True
            continue
        parts.append(f"\\{character}" if escaped or character == "\\" else character)
        escaped = False
    return "".join(parts)

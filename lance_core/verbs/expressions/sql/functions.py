"""The tables of SQL functions by name, and of functions with a syntax of their own: one line adds a function.

A function gets the compiler, its node (for errors) and its uncompiled arguments, so that it can compile each argument
for the rows that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from lance_core.verbs.expressions.sql import patterns
from lance_core.verbs.expressions.sql.arithmetic import null_if
from lance_core.verbs.expressions.sql.casts import cast, named_type
from lance_core.verbs.expressions.sql.compare import (
    all_of,
    common_of,
    compare,
    either,
    in_common_type,
    is_null,
    negated,
)
from lance_core.verbs.expressions.sql.compiler_protocol import Compiler
from lance_core.verbs.expressions.sql.dialect import invalid, unsupported
from lance_core.verbs.expressions.sql.functions_arrays import ARRAY_FUNCTIONS
from lance_core.verbs.expressions.sql.functions_json import JSON_TYPES, check_json_arguments
from lance_core.verbs.expressions.sql.functions_math import MATH_FUNCTIONS
from lance_core.verbs.expressions.sql.functions_string import STRING_FUNCTIONS
from lance_core.verbs.expressions.sql.functions_time import TIME_FUNCTIONS
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, call, literal

__all__ = ["FUNCTIONS", "SYNTAX", "Function"]

Function = Callable[[Compiler, exp.Expr, Sequence[exp.Expr]], Typed]

_BOOL: Final = pa.bool_()


def _eager(function: Callable[..., Typed], least: int, most: int | None = None) -> Function:
    """A function of compiled arguments, `least` to `most`: exactly `least` if that is None, no limit if negative."""

    def compiled(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
        limit = least if most is None else most
        if len(arguments) < least or (len(arguments) > limit >= 0):
            num_expected = (
                f"{least}" if limit == least else f"{least} to {limit}" if limit >= 0 else f"at least {least}"
            )
            invalid(node, c.sql, f"{node.this} takes {num_expected} arguments, not {len(arguments)}")
        return function(*(c.value(argument) for argument in arguments))

    return compiled


def _coalesce(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    if not arguments:
        invalid(node, c.sql, "coalesce needs an argument")
    values = [c.value(arguments[0])]
    for argument in arguments[1:]:
        earlier_values = list(values)
        with c.only_where(lambda earlier_values=earlier_values: all_of([is_null(value) for value in earlier_values])):  # type: ignore[misc]  # bound now
            values.append(c.value(argument))
    values = common_of(values)
    return values[0] if pa.types.is_null(values[0].type) else call("coalesce", values, values[0].type)


def _nvl2(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    if len(arguments) != 3:
        invalid(node, c.sql, "nvl2 takes 3 arguments")
    condition = negated(is_null(c.value(arguments[0])))
    return _choose(c, condition, arguments[1], arguments[2])


def _if(c: Compiler, node: exp.Expr) -> Typed:
    condition = call("coalesce", [c.truth(node.this), literal(False, _BOOL)], _BOOL)
    return _choose(c, condition, node.args["true"], node.args.get("false") or exp.Null())


def _choose(c: Compiler, condition: Typed, yes: exp.Expr, no: exp.Expr) -> Typed:
    with c.only_where(lambda: condition):
        yes_value = c.value(yes)
    with c.only_where(lambda: negated(condition)):
        no_value = c.value(no)
    yes_value, no_value = common_of([yes_value, no_value])
    return call("if_else", [condition, yes_value, no_value], yes_value.type)


def _arrow_cast(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    if len(arguments) != 2 or not isinstance(arguments[1], exp.Literal):
        invalid(node, c.sql, "arrow_cast takes a value and the name of a type")
    kind = named_type(arguments[1].name)
    if kind is None:
        unsupported(arguments[1], c.sql, f"the type {arguments[1].name}")
    return cast(c.value(arguments[0]), kind, strict=True, guard=c.guard)


def _get_field(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    if len(arguments) != 2 or not isinstance(arguments[1], exp.Literal):
        invalid(node, c.sql, "get_field takes a struct and the name of a field")
    return c.field(c.value(arguments[0]), arguments[1].name, node)


def _named_struct(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    names, values = arguments[::2], [c.value(argument) for argument in arguments[1::2]]
    if not values or len(names) != len(values) or not all(isinstance(name, exp.Literal) for name in names):
        invalid(node, c.sql, "named_struct takes names and values in turn")
    return _struct([name.name for name in names], values)


def _struct(names: Sequence[str], values: Sequence[Typed]) -> Typed:
    import pyarrow.compute as pc  # noqa: PLC0415 - only here

    kind = pa.struct([pa.field(name, value.type) for name, value in zip(names, values, strict=True)])
    return call("make_struct", list(values), kind, pc.MakeStructOptions(list(names)))


def _pick_extreme(kernel: str) -> Callable[..., Typed]:
    def chosen(*values: Typed) -> Typed:
        import pyarrow.compute as pc  # noqa: PLC0415 - only here

        operands = common_of(values)
        if pa.types.is_floating(operands[0].type):
            return reduce(
                lambda left, right: _pick_further(">" if kernel.startswith("max") else "<", left, right), operands
            )
        kind = operands[0].type
        options = pc.ElementWiseAggregateOptions(skip_nulls=True)
        if not getattr(kind, "tz", None):
            return call(kernel, operands, kind, options)
        # Arrow has no kernel for times with a zone.
        plain = pa.timestamp(kind.unit)
        extreme = call(kernel, [Typed(operand.expression.cast(plain), plain) for operand in operands], plain, options)
        return Typed(extreme.expression.cast(kind), kind)

    return chosen


def _pick_further(operator: str, left: Typed, right: Typed) -> Typed:
    """The greater (or the lesser) of two floats, in the order of comparisons; where one is null, the other."""
    comes_first = either(compare(operator, left, right), is_null(right))
    chosen = call("coalesce", [comes_first, literal(False, _BOOL)], _BOOL)
    return call("if_else", [chosen, left, right], left.type)


def _regexp_like(*arguments: Typed) -> Typed:
    matches = patterns.regexp_like(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None)
    return call("coalesce", [matches, literal(False, _BOOL)], _BOOL)


def _nan_or(value: Typed, other: Typed) -> Typed:
    value, other = in_common_type(value, other)
    return call("if_else", [call("is_nan", [value], _BOOL), other, value], value.type)


def _json(name: str) -> Callable[..., Typed]:
    def compiled(*arguments: Typed) -> Typed:
        check_json_arguments(name, arguments)
        return python_call(name, arguments, JSON_TYPES[name])

    return compiled


def _eager_table(table: dict[str, tuple[Callable[..., Typed], int, int | None]]) -> dict[str, Function]:
    return {name: _eager(*entry) for name, entry in table.items()}


FUNCTIONS: Final[dict[str, Function]] = {
    "coalesce": _coalesce,
    "ifnull": _coalesce,
    "nvl": _coalesce,
    "nvl2": _nvl2,
    "nullif": _eager(null_if, 2),
    "nanvl": _eager(_nan_or, 2),
    "greatest": _eager(_pick_extreme("max_element_wise"), 1, -1),
    "least": _eager(_pick_extreme("min_element_wise"), 1, -1),
    "is_valid": _eager(lambda value: negated(is_null(value)), 1),
    "arrow_cast": _arrow_cast,
    "get_field": _get_field,
    "named_struct": _named_struct,
    "struct": _eager(lambda *values: _struct([f"c{i}" for i in range(len(values))], values), 1, -1),
    "_matches": _eager(_regexp_like, 2, 3),
    "regexp_like": _eager(lambda string, pattern, flags=None: patterns.regexp_like(string, pattern, flags), 2, 3),
    "regexp_match": _eager(lambda string, pattern, flags=None: patterns.regexp_match(string, pattern, flags), 2, 3),
    "regexp_count": _eager(patterns.regexp_count, 2),
    "regexp_replace": _eager(lambda *values: patterns.regexp_replace(*(*values, None)[:4]), 3, 4),
    **_eager_table(STRING_FUNCTIONS),
    **_eager_table(MATH_FUNCTIONS),
    **_eager_table(TIME_FUNCTIONS),
    **_eager_table(ARRAY_FUNCTIONS),
    **{name: _eager(_json(name), 3 if name == "json_array_contains" else 2) for name in JSON_TYPES},
}


def _trim(c: Compiler, node: exp.Expr) -> Typed:
    names = {"": "btrim", "BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
    position = str(node.args.get("position") or "").upper()
    characters = [node.expression] if node.expression is not None else []
    return FUNCTIONS[names[position]](c, node, [node.this, *characters])


def _by_name(name: str, *parts: str) -> Callable[[Compiler, Any], Typed]:
    """Compile a function that has a syntax of its own, from parts of its node, as the function of that name."""

    def compiled(c: Compiler, node: exp.Expr) -> Typed:
        arguments = [node.args[part] for part in parts if node.args.get(part) is not None]
        return FUNCTIONS[name](c, node, arguments)

    return compiled


def _extract(c: Compiler, node: exp.Expr) -> Typed:
    unit = exp.Literal.string(node.this.name)
    return FUNCTIONS["date_part"](c, node, [unit, node.expression])


SYNTAX: Final[dict[type[exp.Expr], Callable[[Compiler, Any], Typed]]] = {
    exp.If: _if,
    exp.Trim: _trim,
    exp.Extract: _extract,
    exp.Substring: _by_name("substr", "this", "start", "length"),
    exp.StrPosition: _by_name("strpos", "this", "substr"),
    exp.Ceil: _by_name("ceil", "this", "decimals"),
    exp.Floor: _by_name("floor", "this", "decimals"),
}

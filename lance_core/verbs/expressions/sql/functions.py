"""The tables of SQL functions by name, and of functions with a syntax of their own: one line adds a function.

A function gets the compiler, its node (for errors) and its uncompiled arguments, so that it can compile each argument
for the rows that need it. DataFusion computes the functions that are not here, and those here with unusual arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from lance_core.extension_types import is_any_list, is_string_like
from lance_core.verbs.expressions.sql.arithmetic import arithmetic, null_if
from lance_core.verbs.expressions.sql.compare import all_of, common_of, is_null, negate
from lance_core.verbs.expressions.sql.compiler_protocol import Compiler
from lance_core.verbs.expressions.sql.datafusion_calls import compute, compute_call, find_function
from lance_core.verbs.expressions.sql.dialect import invalid
from lance_core.verbs.expressions.sql.functions_json import JSON_FUNCTIONS, check_json_arguments
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, call, is_number, literal

_Function = Callable[[Compiler, exp.Expr, Sequence[exp.Expr]], Typed]
_TypedFunction = Callable[..., Typed | None]

_BOOL: Final = pa.bool_()


def call_function(c: Compiler, node: exp.Expr, name: str, arguments: Sequence[exp.Expr]) -> Typed:
    """Compile a call of an SQL function; DataFusion computes those that `_FUNCTIONS` lacks.

    Raises:
        InvalidInputError: The arguments do not fit the function.
        UnsupportedError: The function is not known, or needs DataFusion, which is not installed.
    """
    if name.lower() in _FUNCTIONS:
        return _FUNCTIONS[name.lower()](c, node, arguments)
    find_function(name)
    return compute_call(name, [c.value(argument) for argument in arguments], c.guard)


def _with_compiled_arguments(name: str, function: _TypedFunction, least: int, most: int) -> _Function:
    """A function of compiled arguments, which gives None for arguments that are left to DataFusion."""

    def compiled(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
        if not least <= len(arguments) <= most:
            num_expected = f"{least}" if most == least else f"{least} to {most}"
            invalid(node, c.sql, f"{name} takes {num_expected} arguments, not {len(arguments)}")
        values = [c.value(argument) for argument in arguments]
        result = function(*values)
        return compute_call(name, values, c.guard) if result is None else result

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
    condition = negate(is_null(c.value(arguments[0])))
    return _choose(c, condition, arguments[1], arguments[2])


def _if(c: Compiler, node: exp.Expr) -> Typed:
    condition = call("coalesce", [c.truth(node.this), literal(False, _BOOL)], _BOOL)
    return _choose(c, condition, node.args["true"], node.args.get("false") or exp.Null())


def _choose(c: Compiler, condition: Typed, yes: exp.Expr, no: exp.Expr) -> Typed:
    with c.only_where(lambda: condition):
        yes_value = c.value(yes)
    with c.only_where(lambda: negate(condition)):
        no_value = c.value(no)
    yes_value, no_value = common_of([yes_value, no_value])
    return call("if_else", [condition, yes_value, no_value], yes_value.type)


def _get_field(c: Compiler, node: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    if len(arguments) != 2 or not isinstance(arguments[1], exp.Literal):
        invalid(node, c.sql, "get_field takes a struct and the name of a field")
    return c.field(c.value(arguments[0]), arguments[1].name, node)


def _compile_regexp_match(c: Compiler, _: exp.Expr, arguments: Sequence[exp.Expr]) -> Typed:
    values = [c.value(argument) for argument in arguments]
    sql = f"regexp_match({', '.join(['{}'] * len(values))}) IS NOT NULL"
    return compute("regexp_match", sql, values, c.guard)


def _json(name: str) -> Callable[..., Typed]:
    def compiled(*arguments: Typed) -> Typed:
        check_json_arguments(name, arguments)
        return python_call(name, arguments, JSON_FUNCTIONS[name][0])

    return compiled


def _for_strings_only(function: Callable[..., Typed | None]) -> _TypedFunction:
    """Restrict a function to strings of one type; for other arguments it returns None, and DataFusion computes it."""

    def of_strings(*values: Typed) -> Typed | None:
        is_plain = is_string_like(values[0].type) and all(value.type == values[0].type for value in values)
        return function(*values) if is_plain else None

    return of_strings


def _length(value: Typed) -> Typed:
    return call("utf8_length", [value], pa.int64() if pa.types.is_large_string(value.type) else pa.int32())


def _trim(kernel: str) -> _TypedFunction:
    def trim(value: Typed, characters: Typed | None = None) -> Typed | None:
        trimmed = " " if characters is None else characters.value
        return call(kernel, [value], value.type, pc.TrimOptions(trimmed)) if isinstance(trimmed, str) else None

    return _for_strings_only(trim)


def _find_part(kernel: str) -> _TypedFunction:
    def find_part(value: Typed, part: Typed) -> Typed | None:
        is_literal = isinstance(part.value, str)
        return call(kernel, [value], _BOOL, pc.MatchSubstringOptions(part.value)) if is_literal else None

    return _for_strings_only(find_part)


def _substr(value: Typed, start: Typed, length: Typed | None = None) -> Typed | None:
    first, count = start.value, None if length is None else length.value
    is_plain = isinstance(first, int) and (length is None or (isinstance(count, int) and count >= 0))
    if not (is_plain and is_string_like(value.type)):
        return None
    stop = None if count is None else max(first - 1 + count, 0)
    return call("utf8_slice_codeunits", [value], value.type, pc.SliceOptions(max(first - 1, 0), stop, 1))


def _concat(*values: Typed) -> Typed:
    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    kind = values[0].type
    return call("binary_join_element_wise", [*values, literal("", kind)], kind, options)


def _absolute(value: Typed) -> Typed | None:
    if not is_number(value.type) or pa.types.is_float16(value.type):
        return None
    # The least integer has no absolute value: an error, as in pylance.
    return call("abs_checked", [value], value.type)


def _round_by(kernel: str) -> _TypedFunction:
    """A function that rounds floats; integers become floats."""

    def compiled(value: Typed, digits: Typed | None = None) -> Typed | None:
        kind = value.type if pa.types.is_float32(value.type) else pa.float64()
        num_digits = 0 if digits is None else digits.value
        if not isinstance(num_digits, int) or not (pa.types.is_integer(value.type) or kind == value.type):
            return None
        options = pc.RoundOptions(ndigits=num_digits, round_mode="half_towards_infinity") if kernel == "round" else None
        return call(kernel, [Typed(value.expression.cast(kind, safe=False), kind)], kind, options)

    return compiled


def _is_nan(value: Typed) -> Typed | None:
    return call("is_nan", [value], _BOOL) if pa.types.is_float64(value.type) else None


def _now() -> Typed:
    kind = pa.timestamp("ns")
    return literal(pa.scalar(datetime.now(UTC).replace(tzinfo=None), kind), kind)


def _today() -> Typed:
    return literal(pa.scalar(datetime.now(UTC).date(), pa.date32()), pa.date32())


def _are_compared_by_python(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types are equal in Python as they are in SQL."""
    if is_number(left) and is_number(right):
        return not (pa.types.is_decimal(left) or pa.types.is_decimal(right)) or left.id == right.id
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right):
        return bool(left.tz) == bool(right.tz)
    return left == right or pa.types.is_null(right) or (is_string_like(left) and is_string_like(right))


def _make_list_search(function: str) -> _TypedFunction:
    """Make a function that searches lists for items; a LABEL_LIST index can answer filters with it."""

    def compiled(lists: Typed, searched: Typed) -> Typed | None:
        if not is_any_list(lists.type) or (function != "array_has" and not is_any_list(searched.type)):
            return None
        item_type = lists.type.value_type
        if function != "array_has":
            is_alike = _are_compared_by_python(item_type, searched.type.value_type)
            return python_call(function, [lists, searched], _BOOL) if is_alike else None
        has_fraction = pa.types.is_floating(searched.type) or pa.types.is_decimal(searched.type)
        loses_fraction = has_fraction and not (pa.types.is_floating(item_type) or searched.type.id == item_type.id)
        if loses_fraction or (pa.types.is_timestamp(searched.type) and pa.types.is_date(item_type)):
            return None
        return python_call(function, [lists, searched.to(item_type)], _BOOL)

    return compiled


_TYPED_FUNCTIONS: Final[dict[str, tuple[_TypedFunction, int, int]]] = {
    "nullif": (null_if, 2, 2),
    "is_valid": (lambda value: negate(is_null(value)), 1, 1),
    **dict.fromkeys(("length", "char_length", "character_length"), (_for_strings_only(_length), 1, 1)),
    "lower": (_for_strings_only(lambda value: python_call("lower", [value], value.type)), 1, 1),
    "upper": (_for_strings_only(lambda value: python_call("upper", [value], value.type)), 1, 1),
    **dict.fromkeys(("trim", "btrim"), (_trim("utf8_trim"), 1, 2)),
    "ltrim": (_trim("utf8_ltrim"), 1, 2),
    "rtrim": (_trim("utf8_rtrim"), 1, 2),
    **dict.fromkeys(("substr", "substring"), (_substr, 2, 3)),
    "concat": (_for_strings_only(_concat), 1, 1_000),
    "contains": (_find_part("match_substring"), 2, 2),
    "ends_with": (_find_part("ends_with"), 2, 2),
    "starts_with": (_find_part("starts_with"), 2, 2),
    "abs": (_absolute, 1, 1),
    "ceil": (_round_by("ceil"), 1, 1),
    "floor": (_round_by("floor"), 1, 1),
    "round": (_round_by("round"), 1, 2),
    "isnan": (_is_nan, 1, 1),
    "mod": (lambda left, right: arithmetic("%", left, right), 2, 2),
    **dict.fromkeys(("current_date", "today"), (_today, 0, 0)),
    **dict.fromkeys(("current_timestamp", "now"), (_now, 0, 0)),
    **{
        f"{prefix}_{name}": (_make_list_search(f"array_{name.replace('contains', 'has')}"), 2, 2)
        for prefix in ("array", "list")
        for name in ("contains", "has", "has_all", "has_any")
    },
    **{name: (_json(name), 2, 2) for name in JSON_FUNCTIONS},
    "json_array_contains": (_json("json_array_contains"), 3, 3),
}
"""By name: the function, and the least and the most arguments."""

_FUNCTIONS: Final[dict[str, _Function]] = {
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), _coalesce),
    "nvl2": _nvl2,
    "get_field": _get_field,
    "_matches": _compile_regexp_match,
    **{name: _with_compiled_arguments(name, *entry) for name, entry in _TYPED_FUNCTIONS.items()},
}


def _compile_trim(c: Compiler, node: exp.Expr) -> Typed:
    names = {"": "btrim", "BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
    position = str(node.args.get("position") or "").upper()
    characters = [node.expression] if node.expression is not None else []
    return call_function(c, node, names[position], [node.this, *characters])


def _call_by_name(name: str, *parts: str) -> Callable[[Compiler, Any], Typed]:
    """Compile a function that has a syntax of its own, from parts of its node, as the function of that name."""

    def compiled(c: Compiler, node: exp.Expr) -> Typed:
        return call_function(c, node, name, [node.args[part] for part in parts if node.args.get(part) is not None])

    return compiled


def _extract(c: Compiler, node: exp.Expr) -> Typed:
    return call_function(c, node, "date_part", [exp.Literal.string(node.this.name), node.expression])


SYNTAX: Final[dict[type[exp.Expr], Callable[[Compiler, Any], Typed]]] = {
    exp.If: _if,
    exp.Trim: _compile_trim,
    exp.Extract: _extract,
    exp.Substring: _call_by_name("substr", "this", "start", "length"),
    exp.StrPosition: _call_by_name("strpos", "this", "substr"),
    exp.Ceil: _call_by_name("ceil", "this", "decimals"),
    exp.Floor: _call_by_name("floor", "this", "decimals"),
}

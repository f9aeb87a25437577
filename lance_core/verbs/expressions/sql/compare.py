"""SQL's comparisons, with DataFusion's order of floats: NaN equals NaN and is greater than every number.

Arrow's kernels follow IEEE 754 instead, where every comparison with NaN but `<>` is false; the difference is added to
their results only where NaN can occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.extension_types import is_string_like
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.time_coercion import (
    cast_time,
    coerced_pairs,
    common_time_type,
    is_beyond,
    of_one_unit,
)
from lance_core.verbs.expressions.sql.typed import (
    EXACT_FLOATS,
    NumberLiteral,
    Typed,
    call,
    common_type,
    fits,
    is_number,
    literal,
)

_BOOL: Final = pa.bool_()
_SHORT: Final = 64
"""Parts of a chain of AND or OR that are joined one after the other, as they are written."""
_KERNELS: Final = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def in_common_type(
    left: Typed, right: Typed, *, narrow_floats: bool = False, exact: bool = True
) -> tuple[Typed, Typed]:
    """Two values in their common type.

    Args:
        left: The first value.
        right: The second value.
        narrow_floats: Whether a literal beside a column of float32 or float16 takes that type.
        exact: Whether a literal such as 1.4 is compared with a decimal as the decimal 1.4; as a float if false.

    Raises:
        InvalidInputError: There is no common type, or a literal is out of the range of the column beside it.
    """
    if narrow_floats:
        _check_range(left, right)
        _check_range(right, left)
    if left.is_literal and not right.is_literal and _can_narrow(left, right, narrow_floats):
        return left.to(right.type), right
    if right.is_literal and not left.is_literal and _can_narrow(right, left, narrow_floats):
        return left, right.to(left.type)
    kind = common_type(left, right, exact=exact)
    if kind is None:
        raise InvalidInputError(f"{left.type} and {right.type} have no common type; CAST one of them")
    return left.to(kind), right.to(kind)


def _check_range(column: Typed, other: Typed) -> None:
    """Reject a literal that cannot be compared exactly with a column of integers, as pylance does.

    Raises:
        InvalidInputError: The literal is out of the range of the column, or a float too large to stand for one integer.
    """
    if not (column.is_column and pa.types.is_integer(column.type)) or not other.is_literal:
        return
    value = other.value
    if isinstance(value, NumberLiteral) and value.digits == value.digits.to_integral_value() and abs(value) >= 2**63:
        value = int(value.digits)
    if isinstance(value, int) and not isinstance(value, bool) and not fits(value, column.type):
        raise InvalidInputError(
            f"the literal {value} is out of the range of the {column.type} that it is compared with"
        )
    if isinstance(value, float) and abs(value) >= EXACT_FLOATS and column.type.bit_width == 64:
        raise InvalidInputError(
            f"the literal {value} cannot be compared exactly with a column of {column.type}: write it as an integer"
        )


def common_of(values: Sequence[Typed]) -> list[Typed]:
    """Several values in their common type.

    Raises:
        InvalidInputError: The values have no common type.
    """
    # A string literal takes the type of the others.
    non_nulls = [value for value in values if not value.is_null] or list(values)
    typed = [value for value in non_nulls if not (value.is_literal and is_string_like(value.type))] or non_nulls
    kind = typed[0]
    for value in typed[1:]:
        shared_type = common_type(kind, value, exact=False)
        if shared_type is None:
            raise InvalidInputError(f"{kind.type} and {value.type} have no common type; CAST one of them")
        kind = Typed(kind.expression, shared_type)
    if pa.types.is_timestamp(kind.type):
        together = common_time_type([value.type for value in typed], kind.type.tz)
        return [cast_time(value, together) for value in values]
    return [value.to(kind.type) for value in values]


def compare(operator: str, left: Typed, right: Typed, *, narrow_floats: bool = False) -> Typed:
    """`left operator right`: null where either is null.

    Raises:
        InvalidInputError: The types cannot be compared.
    """
    left_side, right_side = in_common_type(*of_one_unit(left, right), narrow_floats=narrow_floats)
    if left_side.is_null or right_side.is_null or pa.types.is_null(left_side.type):
        return literal(None, _BOOL)
    if pa.types.is_nested(left_side.type):
        raise InvalidInputError(f"values of type {left_side.type} cannot be compared")
    if pa.types.is_floating(left_side.type):
        return _compare_widened(operator, _widen(left_side), _widen(right_side))
    return call(_KERNELS[operator], [left_side, right_side], _BOOL)


def same(left: Typed, right: Typed, *, narrow_floats: bool = False) -> Typed:
    """`left IS NOT DISTINCT FROM right`: never null."""
    missing, other_missing = is_null(left), is_null(right)
    either_missing = call("or", [missing, other_missing], _BOOL)
    both_missing = call("and", [missing, other_missing], _BOOL)
    return call(
        "if_else", [either_missing, both_missing, compare("=", left, right, narrow_floats=narrow_floats)], _BOOL
    )


def is_null(value: Typed) -> Typed:
    """Whether the value is null."""
    return literal(True, _BOOL) if value.is_null else call("is_null", [value], _BOOL, pc.NullOptions())


def both(left: Typed, right: Typed) -> Typed:
    """AND with three truth values."""
    return call("and_kleene", [left, right], _BOOL)


def either(left: Typed, right: Typed) -> Typed:
    """OR with three truth values."""
    return call("or_kleene", [left, right], _BOOL)


def chain(parts: Sequence[Typed], join: Callable[[Typed, Typed], Typed]) -> Typed:
    """Join conditions, at least one, by AND or OR to a tree of few levels, as Arrow recurses once per level."""
    conditions = list(parts)
    if len(conditions) <= _SHORT:
        return reduce(join, conditions)
    while len(conditions) > 1:
        pairs = [join(*conditions[position : position + 2]) for position in range(0, len(conditions) - 1, 2)]
        conditions = [*pairs, *conditions[2 * len(pairs) :]]
    return conditions[0]


def all_of(parts: Sequence[Typed]) -> Typed:
    """Whether all conditions are true; none of their values may be null."""
    return chain(parts, both)


def negate(value: Typed) -> Typed:
    """NOT with three truth values."""
    return call("invert", [value], _BOOL)


def is_in(value: Typed, candidates: Sequence[Typed], *, narrow_floats: bool = False) -> Typed:
    """`value IN (candidates)`: null if nothing matches and the value or a candidate is null.

    Raises:
        InvalidInputError: A candidate cannot be compared with the value.
    """
    sides = coerced_pairs(value, candidates, each=False)
    value, candidates = sides[0][0], [candidate for _, candidate in sides]
    if not narrow_floats and any(pa.types.is_float64(candidate.type) for candidate in candidates):
        value = value.to(pa.float64()) if pa.types.is_floating(value.type) else value
    with_null = any(candidate.is_null for candidate in candidates)
    operands = [candidate for candidate in candidates if not candidate.is_null]
    simple = all(c.is_literal and not is_beyond(c, value.type) for c in operands) and not pa.types.is_nested(value.type)
    pairs = [in_common_type(value, candidate, narrow_floats=narrow_floats) for candidate in operands] if simple else []
    if not simple or any(side.type != value.type for side, _ in pairs):
        comparisons = [compare("=", value, candidate, narrow_floats=narrow_floats) for candidate in candidates]
        return chain(comparisons, either)
    values = pa.array(_with_both_zeros([candidate.value for _, candidate in pairs]), value.type)
    value = _widen(value)
    values = values.cast(value.type)
    return _match_set(value, values, with_null=with_null)


def _with_both_zeros(values: Sequence[Any]) -> list[Any]:
    """The values, with both 0.0 and -0.0 if they have either: these are equal, but Arrow's `is_in` separates them."""
    has_zero = any(isinstance(value, float) and value == 0 for value in values)
    return [*values, 0.0, -0.0] if has_zero else list(values)


def _widen(value: Typed) -> Typed:
    """A float16 as a float32, as Arrow has no comparison of float16; any other value as it is."""
    return value.to(pa.float32()) if pa.types.is_float16(value.type) else value


def _can_narrow(value: Typed, other: Typed, narrow_floats: bool) -> bool:
    if pa.types.is_float32(other.type) or pa.types.is_float16(other.type):
        return narrow_floats and other.is_column and fits(value.value, other.type)
    return fits(value.value, other.type)


def compare_floats(operator: str, left: Typed, right: Typed) -> Typed:
    """`left operator right` of numbers, at least one of which is a float; literals keep their types."""
    if left.is_literal or right.is_literal:
        return _compare_widened(operator, _widen(left), _widen(right))
    left_side, right_side = in_common_type(left, right)
    return _compare_widened(operator, _widen(left_side), _widen(right_side))


def in_set(value: Typed, values: pa.Array) -> Typed:
    """`value IN (values)`, for an array of a type that Arrow compares with that of the value, or of any numbers."""
    if not len(values):
        return literal(False, _BOOL)
    candidates = values.drop_null()
    if pa.types.is_floating(value.type):
        value, candidates = _widen(value), _with_both_zeros_of(_widen_array(candidates)).cast(_widen(value).type)
    elif pa.types.is_integer(candidates.type) and candidates.type != value.type and is_number(value.type):
        fitting = [item for item in candidates.to_pylist() if fits(item, value.type)]  # no value is equal to the others
        candidates = pa.array([literal(item, value.type).value for item in fitting], value.type)
    elif pa.types.is_null(candidates.type):
        candidates = candidates.cast(value.type)
    return _match_set(value, candidates, with_null=bool(values.null_count))


def _match_set(value: Typed, values: pa.Array, *, with_null: bool) -> Typed:
    """`value IN (values)` for values without nulls; null where nothing matches and the value or a candidate is null."""
    nans = pc.is_nan(values) if pa.types.is_floating(values.type) else None
    has_nan = nans is not None and pc.any(nans, min_count=0).as_py()
    if has_nan:  # NaN has many forms, which Arrow's `is_in` separates
        values = values.filter(pc.invert(nans))
    matched = call("is_in", [value], _BOOL, pc.SetLookupOptions(value_set=values, skip_nulls=True))
    if has_nan:
        matched = call("or_kleene", [matched, call("is_nan", [value], _BOOL)], _BOOL)
    unknown = literal(None, _BOOL)
    if with_null:
        return call("if_else", [matched, literal(True, _BOOL), unknown], _BOOL)
    return call("if_else", [is_null(value), unknown, matched], _BOOL)


def _with_both_zeros_of(values: pa.Array) -> pa.Array:
    zeros = pa.types.is_floating(values.type) and bool(pc.any(pc.equal(values, 0.0)).as_py())
    return pa.concat_arrays([values, pa.array([0.0, -0.0], values.type)]) if zeros else values


def _widen_array(values: pa.Array) -> pa.Array:
    return values.cast(pa.float32()) if pa.types.is_float16(values.type) else values


def _compare_widened(operator: str, left: Typed, right: Typed) -> Typed:
    if not (left.is_literal or right.is_literal):
        # Between columns -0.0 is below 0.0, as in pylance; a literal zero is equal to both.
        sides = [python_call("float_order", [side], pa.int64()) for side in (left, right)]
        return call(_KERNELS[operator], sides, _BOOL)
    plain = call(_KERNELS[operator], [left, right], _BOOL)
    return _NAN_RULES[operator](plain, left, right)


def _is_nan(value: Typed) -> Typed | None:
    """Whether the value is NaN; None if it never is."""
    if value.is_literal:
        return literal(True, _BOOL) if isinstance(value.value, float) and math.isnan(value.value) else None
    return call("is_nan", [value], _BOOL) if pa.types.is_floating(value.type) else None


def _or(plain: Typed, more: Typed) -> Typed:
    # Not the three-valued OR: where one side is null, the comparison is null.
    return call("or", [plain, more], _BOOL)


def _equal(plain: Typed, left: Typed, right: Typed) -> Typed:
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    return plain if left_nan is None or right_nan is None else _or(plain, call("and", [left_nan, right_nan], _BOOL))


def _not_equal(plain: Typed, left: Typed, right: Typed) -> Typed:
    if _is_nan(left) is None or _is_nan(right) is None:
        return plain
    return negate(_equal(call("equal", [left, right], _BOOL), left, right))


def _greater(plain: Typed, left: Typed, right: Typed) -> Typed:
    left_nan, right_nan = _is_nan(left), _is_nan(right)
    if left_nan is None:
        return plain
    return _or(plain, left_nan if right_nan is None else call("and", [left_nan, negate(right_nan)], _BOOL))


def _greater_equal(plain: Typed, left: Typed, _right: Typed) -> Typed:
    left_nan = _is_nan(left)
    return plain if left_nan is None else _or(plain, left_nan)


_NAN_RULES: Final[dict[str, Callable[[Typed, Typed, Typed], Typed]]] = {
    "=": _equal,
    "<>": _not_equal,
    ">": _greater,
    ">=": _greater_equal,
    "<": lambda plain, left, right: _greater(plain, right, left),
    "<=": lambda plain, left, right: _greater_equal(plain, right, left),
}

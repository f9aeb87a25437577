"""SQL functions of numbers, by name: how each is compiled, and how many arguments it takes.

Most give a float64, or a float32 for a float32; abs, ceil, floor, round and mod keep decimals, abs and log keep a
float16, power is always a float64, and atan2 and trunc with digits give a float32 for integers, as in DataFusion.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.verbs.expressions.sql.arithmetic import arithmetic
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, call, decimal_of, is_number, literal

__all__ = ["MATH_FUNCTIONS"]

_BOOL: Final = pa.bool_()


def _number(value: Typed) -> Typed:
    if pa.types.is_null(value.type):
        return literal(None, pa.float64())
    if not is_number(value.type):
        raise InvalidInputError(f"expected a number, found {value.type}")
    return value


def _float(value: Typed) -> Typed:
    value = _number(value)
    if pa.types.is_floating(value.type) and not pa.types.is_float16(value.type):
        return value
    if pa.types.is_decimal(value.type):
        return value.to(pa.float64())
    return Typed(value.expression.cast(pa.float64(), safe=False), pa.float64())


def _kernel(name: str) -> Callable[[Typed], Typed]:
    return lambda value: call(name, [_float(value)], _float(value).type)


def _in_python(name: str) -> Callable[[Typed], Typed]:
    return lambda value: python_call(name, [_float(value)], _float(value).type)


def _integers(name: str) -> Callable[[Typed, Typed], Typed]:
    def compiled(left: Typed, right: Typed) -> Typed:
        if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
            raise InvalidInputError(f"expected integers, found {left.type} and {right.type}")
        return python_call(name, [left.to(pa.int64()), right.to(pa.int64())], pa.int64())

    return compiled


def _absolute(value: Typed) -> Typed:
    if pa.types.is_float16(value.type):  # Arrow has no kernel for these
        wide = call("abs", [value.to(pa.float32())], pa.float32())
        return Typed(wide.expression.cast(value.type), value.type)
    # The least integer has no absolute value: an error, as in pylance.
    return call("abs_checked", [_number(value)], _number(value).type)


def _whole(name: str) -> Callable[..., Typed]:
    def compiled(value: Typed, digits: Typed | None = None) -> Typed:
        if digits is not None:
            raise UnsupportedError(
                f"{name} with a number of digits is not supported; scale the number: {name}(x * 100) / 100"
            )
        if pa.types.is_decimal(value.type):
            # The next whole number may need one digit more, and the kernel does not check.
            kind = decimal_of(value.type, value.type.precision + 1, value.type.scale)
            return call(name, [value.to(kind)], kind)
        return call(name, [_float(value)], _float(value).type)

    return compiled


def _round(value: Typed, digits: Typed | None = None) -> Typed:
    places = 0 if digits is None else _digits(digits)
    options = pc.RoundOptions(ndigits=places, round_mode="half_towards_infinity")
    if pa.types.is_decimal(value.type):
        kind = decimal_of(value.type, value.type.precision, min(max(places, 0), value.type.scale))
        wide = value.to(decimal_of(value.type, value.type.precision + 1, value.type.scale))
        rounded = call("round", [wide], wide.type, options)
        return Typed(rounded.expression.cast(kind), kind)
    return call("round", [_float(value)], _float(value).type, options)


def _trunc(value: Typed, digits: Typed | None = None) -> Typed:
    if digits is not None and (pa.types.is_integer(value.type) or pa.types.is_float16(value.type)):
        value = Typed(value.expression.cast(pa.float32(), safe=False), pa.float32())  # as in pylance
    value = _float(value)
    if digits is None:
        # The zero that both zeros become is 0.0, as in pylance; with a number of digits -0.0 stays.
        zero = literal(0.0, value.type)
        return call(
            "if_else", [call("equal", [value, zero], _BOOL), zero, call("trunc", [value], value.type)], value.type
        )
    if _digits(digits) == 0:
        return call("trunc", [value], value.type)
    factor = literal(10.0 ** _digits(digits), value.type)
    scaled = call("trunc", [call("multiply", [value, factor], value.type)], value.type)
    return call("divide", [scaled, factor], value.type)


def _digits(value: Typed) -> int:
    if not isinstance(value.value, int):
        raise UnsupportedError("a number of digits that is not a literal is not supported; write the number itself")
    return value.value


def _power(base: Typed, exponent: Typed) -> Typed:
    return call("power", [_float(base).to(pa.float64()), _float(exponent).to(pa.float64())], pa.float64())


def _log(value: Typed, argument: Typed | None = None) -> Typed:
    """A logarithm to a base, 10 without one, of the type of the number."""
    base, number = (literal(10.0, pa.float64()), value) if argument is None else (value, argument)
    is_half = pa.types.is_float16(_number(number).type)
    float_number = _float(number).to(pa.float32()) if is_half else _float(number)
    if argument is None and float_number.type == pa.float64():
        return call("log10", [float_number], float_number.type)
    quotient = [call("ln", [each.to(float_number.type)], float_number.type) for each in (float_number, _float(base))]
    logarithm = call("divide", quotient, float_number.type)
    return Typed(logarithm.expression.cast(pa.float16(), safe=False), pa.float16()) if is_half else logarithm


def _signum(value: Typed) -> Typed:
    return call("sign", [_float(value)], _float(value).type)


def _arc_tangent(left: Typed, right: Typed) -> Typed:
    """The angle of a point; of float32 unless one coordinate is a float64 or a decimal, as in DataFusion."""
    wide = any(pa.types.is_float64(each.type) or pa.types.is_decimal(each.type) for each in (left, right))
    of = pa.float64() if wide else pa.float32()
    return call("atan2", [Typed(_float(each).expression.cast(of, safe=False), of) for each in (left, right)], of)


def _scale_by(factor: float) -> Callable[[Typed], Typed]:
    def compiled(value: Typed) -> Typed:
        number = _float(value)
        return call("multiply", [number, literal(factor, number.type)], number.type)

    return compiled


def _cotangent(value: Typed) -> Typed:
    number = _float(value)
    return call("divide", [literal(1.0, number.type), call("tan", [number], number.type)], number.type)


MATH_FUNCTIONS: Final[dict[str, tuple[Callable[..., Typed], int, int | None]]] = {
    "abs": (_absolute, 1, None),
    "acos": (_kernel("acos"), 1, None),
    "acosh": (_in_python("acosh"), 1, None),
    "asin": (_kernel("asin"), 1, None),
    "asinh": (_in_python("asinh"), 1, None),
    "atan": (_kernel("atan"), 1, None),
    "atan2": (_arc_tangent, 2, None),
    "atanh": (_in_python("atanh"), 1, None),
    "cbrt": (_in_python("cbrt"), 1, None),
    "ceil": (_whole("ceil"), 1, 2),
    "cos": (_kernel("cos"), 1, None),
    "cosh": (_in_python("cosh"), 1, None),
    "cot": (_cotangent, 1, None),
    "degrees": (_scale_by(180 / math.pi), 1, None),
    "exp": (_kernel("exp"), 1, None),
    "floor": (_whole("floor"), 1, 2),
    "gcd": (_integers("gcd"), 2, None),
    "isnan": (lambda value: call("is_nan", [_float(value)], _BOOL), 1, None),
    "iszero": (lambda value: call("equal", [_float(value), literal(0.0, _float(value).type)], _BOOL), 1, None),
    "lcm": (_integers("lcm"), 2, None),
    "ln": (_kernel("ln"), 1, None),
    "log": (_log, 1, 2),
    "log10": (_kernel("log10"), 1, None),
    "log2": (_kernel("log2"), 1, None),
    "mod": (lambda left, right: arithmetic("%", left, right), 2, None),
    "pi": (lambda: literal(math.pi, pa.float64()), 0, None),
    "pow": (_power, 2, None),
    "power": (_power, 2, None),
    "radians": (_scale_by(math.pi / 180), 1, None),
    "round": (_round, 1, 2),
    "sign": (_signum, 1, None),
    "signum": (_signum, 1, None),
    "sin": (_kernel("sin"), 1, None),
    "sinh": (_in_python("sinh"), 1, None),
    "sqrt": (_kernel("sqrt"), 1, None),
    "tan": (_kernel("tan"), 1, None),
    "tanh": (_in_python("tanh"), 1, None),
    "trunc": (_trunc, 1, 2),
}
"""By name: the function that compiles a call, the least number of arguments, and the most (None: the same)."""

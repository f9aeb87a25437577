"""SQL functions of strings, with DataFusion's results. Positions count characters, from 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.strings import words
from lance_core.verbs.expressions.sql.typed import (
    Typed,
    as_string,
    call,
    is_number,
    is_string_like,
    literal,
    string_literal,
)

__all__ = ["STRING_FUNCTIONS"]

_BOOL: Final = pa.bool_()


def _call_kernel(kernel: str, kind: pa.DataType | None = None) -> Callable[[Typed], Typed]:
    """A function that is one Arrow kernel on a string; its result has the type of the string if `kind` is None."""
    return lambda value: call(kernel, [as_string(value)], kind or as_string(value).type)


def _in_python(function: str, kind: pa.DataType | None = None, *, integer: int | None = None) -> Callable[..., Typed]:
    """A function of strings that this library computes in Python; the argument at position `integer` is an integer."""

    def compiled(*arguments: Typed) -> Typed:
        values = [
            _whole(argument) if position == integer else as_string(argument)
            for position, argument in enumerate(arguments)
        ]
        return python_call(function, values, kind or values[0].type)

    return compiled


def _whole(value: Typed) -> Typed:
    if not (pa.types.is_integer(value.type) or pa.types.is_null(value.type)):
        raise InvalidInputError(f"expected an integer, found {value.type}")
    return value.to(pa.int64())


def _change_case(function: str) -> Callable[[Typed], Typed]:
    return lambda value: python_call(function, [as_string(value)], as_string(value).type)


def _length(value: Typed) -> Typed:
    string = words(value, pa.string()) if is_number(value.type) else as_string(value)
    return call("utf8_length", [string], pa.int64() if pa.types.is_large_string(string.type) else pa.int32())


def _octets(value: Typed) -> Typed:
    string = as_string(value)
    return call("binary_length", [string], pa.int64() if pa.types.is_large_string(string.type) else pa.int32())


def _bits(value: Typed) -> Typed:
    octets = _octets(value)
    return call("multiply", [octets, literal(8, octets.type)], octets.type)


def _trim(kernel: str) -> Callable[..., Typed]:
    def compiled(value: Typed, characters: Typed | None = None) -> Typed:
        chosen = " " if characters is None else string_literal(characters)
        return call(kernel, [as_string(value)], as_string(value).type, pc.TrimOptions(chosen))

    return compiled


def _number(value: Typed) -> int:
    if not isinstance(value.value, int):
        raise UnsupportedError("this argument must be an integer literal")
    return value.value


def _slice(value: Typed, start: int, stop: int | None) -> Typed:
    value = as_string(value)
    return call("utf8_slice_codeunits", [value], value.type, pc.SliceOptions(start, stop, 1))


def _substr(value: Typed, start: Typed, length: Typed | None = None) -> Typed:
    first = _number(start) - 1
    if length is None:
        return _slice(value, max(first, 0), None)
    if _number(length) < 0:
        raise InvalidInputError(f"a length of {length.value}")
    return _slice(value, max(first, 0), max(first + _number(length), 0))


def _left(value: Typed, count: Typed) -> Typed:
    return _slice(value, 0, _number(count))


def _right(value: Typed, count: Typed) -> Typed:
    number = _number(count)
    return _slice(value, 0, 0) if number == 0 else _slice(value, -number, None)


def _find_part(kernel: str, function: str) -> Callable[[Typed, Typed], Typed]:
    """Whether a string is found in another, by an Arrow kernel if the wanted string is a literal."""

    def compiled(value: Typed, part: Typed) -> Typed:
        value, part = as_string(value), as_string(part)
        if part.is_null:
            return literal(None, _BOOL)
        if part.is_literal:
            return call(kernel, [value], _BOOL, pc.MatchSubstringOptions(part.value))
        return python_call(function, [value, part], _BOOL)

    return compiled


def _replace(value: Typed, part: Typed, other: Typed) -> Typed:
    value, part, other = as_string(value), as_string(part), as_string(other)
    if part.is_literal and other.is_literal and part.value and other.value is not None:
        options = pc.ReplaceSubstringOptions(pattern=part.value, replacement=other.value)
        return call("replace_substring", [value], value.type, options)
    return python_call("replace", [value, part, other], value.type)


def _unify_strings(values: Sequence[Typed]) -> list[Typed]:
    """The values as strings of one type."""
    strings = [words(value, pa.string()) if not is_string_like(value.type) else value for value in values]
    kind = pa.large_string() if any(pa.types.is_large_string(value.type) for value in strings) else pa.string()
    return [value.to(kind) for value in strings]


def _concat(*values: Typed) -> Typed:
    strings = _unify_strings(values)
    options = pc.JoinOptions(null_handling="replace", null_replacement="")
    return call("binary_join_element_wise", [*strings, literal("", strings[0].type)], strings[0].type, options)


def _concat_ws(separator: Typed, *values: Typed) -> Typed:
    # Not Arrow's kernel, which leaves out the rows where all the strings are null.
    strings = _unify_strings([as_string(separator), *values])
    return python_call("concat_ws", strings, strings[0].type)


def _pad(function: str) -> Callable[..., Typed]:
    def compiled(value: Typed, length: Typed, fill: Typed | None = None) -> Typed:
        filling = as_string(fill) if fill is not None else literal(" ", pa.string())
        return python_call(function, [as_string(value), length.to(pa.int64()), filling], as_string(value).type)

    return compiled


def _digest(name: str, *, hexadecimal: bool = False) -> Callable[[Typed], Typed]:
    def compiled(value: Typed) -> Typed:
        data = (
            value
            if pa.types.is_binary(value.type)
            else Typed(as_string(value).expression.cast(pa.binary()), pa.binary())
        )
        function, kind = ("digest_hex", pa.string()) if hexadecimal else ("digest", pa.binary())
        return python_call(function, [data, literal(name, pa.string())], kind)

    return compiled


def _encode(value: Typed, form: Typed) -> Typed:
    data = (
        value if pa.types.is_binary(value.type) else Typed(as_string(value).expression.cast(pa.binary()), pa.binary())
    )
    return python_call(f"encode_{_form(form)}", [data], pa.string())


def _decode(value: Typed, form: Typed) -> Typed:
    return python_call(f"decode_{_form(form)}", [as_string(value)], pa.binary())


def _form(form: Typed) -> str:
    name = string_literal(form).lower()
    if name not in ("hex", "base64"):
        raise UnsupportedError(f"the encoding {name!r} is not supported")
    return name


STRING_FUNCTIONS: Final[dict[str, tuple[Callable[..., Typed], int, int | None]]] = {
    "ascii": (_in_python("ascii", pa.int32()), 1, None),
    "bit_length": (_bits, 1, None),
    "btrim": (_trim("utf8_trim"), 1, 2),
    "char_length": (_length, 1, None),
    "character_length": (_length, 1, None),
    "chr": (_in_python("chr", pa.string(), integer=0), 1, None),
    "concat": (_concat, 1, -1),
    "concat_ws": (_concat_ws, 2, -1),
    "contains": (_find_part("match_substring", "contains"), 2, None),
    "decode": (_decode, 2, None),
    "encode": (_encode, 2, None),
    "ends_with": (_find_part("ends_with", "ends_with"), 2, None),
    "initcap": (_in_python("initcap"), 1, None),
    "instr": (_in_python("strpos", pa.int32()), 2, None),
    "left": (_left, 2, None),
    "length": (_length, 1, None),
    "levenshtein": (_in_python("levenshtein", pa.int32()), 2, None),
    "lower": (_change_case("lower"), 1, None),
    "lpad": (_pad("lpad"), 2, 3),
    "ltrim": (_trim("utf8_ltrim"), 1, 2),
    "md5": (_digest("md5", hexadecimal=True), 1, None),
    "octet_length": (_octets, 1, None),
    "repeat": (_in_python("repeat", integer=1), 2, None),
    "replace": (_replace, 3, None),
    "reverse": (_call_kernel("utf8_reverse"), 1, None),
    "right": (_right, 2, None),
    "rpad": (_pad("rpad"), 2, 3),
    "rtrim": (_trim("utf8_rtrim"), 1, 2),
    "sha224": (_digest("sha224"), 1, None),
    "sha256": (_digest("sha256"), 1, None),
    "sha384": (_digest("sha384"), 1, None),
    "sha512": (_digest("sha512"), 1, None),
    "split_part": (_in_python("split_part", integer=2), 3, None),
    "starts_with": (_find_part("starts_with", "starts_with"), 2, None),
    "strpos": (_in_python("strpos", pa.int32()), 2, None),
    "substr": (_substr, 2, 3),
    "substring": (_substr, 2, 3),
    "to_hex": (_in_python("to_hex", pa.string(), integer=0), 1, None),
    "translate": (_in_python("translate"), 3, None),
    "trim": (_trim("utf8_trim"), 1, 2),
    "upper": (_change_case("upper"), 1, None),
}

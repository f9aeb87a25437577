"""Parameters of a statement, `:name`, in the pieces that Spark parses as expressions.

A query gets its parameters from Spark's own binding. Conditions and values of the other statements are expressions, for
which Spark has none: the parameter is replaced by a literal that cannot be read as anything else. A string is spelled
in hexadecimal unless its characters are plain.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Mapping
from typing import Any, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.statements.tokens import Cursor

__all__ = ["bound", "literal", "parameters_in"]

_PLAIN: Final = re.compile(r"[\w .,:/@+=-]*", re.ASCII)


def parameters_in(text: str) -> list[tuple[int, int, str]]:
    """Start, end and name of each parameter in a string."""
    cursor = Cursor(text)
    found, depth = [], 0
    while not cursor.is_done:
        token = cursor.token()
        following = cursor.peek()
        depth += {"<": 1, ">": -1}.get(token.text, 0)
        before = cursor.peek(-2).text
        is_parameter = token.text == ":" and following.is_name and following.start == token.end and before != ":"
        # `struct<id:int>` and `struct<id: int>` name fields.
        if is_parameter and not (depth > 0 and cursor.peek(-2).is_name and cursor.peek(-2).end == token.start):
            found.append((token.start, following.end, cursor.token().value))
    return found


def bound(text: str, params: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Start, end and literal of each parameter in a string.

    Raises:
        InvalidInputError: A parameter has no value, or one of a type that has no literal.
    """
    found = []
    for start, end, name in parameters_in(text):
        if name not in params:
            raise InvalidInputError(f"the statement has a parameter :{name}, which has no value: give {name}=...")
        found.append((start, end, literal(name, params[name])))
    return found


def literal(name: str, value: Any) -> str:
    """A value as a literal of Spark's SQL.

    Raises:
        InvalidInputError: The type has no literal; the message names the parameter.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"({value}L)" if -(1 << 63) < value < 1 << 63 and not -(1 << 31) <= value < 1 << 31 else f"({value})"
    if isinstance(value, float):
        return f"cast('{value!r}' as double)"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return f"({value:f}BD)"
    if isinstance(value, str):
        return f"'{value}'" if _PLAIN.fullmatch(value) else f"cast(x'{value.encode().hex()}' as string)"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, dt.datetime):
        return f"cast('{value.isoformat(sep=' ')}' as timestamp)"
    if isinstance(value, dt.date):
        return f"date'{value.isoformat()}'"
    raise InvalidInputError(
        f"parameter :{name} is a {type(value).__name__}; numbers, strings, bytes, dates, times, booleans and None can"
        " be parameters here"
    )

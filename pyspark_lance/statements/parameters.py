"""Parameters of a statement, `:name`, in the pieces that Spark parses as expressions.

Spark itself binds the parameters of a query. Conditions and values of the other statements are expressions, in which
Spark binds no parameters: each parameter is replaced by a literal that has only one meaning. A string is spelled in
hexadecimal unless its characters are plain.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
import time
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lance_core.errors import InvalidInputError
from pyspark_lance.engine.sessions import is_utc
from pyspark_lance.statements.tokens import Cursor

_PLAIN: Final = re.compile(r"[\w .,:/@+=-]*", re.ASCII)


def parameters_in(text: str) -> list[tuple[int, int, str]]:
    """Start, end and name of each parameter in a string."""
    cursor = Cursor(text)
    parameters, depth = [], 0
    while not cursor.is_done:
        token = cursor.token()
        following = cursor.peek()
        depth += {"<": 1, ">": -1}.get(token.text, 0)
        before = cursor.peek(-2).text
        is_parameter = token.text == ":" and following.is_name and following.start == token.end and before != ":"
        # `struct<id:int>` and `struct<id: int>` name fields.
        if is_parameter and not (depth > 0 and cursor.peek(-2).is_name and cursor.peek(-2).end == token.start):
            parameters.append((token.start, following.end, cursor.token().value))
    return parameters


def bind_parameters(
    text: str, params: Mapping[str, Any], spelled: Callable[[str, Any], str] | None = None
) -> list[tuple[int, int, str]]:
    """Start, end and literal of each parameter in a string.

    Args:
        text: The string.
        params: The values by name.
        spelled: Makes the literal from a name and its value; by default `literal`.

    Raises:
        InvalidInputError: A parameter has no value, or one of a type that has no literal.
    """
    literals = []
    for start, end, name in parameters_in(text):
        if name not in params:
            raise InvalidInputError(f"the statement has a parameter :{name}, which has no value: give {name}=...")
        literals.append((start, end, (spelled or literal)(name, params[name])))
    return literals


def replace_parts(text: str, changes: Sequence[tuple[Any, ...]], *, escape: bool = False) -> str:
    """A string with some parts replaced; None stands for blanks.

    Args:
        text: The string.
        changes: Start, end and new text of each part.
        escape: Whether braces are doubled, for Spark's formatter, which replaces names in braces by frames.
    """

    def escape_part(part: str) -> str:
        return part.replace("{", "{{").replace("}", "}}") if escape else part

    parts, at = [], 0
    for start, end, new, *_ in sorted(changes, key=lambda change: (change[0], change[1])):
        parts += [escape_part(text[at:start]), " " * (end - start) if new is None else new]
        at = end
    return "".join([*parts, escape_part(text[at:])])


def literal(name: str, value: Any) -> str:
    """A value as a literal of Spark's SQL.

    Values are printed by the methods of the plain types, because a subclass, such as an enumeration or NumPy's
    float64, can print as anything.

    Raises:
        InvalidInputError: The type has no literal; the message names the parameter.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        number = int.__int__(value)
        return f"({number}L)" if -(1 << 63) < number < 1 << 63 and not -(1 << 31) <= number < 1 << 31 else f"({number})"
    if isinstance(value, float):
        return f"cast('{float.__repr__(value)}' as double)"
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return f"({decimal.Decimal.__format__(value, 'f')}BD)"
    if isinstance(value, str):
        plain = str.__str__(value)
        return f"'{plain}'" if _PLAIN.fullmatch(plain) else f"cast(x'{plain.encode().hex()}' as string)"
    if isinstance(value, bytes):
        return f"x'{bytes.hex(value)}'"
    if isinstance(value, dt.datetime):
        kind = "timestamp" if value.tzinfo is None else "timestamp_ltz"
        return f"cast('{dt.datetime.isoformat(_add_zone(name, value), sep=' ')}' as {kind})"
    if isinstance(value, dt.date):
        return f"date'{dt.date.isoformat(value)}'"
    raise InvalidInputError(
        f"parameter :{name} is a {type(value).__name__}; numbers, strings, bytes, dates, times, booleans and None can"
        " be parameters here"
    )


def _add_zone(name: str, value: dt.datetime) -> dt.datetime:
    """A time with its zone; a time without a zone gets the zone of the process, as in queries, where Spark binds it.

    If TIMESTAMP is TIMESTAMP_NTZ in the session, Spark ignores the zone.

    Raises:
        InvalidInputError: The time is out of the range of times with a zone.
    """
    if value.tzinfo is not None:
        return value
    try:
        moment = dt.datetime.fromtimestamp(int(time.mktime(value.timetuple())), dt.UTC).astimezone()
    except (OverflowError, ValueError, OSError):
        raise InvalidInputError(
            f"parameter :{name} is {dt.datetime.isoformat(value)} without a zone, which the zone of this process takes"
            " out of the range of times: give it a zone, such as datetime.UTC"
        ) from None
    return dt.datetime.replace(moment, microsecond=value.microsecond)


def is_in_zone(name: str, value: dt.datetime, zone: str) -> bool:
    """Whether a time without a zone is the same time in the zone of this process and in another one."""
    try:
        tzinfo = dt.UTC if is_utc(zone) else zoneinfo.ZoneInfo(zone)
        return dt.datetime.replace(value, tzinfo=tzinfo).timestamp() == _add_zone(name, value).timestamp()
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OverflowError):
        return False

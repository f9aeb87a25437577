"""SQL's LIKE: Arrow evaluates patterns that are literals, DataFusion others."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import UnsupportedError
from lance_core.verbs.expressions.sql.datafusion_calls import compute
from lance_core.verbs.expressions.sql.typed import Typed, as_string, call, literal

_BOOL: Final = pa.bool_()


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

"""SQL's LIKE and regular expressions: Arrow evaluates them with RE2, whose syntax is that of Rust's regex."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import UnsupportedError
from lance_core.verbs.expressions.sql.python_functions import python_call
from lance_core.verbs.expressions.sql.typed import Typed, as_string, call, literal

__all__ = ["like", "regexp_count", "regexp_like", "regexp_match", "regexp_replace"]

_BOOL: Final = pa.bool_()
_FLAGS: Final = frozenset("imsU")
_GROUPS: Final = frozenset("0123456789")
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)|\$\$|\\(\d)|\\")


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
        return python_call("ilike" if ignore_case else "like", [value, pattern], _BOOL)
    like_pattern = _with_backslash(pattern.value, escape)
    if "\\" in like_pattern:  # Arrow takes the escape for a character where % stands at an end of the pattern alone
        expression = pc.MatchSubstringOptions(_as_expression(like_pattern), ignore_case=ignore_case)
        return call("match_substring_regex", [value], _BOOL, expression)
    return call("match_like", [value], _BOOL, pc.MatchSubstringOptions(like_pattern, ignore_case=ignore_case))


def regexp_like(value: Typed, pattern: Typed, flags: Typed | None) -> Typed:
    """Whether a regular expression is found in the string."""
    expression = _expression(pattern, flags)
    if expression is None:
        return literal(None, _BOOL)
    return call("match_substring_regex", [as_string(value)], _BOOL, pc.MatchSubstringOptions(expression))


def regexp_count(value: Typed, pattern: Typed) -> Typed:
    """How often a regular expression is found in the string; 0 where the string or the expression is null."""
    expression = _expression(pattern, None)
    if expression is None:
        return literal(0, pa.int64())
    counts = call("count_substring_regex", [as_string(value)], pa.int32(), pc.MatchSubstringOptions(expression))
    return call("coalesce", [counts.to(pa.int64()), literal(0, pa.int64())], pa.int64())


def regexp_match(value: Typed, pattern: Typed, flags: Typed | None) -> Typed:
    """The groups of the first match, or the whole match if there are none; null without a match."""
    value = as_string(value)
    kind = pa.list_(value.type)
    expression = _expression(pattern, flags)
    if expression is None:
        return literal(None, kind)
    return python_call("regexp_match", [value, literal(expression, pa.string())], kind)


def regexp_replace(value: Typed, pattern: Typed, replacement: Typed, flags: Typed | None) -> Typed:
    """The string with the first match replaced, or each with the flag `g`."""
    value = as_string(value)
    everywhere = flags is not None and "g" in str(flags.value)
    expression = _expression(pattern, flags)
    if expression is None or replacement.is_null:
        return literal(None, value.type)
    options = pc.ReplaceSubstringOptions(
        pattern=expression,
        replacement=_REFERENCE.sub(_reference, _pattern_string(replacement)),
        max_replacements=-1 if everywhere else 1,
    )
    return call("replace_substring_regex", [value], value.type, options)


def _pattern_string(value: Typed) -> str:
    if not isinstance(value.value, str):
        raise UnsupportedError("a pattern, flags or a replacement that is not a literal is not supported")
    return value.value


def _expression(pattern: Typed, flags: Typed | None) -> str | None:
    """The pattern with its flags in it; None if one of them is null."""
    if pattern.is_null or (flags is not None and flags.is_null):
        return None
    chosen = (_pattern_string(flags) if flags is not None else "").replace("g", "")
    unknown = set(chosen) - _FLAGS
    if unknown:
        raise UnsupportedError(
            f"the flags {sorted(unknown)} of a regular expression are not supported; supported are g, i, m, s and U"
        )
    return f"(?{chosen}){_pattern_string(pattern)}" if chosen else _pattern_string(pattern)


def _reference(match: re.Match[str]) -> str:
    """A reference to a group as RE2 writes it, with a backslash; any other backslash is doubled."""
    group = match[1] or match[2] or match[3]
    if group is None:
        return "$" if match[0] == "$$" else "\\\\"
    if group not in _GROUPS:
        raise UnsupportedError(f"the group {group!r} in a replacement is not supported; supported are \\0 to \\9")
    return f"\\{group}"


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

"""Print Arrow expressions in one line, for messages and plans, without the details that Arrow adds."""

from __future__ import annotations

import re
from typing import Final

import pyarrow.compute as pc

_OWN_FUNCTION: Final = re.compile(r"(?:lance|datafusion)\.(\w+)\.[A-Za-z0-9+/=]+")
SQL_MARK: Final = b"DataFusion: "
"""Start of the argument with DataFusion's SQL of such a function."""
_SQL: Final = re.compile(rf', "?{SQL_MARK.hex().upper()}[0-9A-F]*"?')
_CAST_OPTIONS: Final = re.compile(r"\{to_type=([^{}]*?), allow_int_overflow=[^{}]*\}")


def plain_name(function: str) -> str | None:
    """The name of a function that this library has registered, without its parameters; None for Arrow's functions."""
    match = _OWN_FUNCTION.match(function)
    return None if match is None else match[1]


def format_expr(expression: pc.Expression) -> str:
    """The expression in one line: casts show only their type, and functions of this library no parameters."""
    short = _CAST_OPTIONS.sub(r"\1", _OWN_FUNCTION.sub(r"\1", _SQL.sub("", str(expression))))
    return re.sub(r"\s*\n\s*", " ", short)

"""`partition_expr` as other table IO managers take it: an SQL expression, of which only the column is used here.

    written                                      understood as
    -------                                      -------------
    day                                          the column
    "day"  `day`                                 the column
    CAST(day AS TIMESTAMP)  TRY_CAST(...)        the column: its own type decides how keys become conditions
    day::date  DATE(day)  TO_DATE(day)           the same
    DATE_TRUNC('day', ts) and anything else      rejected, naming the column to write

Other IO managers put the expression into a query, which compares it with the bounds of a partition. Here the bounds
become values of the column's own type, so that a cast changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import dagster as dg

_NAME: Final = r"""(?:"[^"]+"|`[^`]+`|\[[^\]]+\]|[A-Za-z_][\w$]*)"""
_TYPE: Final = r"[A-Za-z_]\w*(?:\s*\(\s*\d+(?:\s*,\s*\d+)?\s*\))?(?:\s+WITH(?:OUT)?\s+TIME\s+ZONE)?"
_CASTS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?:TRY_|SAFE_)?CAST\s*\(\s*({_NAME})\s+AS\s+{_TYPE}\s*\)",
        rf"({_NAME})\s*::\s*{_TYPE}",
        rf"(?:DATE|TIMESTAMP|DATETIME|TO_DATE|TO_TIMESTAMP)\s*\(\s*({_NAME})\s*\)",
        r"""("[^"]+"|`[^`]+`|\[[^\]]+\])""",
    )
)
_SQL: Final = re.compile(r"[(){}<>=+*/%|,;']|::|\s(?:AS|AT|AND|OR|INTERVAL)\s", re.IGNORECASE)
_UNIT: Final = r"(?:MICROSECOND|MILLISECOND|SECOND|MINUTE|HOUR|DAY|WEEK|ISOWEEK|MONTH|QUARTER|YEAR)S?"
_DATE_CALL: Final = r"\b\w*(?:DATE|TIME|TRUNC)\w*\s*\("
_NO_NAMES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (rf"::\s*{_TYPE}", " "),
        (rf"\bAS\s+{_TYPE}(?=\s*\))", " "),
        (r"\bAT\s+TIME\s+ZONE\b", " "),
        (rf"\bINTERVAL\s+(?:'[^']*'|\d+)(?:\s+{_UNIT}\b)?", " "),
        (r"\b(?:DATE|TIME|TIMESTAMP|DATETIME)\s*'[^']*'", " "),
        (rf"\(\s*{_UNIT}\s+FROM\b", "("),
    )
)
_UNIT_ARGUMENTS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), r"\1")
    for pattern in (rf"({_DATE_CALL}\s*){_UNIT}\s*(?=,)", rf"({_DATE_CALL}(?:[^()']|\([^()]*\))*,)\s*{_UNIT}\s*(?=\))")
)
_WORD: Final = re.compile(r"""'[^']*'|("[^"]+"|`[^`]+`|\[[^\]]+\]|\b[A-Za-z_][\w$]*\b)(?!\s*\()""")
_KEYWORDS: Final = frozenset(
    {"AND", "AS", "BETWEEN", "CASE", "DISTINCT", "ELSE", "END", "FROM", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "THEN"}
    | {"WHEN"}
)


def partition_column(expression: str, *, label: str) -> str:
    """The column that an entry `partition_expr` names.

    Args:
        expression: The entry: a column, or an SQL expression that casts one.
        label: The asset, for messages.

    Raises:
        DagsterInvalidDefinitionError: The entry is another expression; the error names the column to write instead.
    """
    sql = expression.strip()
    for cast in _CASTS:
        match = cast.fullmatch(sql)
        if match is not None:
            return _plain(match[1])
    if not _SQL.search(sql):
        return sql
    columns = _columns(sql)
    remedy = f'"partition_expr": "{columns[0]}"' if len(columns) == 1 else '"partition_expr": "column"'
    raise dg.DagsterInvalidDefinitionError(
        f"{label}: metadata partition_expr {expression!r} is an SQL expression, and LanceIOManager takes the column "
        f"itself: {remedy}. The partitions definition gives the values of each partition; if the column has other "
        "values, compute a column with these values in the asset"
    )


def find_misfit(partition_expr: object, dimensions: Sequence[str] | None) -> str | None:
    """The problem with an entry `partition_expr` of an asset with partitions; None if it has the right form.

    Args:
        partition_expr: The entry.
        dimensions: The names of the dimensions of multi-partitions; None for other partitions.
    """
    if dimensions is None:
        if partition_expr is None:
            example = 'metadata={"partition_expr": "column"}'
            return f"it is partitioned, so its metadata must name the partition column: {example}"
        is_column = isinstance(partition_expr, str) and partition_expr
        return None if is_column else f"metadata partition_expr must be the name of a column, not {partition_expr!r}"
    example = "{" + ", ".join(f'"{name}": "column"' for name in dimensions) + "}"
    if not isinstance(partition_expr, Mapping):
        return (
            f"it has several partition dimensions, so metadata partition_expr must be a mapping such as {example}, "
            f"not {partition_expr!r}"
        )
    if set(partition_expr) != set(dimensions):
        return (
            f"metadata partition_expr names the partition dimensions {sorted(map(str, partition_expr))}, but the asset "
            f"has {sorted(dimensions)}; expected a mapping such as {example}"
        )
    wrong = {name: column for name, column in partition_expr.items() if not (isinstance(column, str) and column)}
    said = "metadata partition_expr must name a different column for each dimension, not"
    for name, column in wrong.items():
        return f"{said} {wrong}: dimension {name!r} must have the name of a column, not {column!r}"
    if len(set(partition_expr.values())) != len(partition_expr):
        return f"{said} {dict(partition_expr)}, which uses one column for two dimensions"
    return None


def _columns(sql: str) -> list[str]:
    """The columns in an expression, without functions, types and units, which are recognized by their positions."""
    for pattern, replacement in _NO_NAMES:
        sql = pattern.sub(replacement, sql)
    names = _names(sql)
    if len(names) > 1:  # DATE_TRUNC(ts, DAY), DATEDIFF(day, a, b)
        for pattern, replacement in _UNIT_ARGUMENTS:
            sql = pattern.sub(replacement, sql)
    return _names(sql) or names


def _names(sql: str) -> list[str]:
    """The words of an expression that are neither functions nor keywords, each once."""
    return list(dict.fromkeys(_plain(word) for word in _WORD.findall(sql) if word and word.upper() not in _KEYWORDS))


def _plain(name: str) -> str:
    return name[1:-1] if name[0] in '"`[' else name

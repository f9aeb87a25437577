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
_QUOTED: Final = re.compile(r"""'[^']*'|("[^"]+"|`[^`]+`|\[[^\]]+\])""")
_UNITS: Final = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "ISOWEEK", "MONTH", "QUARTER", "YEAR"})


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
    remedy = f'"partition_expr": "{columns.pop() if len(columns) == 1 else "column"}"'
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


def _columns(sql: str) -> set[str]:
    """The columns in an expression, as far as they are clear: `DATE_TRUNC(day, MONTH)` has one or the other."""
    columns, of_bigquery = _columns_of_dialect(sql, "snowflake", '"'), _columns_of_dialect(sql, "bigquery", "`")
    if not of_bigquery or columns & of_bigquery:
        return columns
    columns |= of_bigquery  # one of them takes the unit in DATE_TRUNC(ts, DAY) for the column
    return {name for name in columns if name.upper() not in _UNITS} or columns


def _columns_of_dialect(sql: str, dialect: str, quote: str) -> set[str]:
    """The columns in an expression of a dialect that quotes names by a character; none if it is no SQL."""
    from sqlglot import exp, parse_one  # noqa: PLC0415 - slow to import, and for a message alone
    from sqlglot.errors import SqlglotError  # noqa: PLC0415 - like this one

    requoted = _QUOTED.sub(lambda match: f"{quote}{match[0][1:-1]}{quote}" if match.lastindex else match[0], sql)
    try:
        return {column.name for column in parse_one(requoted, dialect=dialect).find_all(exp.Column)}
    except SqlglotError:
        return set()


def _plain(name: str) -> str:
    return name[1:-1] if name[0] in '"`[' else name

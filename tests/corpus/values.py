"""Values of Arrow and of Spark beside each other: Spark has fewer types, and the same values in them."""

import datetime as dt
import decimal
import json
import math
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa

__all__ = ["different_rows", "different_values", "named_error", "plain_rows"]


def _plain(value: Any) -> Any:
    """A value as Spark's types have it: numbers without a width, moments in UTC, 16 bytes for a UUID."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | decimal.Decimal):
        return f"{_exact(value):f}"
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return moment.isoformat()
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value


def _exact(value: int | decimal.Decimal) -> decimal.Decimal:
    with decimal.localcontext() as context:
        context.prec = 90
        return abs(decimal.Decimal(value)).normalize() if not value else decimal.Decimal(value).normalize()


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a table, with plain values."""
    columns = []
    for column in table.columns:
        values = column.to_pylist()
        if str(column.type) == "extension<arrow.json>":  # Lance stores JSON, not its spaces
            values = [None if value is None else json.dumps(json.loads(value)) for value in values]
        columns.append([_plain(value) for value in values])
    return list(zip(*columns, strict=True)) if columns else []


def different_values(stored: pa.Table, expected: pa.Table) -> str | None:
    """How the values of tables differ, whose rows are in any order; None if they are equal."""
    if stored.column_names != expected.column_names:
        return f"the columns are {stored.column_names}, not {expected.column_names}"
    return different_rows(plain_rows(stored), plain_rows(expected))


def different_rows(stored: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> str | None:
    """How rows of plain values differ, in any order; None if they are equal."""
    rows, others = Counter(map(repr, stored)), Counter(map(repr, expected))
    surplus, missing = rows - others, others - rows
    if not surplus and not missing:
        return None
    more, fewer = (str(list(some))[:200] for some in (surplus, missing))
    return f"{len(stored)} rows, not {len(expected)}; not expected: {more}; missing: {fewer}"


def named_error(error: BaseException) -> str | None:
    """The name of the error of this library's tree that an error is, or that Spark's error quotes; None for none."""
    from lance_core.errors import LanceError

    names, classes = [], [LanceError]
    while classes:
        one = classes.pop()
        names.append(one.__name__)
        classes += one.__subclasses__()
    if isinstance(error, LanceError):
        return type(error).__name__
    return next((name for name in names if f"{name}:" in str(error)), None)

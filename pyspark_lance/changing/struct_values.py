"""Values of fields of structs, which become values of the whole columns.

    s.a = 1, s.in.b = 2     -->     s = struct(1 AS a, struct(2 AS b, s.in.c AS c) AS in)

Fields without a new value keep theirs. A struct that is null becomes one whose other fields are null, as in Delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_core.errors import SchemaError
from pyspark_lance.types.column_names import matched_names, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["Value", "as_column", "completed", "lacks_fields", "whole_values"]

Value: TypeAlias = "str | Column"
"""An expression in Spark SQL, or a Spark `Column`."""


def as_column(value: Value) -> Column:
    """A value as a column."""
    from pyspark.sql import functions

    return functions.expr(value) if isinstance(value, str) else value


def whole_values(
    values: Mapping[str, Value],
    fields: Sequence[pa.Field],
    what: str,
    path: Sequence[str],
    *,
    exact: bool,
    has_rows: bool = True,
) -> dict[str, Value]:
    """Values by the table's own names of the columns.

    Args:
        values: The values, by the names of columns or by the dotted paths of fields.
        fields: The columns, or the fields of a struct.
        what: The clause, for messages.
        path: The parts of the name of the struct, after an alias of the table.
        exact: Whether case matters.
        has_rows: Whether there are rows, whose other fields stay.

    Raises:
        SchemaError: A column or field does not exist or has two values, or a value is for a field of an inserted row.
    """
    from pyspark.sql import functions

    known = {one.name: one for one in fields}
    names = matched_names(values, list(known), exact=exact)
    found = {names[name]: values[name] for name in names}
    unknown = []
    inner: dict[str, dict[str, Value]] = {}
    for name in [one for one in values if one not in names]:
        first, _, rest = name.partition(".")
        own = matched_names([first], list(known), exact=exact).get(first)
        if own is None or not rest or not pa.types.is_struct(known[own].type):
            unknown.append(name)
        else:
            inner.setdefault(own, {})[rest] = values[name]
    if unknown:
        for name in unknown:
            _check_is_struct(name, known, what, exact=exact)
        raise SchemaError(f"{what}: there are no columns {unknown}; the table has {list(known)}")
    for own, given in inner.items():
        if own in found:
            raise SchemaError(f"{what}: column {own!r} and its field {next(iter(given))!r} both have a value")
        if not has_rows:
            raise SchemaError(
                f"{what}: {own + '.' + next(iter(given))!r} is a field of a struct, whose other fields an inserted row"
                f" lacks: give {own!r} a value, named_struct('name', value, ...)"
            )
        below = (*path, own)
        parts = whole_values(given, list(known[own].type), f"{what}: struct {own!r}", below, exact=exact)
        kept = {one.name: functions.col(".".join(map(quoted, (*below, one.name)))) for one in known[own].type}
        found[own] = functions.struct(
            *[as_column(parts.get(name, column)).alias(name) for name, column in kept.items()]
        )
    return found


def lacks_fields(given: DataType, stored: DataType, *, exact: bool) -> bool:
    """Whether a struct lacks fields, at any depth of structs, that the struct of the table has and that may be null.

    Args:
        given: The type of a value.
        stored: The type of the column.
        exact: Whether case matters.
    """
    from pyspark.sql.types import StructType

    if not (isinstance(given, StructType) and isinstance(stored, StructType)):
        return False
    names = matched_names(stored.names, given.names, exact=exact)
    if len(names) < len(given.names) or any(not one.nullable and one.name not in names for one in stored):
        return False  # the check of the types says what does not fit
    inner = (lacks_fields(given[names[n]].dataType, stored[n].dataType, exact=exact) for n in names)
    return len(names) < len(stored.names) or any(inner)


def completed(value: Column, given: DataType, stored: DataType, old: Column | None, *, exact: bool) -> Column:
    """A value with the fields that its struct lacks: those of the old value, or nulls; other values as they are.

    Args:
        value: The value.
        given: Its type.
        stored: The type of the column.
        old: The old value; None for an inserted row.
        exact: Whether case matters.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    if not lacks_fields(given, stored, exact=exact):
        return value
    assert isinstance(given, StructType)
    assert isinstance(stored, StructType)
    names = matched_names(stored.names, given.names, exact=exact)
    parts = []
    for one in stored:
        before = None if old is None else old.getField(one.name)
        if one.name in names:
            known = given[names[one.name]]
            part = completed(value.getField(known.name), known.dataType, one.dataType, before, exact=exact)
        else:
            part = functions.lit(None).cast(one.dataType) if before is None else before
        parts.append(part.alias(one.name))
    return functions.when(value.isNotNull(), functions.struct(*parts))


def _check_is_struct(name: str, known: Mapping[str, pa.Field], what: str, *, exact: bool) -> None:
    """Reject a field of a column that is not a struct.

    Raises:
        SchemaError: The name is that of a field of such a column.
    """
    first, dot, _ = name.partition(".")
    own = matched_names([first], list(known), exact=exact).get(first)
    if dot and own is not None and not pa.types.is_struct(known[own].type):
        raise SchemaError(
            f"{what}: {own!r} is of type {known[own].type}, and {name!r} is not a field of a struct: set {own!r} whole"
        )

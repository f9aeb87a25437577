"""Values of fields of structs, which become values of the whole columns.

    s.a = 1, s.in.b = 2     -->     s = struct(1 AS a, struct(2 AS b, s.in.c AS c) AS in)

Fields without a new value keep theirs. A struct that is null becomes one whose other fields are null, as in Delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_core.errors import SchemaError
from pyspark_lance.types.column_names import match_names, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

Value: TypeAlias = "str | Column"
"""An expression in Spark SQL, or a Spark `Column`."""


def as_column(value: Value) -> Column:
    """A value as a column."""
    from pyspark.sql import functions

    return functions.expr(value) if isinstance(value, str) else value


def collect_whole_values(
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

    by_name = {field.name: field for field in fields}
    names = match_names(values, list(by_name), exact=exact)
    column_values = {names[name]: values[name] for name in names}
    unknown = []
    inner: dict[str, dict[str, Value]] = {}
    for name in [name for name in values if name not in names]:
        first, _, rest = name.partition(".")
        column = match_names([first], list(by_name), exact=exact).get(first)
        if column is None or not rest or not pa.types.is_struct(by_name[column].type):
            unknown.append(name)
        else:
            inner.setdefault(column, {})[rest] = values[name]
    if unknown:
        for name in unknown:
            _check_is_struct(name, by_name, what, exact=exact)
        raise SchemaError(f"{what}: there are no columns {unknown}; the table has {list(by_name)}")
    for column, field_values in inner.items():
        if column in column_values:
            raise SchemaError(f"{what}: column {column!r} and its field {next(iter(field_values))!r} both have a value")
        if not has_rows:
            raise SchemaError(
                f"{what}: {column + '.' + next(iter(field_values))!r} is a field of a struct, whose other fields an"
                f" inserted row lacks: give {column!r} a value, named_struct('name', value, ...)"
            )
        below = (*path, column)
        parts = collect_whole_values(
            field_values, list(by_name[column].type), f"{what}: struct {column!r}", below, exact=exact
        )
        old = {field.name: functions.col(".".join(map(quoted, (*below, field.name)))) for field in by_name[column].type}
        column_values[column] = functions.struct(
            *[as_column(parts.get(name, old_field)).alias(name) for name, old_field in old.items()]
        )
    return column_values


def lacks_fields(value_type: DataType, stored: DataType, *, exact: bool) -> bool:
    """Whether a struct lacks fields, at any depth of structs, that the struct of the table has and that may be null.

    Args:
        value_type: The type of a value.
        stored: The type of the column.
        exact: Whether case matters.
    """
    from pyspark.sql.types import StructType

    if not (isinstance(value_type, StructType) and isinstance(stored, StructType)):
        return False
    names = match_names(stored.names, value_type.names, exact=exact)
    if len(names) < len(value_type.names) or any(not field.nullable and field.name not in names for field in stored):
        return False  # the check of the types says what does not fit
    inner = (lacks_fields(value_type[names[n]].dataType, stored[n].dataType, exact=exact) for n in names)
    return len(names) < len(stored.names) or any(inner)


def fill_lacking_fields(
    value: Column, value_type: DataType, stored: DataType, old: Column | None, *, exact: bool
) -> Column:
    """A value with the fields that its struct lacks: those of the old value, or nulls; other values as they are.

    Args:
        value: The value.
        value_type: Its type.
        stored: The type of the column.
        old: The old value; None for an inserted row.
        exact: Whether case matters.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    if not lacks_fields(value_type, stored, exact=exact):
        return value
    assert isinstance(value_type, StructType)
    assert isinstance(stored, StructType)
    names = match_names(stored.names, value_type.names, exact=exact)
    parts = []
    for field in stored:
        before = None if old is None else old.getField(field.name)
        if field.name in names:
            source = value_type[names[field.name]]
            part = fill_lacking_fields(
                value.getField(source.name), source.dataType, field.dataType, before, exact=exact
            )
        else:
            part = functions.lit(None).cast(field.dataType) if before is None else before
        parts.append(part.alias(field.name))
    return functions.when(value.isNotNull(), functions.struct(*parts))


def _check_is_struct(name: str, by_name: Mapping[str, pa.Field], what: str, *, exact: bool) -> None:
    """Reject a field of a column that is not a struct.

    Raises:
        SchemaError: The name is that of a field of such a column.
    """
    first, dot, _ = name.partition(".")
    column = match_names([first], list(by_name), exact=exact).get(first)
    if dot and column is not None and not pa.types.is_struct(by_name[column].type):
        raise SchemaError(
            f"{what}: {column!r} is of type {by_name[column].type}, and {name!r} is not a field of a struct:"
            f" set {column!r} whole"
        )

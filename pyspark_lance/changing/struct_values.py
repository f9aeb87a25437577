"""Values that columns get, by the table's names; those of fields of structs become values of the whole columns.

    s.a = 1, s.in.b = 2     -->     s = struct(1 AS a, struct(2 AS b, s.in.c AS c) AS in)

Fields without a new value keep theirs. A struct that is null becomes one whose other fields are null, as in Delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from lance_core.errors import InvalidInputError, SchemaError
from pyspark_lance.lazy import Column, DataType, functions, types
from pyspark_lance.types.column_names import match_names, quoted, unquoted

Value: TypeAlias = "str | Column"
"""An expression in Spark SQL, or a Spark `Column`."""


def as_column(value: Value) -> Column:
    """A value as a column; Spark 3.5 parses it at once, later ones where it is used."""
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
    by_name = {field.name: field for field in fields}
    names = match_names(values, list(by_name), exact=exact)
    column_values = {names[name]: values[name] for name in names}
    unknown = []
    inner: dict[str, dict[str, Value]] = {}
    for name in [name for name in values if name not in names]:
        first, dot, rest = name.partition(".")
        column = match_names([first], list(by_name), exact=exact).get(first)
        is_struct = column is not None and pa.types.is_struct(by_name[column].type)
        if column is not None and dot and not is_struct:
            raise SchemaError(
                f"{what}: {column!r} is of type {by_name[column].type}, and {name!r} is not a field of a struct:"
                f" set {column!r} whole"
            )
        if column is not None and rest and is_struct:
            inner.setdefault(column, {})[rest] = values[name]
        else:
            unknown.append(name)
    if unknown:
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
    if not (isinstance(value_type, types.StructType) and isinstance(stored, types.StructType)):
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
    if not lacks_fields(value_type, stored, exact=exact):
        return value
    assert isinstance(value_type, types.StructType)
    assert isinstance(stored, types.StructType)
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


def respell_values(
    values: Mapping[str, Value], table: pa.Schema, what: str, *, alias: str | None, exact: bool, has_rows: bool = True
) -> dict[str, Value]:
    """Values by the table's own column names; values of fields of structs become values of the whole columns.

    Args:
        values: The values, by names as the user writes them, or dotted paths of fields.
        table: The schema of the table.
        what: The clause, for messages.
        alias: The name that may qualify the columns.
        exact: Whether case matters.
        has_rows: Whether there are rows, whose other fields of structs stay.

    Raises:
        SchemaError: The table lacks a column, a column has two values, or a value is for a field of an inserted row.
        InvalidInputError: There are no values, or they are not expressions by column name.
    """
    _check_values(values, what)
    plain: dict[str, Value] = {}
    for name, value in values.items():
        plain[name if name in table.names else strip_alias(name, table.names, alias, exact=exact)] = value
    if len(plain) < len(values):
        raise SchemaError(f"{what}: a column has two values: {list(values)}")
    return collect_whole_values(
        plain, list(table), what, () if alias is None else (alias,), exact=exact, has_rows=has_rows
    )


def strip_alias(written_name: str, column_names: Sequence[str], alias: str | None, *, exact: bool) -> str:
    """The name of a column or the path of a field without the alias before it, and without backticks around it.

    Args:
        written_name: The name as the user writes it.
        column_names: The table's columns, whose names may have backticks of their own.
        alias: The name that may qualify the columns.
        exact: Whether case matters.
    """
    first, dot, rest = written_name.partition(".")
    is_own = dot and alias is not None and (first == alias or (not exact and first.lower() == alias.lower()))
    name = rest if is_own else written_name
    return name if name in column_names else unquoted(name)


def _check_values(values: Any, what: str) -> None:
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{what}: set must be a dict of values by column name, not {values!r}")
    if not values:
        raise InvalidInputError(f"{what}: set gives no column a value")
    for name, value in values.items():
        if not isinstance(name, str):
            raise InvalidInputError(f"{what}: {name!r} is not the name of a column")
        if not isinstance(value, str) and not is_column(value):
            raise InvalidInputError(
                f"{what}: the value of {name!r} must be an expression in Spark SQL, or a Spark Column such as"
                f" functions.lit({value!r}), not {value!r}"
            )


def is_column(value: Any) -> bool:
    """Whether a value is a Spark `Column`, classic or Connect."""
    from pyspark.sql import Column

    return isinstance(value, Column)

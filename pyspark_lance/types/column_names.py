"""Resolution of column names by `spark.sql.caseSensitive`: from the user's spelling to the table's.

Unless `spark.sql.caseSensitive` is true, `N` stands for a column `n` of the table. A name that is spelled exactly as a
column stands for that column. A name that could stand for two columns is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from lance_core.errors import ArgumentTypeError, SchemaError
from pyspark_lance.lazy import DataFrame, SparkSession, StructField, functions, types
from pyspark_lance.types.arrow_types import map_fields


def quoted(name: str) -> str:
    """A name in backticks: Spark accepts such a name with any characters."""
    return f"`{name.replace('`', '``')}`"


def unquoted(name: str) -> str:
    """A name without the backticks that enclose all of it; other names are unchanged."""
    inner = name[1:-1]
    is_quoted = len(name) > 2 and name[0] == name[-1] == "`" and "`" not in inner.replace("``", "")
    return inner.replace("``", "`") if is_quoted else name


def names_of(what: str, argument: Any) -> list[str]:
    """The names that an argument gives: a string is one name.

    Raises:
        ArgumentTypeError: The argument is neither a name nor some names.
    """
    names = [argument] if isinstance(argument, str) or not isinstance(argument, Iterable) else list(argument)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"{what} must be the name of a column, or a list of names, not {argument!r}")
    return names


def case_sensitive(spark: SparkSession) -> bool:
    """Whether a session resolves names case-sensitively."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_spellings(frame: DataFrame, names: Iterable[str]) -> None:
    """Make sure that Spark finds columns by their names.

    Raises:
        SchemaError: Two names differ only in case, and the session does not distinguish case.
    """
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name.lower(), name)
        if twin != name and not case_sensitive(frame.sparkSession):
            raise SchemaError(
                f"columns {twin!r} and {name!r} differ only in case: Spark distinguishes them by name only with"
                " spark.sql.caseSensitive=true"
            )


def match_names(
    given_names: Iterable[str], names: Sequence[str], *, exact: bool = False, path: str = ""
) -> dict[str, str]:
    """The table's spelling of each given name that matches a column.

    Args:
        given_names: Names from the user or from a DataFrame.
        names: Names of the table's columns.
        exact: Whether case matters.
        path: The path of the struct whose fields they are, with a dot after it.

    Raises:
        SchemaError: A name could stand for two columns, or two names for one column.
    """
    given_names = list(given_names)
    spellings = {name: name for name in given_names if name in names}
    if exact:
        return spellings
    for name in given_names:
        alike = [column for column in names if column.lower() == name.lower()] if name not in spellings else []
        if len(alike) > 1:
            raise SchemaError(
                f"column {path + name!r} could be any of {[path + column for column in alike]} of the table: spell it"
                " exactly as one of them"
            )
        twins = (other for other, spelling in spellings.items() if alike and spelling == alike[0])
        if (twin := next(twins, None)) is not None:
            raise SchemaError(
                f"columns {path + twin!r} and {path + name!r} are both column {path + alike[0]!r} of the table: rename"
                " one of them, or set spark.sql.caseSensitive=true"
            )
        if alike:
            spellings[name] = alike[0]
    return spellings


def source_indices(source: Sequence[str], target: Sequence[str]) -> list[int]:
    """For each target name the index of the matching source column, an exact match first; -1 if there is none."""
    left = {name.lower(): index for index, name in enumerate(source) if name not in target}
    return [source.index(name) if name in source else left.get(name.lower(), -1) for name in target]


def select_renamed(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """The columns of a batch selected and renamed to the table's spelling."""
    indices = source_indices(batch.schema.names, names)
    assert -1 not in indices, "the caller checked the columns"
    columns = [batch.column(index) for index in indices]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def rename_like(table: pa.Schema, source: pa.Schema) -> pa.Schema:
    """A schema with columns and fields of structs renamed to the table's spelling.

    Raises:
        SchemaError: A name could stand for two columns or fields, or two names for one.
    """
    names = match_names(source.names, table.names)
    fields = [
        field if field.name not in names else _respell_field(field, table.field(names[field.name]), names[field.name])
        for field in source
    ]
    return pa.schema(fields, metadata=source.metadata)


def _respell_field(field: pa.Field, stored: pa.Field, path: str) -> pa.Field:
    return field.with_name(stored.name).with_type(_respell_type(field.type, stored.type, path))


def _respell_type(kind: pa.DataType, stored: pa.DataType, path: str) -> pa.DataType:
    types = pa.types
    if types.is_struct(kind) and types.is_struct(stored):
        children = {child.name: child for child in stored}
        names = match_names([child.name for child in kind], list(children), path=f"{path}.")
        return pa.struct(
            child
            if child.name not in names
            else _respell_field(child, children[names[child.name]], f"{path}.{child.name}")
            for child in kind
        )
    if types.is_map(kind) and types.is_map(stored):
        key = kind.key_field.with_type(_respell_type(kind.key_type, stored.key_type, f"{path}.key"))
        return pa.map_(key, kind.item_field.with_type(_respell_type(kind.item_type, stored.item_type, f"{path}.value")))
    if types.is_list(kind) and types.is_list(stored):
        return pa.list_(kind.value_field.with_type(_respell_type(kind.value_type, stored.value_type, f"{path}[]")))
    return kind


def respell_path(schema: pa.Schema, path: str) -> str:
    """A column, or a dotted path to a field of a struct, as the table spells it; an unknown path stays as it is.

    Raises:
        SchemaError: A part of the path could stand for two columns or fields.
    """
    return path if path in schema.names else _spelled_path(list(schema), path)


def _spelled_path(fields: Sequence[pa.Field], path: str) -> str:
    first, dot, rest = path.partition(".")
    fields_by_name = {field.name: field for field in fields}
    field = fields_by_name.get(match_names([first], list(fields_by_name)).get(first, first))
    if field is None:
        return path
    inner = _spelled_path(list(field.type), rest) if dot and pa.types.is_struct(field.type) else rest
    return f"{field.name}{dot}{inner}"


def rename_columns_like(df: DataFrame, source: pa.Schema, table: pa.Schema) -> DataFrame:
    """The frame with columns renamed to the table's spelling; unchanged in a case-sensitive session.

    Args:
        df: The frame.
        source: Its Arrow schema.
        table: The schema of the table.

    Raises:
        SchemaError: A name could stand for two columns or fields, or two names for one.
    """
    if case_sensitive(df.sparkSession):
        return df
    renamed_schema = rename_like(table, source)
    check_spellings(df, df.columns)
    if renamed_schema.equals(source):
        return df
    columns: list[Any] = []
    for old, new, field in zip(source, renamed_schema, df.schema, strict=True):
        column = functions.col(quoted(old.name))
        if old.type != new.type:
            column = column.cast(map_fields(field.dataType, new.type, _rename_field))
        columns.append(column.alias(new.name, metadata=field.metadata))
    return df.select(*columns)


def _rename_field(field: StructField, arrow: pa.Field) -> StructField:
    kind = map_fields(field.dataType, arrow.type, _rename_field)
    return types.StructField(arrow.name, kind, field.nullable, field.metadata)

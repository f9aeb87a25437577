"""The plan of a write, made from the schemas of DataFrame and table before any task runs.

    schema_mode   the DataFrame, if the table exists
    -----------   ------------------------------------------------------------------------------------------------
    strict        has exactly the table's columns; order and nullability do not matter
    add_columns   may lack nullable columns, and may have new columns and new fields of structs, which are null in
                  the table's rows; a write that replaces some rows by a condition accepts no new ones
    overwrite     has any columns, which replace the table's; the mode must be overwrite

A column of the table whose type is null gets the DataFrame's type in every mode, except in writes that replace rows by
a condition, by dynamic partitions or by keys.
A column fits if Spark reads the stored type as the type that the DataFrame has (`spark_types`): what Spark read from
columns of uint8 or of dictionaries can be written back, and a vector needs no mark if the table has its width. Numbers
fit into any other type of numbers, value by value (`number_casts`). Names follow the session's rule (`column_names`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, get_args

import pyarrow as pa

from lance_core import Slices
from lance_core.errors import InvalidInputError, SchemaError
from lance_core.extension_types import with_fields
from pyspark_lance.types.batch_convert import build_converter
from pyspark_lance.types.column_names import match_names, rename_like
from pyspark_lance.types.number_casts import are_numbers
from pyspark_lance.types.spark_types import spark_view, stored_field, vector_width
from pyspark_lance.writing.option_values import Mode, SchemaMode

_BLOB: Final = "lance.blob.v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """The schemas of a write.

    Attributes:
        source: Schema of the batches that Spark hands over, with the table's spelling of names.
        stored: Schema of the fragments: the table's columns in its order, new ones last.
        new_columns: Names of the columns that the table does not have yet, if it exists and keeps its schema.
        grown_columns: Names of the table's columns that get a type, and of its structs that get more fields.
        respelled: Columns that the DataFrame spells differently from the table.
    """

    source: pa.Schema
    stored: pa.Schema
    new_columns: tuple[str, ...] = ()
    grown_columns: tuple[str, ...] = ()
    respelled: tuple[str, ...] = ()


def plan_write(
    source: pa.Schema,
    table: pa.Schema | None,
    *,
    mode: Mode = "append",
    schema_mode: SchemaMode = "strict",
    vector_columns: Mapping[str, int] | None = None,
    slices: Slices | None = None,
    case_sensitive: bool = False,
    has_schema_mode: bool = True,
    sets_types: bool = False,
) -> WritePlan:
    """Check a write against the table and decide how each column is stored.

    Args:
        source: The schema that Spark hands over (`spark_types.batch_schema`).
        table: Schema of the table; None if the table does not exist.
        mode: What the write does to existing rows.
        schema_mode: Differences between the schemas that are allowed; the head of the module lists them.
        vector_columns: Columns that hold vectors, with the number of their items.
        slices: The slices that the rows lie in.
        case_sensitive: Whether names that differ only in case are different ones.
        has_schema_mode: Whether the caller's verb takes `schema_mode`, so that messages may name it as a remedy.
        sets_types: Whether the write gives types to columns of the table whose type is null.

    Raises:
        SchemaError: A column is missing, unknown or of another type, or cannot be the vector that its metadata
            announces; the message names the column.
        InvalidInputError: The modes cannot be combined, or the width of a vector column is not positive.
        UnsupportedError: Spark cannot write to a column of the table's type.
    """
    _check_modes(mode, schema_mode)
    unspelled_source, new_schema = source, table is None or schema_mode == "overwrite"
    if table is not None and not new_schema and not case_sensitive:
        source = rename_like(table, source)
    if not isinstance(vector_columns or {}, Mapping):
        raise InvalidInputError(
            f"vector_columns must be a dict of the number of items by column, such as {{'vec': 768}}, not"
            f" {vector_columns!r}"
        )
    spelled = match_names(vector_columns or (), source.names, exact=case_sensitive)
    widths = {spelled.get(name, name): width for name, width in (vector_columns or {}).items()}
    for name, width in widths.items():
        if source.get_field_index(name) < 0:
            raise SchemaError(f"vector_columns: there is no column {name!r}; the columns are {source.names}")
        if width < 1:
            raise InvalidInputError(f"vector_columns: column {name!r}: {width} is not a positive number of items")
    plan = (
        _plan_new(source, widths)
        if new_schema
        else _plan_existing(source, table, widths, schema_mode, has_mode=has_schema_mode, sets_types=sets_types)
    )
    respelled = [old.name for old, new in zip(unspelled_source, source, strict=True) if not old.equals(new)]
    plan = replace(plan, respelled=tuple(respelled))
    if slices is not None:
        slices.check(plan.stored)
    return plan


def _check_modes(mode: Mode, schema_mode: SchemaMode) -> None:
    if mode not in get_args(Mode):
        raise InvalidInputError(f"mode {mode!r} is none of {', '.join(get_args(Mode))}")
    if schema_mode not in get_args(SchemaMode):
        raise InvalidInputError(f"schema_mode {schema_mode!r} is none of {', '.join(get_args(SchemaMode))}")
    if schema_mode == "overwrite" and mode in ("append", "replace"):
        raise InvalidInputError(f"schema_mode 'overwrite' needs a mode that replaces all rows, not {mode!r}")


def _plan_new(source: pa.Schema, widths: Mapping[str, int]) -> WritePlan:
    fields = [stored_field(field, _declared_width(field, widths)) for field in source]
    if not fields:
        raise SchemaError("the DataFrame has no columns")
    return WritePlan(source=source, stored=pa.schema(fields))


def _declared_width(field: pa.Field, widths: Mapping[str, int]) -> int | None:
    """The width in `vector_columns`, which must agree with the column's metadata."""
    width = widths.get(field.name)
    marked = vector_width(field, field.name)
    if width is not None and marked is not None and width != marked:
        raise SchemaError(f"column {field.name!r}: vector_columns says {width} items, its metadata {marked}")
    return width


def _plan_existing(
    source: pa.Schema,
    table: pa.Schema,
    widths: Mapping[str, int],
    schema_mode: SchemaMode,
    *,
    has_mode: bool,
    sets_types: bool,
) -> WritePlan:
    missing = [field.name for field in table if source.get_field_index(field.name) < 0]
    new = [field for field in source if table.get_field_index(field.name) < 0]
    _check_case(missing, [field.name for field in new])
    if schema_mode == "strict" and missing:
        fills = "schema_mode='add_columns' (option mergeSchema) fills those that can be null"
        keeps = "pyspark_lance.merge(df, uri, on=...) keeps the values that they have"
        raise SchemaError(f"the DataFrame lacks the columns {missing} of the table; {fills if has_mode else keeps}")
    if schema_mode == "strict" and new:
        adds = "schema_mode='add_columns' (option mergeSchema) adds them" if has_mode else ADD_FIRST
        raise SchemaError(f"the DataFrame has the columns {[f.name for f in new]}, which the table lacks; {adds}")
    for name in missing:
        if not table.field(name).nullable:
            raise SchemaError(f"column {name!r} of the table cannot be null, and the DataFrame lacks it")
    common_fields = [field for field in source if table.get_field_index(field.name) >= 0]
    stored_fields = {field.name: field for field in table}
    if schema_mode == "add_columns":
        stored_fields |= {
            field.name: _grow_struct(stored_fields[field.name], field, field.name) for field in common_fields
        }
    if sets_types:
        stored_fields |= {
            field.name: _give_type(stored_fields[field.name], field, _declared_width(field, widths))
            for field in common_fields
        }
    grown = tuple(field.name for field in table if stored_fields[field.name] != field)
    if has_mode:
        stored_fields |= {field.name: as_payloads(stored_fields[field.name], field) for field in common_fields}
    for field in common_fields:
        old = stored_fields[field.name]
        needed = _drop_lacking_fields(old, field.type) if schema_mode == "add_columns" else old
        _check_fits(field, needed, widths, has_mode=has_mode)
    fields = [*stored_fields.values(), *(stored_field(field, _declared_width(field, widths)) for field in new)]
    return WritePlan(
        source=source,
        stored=pa.schema(fields, metadata=table.metadata),
        new_columns=tuple(field.name for field in new),
        grown_columns=grown,
    )


def as_payloads(stored: pa.Field, source_field: pa.Field) -> pa.Field:
    """A column with blobs of 2.2 as plain bytes or URIs where the DataFrame has those: the writer makes blobs of them.

    Args:
        stored: The column of the table.
        source_field: The column of the DataFrame.
    """
    kind, source = stored.type, source_field.type
    if not has_blobs(stored):
        if not pa.types.is_nested(kind) or kind.id != source.id:
            return stored
        olds, sources = ([each.field(i) for i in range(each.num_fields)] for each in (kind, source))
        by_name = {field.name: field for field in sources}
        if pa.types.is_struct(kind):
            sources = [by_name.get(old.name, old) for old in olds]
        fields = list(map(as_payloads, olds, sources))
        return stored if fields == olds else stored.with_type(with_fields(kind, fields))
    if pa.types.is_string(source_field.type) or pa.types.is_large_string(source_field.type):
        return pa.field(stored.name, pa.string(), stored.nullable)
    is_bytes = pa.types.is_binary(source_field.type) or pa.types.is_large_binary(source_field.type)
    return pa.field(stored.name, pa.large_binary(), stored.nullable) if is_bytes else stored


def has_blobs(stored: pa.Field) -> bool:
    """Whether a column of the table has blobs of 2.2."""
    kind = stored.type
    name = kind.extension_name if isinstance(kind, pa.BaseExtensionType) else None
    name = name or (stored.metadata or {}).get(b"ARROW:extension:name", b"").decode()
    return bool(name == _BLOB)


def _give_type(stored: pa.Field, source_field: pa.Field, width: int | None) -> pa.Field:
    """A column of the table whose type is null, with the type of the DataFrame's column; other columns unchanged."""
    if pa.types.is_null(source_field.type) or not pa.types.is_null(stored.type):
        return stored
    field = stored_field(source_field, width).with_nullable(True)
    return field.with_metadata({**(field.metadata or {}), **(stored.metadata or {})} or None)


def _grow_struct(stored: pa.Field, source_field: pa.Field, path: str) -> pa.Field:
    """A struct of the table with the fields that only the DataFrame's struct has, at any depth."""
    if not (pa.types.is_struct(stored.type) and pa.types.is_struct(source_field.type)):
        return stored
    children = {child.name: child for child in stored.type}
    for child in source_field.type:
        old = children.get(child.name)
        name = f"{path}.{child.name}"
        children[child.name] = stored_field(child, path=path) if old is None else _grow_struct(old, child, name)
    missing = [child.name for child in stored.type if source_field.type.get_field_index(child.name) < 0]
    new = [child.name for child in source_field.type if stored.type.get_field_index(child.name) < 0]
    _check_case(missing, new, f"{path}.")
    return stored.with_type(pa.struct(list(children.values())))


def _drop_lacking_fields(stored: pa.Field, source_type: pa.DataType) -> pa.Field:
    """A column of the table without nullable fields that the DataFrame's structs lack: the writer fills them."""
    kind = stored.type
    if pa.types.is_struct(kind) and pa.types.is_struct(source_type):
        fields = {field.name: field.type for field in source_type}
        return stored.with_type(
            pa.struct(
                _drop_lacking_fields(child, fields[child.name]) if child.name in fields else child
                for child in kind
                if child.name in fields or not child.nullable
            )
        )
    if pa.types.is_list(kind) and pa.types.is_list(source_type):
        return stored.with_type(pa.list_(_drop_lacking_fields(kind.value_field, source_type.value_type)))
    return stored


def _check_case(missing: list[str], new: list[str], path: str = "") -> None:
    """Reject a new column whose name differs only in case from that of a missing column."""
    by_lower = {name.lower(): name for name in missing}
    for name in new:
        twin = by_lower.get(name.lower())
        if twin is not None:
            name, twin = path + name, path + twin  # noqa: PLW2901 - by their paths
            raise SchemaError(f"column {name!r} is called {twin!r} in the table: names must agree in case")


def _check_fits(field: pa.Field, stored: pa.Field, widths: Mapping[str, int], *, has_mode: bool) -> None:
    """Make sure that a column can be appended to the table's column of the same name."""
    name = field.name
    is_vector = pa.types.is_fixed_size_list(stored.type)
    declared = _declared_width(field, widths)
    width = vector_width(field, name) if declared is None else declared
    if is_vector and width is not None and width != stored.type.list_size:
        raise SchemaError(
            f"column {name!r}: the DataFrame has vectors of {width} items, the table of {stored.type.list_size}"
        )
    if declared is not None and not is_vector:
        raise SchemaError(f"column {name!r}: the table has {stored.type}, not vectors")
    stored_view = spark_view(stored.type, name)
    if not _is_same_shape(field.type, stored_view, name, can_grow=True, has_mode=has_mode):
        replaces = (
            ", or replace the whole table with mode='overwrite' and schema_mode='overwrite' (option overwriteSchema)"
        )
        raise SchemaError(
            f"column {name!r}: the DataFrame has {field.type}, the table {stored.type}; cast it{replaces * has_mode}"
        )
    build_converter(field.type, stored.type, name)


_ADD: Final = "schema_mode='add_columns' (option mergeSchema) adds it; Column.dropFields leaves it out"
ADD_FIRST: Final = "add them first by lance_core.dataset(uri).add_columns([pyarrow.field(name, type), ...])"
_LEAVE_OUT: Final = "Column.dropFields leaves it out"
_CANNOT_ADD: Final = (
    "Fields cannot be added to structs inside of arrays and maps: leave it out (Column.dropFields), write it as a"
    " column of its own, or replace the whole table with mode='overwrite' and schema_mode='overwrite' (option"
    " overwriteSchema)"
)


def _is_same_shape(
    source_type: pa.DataType, stored_type: pa.DataType, path: str, *, can_grow: bool, has_mode: bool
) -> bool:
    """Whether two types that Spark hands over are equal, apart from nullability, large forms and order of fields.

    Raises:
        SchemaError: Only one side has a field of a struct; the message has its path and the remedy.
    """
    types = pa.types
    inner = partial(_is_same_shape, can_grow=False, has_mode=has_mode)
    if types.is_null(source_type):
        return True
    if types.is_timestamp(source_type) and types.is_timestamp(stored_type):
        return (source_type.tz is None) == (stored_type.tz is None)
    if types.is_list(source_type) or types.is_large_list(source_type):
        return types.is_list(stored_type) and inner(source_type.value_type, stored_type.value_type, f"{path}[]")
    if types.is_map(source_type):
        return types.is_map(stored_type) and all(
            [
                inner(source_type.key_type, stored_type.key_type, f"{path}.key"),
                inner(source_type.item_type, stored_type.item_type, f"{path}.value"),
            ]
        )
    if types.is_struct(source_type) and types.is_struct(stored_type):
        have, want = ({field.name: field.type for field in kind} for kind in (source_type, stored_type))
        for name in [name for name in have if name not in want]:
            raise SchemaError(
                f"column {path!r}: the DataFrame has the field '{path}.{name}' of type {have[name]}, which the table"
                f" lacks. {_LEAVE_OUT if not has_mode else _ADD if can_grow else _CANNOT_ADD}"
            )
        for name in [name for name in want if name not in have]:
            raise SchemaError(
                f"column {path!r}: the DataFrame lacks the field '{path}.{name}' of the table, of type {want[name]}."
                " Add it as null: Column.withField(name, lit(None).cast(type))"
                + ", or fill it by schema_mode='add_columns' (option mergeSchema) if it can be null"
                * has_mode
            )
        are_same = [
            _is_same_shape(have[name], want[name], f"{path}.{name}", can_grow=can_grow, has_mode=has_mode)
            for name in have
        ]
        return all(are_same)
    if types.is_struct(source_type):
        return False
    return bool(spark_view(source_type, "") == stored_type) or are_numbers(source_type, stored_type)

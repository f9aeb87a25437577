"""Plans for writing the columns of a schema, computed once for all its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from lance_core.encoding.choosing.options import encoding_options
from lance_core.encoding.choosing.writable import Packable, check_writable
from lance_core.encoding.levels.paths import column_fields, is_blob_v2, plain_columns
from lance_core.encoding.repeat import Leaf, leaf_of
from lance_core.encoding.structural import blob
from lance_core.errors import UnsupportedError
from lance_core.file.nullability import has_strict_items
from lance_core.file.utf8 import has_strings
from lance_core.file.version import FileVersion
from lance_core.schema import Field, Schema, schema_to_arrow

__all__ = ["ColumnWritePlan", "FileWritePlan", "columns_of", "write_plan"]

_PACKABLE: Final = {
    FileVersion.V2_0: Packable(lists=True, strings=False),
    FileVersion.V2_1: Packable(lists=False, strings=False),
    FileVersion.V2_2: Packable(lists=True, strings=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnWritePlan:
    """The plan for writing one top-level field.

    Attributes:
        field: The field.
        target: The Arrow type that is written.
        first_column: Number of its first column in the file.
        is_checked: Whether values have to be checked for nulls that are not allowed.
        has_strings: Whether values are strings or have strings in them, which have to be UTF-8.
        is_blob: Whether payloads are stored outside of the pages.
        leaf: The memory layout of the values, if the field is a single column of numbers or strings without metadata;
            else None.
    """

    field: Field
    target: pa.DataType
    first_column: int
    is_checked: bool
    has_strings: bool
    is_blob: bool
    leaf: Leaf | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritePlan:
    """The plan for writing files of a schema and a version.

    Attributes:
        arrow_schema: The types that are written.
        columns: One plan per top-level field.
        fields: The fields that have columns, in their order.
        field_ids: Their ids.
    """

    arrow_schema: pa.Schema
    columns: tuple[ColumnWritePlan, ...]
    fields: tuple[Field, ...]
    field_ids: tuple[int, ...]


def write_plan(schema: Schema, version: FileVersion) -> FileWritePlan:
    """The plan for a schema.

    Raises:
        UnsupportedError: The version cannot store the schema.
        InvalidInputError: The metadata of a field requests an impossible encoding.
    """
    name = f"plan {version.value}"
    plan: FileWritePlan | None = schema.memo.get(name)
    if plan is None:
        plan = schema.memo[name] = _compute(schema, version)
    return plan


def columns_of(schema: Schema, version: FileVersion) -> list[Field]:
    """The fields that have columns in a file of that version."""
    if version.has_levels:
        return column_fields(schema)
    return [field for top in schema.fields for field in plain_columns(top)]


def _compute(schema: Schema, version: FileVersion) -> FileWritePlan:
    _check_blobs(schema, version)
    for field, _ in schema.walk():
        encoding_options(field)
        check_writable(field, _PACKABLE.get(version), version.value)
    arrow_schema = schema_to_arrow(schema)
    columns: list[ColumnWritePlan] = []
    fields: list[Field] = []
    for field, target in zip(schema.fields, arrow_schema.types, strict=True):
        plan = ColumnWritePlan(
            field=field,
            target=target,
            first_column=len(fields),
            is_checked=not field.nullable or has_strict_items(field),
            has_strings=has_strings(target),
            is_blob=blob.is_blob(field) or is_blob_v2(field),
            leaf=leaf_of(target) if version.has_levels and not field.children and not field.metadata else None,
        )
        columns.append(plan)
        fields += columns_of(Schema(fields=(field,)), version)
    field_ids = tuple(field.id for field in fields)
    return FileWritePlan(arrow_schema=arrow_schema, columns=tuple(columns), fields=tuple(fields), field_ids=field_ids)


def _check_blobs(schema: Schema, version: FileVersion) -> None:
    """Make sure that blobs are top-level columns, and that blobs of 2.2 are in a 2.2 file.

    The reference library reads the blobs that it writes inside of structs, but not plain bytes in their place.
    """
    for top in schema.fields:
        for field, _ in top.walk():
            is_inside = field is not top and version is not FileVersion.V0_1
            if is_inside and (blob.is_blob(field) or is_blob_v2(field)):
                raise UnsupportedError(
                    f"field {field.name!r} of column {top.name!r}: blobs inside of other types cannot be written; "
                    "write rows of this table with pylance, or to a table where the blobs are a column of their own"
                )
            if is_blob_v2(field) and version is not FileVersion.V2_2:
                raise UnsupportedError(f"column {top.name!r}: blobs of 2.2 cannot be stored in a {version.value} file")

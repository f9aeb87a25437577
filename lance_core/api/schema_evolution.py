"""Change the columns of a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from lance_core.api.source import Source
from lance_core.commit import commit
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.schema import field_from_arrow
from lance_core.table.manifest import Manifest
from lance_core.table.operations import Merge
from lance_core.table.transaction import Transaction

__all__ = ["add_null_columns", "fields_of"]


def fields_of(transforms: object) -> list[pa.Field]:
    """The fields that an argument of `add_columns` names.

    Raises:
        UnsupportedError: It asks for columns with values.
    """
    if isinstance(transforms, pa.Field):
        return [transforms]
    if isinstance(transforms, pa.Schema):
        return list(transforms)
    if isinstance(transforms, Iterable) and not isinstance(transforms, dict | str | pa.RecordBatchReader):
        fields = list(transforms)
        if all(isinstance(field, pa.Field) for field in fields):
            return fields
    raise UnsupportedError("add_columns takes Arrow fields, for columns of nulls; expressions and data are not offered")


def add_null_columns(source: Source, fields: Iterable[pa.Field]) -> Manifest:
    """Commit new columns that are null in all rows; no file is written.

    Raises:
        SchemaError: A column exists, or does not allow nulls.
        InvalidInputError: There is no field.
    """
    base = source.manifest
    added = [field_from_arrow(field) for field in fields]
    if not added:
        raise InvalidInputError("add_columns: no column was given")
    for field in added:
        if field.name in base.schema.names:
            raise SchemaError(f"column {field.name!r} exists already")
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} must allow nulls: the rows that are there have no value for it")
    schema = replace(base.schema, fields=(*base.schema.fields, *added)).with_ids(base.max_field_id + 1)
    operation = Merge(fragments=tuple(base.fragments), schema=schema, preserves_nullability=True)
    transaction = Transaction(read_version=base.version, operation=operation)
    return commit(source.store, transaction, base=base).manifest

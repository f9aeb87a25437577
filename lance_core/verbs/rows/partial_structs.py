"""Structs of a merge's source that lack fields of the dataset: updated rows keep the old values of these fields.

dataset     s: struct<a, b, c: struct<d, e>>
source      s: struct<a, c: struct<d>>
updated     a and c.d of the source, b and c.e of the row; null only if both structs are
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.schema import Field, Schema

__all__ = ["partial_structs", "with_old_fields"]


def partial_structs(dataset: Schema, data: Schema) -> dict[str, Field]:
    """The columns of the data whose structs lack fields of the dataset, by name."""
    by_name = {field.name: field for field in data.fields}
    columns = (field for field in dataset.fields if field.name in by_name)
    return {field.name: by_name[field.name] for field in columns if _lacks_fields(field, by_name[field.name])}


def with_old_fields(new: pa.Table, old: pa.Table | pa.RecordBatch, columns: Mapping[str, Field]) -> pa.Table:
    """New values of rows, with the old values of the fields that the source lacks.

    Args:
        new: The new values, in storage types; fields that the source lacks have any values.
        old: The old values of the same rows, which have at least these columns.
        columns: The columns to complete, as the source gives them.
    """
    for name, source in columns.items():
        index = new.schema.get_field_index(name)
        if index >= 0:
            array = _complete_struct(_complete_list(new.column(index)), _complete_list(old.column(name)), source)
            new = new.set_column(index, new.schema.field(index), array)
    return new


def _lacks_fields(dataset: Field, data: Field) -> bool:
    if dataset.logical_type != "struct":
        return False
    by_name = {child.name: child for child in data.children}
    return any(child.name not in by_name or _lacks_fields(child, by_name[child.name]) for child in dataset.children)


def _complete_struct(new: Any, old: Any, source: Field) -> pa.Array:
    if source.logical_type != "struct":
        return new
    by_name = {child.name: child for child in source.children}
    pairs = zip(new.type, new.flatten(), old.flatten(), strict=True)
    children = [
        _complete_struct(new_values, old_values, by_name[field.name]) if field.name in by_name else old_values
        for field, new_values, old_values in pairs
    ]
    mask = pc.and_(new.is_null(), old.is_null()) if new.null_count and old.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(new.type), mask=mask)


def _complete_list(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column

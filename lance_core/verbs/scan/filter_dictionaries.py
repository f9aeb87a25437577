"""Evaluate a condition on a dictionary-encoded column once per dictionary entry rather than once per row.

Such a column is read as a dictionary array, whatever its type in the table, and only the rows that match are decoded to
plain values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError
from lance_core.schema import Field, Schema
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.expressions.arrow import columns_of, matching, matching_all
from lance_core.verbs.scan.read_fragment import Opened, files_of, opened_reader

_STRINGS: Final = frozenset({"string", "large_string", "binary", "large_binary"})


def with_dictionaries(source: Snapshot, fragment: Fragment, schema: Schema, opened: Opened) -> tuple[Schema, set[str]]:
    """The columns to read, with dictionary types for strings stored as dictionaries, and the names of those columns."""
    names = {field.name for field in schema.fields if field.logical_type in _STRINGS and not field.metadata}
    if not names:
        return schema, names
    strings = Schema(fields=tuple(field for field in schema.fields if field.name in names))
    stored: set[str] = set()
    for file, file_schema, columns in files_of(fragment, strings):
        reader = opened_reader(source, file, opened)
        stored.update(field.name for field in file_schema.fields if reader.has_dictionary(columns[field.id]))
    fields = tuple(_as_dictionary(field) if field.name in stored else field for field in schema.fields)
    return replace(schema, fields=fields), stored


def _as_dictionary(field: Field) -> Field:
    return replace(field, logical_type=f"dict:{field.logical_type}:uint32:false")


def matching_entries(
    batch: pa.RecordBatch, conditions: Sequence[pc.Expression], names: set[str], mask: pa.Array | None = None
) -> pa.Array:
    """For each row, whether all conditions are true; conditions on a single dictionary column are evaluated first.

    Args:
        batch: The rows.
        conditions: The conditions, at least one.
        names: Names of the columns that were read as dictionaries.
        mask: The rows for which the result may be true; None for all.

    Raises:
        InvalidInputError: A condition fails for some value, or does not fit the columns.
    """
    rest: list[pc.Expression] = []
    for condition in conditions:
        used = columns_of(condition)
        entry_matches = _of_entries(batch, condition, used[0]) if len(used) == 1 and used[0] in names else None
        if entry_matches is None:
            rest.append(condition)
        else:
            mask = entry_matches if mask is None else pc.and_(mask, entry_matches)
    if not rest:
        assert mask is not None
        return mask
    used_later = {name for condition in rest for name in columns_of(condition)}
    return matching_all(decoded(batch, names & used_later), rest, mask)


def _of_entries(batch: pa.RecordBatch, condition: pc.Expression, name: str) -> pa.Array | None:
    """For each row, whether its entry meets a condition; None if an entry, which may be in no row, raises an error."""
    column = batch.column(name)
    entries = pa.concat_arrays([column.dictionary, pa.nulls(1, column.type.value_type)])
    try:
        answers = matching(pa.RecordBatch.from_arrays([entries], [name]), condition)
    except InvalidInputError:
        return None
    indices = column.indices
    if indices.null_count:
        indices = indices.fill_null(len(entries) - 1)
    return answers.take(indices)


def decoded(batch: pa.RecordBatch, names: set[str]) -> pa.RecordBatch:
    """The batch with some dictionary columns decoded to plain values."""
    for name in names & set(batch.schema.names):
        index = batch.schema.get_field_index(name)
        column = batch.column(index)
        plain = column.dictionary_decode()
        batch = batch.set_column(index, batch.schema.field(index).with_type(plain.type), plain)
    return batch

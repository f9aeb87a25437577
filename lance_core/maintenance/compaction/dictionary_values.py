"""Finds and drops dictionary values that no row has; otherwise they would be written together with the dictionary.

Arrow keeps the whole dictionary when a column is filtered, or when a table is divided among several files, so that a
file can hold values of rows that are elsewhere or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.concatenate import find_dictionaries, prune_dictionaries
from lance_core.schema import Field, Schema


def find_dictionary_columns(schema: Schema) -> list[str]:
    """The top-level columns that are dictionaries, or contain one."""
    return [field.name for field in schema.fields if _has_dictionary(field)]


def _has_dictionary(field: Field) -> bool:
    return field.logical_type.startswith("dict:") or any(map(_has_dictionary, field.children))


def has_unused_values(batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether the dictionaries of batches have values that none of their rows has."""
    values_by_path: dict[tuple[str, ...], tuple[list[pa.Array], list[pa.Array]]] = {}
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for path, array in find_dictionaries(column, (name,)):
                stored, used = values_by_path.setdefault(path, ([], []))
                stored.append(array.dictionary)
                used.append(array.dictionary.take(pc.unique(array.indices.drop_null())))
    return any(
        not pc.all(pc.is_in(_collect_distinct(stored), value_set=_collect_distinct(used)), min_count=0).as_py()
        for stored, used in values_by_path.values()
    )


def _collect_distinct(parts: list[pa.Array]) -> pa.Array:
    return pc.unique(pa.chunked_array(parts).drop_null())


def drop_unused_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose dictionaries hold the values of its rows alone."""
    columns = [prune_dictionaries(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

"""Finds strings of predicates in the history that are values of the rows to erase, in any column."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.maintenance.erasure.condition import ErasureCondition
from lance_core.schema import Field
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.rows.removal import live_rows

__all__ = ["named_values"]


def named_values(source: Snapshot, condition: ErasureCondition, strings: Collection[str]) -> set[str]:
    """The strings of predicates that a row to erase has in a string column, or in a nested field or element.

    Args:
        source: A version without deletion files, in which the condition can be evaluated; see `stored_rows`.
        condition: The rows.
        strings: The strings of predicates in the history.
    """
    columns = [field.name for field in source.manifest.schema.fields if _has_strings(field)]
    if not columns:
        return set()
    predicate_strings, row_strings = pa.array(sorted(strings), pa.large_string()), set()
    for fragment, rows in condition.matching(source):
        for batch, _ in live_rows(source, fragment, columns, rows):
            for column in batch.columns:
                for values in _strings_of(column):
                    named = pc.is_in(values.cast(pa.large_string()), value_set=predicate_strings)
                    row_strings.update(pc.unique(values.filter(named)).to_pylist())
    return row_strings


def _has_strings(field: Field) -> bool:
    return any("string" in node.logical_type for node, _ in field.walk())


def _strings_of(values: pa.Array) -> list[pa.Array]:
    """The arrays of strings that an array holds, at any depth."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _strings_of(values.dictionary_decode())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [values]
    if pa.types.is_struct(kind):
        return [array for child in values.flatten() for array in _strings_of(child)]
    if pa.types.is_map(kind):
        return [*_strings_of(values.keys), *_strings_of(values.items)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _strings_of(values.flatten())
    return []

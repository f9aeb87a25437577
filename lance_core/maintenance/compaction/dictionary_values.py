"""Finds and drops dictionary values that no row has; otherwise they would be written together with the dictionary.

Arrow keeps the whole dictionary when a column is filtered, or when a table is divided among several files, so that a
file can hold values of rows that are elsewhere or deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.schema import Field, Schema

__all__ = ["dictionary_columns", "has_unused_values", "without_unused_values"]


def dictionary_columns(schema: Schema) -> list[str]:
    """The top-level columns that are dictionaries, or contain one."""
    return [field.name for field in schema.fields if _has_dictionary(field)]


def _has_dictionary(field: Field) -> bool:
    return field.logical_type.startswith("dict:") or any(map(_has_dictionary, field.children))


def has_unused_values(batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether the dictionaries of batches have values that none of their rows has."""
    there: dict[tuple[str, ...], tuple[list[pa.Array], list[pa.Array]]] = {}
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for path, array in _dictionaries(column, (name,)):
                known, used = there.setdefault(path, ([], []))
                known.append(array.dictionary)
                used.append(array.dictionary.take(pc.unique(array.indices.drop_null())))
    return any(
        not pc.all(pc.is_in(_distinct(known), value_set=_distinct(used)), min_count=0).as_py()
        for known, used in there.values()
    )


def _distinct(parts: list[pa.Array]) -> pa.Array:
    return pc.unique(pa.chunked_array(parts).drop_null())


def _dictionaries(array: pa.Array, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.DictionaryArray]]:
    """The dictionaries that a column consists of, by path."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield path, array
    elif pa.types.is_struct(kind):
        for index, field in enumerate(kind):
            yield from _dictionaries(array.field(index), (*path, field.name))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _dictionaries(array.values, (*path, "item"))
    elif pa.types.is_map(kind):
        yield from _dictionaries(_as_list(array), path)


def _as_list(array: pa.MapArray) -> pa.ListArray:
    """The list of structs that a map is; Arrow has no kernels for maps."""
    return array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))


def without_unused_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose dictionaries hold the values of its rows alone."""
    columns = [_pruned(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _pruned(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode().dictionary_encode().cast(kind)
    if not any(True for _ in _dictionaries(array, ())):
        return array
    if pa.types.is_struct(kind):
        # Flattened children are null where the struct is.
        return pa.StructArray.from_arrays(
            [_pruned(child) for child in array.flatten()], fields=list(kind), mask=array.is_null()
        )
    if pa.types.is_fixed_size_list(kind):
        return type(array).from_arrays(
            _pruned(array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)),
            type=kind,
            mask=array.is_null(),
        )
    if pa.types.is_map(kind):
        pruned = _pruned(_as_list(array))
        keys, values = pruned.values.field(0), pruned.values.field(1)
        return pa.MapArray.from_arrays(pruned.offsets, keys, values, type=kind, mask=array.is_null())
    whole = pa.concat_arrays([array])  # without an offset, which from_arrays takes for rows
    items = whole.flatten()
    lengths = pc.fill_null(pc.list_value_length(whole), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    offset_type = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    return type(array).from_arrays(offsets.cast(offset_type), _pruned(items), type=kind, mask=whole.is_null())

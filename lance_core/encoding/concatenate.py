"""Concatenates arrays of one column; dictionaries are unified first, after null values are removed from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.dictionaries import (
    capacity,
    change_dictionaries,
    dictionaries_of,
    has_dictionary,
    has_narrow_dictionary,
    without_unused,
)
from lance_core.errors import InvalidInputError

__all__ = ["combined", "concatenate", "encoded", "take_table", "without_null_values"]


def concatenate(arrays: Sequence[Any]) -> pa.Array:
    """Concatenate at least one array; dictionaries are unified first.

    Where they have together more values than their indices can count, values that no row has are left out.

    Raises:
        InvalidInputError: The rows have more values than the indices can count.
    """
    if len(arrays) == 1:
        return arrays[0]
    kind = arrays[0].type
    if not has_dictionary(kind):
        return pa.concat_arrays(arrays)
    if pa.types.is_dictionary(kind):
        arrays = [without_null_values(array) for array in arrays]
    try:
        return pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
    except pa.ArrowInvalid:
        pruned = [without_unused(array) for array in arrays]
    return pa.concat_arrays(_share_values(pruned))


def _share_values(arrays: Sequence[Any]) -> list[pa.Array]:
    """Arrays whose dictionaries at one path are the same.

    Arrow's unification counts one value less than indices can.
    """
    parts: dict[tuple[str, ...], list[pa.Array]] = {}
    for path, leaf in itertools.chain.from_iterable(dictionaries_of(array, ()) for array in arrays):
        parts.setdefault(path, []).append(leaf.dictionary)
    values = {path: pa.concat_arrays(dictionaries).unique() for path, dictionaries in parts.items()}

    def change(array: Any, path: tuple[str, ...]) -> Any:
        common, kind = values[path], array.type
        if len(common) > capacity(kind.index_type):
            raise InvalidInputError(
                f"the rows of several batches have together more values than the indices of {kind} can count: cast the "
                "column to a dictionary with wider indices, or to its values"
            )
        new_indices = pc.index_in(array.dictionary, value_set=common)
        return pa.DictionaryArray.from_arrays(
            new_indices.take(array.indices).cast(kind.index_type), common, ordered=kind.ordered
        )

    return [change_dictionaries(array, change) for array in arrays]


def combined(rows: pa.Table, *, keeps_chunks: bool = False) -> pa.Table:
    """A table with one chunk in each column.

    Args:
        rows: The table.
        keeps_chunks: Whether a column whose dictionaries do not fit together keeps its chunks.

    Raises:
        InvalidInputError: The dictionaries of a column do not fit together.
    """
    if not any(map(has_dictionary, rows.schema.types)):
        return rows.combine_chunks()
    columns = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            whole = _combine(column)
        except InvalidInputError as error:
            if not keeps_chunks:
                raise InvalidInputError(f"column {name!r}: {error}") from error
            whole = column
        columns.append(whole)
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _combine(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.num_chunks > 1 and has_dictionary(column.type):
        return pa.chunked_array([concatenate(column.chunks)], column.type)
    return pa.Table.from_arrays([column], names=["column"]).combine_chunks().column(0)


def take_table(rows: pa.Table, places: pa.Array) -> pa.Table:
    """Rows of a table in another order; a dictionary that cannot hold the values of all of them comes in chunks."""
    try:
        return rows.take(places)
    except pa.ArrowInvalid:
        if not any(has_narrow_dictionary(kind) for kind in rows.schema.types):
            raise
    return pa.Table.from_arrays([_take_column(column, places) for column in rows.columns], schema=rows.schema)


def _take_column(column: pa.ChunkedArray, places: pa.Array) -> pa.ChunkedArray:
    kind: Any = column.type
    if not has_narrow_dictionary(kind):
        return column.take(places)
    try:
        return pa.chunked_array([concatenate(column.chunks)], kind).take(places)
    except InvalidInputError:
        if not pa.types.is_dictionary(kind):
            return pa.chunked_array(list(_take_runs(column, np.asarray(places))), kind)
    values, size = column.cast(kind.value_type).take(places), capacity(kind.index_type)
    pieces = (values.slice(start, size).combine_chunks() for start in range(0, len(values), size))
    return pa.chunked_array([encoded(piece, kind) for piece in pieces], kind)


def _take_runs(column: pa.ChunkedArray, places: npt.NDArray[np.int64]) -> Iterator[pa.Array]:
    """The rows at some places, with a new array where the next row lies in another chunk."""
    starts = np.cumsum([0, *map(len, column.chunks)])
    chunks = np.searchsorted(starts, places, side="right") - 1
    for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(chunks)) + 1):
        yield column.chunk(chunks[run[0]]).take(pa.array(places[run] - starts[chunks[run[0]]]))


def encoded(values: Any, kind: Any) -> pa.Array:
    """Values as a dictionary."""
    array = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(array.indices.cast(kind.index_type), array.dictionary, ordered=kind.ordered)


def without_null_values(array: Any) -> Any:
    """A dictionary array with null indices where values of the dictionary were null."""
    dictionary = array.dictionary
    if not dictionary.null_count:
        return array
    valid = np.asarray(dictionary.is_valid())
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    indices = places.take(array.indices).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary.drop_null(), ordered=array.type.ordered)

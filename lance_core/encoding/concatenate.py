"""Concatenates, combines and takes arrays although each batch may have its own dictionary.

Nulls move from the dictionaries to the indices, then dictionaries are unified. Other functions find and count the
values of dictionaries that rows use, and check that these fit the indices.

The indices of a dictionary count few values if they are narrow: 128 as `int8`, the type of a pandas Categorical. The
rows of one file must not use more values, as a reader gives them one dictionary; `DictionaryCapacity` counts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError


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
    try:
        if not pa.types.is_dictionary(kind):  # Arrow's unification ends the process where such arrays are slices
            return pa.concat_arrays(_unify_dictionaries(arrays))
        arrays = [move_nulls_to_indices(array) for array in arrays]
        return pa.chunked_array(arrays).unify_dictionaries().combine_chunks()
    except (pa.ArrowInvalid, InvalidInputError):
        pruned = [prune_dictionaries(array) for array in arrays]
    return pa.concat_arrays(_unify_dictionaries(pruned))


def _unify_dictionaries(arrays: Sequence[Any]) -> list[pa.Array]:
    """Give the arrays one dictionary per path; Arrow's own unification accepts one value less than the indices count.

    Arrow's unification counts one value less than indices can.
    """
    parts: dict[tuple[str, ...], list[pa.Array]] = {}
    for path, leaf in itertools.chain.from_iterable(find_dictionaries(array, ()) for array in arrays):
        parts.setdefault(path, []).append(leaf.dictionary)
    values = {path: pa.concat_arrays(dictionaries).unique() for path, dictionaries in parts.items()}

    def change(array: Any, path: tuple[str, ...]) -> Any:
        common, kind = values[path], array.type
        if len(common) > index_capacity(kind.index_type):
            raise InvalidInputError(
                f"the rows of several batches have together more values than the indices of {kind} can count: cast the "
                "column to a dictionary with wider indices, or to its values"
            )
        new_indices = pc.index_in(array.dictionary, value_set=common)
        return pa.DictionaryArray.from_arrays(
            new_indices.take(array.indices).cast(kind.index_type), common, ordered=kind.ordered
        )

    return [map_dictionaries(array, change) for array in arrays]


def combine_chunks(rows: pa.Table, *, keeps_chunks: bool = False) -> pa.Table:
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
            combined = _combine_column(column)
        except InvalidInputError as error:
            if not keeps_chunks:
                raise InvalidInputError(f"column {name!r}: {error}") from error
            combined = column
        columns.append(combined)
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _combine_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.num_chunks > 1 and has_dictionary(column.type):
        return pa.chunked_array([concatenate(column.chunks)], column.type)
    return pa.Table.from_arrays([column], names=["column"]).combine_chunks().column(0)


def take_table_rows(rows: pa.Table, places: pa.Array) -> pa.Table:
    """Take rows by index; where one dictionary cannot count all values, the column gets several chunks."""
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
    values, size = column.cast(kind.value_type).take(places), index_capacity(kind.index_type)
    pieces = (values.slice(start, size).combine_chunks() for start in range(0, len(values), size))
    return pa.chunked_array([encode_as_dictionary(piece, kind) for piece in pieces], kind)


def _take_runs(column: pa.ChunkedArray, places: npt.NDArray[np.int64]) -> Iterator[pa.Array]:
    """The rows at some places, with a new array where the next row lies in another chunk."""
    starts = np.cumsum([0, *map(len, column.chunks)])
    chunks = np.searchsorted(starts, places, side="right") - 1
    for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(chunks)) + 1):
        yield column.chunk(chunks[run[0]]).take(pa.array(places[run] - starts[chunks[run[0]]]))


def encode_as_dictionary(values: Any, kind: Any) -> pa.Array:
    """Values as a dictionary."""
    array = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(array.indices.cast(kind.index_type), array.dictionary, ordered=kind.ordered)


def move_nulls_to_indices(array: Any) -> Any:
    """A dictionary array with null indices where values of the dictionary were null."""
    dictionary = array.dictionary
    if not dictionary.null_count:
        return array
    valid = np.asarray(dictionary.is_valid())
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    indices = places.take(array.indices).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary.drop_null(), ordered=array.type.ordered)


_NARROW_BITS: Final = 16


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type is a dictionary, or contains one."""
    return bool(_index_types(kind))


def has_narrow_dictionary(kind: pa.DataType) -> bool:
    """Whether a type is or contains a dictionary whose indices count few values."""
    return any(index_type.bit_width <= _NARROW_BITS for index_type in _index_types(kind))


def _index_types(kind: Any) -> list[Any]:
    if pa.types.is_dictionary(kind):
        return [kind.index_type]
    return [index_type for i in range(kind.num_fields) for index_type in _index_types(kind.field(i).type)]


def index_capacity(index_type: Any) -> int:
    """The number of values that indices of a type count."""
    return int(2 ** (index_type.bit_width - pa.types.is_signed_integer(index_type)))


def find_smallest_capacity(kind: pa.DataType) -> int:
    """The fewest values that a dictionary in a type counts; 0 if there is none."""
    return min(map(index_capacity, _index_types(kind)), default=0)


def find_dictionaries(array: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The dictionary arrays that an array consists of, by path."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield path, array
    elif pa.types.is_struct(kind):
        for index, field in enumerate(kind):
            yield from find_dictionaries(array.field(index), (*path, field.name))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from find_dictionaries(array.flatten(), (*path, "item"))
    elif pa.types.is_fixed_size_list(kind):
        yield from find_dictionaries(array.values, (*path, "item"))
    elif pa.types.is_map(kind):
        yield from find_dictionaries(_map_to_list(array), path)


def collect_used_values(array: Any) -> pa.Array:
    """The distinct values of a dictionary that its rows use, without null."""
    return array.dictionary.take(pc.unique(array.indices.drop_null())).drop_null()


class DictionaryCapacity:
    """Counts the values that rows of one file use in each narrow dictionary.

    Args:
        names: The columns.
        kinds: Their types.
    """

    def __init__(self, names: Iterable[str], kinds: Iterable[pa.DataType]) -> None:
        self._names = [name if has_narrow_dictionary(kind) else None for name, kind in zip(names, kinds, strict=True)]
        self._used: dict[tuple[str, ...], pa.Array] = {}

    def take(self, columns: Iterable[Sequence[Any]]) -> str | None:
        """Count the values of further rows, if there is room for them.

        Args:
            columns: The arrays of each column.

        Returns:
            The dotted path of a dictionary that has no room for the values, none of which is counted then; else None.
        """
        used_by_path = dict(self._used)
        for name, arrays in zip(self._names, columns, strict=True):
            for path, array in (
                dictionary for a in arrays if name is not None for dictionary in find_dictionaries(a, (name,))
            ):
                used = collect_used_values(array)
                earlier = used_by_path.get(path)
                used_by_path[path] = used.unique() if earlier is None else pa.concat_arrays([earlier, used]).unique()
                if len(used_by_path[path]) > index_capacity(array.type.index_type):
                    return ".".join(path)
        self._used = used_by_path
        return None


def prune_dictionaries(array: Any) -> Any:
    """An array whose dictionaries hold the values of its rows alone."""
    return map_dictionaries(array, _drop_unused)


def _drop_unused(array: Any, _path: tuple[str, ...]) -> Any:
    kind, values = array.type, array.dictionary_decode().dictionary_encode()
    return pa.DictionaryArray.from_arrays(values.indices.cast(kind.index_type), values.dictionary, ordered=kind.ordered)


def map_dictionaries(array: Any, change: Callable[[Any, tuple[str, ...]], Any], path: tuple[str, ...] = ()) -> Any:
    """An array with other dictionary arrays of the same types.

    Args:
        array: The array.
        change: Gives the new array for a dictionary array and its path, as `find_dictionaries` has it.
        path: The path of the array.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        return change(array, path)
    if not has_dictionary(kind):
        return array
    if pa.types.is_struct(kind):
        # Flattened children are null where the struct is.
        children = [
            map_dictionaries(child, change, (*path, field.name))
            for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        changed = map_dictionaries(_map_to_list(array), change, path)
        keys, values = changed.values.field(0), changed.values.field(1)
        return pa.MapArray.from_arrays(changed.offsets, keys, values, type=kind, mask=array.is_null())
    item = (*path, "item")
    if pa.types.is_fixed_size_list(kind):
        items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return type(array).from_arrays(map_dictionaries(items, change, item), type=kind, mask=array.is_null())
    whole = pa.concat_arrays([array])  # without an offset, which from_arrays takes for rows
    items = whole.flatten()
    lengths = pc.fill_null(pc.list_value_length(whole), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    offset_type = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    items = map_dictionaries(items, change, item)
    return type(array).from_arrays(offsets.cast(offset_type), items, type=kind, mask=whole.is_null())


def _map_to_list(array: Any) -> Any:
    """The list of structs that a map is; Arrow has no kernels for maps."""
    return array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))

"""Conversion of batches between the Arrow schema that Spark hands over and the one that is stored.

A converter is made once per column and then applied to each batch, so that a batch costs no planning. Columns that
need no change are passed on; nested ones are rebuilt around their own offsets and validity, and only children that
differ are converted.

Vectors are Spark's variable-size lists and Arrow's fixed-size lists:

    list<float>, 4 rows, row 2 null                    fixed_size_list<float>[3]
    offsets    0 3 6 6 9                               no offsets: row i is items 3i .. 3i+3
    validity   1 1 0 1                                 validity   1 1 0 1
    items      a0 a1 a2 b0 b1 b2 d0 d1 d2              items      a0 a1 a2 b0 b1 b2 - - - d0 d1 d2

Spark knows only the left form, in which a null row has no items. In the right form, a null row has `width` items of any
value.
Without null rows both forms share the items, and neither conversion copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import InvalidInputError, SchemaError
from lance_core.extension_types import is_any_list, is_variable_list
from pyspark_lance.types.column_names import source_indices
from pyspark_lance.types.number_casts import are_numbers, build_exact_cast

"""Most items that 32-bit offsets count."""

Converter = Callable[[pa.Array], pa.Array]
"""Turns an array of the source type into one of the target type."""


class BatchConverter:
    """Turns batches into batches of one schema; columns match by name, an exact match before another case.

    The conversion is planned once for all batches of the same schema.

    Args:
        target: Schema of the converted batches; fields of structs match by name as well. A column that a batch lacks
            becomes null.
        exact: Whether rows are written: a value that the target type cannot hold exactly is an error, and nullable
            fields that structs lack become null. In rows that are read, fractions of the time unit are cut off, as
            Spark cuts off nanoseconds.
    """

    def __init__(self, target: pa.Schema, *, exact: bool = True) -> None:
        self._target = target
        self._exact = exact
        self._source: pa.Schema | None = None
        self._columns: list[tuple[int, Converter | None, pa.Field]] = []

    def plan(self, source: pa.Schema) -> None:
        """Plan the conversion of batches of a schema.

        Raises:
            SchemaError: A column cannot be converted; the message names it.
        """
        self._columns = []
        for field, index in zip(self._target, source_indices(source.names, self._target.names), strict=True):
            source_type = field.type if index < 0 else source.field(index).type
            change = build_converter(source_type, field.type, field.name, exact=self._exact)
            self._columns.append((index, change, field))
        self._source = source

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the target schema.

        Raises:
            SchemaError: A column cannot be converted; the message names it.
            InvalidInputError: A value does not fit; the message names the column.
        """
        if self._source is None or self._source != batch.schema:
            self.plan(batch.schema)
        arrays = [
            pa.nulls(batch.num_rows, field.type) if index < 0 else _apply(change, batch.column(index))
            for index, change, field in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target) if arrays else batch.select([])


def build_converter(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool = True) -> Converter | None:
    """The converter from arrays of `source` to arrays of `target`; None if they are the same.

    Args:
        source: Type of the arrays to convert.
        target: Type of the converted arrays.
        column: Path of the column, for errors.
        exact: See `BatchConverter`.

    Raises:
        SchemaError: No conversion from `source` to `target` exists; the message names the column.
    """
    types = pa.types
    if source == target:
        return None
    if any(isinstance(kind, pa.DictionaryType | pa.BaseExtensionType) for kind in (source, target)):
        return _convert_through_storage(source, target, column, exact=exact)
    if types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if types.is_fixed_size_list(target):
        return _to_vector(source, target, column, exact=exact)
    if types.is_fixed_size_list(source):
        return _from_vector(source, target, column, exact=exact)
    if is_variable_list(source) and is_variable_list(target):
        return _convert_lists(source, target, column, exact=exact)
    if types.is_map(source) and types.is_map(target):
        return _convert_maps(source, target, column, exact=exact)
    if types.is_struct(source) and types.is_struct(target):
        return _convert_structs(source, target, column, exact=exact)
    if types.is_nested(source) or types.is_nested(target):
        raise SchemaError(f"column {column!r}: {source} cannot become {target}")
    return _cast(source, target, column, exact=exact)


def _apply(change: Converter | None, array: pa.Array) -> pa.Array:
    return array if change is None else change(array)


def _convert_through_storage(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    """Conversion through the storage of an extension type, or the values of a dictionary."""
    if isinstance(source, pa.BaseExtensionType):
        storage = build_converter(source.storage_type, target, column, exact=exact)
        return lambda array: _apply(storage, array.storage)
    if isinstance(target, pa.BaseExtensionType):
        inner = build_converter(source, target.storage_type, column, exact=exact)
        return lambda array: pa.ExtensionArray.from_storage(target, _apply(inner, array))
    if isinstance(target, pa.DictionaryType):
        return _to_dictionary(source, target, column, exact=exact)
    values = build_converter(source.value_type, target, column, exact=exact)
    return lambda array: _apply(values, array.dictionary_decode())


def _to_dictionary(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    values = build_converter(source, target.value_type, column, exact=exact)
    numbers = _cast(pa.int32(), target.index_type, column, exact=True)

    def to_dictionary(array: pa.Array) -> pa.Array:
        encoded = _apply(values, array).dictionary_encode()
        return pa.DictionaryArray.from_arrays(numbers(encoded.indices), encoded.dictionary, ordered=target.ordered)

    return to_dictionary


def _cast(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    """Arrow's own cast, between types that are not nested."""
    if exact and are_numbers(source, target):
        return build_exact_cast(source, target, column)
    options = pc.CastOptions(target, allow_time_truncate=not exact)

    def cast(array: pa.Array) -> pa.Array:
        try:
            return array.cast(options=options)
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"column {column!r}: {source} cannot become {target}") from error
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {column!r}: {error}") from error

    return cast


def _to_vector(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    if not is_any_list(source):
        raise SchemaError(f"column {column!r}: {source} cannot become the vector {target}")
    change = build_converter(source.value_type, target.value_type, column, exact=exact)
    same_items = pa.list_(target.value_field.with_type(source.value_type), target.list_size)

    def to_vector(array: pa.Array) -> pa.Array:
        lists = fixed_to_list(array, pa.list_(source.value_field)) if pa.types.is_fixed_size_list(array.type) else array
        vectors = list_to_fixed(lists, target if change is None else same_items, column)
        if change is None:
            return vectors
        return _rebuild_array(vectors, target, vectors.buffers()[:1], [change(vectors.values)])

    return to_vector


def _from_vector(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    if not is_variable_list(target):
        raise SchemaError(f"column {column!r}: the vector {source} cannot become {target}")
    same_items = pa.list_(source.value_field)
    change = _convert_lists(same_items, target, column, exact=exact)
    return lambda array: change(fixed_to_list(array, same_items))


def _convert_lists(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    """Between lists that differ in their items, item names or offset widths."""
    change = build_converter(source.value_type, target.value_type, f"{column}[]", exact=exact)
    offsets_type = pa.int64() if pa.types.is_large_list(target) else pa.int32()
    same_offsets = pa.types.is_large_list(source) == pa.types.is_large_list(target)

    def between(array: pa.Array) -> pa.Array:
        items = _apply(change, array.values)
        if same_offsets:
            return _rebuild_array(array, target, array.buffers()[:2], [items])
        try:
            offsets = array.offsets.cast(offsets_type)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {column!r}: {error}") from error
        mask = array.is_null() if array.null_count else None
        kind = pa.LargeListArray if pa.types.is_large_list(target) else pa.ListArray
        return kind.from_arrays(offsets, items, type=target, mask=mask)

    return between


def _convert_maps(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    keys = build_converter(source.key_type, target.key_type, f"{column}.key", exact=exact)
    values = build_converter(source.item_type, target.item_type, f"{column}.value", exact=exact)
    entries = pa.struct([target.key_field, target.item_field])

    def between(array: pa.Array) -> pa.Array:
        # `keys` and `items` are whole children, also if the array is a slice.
        children = [_apply(keys, array.keys), _apply(values, array.items)]
        pairs = pa.Array.from_buffers(entries, len(children[0]), [None], null_count=0, children=children)
        return _rebuild_array(array, target, array.buffers()[:2], [pairs])

    return between


def _convert_structs(source: pa.DataType, target: pa.DataType, column: str, *, exact: bool) -> Converter:
    changes: list[tuple[int, Converter | None]] = []  # a negative index: the field is filled with nulls
    names = [child.name for child in source]
    for field, index in zip(target, source_indices(names, [child.name for child in target]), strict=True):
        if index < 0 and exact and field.nullable:
            changes.append((index, _nulls_of(field.type)))
            continue
        if index < 0:
            raise SchemaError(f"column {column!r}: the struct has no field {field.name!r}")
        changes.append(
            (index, build_converter(source.field(index).type, field.type, f"{column}.{field.name}", exact=exact))
        )

    def between(array: pa.Array) -> pa.Array:
        children = [_apply(change, array if index < 0 else array.field(index)) for index, change in changes]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    return between


def _nulls_of(kind: pa.DataType) -> Converter:
    return lambda array: pa.nulls(len(array), kind)


def _rebuild_array(array: pa.Array, target: pa.DataType, buffers: list[Any], children: list[pa.Array]) -> pa.Array:
    """An array with the length, offset and null count of `array`, and new children."""
    return pa.Array.from_buffers(
        target, len(array), buffers, null_count=array.null_count, offset=array.offset, children=children
    )


def list_to_fixed(lists: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    """Vectors as a fixed-size list.

    Args:
        lists: `list` or `large_list` array whose items are of the target's value type.
        target: A fixed-size list type.
        column: Name of the column, for the error.

    Raises:
        InvalidInputError: A list that is not null has another length than the target's width; the message names the
            column and the length.
    """
    width: int = target.list_size
    offsets = _offsets(lists)
    lengths = np.diff(offsets)
    valid = _valid_rows(lists)
    wrong = lengths != width if valid is None else (lengths != width) & valid
    if wrong.any():
        length = int(lengths[int(np.argmax(wrong))])
        raise InvalidInputError(
            f"column {column!r}: a vector has {length} items, the column takes vectors of {width} items"
        )
    if valid is None:
        items = lists.values.slice(int(offsets[0]), len(lists) * width)
    else:
        items = _spread(lists.values, offsets[:-1], valid, width)
    return pa.Array.from_buffers(
        target, len(lists), [_validity_buffer(valid)], null_count=lists.null_count, children=[items]
    )


def fixed_to_list(vectors: pa.Array, target: pa.DataType) -> pa.Array:
    """Vectors as a `list` array of type `target`, which shares the items of `vectors`.

    Args:
        vectors: Fixed-size list array of fewer than 2**31 items.
        target: A list type with the same value type.

    Raises:
        InvalidInputError: The vectors have more items than 32-bit offsets can count.
    """
    width: int = vectors.type.list_size
    first = vectors.offset * width
    if first + len(vectors) * width > np.iinfo(np.int32).max:
        raise InvalidInputError(f"{len(vectors)} vectors of {width} items are too many for one list array")
    offsets = first + width * np.arange(len(vectors) + 1, dtype=np.int32)
    buffers = [_validity_buffer(_valid_rows(vectors)), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        target, len(vectors), buffers, null_count=vectors.null_count, children=[vectors.values]
    )


def _offsets(lists: pa.Array) -> np.ndarray[Any, Any]:
    """The offsets of the rows of a list array, one more than there are rows."""
    wide = pa.types.is_large_list(lists.type)
    buffer = lists.buffers()[1]
    if buffer is None or buffer.size == 0:
        return np.zeros(len(lists) + 1, dtype=np.int64)
    offsets = np.frombuffer(buffer, dtype=np.int64 if wide else np.int32)
    return offsets[lists.offset : lists.offset + len(lists) + 1]


def _valid_rows(array: pa.Array) -> np.ndarray[Any, Any] | None:
    """Whether each row is valid; None if no row is null."""
    if array.null_count == 0:
        return None
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=bool)


def _validity_buffer(valid: np.ndarray[Any, Any] | None) -> pa.Buffer | None:
    """Arrow's bitmap of the valid rows, least significant bit first."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _spread(items: pa.Array, starts: np.ndarray[Any, Any], valid: np.ndarray[Any, Any], width: int) -> pa.Array:
    """Items with `width` slots for every row: the items of valid rows, and zeros for null rows."""
    index = starts.astype(np.int64)[:, None] + np.arange(width, dtype=np.int64)
    if items.null_count or pa.types.is_nested(items.type):
        return items.take(pa.array(index.ravel(), mask=np.repeat(~valid, width)))
    spread = np.zeros((len(valid), width), dtype=items.type.to_pandas_dtype())
    if valid.any():
        spread[valid] = items.to_numpy(zero_copy_only=False)[index[valid]]
    return pa.array(spread.ravel(), type=items.type)

"""Rejects strings that are not UTF-8: readers reject a whole page in which there is one.

Arrow makes such strings where bytes are reinterpreted, for example by readers of files whose encoding was guessed. The
bytes of a chunk are checked at once, which takes a fraction of the time of checking each string: if they are UTF-8, and
no string begins within a character, every string is UTF-8. Strings of ASCII take a thirtieth of the time again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from lance_core.errors import SchemaError

__all__ = ["check_rows", "checked_strings", "has_strings"]

_SHOWN: Final = 40
_FIRST_NOT_ASCII: Final = 0x80
_FIRST_OF_SEVERAL: Final = 0xC0
"""Bytes between these two continue a character."""


def has_strings(kind: pa.DataType) -> bool:
    """Whether values of a type are strings, or have strings in them."""
    if pa.types.is_dictionary(kind):
        return has_strings(kind.value_type)
    return _is_string(kind) or any(has_strings(kind.field(index).type) for index in range(kind.num_fields))


def checked_strings(name: str, array: pa.Array, first_row: int) -> pa.Array:
    """The values of a column, whose strings must be UTF-8; bytes that no value has are left out if they are not.

    Args:
        name: The column.
        array: Some of its values.
        first_row: Number of the first value, for the message.

    Raises:
        SchemaError: A string is not UTF-8; the message names column and row.
    """
    if _is_all_valid(array):
        return array
    for row, value in enumerate(array):
        try:
            value.as_py()
        except UnicodeDecodeError as error:
            shown = error.object if len(error.object) <= _SHOWN else error.object[:_SHOWN] + b"..."
            raise SchemaError(
                f"column {name!r}: row {first_row + row} has a string that is not UTF-8: {shown!r}; decode it by "
                "the encoding that it has, or store the column as binary"
            ) from None
    return _drop_hidden(array)


def check_rows(rows: pa.RecordBatch | pa.Table, first_row: int = 0) -> None:
    """Make sure that the strings of rows are UTF-8.

    Args:
        rows: The rows.
        first_row: Number of the first one, for the message.

    Raises:
        SchemaError: A string is not UTF-8; the message names column and row.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if has_strings(column.type):
            row = first_row
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                checked_strings(name, chunk, row)
                row += len(chunk)


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_all_valid(array: Any) -> bool:
    """Whether all bytes that would be stored are UTF-8, also those of nulls."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _is_all_valid(array.dictionary)
    if _is_string(kind):
        return _is_valid(array)
    if pa.types.is_struct(kind):
        return all(_is_all_valid(array.field(index)) for index, child in enumerate(kind) if has_strings(child.type))
    if pa.types.is_map(kind):
        return all(_is_all_valid(part) for part in (array.keys, array.items) if has_strings(part.type))
    return not has_strings(kind) or _is_all_valid(array.flatten())


def _is_valid(array: Any) -> bool:
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return True
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    bounds = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    if not used.size or int(used.max()) < _FIRST_NOT_ASCII:
        return True
    first = used[bounds[:-1][bounds[:-1] < bounds[-1]] - bounds[0]]
    if ((first >= _FIRST_NOT_ASCII) & (first < _FIRST_OF_SEVERAL)).any():
        return False
    ends = pa.array([0, used.size], pa.int64()).buffers()[1]
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(used)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _drop_hidden(array: Any) -> pa.Array:
    """The array without bytes that no value has, such as those of nulls and of unused items of a dictionary."""
    kind = array.type
    if not has_strings(kind) or pa.types.is_fixed_size_list(kind):
        return array
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode().dictionary_encode().cast(kind)
    if pa.types.is_struct(kind):
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(
            [_drop_hidden(child) for child in array.flatten()], fields=list(kind), mask=mask
        )
    array = array.take(pa.array(np.arange(len(array))))
    if _is_string(kind):
        return array
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[_drop_hidden(array.values)])

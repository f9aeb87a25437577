"""Conversion of vectors between Spark's variable-size lists and Arrow's fixed-size lists.

    list<float>, 4 rows, row 2 null                    fixed_size_list<float>[3]
    offsets    0 3 6 6 9                               no offsets: row i is items 3i .. 3i+3
    validity   1 1 0 1                                 validity   1 1 0 1
    items      a0 a1 a2 b0 b1 b2 d0 d1 d2              items      a0 a1 a2 b0 b1 b2 0 0 0 d0 d1 d2

Spark knows only the left form, in which a null row has no items. In the right form, a null row has `width` items.
Without null rows both forms share the items, and neither conversion copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInputError


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

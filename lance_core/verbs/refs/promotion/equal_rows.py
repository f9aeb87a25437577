"""Compare rows of two versions exactly, columns of any type: floats by their bits, so that NaN equals NaN.

Rows are read in batches of bounded bytes, payloads of blobs as well, so that a fragment of any size can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

__all__ = ["equal_rows"]


def equal_rows(left_batches: Iterable[pa.RecordBatch], right_batches: Iterable[pa.RecordBatch]) -> bool:
    """Whether two sequences of batches of the same columns hold the same rows in the same order."""
    left, right = ((batch for batch in batches if batch.num_rows) for batches in (left_batches, right_batches))
    left_batch, right_batch = next(left, None), next(right, None)
    while left_batch is not None and right_batch is not None:
        count = min(left_batch.num_rows, right_batch.num_rows)
        pairs = zip(left_batch.slice(0, count).columns, right_batch.slice(0, count).columns, strict=True)
        if not all(
            _view_bits(left_column).equals(right_column)
            for left_column, right_column in ((left_column, _view_bits(column)) for left_column, column in pairs)
        ):
            return False
        left_batch = left_batch.slice(count) if left_batch.num_rows > count else next(left, None)
        right_batch = right_batch.slice(count) if right_batch.num_rows > count else next(right, None)
    return left_batch is None and right_batch is None


def _view_bits(values: pa.Array) -> pa.Array:
    """The values without dictionaries, and with floats as integers of the same bits."""
    kind = _retype(values.type, _without_dictionary)
    plain = values if kind.equals(values.type) else values.cast(kind)
    return plain.view(_retype(kind, _as_bits))


def _retype(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type in which each type that has no children is replaced."""

    def of(field: pa.Field) -> pa.Field:
        return field.with_type(_retype(field.type, leaf))

    if pa.types.is_struct(kind):
        return pa.struct([of(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(of(kind.key_field), of(kind.item_field), kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(of(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(of(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(of(kind.value_field))
    return leaf(kind)


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _as_bits(kind: pa.DataType) -> pa.DataType:
    return pa.from_numpy_dtype(f"i{kind.bit_width // 8}") if pa.types.is_floating(kind) else kind

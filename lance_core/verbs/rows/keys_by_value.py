"""Convert the keys of a merge's source to the types of the dataset's columns, by value.

A merge that only deletes writes no value of its source, so its keys can have any type: 7 is the same key as int64, as
double and as decimal. A value that the column's type cannot hold exactly is the key of no row, and is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], ...], ...]] = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    (pa.types.is_string, pa.types.is_large_string),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    (pa.types.is_timestamp,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)


def _are_comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of the two types can be equal."""
    alike = any(any(is_one(left) for is_one in kinds) and any(is_one(right) for is_one in kinds) for kinds in _KINDS)
    return alike and (getattr(left, "tz", None) is None) == (getattr(right, "tz", None) is None)


def keys_by_value(keys: pa.Table, target: pa.Schema) -> pa.Table:
    """The keys in the dataset's types, without keys that these types cannot hold; incomparable columns stay.

    Args:
        keys: The key columns.
        target: The same columns in the dataset's types.
    """
    fitting = np.ones(keys.num_rows, np.bool_)
    columns = []
    for name, column in zip(keys.column_names, keys.columns, strict=True):
        kind = target.field(name).type
        if column.type == kind or not _are_comparable(column.type, kind):
            columns.append(column)
            continue
        values, exact = _convert_exactly(column, kind)
        columns.append(values)
        fitting &= exact
    converted_keys = pa.table(columns, names=keys.column_names)
    return converted_keys if fitting.all() else converted_keys.filter(pa.array(fitting))


def _convert_exactly(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.ChunkedArray, npt.NDArray[np.bool_]]:
    """The values in another type, null where it cannot hold them exactly, and a mask of the values that it holds."""
    if all(any(is_one(side) for is_one in _KINDS[0][1:]) for side in (column.type, kind)) or _is_mixed(
        column.type, kind
    ):
        new_values = [None if value is None else _convert_number(value, kind) for value in column.to_pylist()]
    else:
        try:
            return column.cast(kind), np.ones(len(column), np.bool_)
        except pa.ArrowInvalid:
            new_values = [_cast(value, kind) for value in column]
    missing = column.is_null().to_numpy()
    exact = np.array([value is not None for value in new_values], np.bool_) | missing
    return pa.chunked_array([pa.array([_as_python(value) for value in new_values], kind)]), exact


def _is_mixed(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether one type is an integer and the other a float or a decimal."""
    return pa.types.is_integer(left) != pa.types.is_integer(right) and any(is_one(left) for is_one in _KINDS[0])


def _as_python(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _cast(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """The value in another type; None if that type cannot hold it."""
    try:
        return value.cast(kind) if value.is_valid else None
    except pa.ArrowInvalid:
        return None


def _convert_number(value: float | Decimal, kind: pa.DataType) -> Any:
    """A number in another type; None if that type cannot hold it."""
    if pa.types.is_floating(kind):
        with np.errstate(over="ignore"):
            near = np.dtype(kind.to_pandas_dtype()).type(value)
        return near if float(near) == value or math.isnan(value) else None
    if not math.isfinite(value):
        return None
    exact = Decimal(value)
    try:
        number = pa.scalar(int(exact) if pa.types.is_integer(kind) else exact, kind).as_py()
    except (pa.ArrowInvalid, OverflowError):
        return None
    return number if number == exact else None

"""Exact casts of Arrow columns: a cast that would change a value is rejected with the first such value.

    from                        to                              if
    ----                        --                              --
    integers                    integers, decimals              the value is in range
    integers                    floats                          the float is the same number
    floats                      integers                        there is no fraction, NaN or infinity
    floats                      other floats                    the float is the same number
    decimals                    decimals, integers              digits and range suffice
    timestamps without a zone   dates                           it is midnight
    timestamps with a zone      dates                           it is midnight in their zone
    dates                       dates, timestamps, no zone      the time is in range
    timestamps, times,          other units, other zones        no fraction of a unit is lost
    durations
    strings, bytes              other widths of offsets
    bytes, strings              blobs of format 2.2             strings are URIs of blobs
    lists, structs              lists, structs of castable      structs have the same field names, in any order
                                items and fields
    dictionaries                their values, and back
    nulls                       anything

Values are compared, not types: `int64` can be cast to `int32` unless a number is too large. Strings are never parsed,
numbers are never formatted, and no time gets or loses a zone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaError
from lance_core.extension_types import is_any_binary, is_any_list, is_any_string, is_date_or_timestamp, storage_type
from pyspark_lance.types.number_casts import are_identical, are_numbers, cast_numbers, find_first_failing

Column = Any  # pyarrow has no types for mypy: a pa.Array, or a pa.ChunkedArray

_LONGEST_SHOWN: Final = 100

_BLOB: Final = [("data", pa.large_binary()), ("uri", pa.string())]


def can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type can be cast to another, by the table at the head of the module."""
    types = pa.types
    if source == target or types.is_null(source):
        return True
    if storage_type(source) == storage_type(target):
        return True
    if _is_blob(target) and (is_any_binary(source) or is_any_string(source)):
        return True
    if types.is_dictionary(source) or types.is_dictionary(target):
        return can_cast(_values_of(source), _values_of(target))
    if types.is_struct(source) and types.is_struct(target):
        names = [field.name for field in target]
        return sorted(field.name for field in source) == sorted(names) and all(
            can_cast(source.field(name).type, target.field(name).type) for name in names
        )
    if is_any_list(source) and is_any_list(target):
        fixed = types.is_fixed_size_list(source) and types.is_fixed_size_list(target)
        return not (fixed and source.list_size != target.list_size) and can_cast(source.value_type, target.value_type)
    if types.is_timestamp(source) and types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if types.is_date(source) and types.is_timestamp(target):
        return target.tz is None
    if types.is_map(source) and types.is_map(target):
        return bool(source.key_type == target.key_type and source.item_type == target.item_type)
    return any(sources(source) and targets(target) for sources, targets in _PAIRS)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_integer_or_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _is_blob(kind: pa.DataType) -> bool:
    """Whether a type of a table is that of blobs, which is an extension type only where pylance is imported."""
    storage = storage_type(kind)
    return pa.types.is_struct(storage) and [(part.name, part.type) for part in storage][:2] == _BLOB


_PAIRS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...]] = (
    (_is_number, _is_number),
    (_is_integer_or_decimal, _is_integer_or_decimal),
    (is_any_string, is_any_string),
    (is_any_binary, is_any_binary),
    (is_date_or_timestamp, pa.types.is_date),
    (pa.types.is_time, pa.types.is_time),
    (pa.types.is_duration, pa.types.is_duration),
)


class CastRejectedError(SchemaError):
    """A column cannot be cast to the table's type.

    Args:
        column: The name of the column.
        source: The type of the column in the output.
        target: The type of the column in the table.
        value: The first value that would change, for the message; None if the types cannot be cast at all.
    """

    def __init__(self, column: str, source: pa.DataType, target: pa.DataType, value: str | None = None) -> None:
        self.column = column
        self.source = source
        self.value = value
        if value is None:
            super().__init__(f"column {column!r} is of type {source}, but the table has {target}")
        else:
            super().__init__(
                f"column {column!r} is of type {source}, but the table has {target}, and the value {value} cannot be "
                "cast to it without loss"
            )


def cast_exactly(column: Column, field: pa.Field) -> Column:
    """A column cast to the type of a field, with all values unchanged.

    Args:
        column: The column; `can_cast` is true for its type and the field's.
        field: The field, whose name is for the message.

    Raises:
        CastRejectedError: A value would change; the error names the column and the first such value.
    """
    done = _attempt(column, field.type)
    if done is not None:
        return done
    value = show_value(column[find_first_failing(column, lambda part: _attempt(part, field.type) is not None)])
    raise CastRejectedError(field.name, column.type, field.type, value)


def show_value(value: pa.Scalar) -> str:
    """A value for messages: dates and times in ISO form, strings in quotes, long values truncated."""
    plain: Any = value.as_py() if not pa.types.is_timestamp(value.type) else pc.cast(value, pa.string()).as_py()
    spelled = repr(plain) if isinstance(plain, str) and not pa.types.is_timestamp(value.type) else str(plain)
    return spelled if len(spelled) <= _LONGEST_SHOWN else spelled[: _LONGEST_SHOWN - 1] + "…"


def show_row(row: pa.Table) -> str:
    """The first row of a table for messages: `{'day': 2024-01-01, 'id': 7}`."""
    values = [f"{name!r}: {show_value(row.column(position)[0])}" for position, name in enumerate(row.column_names)]
    return "{" + ", ".join(values) + "}"


def _attempt(column: Column, target: pa.DataType) -> Column | None:
    """The column in another type; None if a value would change."""
    if column.type == target:
        return column
    if isinstance(column, pa.ChunkedArray):
        parts = [_attempt(chunk, target) for chunk in column.chunks]
        return None if any(part is None for part in parts) else pa.chunked_array(parts, type=target)
    if isinstance(column, pa.ExtensionArray):
        return _attempt(column.storage, target)
    if isinstance(target, pa.BaseExtensionType) and column.type == target.storage_type:
        return pa.ExtensionArray.from_storage(target, column)
    if _is_blob(target) and (is_any_binary(column.type) or is_any_string(column.type)):
        return _cast_to_blobs(column, target)
    if pa.types.is_dictionary(column.type):
        return _attempt(column.dictionary_decode(), target)
    if pa.types.is_dictionary(target):
        values = _attempt(column, target.value_type)
        return None if values is None else _cast_to_dictionary(values, target)
    if pa.types.is_struct(column.type) and pa.types.is_struct(target):
        return _cast_struct(column, target)
    if is_any_list(column.type) and is_any_list(target) and column.type.value_type != target.value_type:
        return _list(column, target)
    return _cast_flat(column, target)


def _cast_to_dictionary(column: pa.Array, target: pa.DataType) -> pa.Array | None:
    """The values as a dictionary; None if there are more than its indices count."""
    try:
        return column.dictionary_encode().cast(target)
    except pa.ArrowInvalid:
        return None


def _cast_to_blobs(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Blobs from their bytes or URIs; nothing is copied."""
    child_name = "data" if is_any_binary(column.type) else "uri"
    storage = storage_type(target)
    children = [
        column.cast(field.type) if field.name == child_name else pa.nulls(len(column), field.type) for field in storage
    ]
    blobs = pa.StructArray.from_arrays(children, fields=list(storage), mask=column.is_null())
    return blobs if storage == target else pa.ExtensionArray.from_storage(target, blobs)


def _cast_struct(column: pa.StructArray, target: pa.StructType) -> pa.Array | None:
    """A struct cast field by field, by name; fields of a null struct count as null."""
    children = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    cast = [_attempt(children[field.name], field.type) for field in target]
    if any(child is None for child in cast):
        return None
    return pa.StructArray.from_arrays(cast, fields=list(target), mask=column.is_null())


def _list(column: pa.Array, target: pa.DataType) -> pa.Array | None:
    """A list cast by its items; items of a null list are left out."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.large_list(column.type.value_field))
    items = _attempt(column.flatten(), target.value_type)
    if items is None:
        return None
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    plain = pa.large_list(target.value_field)
    lists = pa.LargeListArray.from_arrays(offsets, items, type=plain, mask=column.is_null())
    return lists if plain == target else _cast_flat(lists, target)


def _cast_flat(column: pa.Array, target: pa.DataType) -> pa.Array | None:
    source = column.type
    if are_numbers(source, target):
        return cast_numbers(column, target)
    if pa.types.is_date(target) and pa.types.is_timestamp(source) and source.tz is not None:
        column = pc.local_timestamp(column)
    try:
        done = column.cast(target, safe=True)
        if not (is_date_or_timestamp(source) or is_date_or_timestamp(target)):
            return done
        back = done.cast(column.type, safe=True)  # a cast to a date drops the time without an error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return done if are_identical(column, back) else None


def _values_of(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind

"""The values of a computed column in its declared type, where they are of the same family and fit exactly."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import SchemaError
from lance_core.extension_types import is_any_list, is_any_string

_FAMILIES: Final = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
    is_any_string,
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
    pa.types.is_date,
)


def conform_values(values: pa.Array, field: pa.Field) -> pa.Array:
    """Values that a function returned, in the type of their column.

    Numbers may have another width, and lists another form, as long as no value changes: a float of 32 bits may round a
    float of 64 bits, but no finite number becomes infinite.

    Raises:
        SchemaError: The values are of another kind, or a value does not fit.
    """
    if values.type == field.type:
        return values
    what = (
        "the function returned other types than its columns: "
        f"values of type {values.type} for column {field.name!r} of type {field.type}"
    )
    if not _is_same_kind(values.type, field.type):
        raise SchemaError(what)
    try:
        converted = values.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(f"{what}: {error}") from error
    if _count_infinite(converted) > _count_infinite(values):
        raise SchemaError(f"{what}: a number is too large for it")
    return converted


def _is_same_kind(source: pa.DataType, target: pa.DataType) -> bool:
    source, target = (
        kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in (source, target)
    )
    if pa.types.is_dictionary(source):
        source = source.value_type
    if pa.types.is_null(source) or source == target:
        return True
    if is_any_list(source) and is_any_list(target):
        return _is_same_kind(source.value_type, target.value_type)
    if pa.types.is_map(source) and pa.types.is_map(target):
        return _is_same_kind(source.key_type, target.key_type) and _is_same_kind(source.item_type, target.item_type)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        names = [[child.name for child in kind] for kind in (source, target)]
        return names[0] == names[1] and all(
            _is_same_kind(left.type, right.type) for left, right in zip(source, target, strict=True)
        )
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    return source.id == target.id or any(is_of(source) and is_of(target) for is_of in _FAMILIES)


def _count_infinite(values: Any) -> int:
    """The infinite floats in values of any depth of lists and structs."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _count_infinite(values.storage)
    if is_any_list(kind):
        return _count_infinite(values.flatten())
    if pa.types.is_struct(kind):
        return sum(map(_count_infinite, values.flatten()))
    return int(pc.sum(pc.is_inf(values)).as_py() or 0) if pa.types.is_floating(kind) else 0

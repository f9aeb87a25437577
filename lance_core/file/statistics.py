"""Statistics of the pages of 0.1 files: bounds by which pylance skips batches; they are written here, and not read.

One struct per field, named by the field's id, with one row per batch:

    null_count   i64
    min_value    of the field's type; a lower bound
    max_value    of the field's type; an upper bound

    all values null                integers, dates, booleans: the bounds of the type; decimals: those of 128 bits,
                                   whatever the precision; floats: -inf and +inf; strings, binary: null
    floats                         NaN is ignored; a minimum of zero is -0.0, a maximum of zero is +0.0
    strings and binary             truncated to 64 bytes; a truncated maximum is increased, or null if that is not
                                   possible

Bounds need not occur among the values. Fields inside lists, and types for which `has_statistics` is False, have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.legacy.encoder import EncodedFieldPage, encode_page
from lance_core.errors import CorruptFileError
from lance_core.schema import Field, Schema, arrow_type_of, schema_from_arrow

PREFIX_BYTES: Final = 64

_LOWEST_DECIMAL: Final = -(1 << 127)
_HIGHEST_DECIMAL: Final = (1 << 127) - 1
"""The lowest and highest decimal of 128 bits, as unscaled integers like those in the buffer of an array."""


class StatisticsCollector:
    """Computes the statistics of a file, batch by batch.

    Raises:
        CorruptFileError: Two fields of the schema have the same id, which is the name of their statistics.
    """

    def __init__(self, schema: Schema) -> None:
        if len(schema.by_id()) < sum(1 for _ in schema.walk()):
            raise CorruptFileError(f"two columns have one id, of {[(f.name, f.id) for f, _ in schema.walk()][:20]}")
        self._fields: list[Field] = []
        for field in schema.fields:
            self._add(field)
        self._rows: dict[int, list[tuple[int, Any, Any]]] = {field.id: [] for field in self._fields}

    def _add(self, field: Field) -> None:
        if field.logical_type == "struct":
            for child in field.children:
                self._add(child)
        elif not field.children and has_statistics(arrow_type_of(field)):
            self._fields.append(field)

    def add(self, field: Field, array: Any) -> None:
        """Add the values of a field in the next batch."""
        if field.logical_type == "struct":
            for index, child in enumerate(field.children):
                self.add(child, array.field(index))
        elif field.id in self._rows:
            self._rows[field.id].append(bounds(array))

    def schema(self) -> Schema:
        """The schema of the statistics."""
        fields = []
        for field in self._fields:
            kind = arrow_type_of(field)
            children = [
                pa.field("null_count", pa.int64(), nullable=False),
                pa.field("min_value", kind),
                pa.field("max_value", kind),
            ]
            fields.append(pa.field(str(field.id), pa.struct(children), nullable=False))
        return schema_from_arrow(pa.schema(fields))

    def pages(self, schema: Schema) -> list[EncodedFieldPage]:
        """The pages of the statistics, in the order of the leaves of `schema`."""
        pages = []
        for field, struct in zip(self._fields, schema.fields, strict=True):
            kind = arrow_type_of(field)
            columns = list(zip(*self._rows[field.id], strict=True)) or [(), (), ()]
            arrays = [
                pa.array(columns[0], pa.int64()),
                _bounds_array(columns[1], kind),
                _bounds_array(columns[2], kind),
            ]
            pages += [encode_page(child, array) for child, array in zip(struct.children, arrays, strict=True)]
        return pages


def has_statistics(kind: pa.DataType) -> bool:
    """Whether values of a type have bounds."""
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return not types.is_float16(kind)
    if types.is_date(kind) or types.is_decimal128(kind):
        return True
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def bounds(array: Any) -> tuple[int, Any, Any]:
    """Number of nulls, lower bound and upper bound of an array.

    >>> bounds(pa.array([3, None, 1]))
    (1, 1, 3)
    """
    kind = array.type
    nulls = array.null_count
    if pa.types.is_floating(kind):
        return (nulls, *_float_bounds(array))
    extremes = pc.min_max(array)
    if pa.types.is_date(kind) and extremes["min"].is_valid:
        return nulls, extremes["min"], extremes["max"]  # Python's calendar ends before Arrow's
    lowest, highest = extremes["min"].as_py(), extremes["max"].as_py()
    if pa.types.is_boolean(kind):
        return (nulls, False, True) if lowest is None else (nulls, lowest, highest)
    if pa.types.is_integer(kind) and lowest is None:
        limits = np.iinfo(kind.to_pandas_dtype())
        return nulls, int(limits.min), int(limits.max)
    if isinstance(lowest, str):
        return nulls, _truncate(lowest), _raise_string(highest)
    if isinstance(lowest, bytes):
        return nulls, lowest[:PREFIX_BYTES], _raise_bytes(highest)
    if lowest is None and (pa.types.is_date(kind) or pa.types.is_decimal(kind)):
        return nulls, *_widest_bounds(kind)
    return nulls, lowest, highest


def _float_bounds(array: Any) -> tuple[float, float]:
    values = array.drop_null().to_numpy(zero_copy_only=False)
    values = values[~np.isnan(values)]
    if not values.size:
        return -math.inf, math.inf
    lowest, highest = float(values.min()), float(values.max())
    return (-0.0 if lowest == 0 else lowest), (0.0 if highest == 0 else highest)


def _widest_bounds(kind: Any) -> tuple[Any, Any]:
    """The lowest and highest value of a type; Python's types cannot hold all of them."""
    if pa.types.is_decimal(kind):
        return _LOWEST_DECIMAL, _HIGHEST_DECIMAL
    width = kind.bit_width
    low, high = -(2 ** (width - 1)), 2 ** (width - 1) - 1
    integers = pa.array([low, high], pa.int32() if width == 32 else pa.int64()).view(kind)
    return integers[0], integers[1]


def _bounds_array(values: Sequence[Any], kind: Any) -> Any:
    """An array of bounds; bounds of decimals can have more digits than the type."""
    if not pa.types.is_decimal128(kind):
        return pa.array(values, kind)
    numbers = b"".join(_unscale(value, kind.scale).to_bytes(16, "little", signed=True) for value in values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])


def _unscale(value: Decimal | int, scale: int) -> int:
    """The unscaled integer of a decimal; an integer is unscaled already."""
    if isinstance(value, int):
        return value
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _truncate(string: str) -> str:
    return string.encode()[:PREFIX_BYTES].decode(errors="ignore")


def _raise_string(string: str) -> str | None:
    if len(string.encode()) <= PREFIX_BYTES:
        return string
    prefix = _truncate(string)
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        # Surrogates are not characters.
        following = 0xE000 if 0xD800 <= following <= 0xDFFF else following
        if following <= 0x10FFFF:
            return prefix[: end - 1] + chr(following)
    return None


def _raise_bytes(value: bytes) -> bytes | None:
    if len(value) <= PREFIX_BYTES:
        return value
    prefix = value[:PREFIX_BYTES]
    for end in range(len(prefix), 0, -1):
        if prefix[end - 1] < 255:
            return prefix[: end - 1] + bytes([prefix[end - 1] + 1])
    return None

"""Rules about types of indexed values: which have an order, and which can be compared with values of a filter."""

from __future__ import annotations

import pyarrow as pa


def comparable(stored: pa.DataType, value_type: pa.DataType) -> bool:
    """Whether Arrow compares values of both types in an order in which stored bounds are valid."""
    return stored == value_type or (_family(stored) is not None and _family(stored) == _family(value_type))


def is_exact(stored: pa.DataType, value_type: pa.DataType) -> bool:
    """Whether at most one stored value equals a value of the filter, and a cast of that value yields it."""
    if stored == value_type:
        return True
    if pa.types.is_integer(stored):
        return bool(pa.types.is_integer(value_type) or (pa.types.is_float64(value_type) and stored.bit_width <= 32))
    if pa.types.is_floating(stored):
        return bool(pa.types.is_integer(value_type) or pa.types.is_floating(value_type))
    return comparable(stored, value_type) and not pa.types.is_date(stored)


def is_ordered(kind: pa.DataType) -> bool:
    """Whether indices keep bounds of values of a type."""
    if pa.types.is_null(kind) or pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_float16(kind):
        return False
    return not pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind)


def _family(kind: pa.DataType) -> str | None:
    """The family of a type: types in one family are cast to each other without changing the order."""
    checks = {
        "number": (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_decimal),
        "string": (pa.types.is_string, pa.types.is_large_string),
        "bytes": (pa.types.is_binary, pa.types.is_large_binary),
        "date": (pa.types.is_date,),
    }
    return next((name for name, tests in checks.items() if any(test(kind) for test in tests)), None)


def compute_next_prefix(prefix: str) -> str | None:
    """The least string above all strings with this prefix, in order of UTF-8 bytes; None if there is none."""
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1])
        if code < 0x10FFFF:
            after = code + 1
            return prefix[: end - 1] + chr(0xE000 if 0xD800 <= after < 0xE000 else after)
    return None


def combine_to_array(column: pa.ChunkedArray) -> pa.Array:
    """The values of a column as one array; a single chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

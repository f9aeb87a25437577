"""Evaluate conditions on remainders, such as `id % 10 = 3`, in one pass over the integers.

SQL's remainder of integers is that of C, and Arrow has no kernel for it. Its expression in Arrow is a division, a
multiplication and a subtraction, each over the whole column:

    call equal, call subtract, field_ref x, call multiply, call divide, field_ref x, literal, ... literal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["matching_remainders"]

_TESTS: Final[dict[bytes, Callable[[Any, Any], npt.NDArray[np.bool_]]]] = {
    b"equal": np.equal,
    b"not_equal": np.not_equal,
    b"less": np.less,
    b"less_equal": np.less_equal,
    b"greater": np.greater,
    b"greater_equal": np.greater_equal,
}


def matching_remainders(
    batch: pa.RecordBatch, entries: Sequence[tuple[bytes, bytes]], literals: pa.RecordBatch
) -> pa.Array | None:
    """For each row, whether a test of a remainder is true; None for any other expression.

    Args:
        batch: The rows.
        entries: The serialized expression.
        literals: Its literals.
    """
    if len(entries) != len(_ENTRIES) or entries[0][1] not in _TESTS:
        return None
    name = entries[2][1]
    if list(entries) != _build_entries(entries[0][1], name):
        return None
    position = batch.schema.get_field_index(name.decode())
    column = batch.column(position) if position >= 0 else None
    if column is None or not pa.types.is_integer(column.type) or set(literals.schema.types) != {column.type}:
        return None
    divisor, factor, value = (literals.column(number)[0].as_py() for number in range(3))
    # Arrow evaluates divisors 0, for which it raises, and -1, by which the least integer overflows.
    if divisor != factor or divisor in (None, 0, -1) or value is None or (column.offset and column.null_count):
        return None
    kind = column.type.to_pandas_dtype()
    numbers = np.frombuffer(column.buffers()[1], kind, len(column), column.offset * np.dtype(kind).itemsize)
    matches = _TESTS[entries[0][1]](np.fmod(numbers, kind(divisor)), kind(value))
    bits = pa.py_buffer(np.packbits(matches, bitorder="little"))
    validity = column.buffers()[0] if column.null_count else None
    return pa.Array.from_buffers(pa.bool_(), len(column), [validity, bits])


def _build_entries(test: bytes, name: bytes) -> list[tuple[bytes, bytes]]:
    """The entries of a test of the remainder of a column."""
    return [(key, {b"?": test, b"*": name}.get(value, value)) for key, value in _ENTRIES]


_ENTRIES: Final = [
    (b"call", b"?"),
    (b"call", b"subtract"),
    (b"field_ref", b"*"),
    (b"call", b"multiply"),
    (b"call", b"divide"),
    (b"field_ref", b"*"),
    (b"literal", b"0"),
    (b"end", b"divide"),
    (b"literal", b"1"),
    (b"end", b"multiply"),
    (b"end", b"subtract"),
    (b"literal", b"2"),
    (b"end", b"?"),
]

"""Computes xxHash64 with seed 0 of many values at once, for Bloom filters.

A value is hashed as its bytes: those of its own width, little-endian, for numbers and times; UTF-8 for strings.

    from 32 bytes on    four lanes, each takes 8 of every 32 bytes; then they are merged
    the rest            8 bytes at a time, then 4, then single ones; then the bits are mixed

Source: the specification of xxHash, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core.extension_types import is_string_like
from lance_core.index.query.rows import U64s

_P1: Final = np.uint64(0x9E3779B185EBCA87)
_P2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_P3: Final = np.uint64(0x165667B19E3779F9)
_P4: Final = np.uint64(0x85EBCA77C2B2AE63)
_P5: Final = np.uint64(0x27D4EB2F165667C5)
_STARTS: Final = (0x60EA27EEADC0B5D6, 0xC2B2AE3D27D4EB4F, 0, 0x61C8864E7A143579)
"""The initial values of the four lanes: the sum of the first two primes, the second, 0, and minus the first."""

_STRIPE: Final = 32
_WORD: Final = 8
_HALF: Final = 4


def hash_values(values: pa.Array) -> U64s:
    """The hash of each value.

    Args:
        values: Numbers, times, strings or bytes, without nulls.
    """
    kind = values.type
    if is_string_like(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hash_bytes(values.cast(pa.large_binary()))
    return _hash_rows(_value_bytes(values, kind.bit_width // 8))


def _value_bytes(values: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(values.buffers()[1], np.uint8) if len(values) else np.zeros(0, np.uint8)
    start = values.offset * width
    return data[start : start + len(values) * width].reshape(len(values), width)


def _hash_bytes(values: pa.LargeBinaryArray) -> U64s:
    """The hashes of values of different lengths; values of the same length are hashed together."""
    _, offset_buffer, data_buffer = values.buffers()
    result = np.zeros(len(values), np.uint64)
    if not len(values):
        return result
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order], prepend=-1)).tolist()
    for start, stop in zip(bounds, [*bounds[1:], len(order)], strict=True):
        same_length = order[start:stop]
        length = int(lengths[same_length[0]])
        rows = data[offsets[:-1][same_length][:, np.newaxis] + np.arange(length)]
        result[same_length] = _hash_rows(rows)
    return result


def _hash_rows(rows: npt.NDArray[np.uint8]) -> U64s:
    """The hash of each row of bytes."""
    count, length = rows.shape
    position = 0
    if length >= _STRIPE:
        lanes = [np.full(count, start, np.uint64) for start in _STARTS]
        while position + _STRIPE <= length:
            for i in range(4):
                lanes[i] = _round(lanes[i], _read_words(rows, position + i * _WORD, "<u8"))
            position += _STRIPE
        hashes = (
            _rotate_left(lanes[0], 1)
            + _rotate_left(lanes[1], 7)
            + _rotate_left(lanes[2], 12)
            + _rotate_left(lanes[3], 18)
        )
        for lane in lanes:
            hashes = (hashes ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    else:
        hashes = np.full(count, _P5, np.uint64)
    hashes = hashes + np.uint64(length)
    while position + _WORD <= length:
        hashes ^= _round(np.zeros(count, np.uint64), _read_words(rows, position, "<u8"))
        hashes = _rotate_left(hashes, 27) * _P1 + _P4
        position += _WORD
    if position + _HALF <= length:
        hashes ^= _read_words(rows, position, "<u4") * _P1
        hashes = _rotate_left(hashes, 23) * _P2 + _P3
        position += _HALF
    for i in range(position, length):
        hashes ^= rows[:, i].astype(np.uint64) * _P5
        hashes = _rotate_left(hashes, 11) * _P1
    return _mix(hashes)


def _read_words(rows: npt.NDArray[np.uint8], position: int, kind: str) -> U64s:
    """An unsigned number from each row."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, position : position + width]).view(kind)[:, 0].astype(np.uint64)


def _round(lane: U64s, word: U64s) -> U64s:
    return _rotate_left(lane + word * _P2, 31) * _P1


def _rotate_left(values: U64s, bits: int) -> U64s:
    """Rotate the bits to the left."""
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _mix(values: Any) -> U64s:
    values ^= values >> np.uint64(33)
    values *= _P2
    values ^= values >> np.uint64(29)
    values *= _P3
    values ^= values >> np.uint64(32)
    result: U64s = values
    return result

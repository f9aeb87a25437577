"""FastLanes bit packing: 1024 words of T bits in W bits each, laid out so that whole vectors are shifted at once.

The 1024 values form T rows of L = 1024 / T lanes. Row r, lane l holds the value number

    FL[r // 8] * 16 + (r % 8) * 128 + l          FL = 0 4 2 6 1 5 3 7

so that each row is a slice of L neighbours. Lane l is a stream of bits, in which row r has the bits
``r * W .. (r + 1) * W``; the streams are interleaved word by word:

    packed   |word 0 of lane 0|word 0 of lane 1| ... |word 0 of lane L-1|word 1 of lane 0| ... |      W * L words

Many blocks of 1024 values are unpacked with T vector operations, whatever their number. The blocks are processed a few
hundred at a time, so that the result of one operation is still in the cache for the next one. Fewer blocks, and words
of 64 bits, are unpacked by gathering rows of words at positions from a table; rows that continue in the next word are
gathered twice. The least setup, for up to seven blocks, is that of gathering single words.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lance_core.encoding.compression.chunks import Counts, find_equal_step, gather_ranges
from lance_core.encoding.datablock import Bytes

BLOCK_VALUES = 1024
"""Values in one packed block."""

Words: TypeAlias = npt.NDArray[Any]
"""Unsigned little-endian words of 8, 16, 32 or 64 bits."""

_FL_ORDER = (0, 4, 2, 6, 1, 5, 3, 7)
_BLOCKS_AT_ONCE = 512
# Measured: for small batches gathering wide words is as fast, and faster where widths alternate.
_WIDE_BLOCKS_AT_ONCE = 32
# Measured: gathering is faster up to four blocks per bit of a word, and gathering single words below eight blocks.
_FEW_PER_BIT = 4
_SINGLE_WORDS = 8
# The same for packing, where one operation combines the rows of a few blocks.
_FEW_TO_PACK_PER_BIT = 0.25


def packed_bytes(width: int) -> int:
    """Bytes that 1024 values of `width` bits take; the same for every word size."""
    return BLOCK_VALUES // 8 * width


def measure_bit_widths(values: Words) -> Counts:
    """The bits that the largest value of each row of a 2-D array needs; 0 where all are zero."""
    powers = np.left_shift(np.ones((), values.dtype), np.arange(values.dtype.itemsize * 8, dtype=values.dtype))
    widths: Counts = np.searchsorted(powers, values.max(axis=1), side="right").astype(np.int64)
    return widths


def unpack(packed: Words, width: int, out: Words) -> None:
    """Unpack blocks that all have the same width.

    Args:
        packed: Words of shape (blocks, `width` * lanes), of any strides.
        width: Bits per value, 0 to the size of a word.
        out: Words of shape (blocks, 1024), to be filled.
    """
    if width == 0:
        out[...] = 0
        return
    bits = out.dtype.itemsize * 8
    if out.shape[0] < _SINGLE_WORDS:
        _unpack_few(packed, width, out)
        return
    if out.shape[0] <= bits * _FEW_PER_BIT:
        _unpack_gathered(packed, width, out)
        return
    lanes = BLOCK_VALUES // bits
    for start in range(0, out.shape[0], _BLOCKS_AT_ONCE):
        part = packed[start : start + _BLOCKS_AT_ONCE]
        rows = part.reshape(part.shape[0], width, lanes)
        _unpack_rows(rows, width, out[start : start + _BLOCKS_AT_ONCE])


@lru_cache(maxsize=128)
def locate_values(width: int, bits: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Words, Words]:
    """For each of the 1024 values: its word, the next word of its lane, its shift, and `bits` minus the shift."""
    lanes = BLOCK_VALUES // bits
    word = np.empty(BLOCK_VALUES, np.intp)
    shift = np.empty(BLOCK_VALUES, f"<u{bits // 8}")
    for row in range(bits):
        at, shifted = divmod(row * width, bits)
        first = _FL_ORDER[row // 8] * 16 + row % 8 * 128
        word[first : first + lanes] = at * lanes + np.arange(lanes)
        shift[first : first + lanes] = shifted
    # A value that ends with its word shifts all bits of the next word out or masks them.
    following = np.minimum(word + lanes, width * lanes - 1)
    return word, following, shift, (bits - shift).astype(shift.dtype)


def _unpack_few(packed: Words, width: int, out: Words) -> None:
    word, following, shift, back = locate_values(width, out.dtype.itemsize * 8)
    low = packed.take(word, axis=1, mode="clip")
    high = packed.take(following, axis=1, mode="clip")
    np.right_shift(low, shift, out=low)
    np.left_shift(high, back, out=high)
    np.bitwise_or(low, high, out=low)
    np.bitwise_and(low, out.dtype.type((1 << width) - 1), out=out)


@lru_cache(maxsize=128)
def _locate_rows_to_gather(
    width: int, bits: int
) -> tuple[npt.NDArray[np.intp], Words, npt.NDArray[np.intp], npt.NDArray[np.intp], Words]:
    """Where rows lie, in the order of their values.

    Returns:
        The word and the shift of each row; then, for the rows that continue in the next word: their positions, the next
        word, and `bits` minus the shift.
    """
    rows = np.argsort(np.array(_FL_ORDER)[np.arange(bits) // 8] * 16 + np.arange(bits) % 8 * 128)
    word, shift = np.divmod(rows * width, bits)
    going_on = np.flatnonzero(shift + width > bits)
    shifts = shift.astype(f"<u{bits // 8}")[:, None]
    return word, shifts, going_on, word[going_on] + 1, (bits - shifts[going_on]).astype(shifts.dtype)


def _unpack_gathered(packed: Words, width: int, out: Words) -> None:
    bits, blocks = out.dtype.itemsize * 8, out.shape[0]
    word, shifts, going_on, following, back = _locate_rows_to_gather(width, bits)
    lanes = BLOCK_VALUES // bits
    rows = packed.reshape(blocks, width, lanes)
    values = rows.take(word, axis=1, mode="clip")
    np.right_shift(values, shifts, out=values)
    if going_on.size:
        high = rows.take(following, axis=1, mode="clip")
        np.left_shift(high, back, out=high)
        values[:, going_on] |= high
    np.bitwise_and(values, out.dtype.type((1 << width) - 1), out=out.reshape(blocks, bits, lanes))


def _unpack_rows(packed: Words, width: int, out: Words) -> None:
    word = out.dtype.type
    bits = out.dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    mask = word((1 << width) - 1)
    low = np.empty((out.shape[0], lanes), out.dtype)
    high = np.empty_like(low)
    for row in range(bits):
        at, shift = divmod(row * width, bits)
        first = _FL_ORDER[row // 8] * 16 + row % 8 * 128
        values = out[:, first : first + lanes]
        if shift + width > bits:
            np.right_shift(packed[:, at], word(shift), out=low)
            np.left_shift(packed[:, at + 1], word(bits - shift), out=high)
            np.bitwise_or(low, high, out=low)
            np.bitwise_and(low, mask, out=values)
        elif shift + width == bits:
            np.right_shift(packed[:, at], word(shift), out=values)
        elif shift == 0:
            np.bitwise_and(packed[:, at], mask, out=values)
        else:
            np.right_shift(packed[:, at], word(shift), out=low)
            np.bitwise_and(low, mask, out=values)


def unpack_at(data: Bytes, starts: Counts, widths: Counts, dtype: np.dtype[Any]) -> Words:
    """Unpack blocks that lie anywhere in `data` and have different widths.

    Args:
        data: The bytes; every block must lie inside.
        starts: Position of the first packed word of each block.
        widths: Bits per value of each block, at most the size of a word.
        dtype: The words.

    Returns:
        Words of shape (blocks, 1024).
    """
    out = np.empty((starts.size, BLOCK_VALUES), dtype)
    at_once = _WIDE_BLOCKS_AT_ONCE if dtype.itemsize == 8 else _BLOCKS_AT_ONCE
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        members = np.flatnonzero(widths == width)
        for at in range(0, members.size, at_once):
            some = members[at : at + at_once]
            packed = _gather_packed_words(data, starts[some], packed_bytes(width), dtype)
            first, last = int(some[0]), int(some[-1])
            if last - first + 1 == some.size:
                unpack(packed, width, out[first : last + 1])
            else:
                values = np.empty((some.size, BLOCK_VALUES), dtype)
                unpack(packed, width, values)
                out[some] = values
    return out


def unpack_some(words: Words, starts: Counts, widths: Counts, places: Counts) -> Words:
    """Unpack single values; several of them may be in the same block.

    Args:
        words: The memory that the blocks lie in.
        starts: For each value, the number of the first packed word of its block.
        widths: For each value, the bits per value of its block, at most the size of a word.
        places: For each value, its position among the 1024 values of the block.
    """
    bits = words.dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    row, lane, masks = _rows_and_lanes(bits)
    at, shift = np.divmod(row[places] * widths, bits)
    word = starts + at * lanes + lane[places]
    following = np.minimum(word + lanes, starts + widths * lanes - 1)
    # A block of width 0 has no words: the words that are read instead are masked.
    low = words.take(word, mode="clip") >> shift.astype(words.dtype)
    high = words.take(following, mode="clip") << (bits - shift).astype(words.dtype)
    values: Words = (low | high) & masks[widths]
    return values


@lru_cache(maxsize=4)
def _rows_and_lanes(bits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Words]:
    """For each of the 1024 values its row and its lane; for each width the bits of a value."""
    row, lane = np.empty(BLOCK_VALUES, np.int64), np.empty(BLOCK_VALUES, np.int64)
    places = order_by_rows(bits)
    row[places], lane[places] = np.divmod(np.arange(BLOCK_VALUES), BLOCK_VALUES // bits)
    masks = np.array([(1 << width) - 1 for width in range(bits + 1)], f"<u{bits // 8}")
    return row, lane, masks


def _gather_packed_words(data: Bytes, starts: Counts, size: int, dtype: np.dtype[Any]) -> Words:
    """`size` bytes from each start, as rows of words: a strided view where the starts are equally spaced."""
    shape = (starts.size, size // dtype.itemsize)
    step = find_equal_step(starts) if starts.size > 1 else max(size, dtype.itemsize)
    if size and step is not None and step > 0:
        return np.ndarray(shape, dtype, data, int(starts[0]), (step, dtype.itemsize))
    return gather_ranges(data, starts, np.full(starts.size, size, np.int64)).view(dtype).reshape(shape)


def pack(values: Words, width: int, out: Words) -> None:
    """Pack blocks with the same width.

    Args:
        values: Words of shape (blocks, 1024), none of them with a bit at `width` or above.
        width: Bits per value.
        out: Words of shape (blocks, `width` * lanes), to be filled; may be a strided view.
    """
    if width == 0:
        return
    bits = values.dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    if values.shape[0] <= bits * _FEW_TO_PACK_PER_BIT:
        _pack_few(values, width, out.reshape(out.shape[0], width, lanes))
        return
    for start in range(0, values.shape[0], _BLOCKS_AT_ONCE):
        part = out[start : start + _BLOCKS_AT_ONCE]
        # The reshape is a view whatever the strides are: it only splits the last axis, which is dense.
        _pack_rows(values[start : start + _BLOCKS_AT_ONCE], width, part.reshape(part.shape[0], width, lanes))


@lru_cache(maxsize=128)
def _locate_rows_of_words(width: int, bits: int) -> tuple[Words, Words, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The positions of rows in words.

    Returns:
        For each row its shift, and `bits` minus the shift; the first row of each word; the rows that continue in the
        next word.
    """
    word, shift = np.divmod(np.arange(bits) * width, bits)
    shifts = shift.astype(f"<u{bits // 8}")[:, None]
    going_on = np.flatnonzero(shift + width > bits)
    return shifts, (bits - shifts).astype(shifts.dtype), np.flatnonzero(np.diff(word, prepend=-1)), going_on


@lru_cache(maxsize=4)
def order_by_rows(bits: int) -> npt.NDArray[np.intp]:
    """The numbers of the 1024 values in the order of the rows."""
    rows = np.arange(bits)
    first = np.array(_FL_ORDER)[rows // 8] * 16 + rows % 8 * 128
    return (first[:, None] + np.arange(BLOCK_VALUES // bits)).ravel()


def pack_one(values: Words, width: int) -> bytes:
    """Pack one block.

    Args:
        values: At most 1024 words, none of them with a bit at `width` or above; the rest of the block is zeros.
        width: Bits per value.
    """
    if width == 0:
        return b""
    bits = values.dtype.itemsize * 8
    if values.size < BLOCK_VALUES:
        whole = np.zeros(BLOCK_VALUES, values.dtype)
        whole[: values.size] = values
    else:
        whole = values
    shift, back, first, going_on = _locate_rows_of_words(width, bits)
    rows = whole.take(order_by_rows(bits)).reshape(bits, BLOCK_VALUES // bits)
    out = np.bitwise_or.reduceat(rows << shift, first, axis=0)
    if going_on.size:
        out[going_on * width // bits + 1] |= rows[going_on] >> back[going_on]
    packed: bytes = out.tobytes()
    return packed


def _pack_few(values: Words, width: int, out: Words) -> None:
    bits = values.dtype.itemsize * 8
    shift, back, first, going_on = _locate_rows_of_words(width, bits)
    rows = values.take(order_by_rows(bits), axis=1).reshape(-1, bits, BLOCK_VALUES // bits)
    np.bitwise_or.reduceat(rows << shift, first, axis=1, out=out)
    if going_on.size:
        following = going_on * width // bits + 1
        out[:, following] |= rows[:, going_on] >> back[going_on]


def _pack_rows(values: Words, width: int, out: Words) -> None:
    word = values.dtype.type
    bits = values.dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    moved = np.empty((values.shape[0], lanes), values.dtype)
    for row in range(bits):
        at, shift = divmod(row * width, bits)
        first = _FL_ORDER[row // 8] * 16 + row % 8 * 128
        source = values[:, first : first + lanes]
        if shift == 0:
            out[:, at] = source
        else:
            np.left_shift(source, word(shift), out=moved)
            np.bitwise_or(out[:, at], moved, out=out[:, at])
        if shift + width > bits:
            np.right_shift(source, word(bits - shift), out=out[:, at + 1])

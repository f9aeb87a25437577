"""Digests of rows: one number of 64 bits for the values of some columns, the same in each process and release.

    value of 64 bits or less   mixed as a word
    bytes, string              its words of eight bytes, mixed with their places, and its length; long ones by BLAKE2b
    list, map                  the digests of its items, mixed with their places, and its length
    struct, row                the digests of its fields, mixed with their places

A null has a digest of its own. Integers of each width have equal digests. The mixing is that of SplitMix64.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.extension_types import is_any_binary, is_any_string

Digests = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

_NULL: Final = np.uint64(0x6E756C6C)
_LONG: Final = 512
"""Values of more bytes are hashed one by one."""


def digest_rows(rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
    """The digest of each row, as signed integers, which all readers of tables know."""
    columns = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in rows.columns]
    return _join_fields([_digest_values(column) for column in columns], rows.num_rows).view(np.int64)


def _mix(words: Digests) -> Digests:
    """The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _at_places(digests: Digests, places: npt.NDArray[Any]) -> Digests:
    return _mix(digests + _mix((places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)))


def _join_fields(fields: list[Digests], num_rows: int) -> Digests:
    total = np.zeros(num_rows, np.uint64)
    for place, digests in enumerate(fields):
        total += _at_places(digests, np.array([place]))
    return _mix(total)


def _digest_values(values: pa.Array) -> Digests:
    if isinstance(values, pa.ExtensionArray):
        return _digest_values(values.storage)
    digests = _digest_dictionary(values) if isinstance(values, pa.DictionaryArray) else _digest_all(values)
    if values.null_count:
        digests[np.asarray(values.is_null())] = _NULL
    return digests


def _digest_dictionary(values: pa.DictionaryArray) -> Digests:
    entries = np.append(_digest_values(values.dictionary), _NULL)
    places: Offsets = values.indices.cast(pa.int64()).fill_null(len(entries) - 1).to_numpy()
    return entries[places]


def _digest_all(values: pa.Array) -> Digests:
    """The digests of values; those of nulls may be any."""
    kind, types = values.type, pa.types
    if types.is_null(kind):
        return np.full(len(values), _NULL, np.uint64)
    if types.is_struct(kind):
        return _join_fields([_digest_values(field) for field in values.flatten()], len(values))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        items = values.values.slice(values.offset * size, len(values) * size)
        if size and not types.is_nested(items.type) and _width(items.type):
            return _digest_vectors(items, size)
        return _join_items(_digest_values(items), np.arange(len(values) + 1) * size)
    if types.is_map(kind):
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        entries = [_digest_values(part.slice(start, end - start)) for part in (values.keys, values.items)]
        return _join_items(_join_fields(entries, end - start), values.offsets.to_numpy())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        values = values.cast(pa.large_list(kind.value_field))
    if types.is_list(values.type) or types.is_large_list(values.type):
        offsets = values.offsets.to_numpy()
        items = values.values.slice(offsets[0], offsets[-1] - offsets[0])
        return _join_items(_digest_values(items), offsets)
    if types.is_fixed_size_binary(kind) or types.is_decimal(kind):
        width = kind.byte_width
        start, end = values.offset * width, (values.offset + len(values)) * width
        data = np.frombuffer(values.buffers()[1], np.uint8)[start:end]
        return _digest_bytes(data, np.arange(len(values) + 1) * width)
    if is_any_string(kind) or is_any_binary(kind):
        large = values.cast(pa.large_binary()).fill_null(b"")
        offsets = np.frombuffer(large.buffers()[1], np.int64)[large.offset : large.offset + len(large) + 1]
        buffer = large.buffers()[2]
        data = np.frombuffer(b"" if buffer is None else buffer, np.uint8)[offsets[0] : offsets[-1]]
        return _digest_bytes(data, offsets - offsets[0])
    return _mix(_to_words(values))


def _width(kind: pa.DataType) -> int:
    """Bytes of a value of a primitive type; 0 for other types."""
    return kind.bit_width // 8 if pa.types.is_integer(kind) or pa.types.is_floating(kind) else 0


def _digest_vectors(items: pa.Array, size: int) -> Digests:
    """The digests of vectors by their bytes; a null item counts as zero, and once more by its place."""
    width, num_rows = _width(items.type), len(items) // size
    numbers = items.view(getattr(pa, f"uint{8 * width}")()).fill_null(0).to_numpy()
    digests = _digest_bytes(numbers.view(np.uint8), np.arange(num_rows + 1) * (size * width))
    if items.null_count:
        nulls = np.asarray(items.is_null()).reshape(num_rows, size)
        rows = np.flatnonzero(nulls.any(axis=1))
        digests[rows] += _digest_bytes(nulls[rows].reshape(-1).view(np.uint8), np.arange(len(rows) + 1) * size)
    return digests


def _to_words(values: pa.Array) -> Digests:
    kind = values.type
    if pa.types.is_floating(kind):
        width = kind.bit_width
        bits: Digests = values.view(getattr(pa, f"uint{width}")()).fill_null(0).to_numpy().astype(np.uint64)
        return bits
    if pa.types.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    signed = values.cast(pa.uint8()) if pa.types.is_boolean(kind) else values
    words: Digests = pc.fill_null(signed, 0).to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)
    return words


def _join_items(items: Digests, offsets: npt.NDArray[Any]) -> Digests:
    """One digest for the items from each offset to the next, which count from the first offset."""
    offsets = offsets.astype(np.int64) - int(offsets[0])
    lengths = np.diff(offsets)
    places = np.arange(len(items)) - np.repeat(offsets[:-1], lengths)
    sums = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(_at_places(items, places), out=sums[1:])
    return _at_places(sums[offsets[1:]] - sums[offsets[:-1]], lengths)


def _digest_bytes(data: npt.NDArray[np.uint8], offsets: Offsets) -> Digests:
    """The digests of values whose bytes lie from each offset to the next."""
    lengths = np.diff(offsets)
    digests = np.zeros(len(lengths), np.uint64)
    for row in np.flatnonzero(lengths > _LONG):
        digest = blake2b(data[offsets[row] : offsets[row + 1]].tobytes(), digest_size=8).digest()
        digests[row] = int.from_bytes(digest, "little")
    padded = np.append(data, np.zeros(8, np.uint8))
    words = np.lib.stride_tricks.as_strided(np.frombuffer(padded, "<u8", 1), (len(data) + 1,), (1,), writeable=False)
    short = np.flatnonzero((lengths > 0) & (lengths <= _LONG))
    for place in range(_LONG // 8):
        short = short[lengths[short] > 8 * place]
        if not len(short):
            break
        rest = np.minimum(lengths[short] - 8 * place, 8).astype(np.uint64)
        mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - rest * np.uint64(8))
        digests[short] += _at_places(words[offsets[short] + 8 * place] & mask, np.array([place]))
    return _at_places(digests, lengths)

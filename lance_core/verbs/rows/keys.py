"""Match rows by key, and record the keys that a commit inserts so that conflicts are detected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked
from lance_core.errors import UnsupportedError
from lance_core.schema import unwrapped
from lance_core.table.operations import MAX_EXACT_KEYS, KeyExistenceFilter

__all__ = ["MAX_EXACT_KEYS", "KeyIndex", "inserted_keys", "key_filter", "key_hashes"]

Codes = npt.NDArray[np.int64]

_ENTRIES_PER_ROW: Final = 4
_ENTRIES_PER_KEY: Final = 64
"""A table from the smallest to the largest integer key has at most this many entries for each row or each key."""


class KeyIndex:
    """An index of the keys of a table, which numbers the distinct keys. A key with a null equals no key.

    Args:
        table: The rows.
        columns: The columns that make up the key.

    Attributes:
        codes: Number of the key of each row; -1 where a part of the key is null.
        counts: How many rows have each key.
        first: The first row with each key.
    """

    def __init__(self, table: pa.Table, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._values = [_unique_values(table.column(name)) for name in self._columns]
        self._pairs: list[Codes] = []
        self._table: _LookupTable | None = None
        codes = _find_codes(table.column(self._columns[0]), self._values[0])
        for name, values in zip(self._columns[1:], self._values[1:], strict=True):
            pairs = _pair_codes(codes, _find_codes(table.column(name), values), len(values))
            self._pairs.append(np.unique(pairs[pairs >= 0]))
            codes = _search_codes(self._pairs[-1], pairs)
        self.codes = codes
        has_key = codes >= 0
        size = int(codes.max(initial=-1)) + 1
        self.counts = np.bincount(codes[has_key], minlength=size)
        self.first = np.full(size, -1, np.int64)
        rows = np.flatnonzero(has_key)[::-1]
        self.first[codes[rows]] = rows

    def values(self) -> dict[str, pa.Array] | None:
        """The distinct values of each key column, for a filter; None if a column has too many values, or has floats."""
        if any(len(values) > MAX_EXACT_KEYS or pa.types.is_floating(values.type) for values in self._values):
            return None
        return dict(zip(self._columns, self._values, strict=True))

    def rows_of(self, codes: Codes) -> tuple[Codes, Codes]:
        """For each of some keys, how many rows have it; and these rows, ascending for each key."""
        repeats = self.counts[codes]
        if (repeats == 1).all():
            return repeats, self.first[codes]
        by_key = np.argsort(self.codes, kind="stable")[np.count_nonzero(self.codes < 0) :]
        starts = np.cumsum(self.counts) - self.counts
        places = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        return repeats, by_key[np.repeat(starts[codes], repeats) + places]

    def look_up(self, table: pa.Table) -> tuple[Codes, Codes]:
        """The ascending numbers of another table's rows whose keys are in the index, and the numbers of these keys."""
        first = table.column(self._columns[0])
        lookup = self._build_lookup_table(first)
        if lookup is not None:
            numbers = lookup.look_up(first)
            rows = np.flatnonzero(numbers >= 0)
            return rows, numbers[rows].astype(np.int64)
        positions = _find_positions(first, self._values[0])
        if len(self._columns) == 1:
            rows = np.flatnonzero(pc.is_valid(positions).to_numpy())
            return rows, positions.drop_null().to_numpy().astype(np.int64)
        codes = _as_codes(positions)
        for name, values, pairs in zip(self._columns[1:], self._values[1:], self._pairs, strict=True):
            codes = _search_codes(pairs, _pair_codes(codes, _find_codes(table.column(name), values), len(values)))
        rows = np.flatnonzero(codes >= 0)
        return rows, codes[rows]

    def _build_lookup_table(self, column: pa.ChunkedArray) -> _LookupTable | None:
        """The table in which the values of a column are looked up; None if they are not integers, or far apart."""
        keys = self._values[0]
        if len(self._columns) > 1 or not pa.types.is_integer(column.type) or column.type != keys.type:
            return None
        if column.null_count or not len(keys) or len(keys) >= np.iinfo(np.int32).max:
            return None
        if self._table is None:
            if _span(keys) >= max(len(column) * _ENTRIES_PER_ROW, len(keys) * _ENTRIES_PER_KEY):
                return None
            self._table = _LookupTable(keys)
        return self._table


class _LookupTable:
    """The numbers of integer keys, in an array from the smallest to the largest key: a lookup does not hash the row.

    Args:
        keys: The distinct keys, without nulls; at least one.
    """

    def __init__(self, keys: pa.Array) -> None:
        values = keys.to_numpy()
        self._word = np.dtype(f"u{values.dtype.itemsize}")
        # Differences of unsigned words wrap around, so values below the smallest are beyond the table, too.
        self._first = np.array(values.min(), values.dtype).view(self._word)
        self._numbers = np.full(_span(keys) + 2, -1, np.int32)
        self._numbers[values.view(self._word) - self._first] = np.arange(len(values), dtype=np.int32)

    def look_up(self, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """The number of the key that equals each value of a column without nulls; -1 for values that are no key."""
        rows = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        places = rows.to_numpy().view(self._word) - self._first
        last = len(self._numbers) - 1
        if last < np.iinfo(self._word).max:
            np.minimum(places, self._word.type(last), out=places)
        wide = places.view(np.int64) if self._word.itemsize == 8 else places
        numbers: npt.NDArray[np.int32] = self._numbers.take(wide, mode="clip")
        return numbers


def _span(integers: pa.Array) -> int:
    bounds = pc.min_max(integers)
    return int(bounds["max"].as_py() - bounds["min"].as_py())


def inserted_keys(table: pa.Table, columns: Sequence[str], field_ids: Sequence[int]) -> KeyExistenceFilter:
    """The record of the keys that a commit inserts, from which concurrent writers detect equal keys.

    The hash function is specific to this library. pylance writes Bloom filters with another hash function, and assumes
    that a list of hashes may contain any key; this library assumes the same of pylance's filters. The later of two
    writers then repeats its work, which is safe. A key with a null equals no key, and is not recorded.

    Args:
        table: The inserted rows.
        columns: The columns of the key.
        field_ids: Ids of their fields.
    """
    table = table.select(list(columns)).drop_null()
    return key_filter(None if table.num_rows > MAX_EXACT_KEYS else key_hashes(table, columns).tolist(), field_ids)


@checked
def key_hashes(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Hashes of 64 bits of the keys of rows, which commits record for inserted rows.

    Args:
        table: The rows, in the dataset's types, because the hash of a value may depend on its type.
        columns: The columns of the key.

    Examples:
        >>> narrow = pa.table({"id": pa.array([1, 2], pa.int32())})
        >>> wide = pa.table({"id": pa.array([1, 2], pa.int64())})
        >>> lance.key_hashes(narrow, ["id"]).tolist() == lance.key_hashes(wide, ["id"]).tolist()
        True
    """
    rows = zip(*(_as_hashable(table.column(name)).to_pylist() for name in columns), strict=True)
    digests = b"".join(blake2b(repr(row).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


@checked
def key_filter(hashes: Iterable[int] | None, field_ids: Sequence[int]) -> KeyExistenceFilter:
    """The filter of inserted keys for `LanceOperation.Update.inserted_rows`.

    Args:
        hashes: The result of `key_hashes` for the keys; None for more than `MAX_EXACT_KEYS` keys. The filter then
            contains any key, and concurrent writers that insert rows repeat their work.
        field_ids: Ids of the fields of the key.

    Examples:
        >>> hashes = lance.key_hashes(pa.table({"id": [1, 2]}), ["id"])
        >>> type(lance.key_filter(hashes, [0])).__name__
        'KeyExistenceFilter'
    """
    if hashes is None:
        return KeyExistenceFilter.for_any_key(field_ids)
    return KeyExistenceFilter(field_ids=tuple(field_ids), key_hashes=frozenset(hashes))


def _unique_values(column: pa.ChunkedArray) -> pa.Array:
    values = _as_comparable(column)
    try:
        unique = pc.unique(values)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"a key of type {column.type} is not supported") from error
    return unique.drop_null()


def _find_positions(column: pa.ChunkedArray, values: pa.Array) -> pa.ChunkedArray:
    """The position of each value of a column in an array; null if the value is not in the array."""
    return pc.index_in(_as_comparable(column), value_set=values, skip_nulls=True)


def _as_codes(values: pa.ChunkedArray) -> Codes:
    codes: Codes = pc.fill_null(values, -1).to_numpy().astype(np.int64)
    return codes


def _find_codes(column: pa.ChunkedArray, values: pa.Array) -> Codes:
    return _as_codes(_find_positions(column, values))


def _as_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type that can be looked up."""
    column = unwrapped(column)
    kind = column.type
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())  # Arrow cannot look up float16
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _as_hashable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column in a type whose values Python can represent."""
    column = _as_comparable(column)
    is_fine = getattr(column.type, "unit", None) == "ns"  # only pandas has a type for it
    return column.cast(pa.int64()) if is_fine else column


def _pair_codes(left: Codes, right: Codes, width: int) -> Codes:
    """One code for each pair of codes; -1 if either is -1."""
    return np.where((left < 0) | (right < 0), -1, left * width + right)


def _search_codes(ascending: Codes, codes: Codes) -> Codes:
    """The positions of codes in an ascending array; -1 for missing codes."""
    if not len(ascending):
        return np.full(len(codes), -1, np.int64)
    at = np.minimum(np.searchsorted(ascending, codes), len(ascending) - 1)
    return np.where(ascending[at] == codes, at, -1).astype(np.int64)

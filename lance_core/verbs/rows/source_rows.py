"""The rows of a merge's source: many rows of a stream are stored in a temporary file.

    table in memory     as it is
    stream              in memory up to `SPOOLED_BYTES`; otherwise all rows are in a file on the local disk

                        |part|part|part| ...    each is a separate Arrow stream: a schema, dictionaries, one batch

The file is memory-mapped: rows are read when they are taken, and their pages are released afterwards. Only the position
of each part is kept in memory; its arrays are made when it is read, so that tables of a thousand columns take no memory
for each part.

The file has no name, so nothing is left of it however the process ends. It is in the folder of `tempfile`, which the
environment variable TMPDIR sets.

Match rows by key, and record the keys that a commit inserts so that conflicts are detected.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.arguments import checked
from lance_core.encoding.concatenate import combine_chunks
from lance_core.errors import UnsupportedError
from lance_core.extension_types import empty_table
from lance_core.file.write_plan import check_utf8, one_by_one
from lance_core.row_addresses import find_positions
from lance_core.schema import in_storage_types, unwrapped
from lance_core.schema.relabel import relabel
from lance_core.table.operations import MAX_EXACT_KEYS, KeyExistenceFilter

Codes = npt.NDArray[np.int64]

_ENTRIES_PER_ROW: Final = 4
_ENTRIES_PER_KEY: Final = 64
"""A table from the smallest to the largest integer key has at most this many entries for each row or each key."""
_HASHES_PER_KEY: Final = 16
"""Possible hashes for each key, so that one in 16 other values is looked for among the keys."""
_MOST_HASH_BITS: Final = 24
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio."""


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
        self._indices = [_ValueIndex(values) for values in self._values]
        self._pairs: list[Codes] = []
        codes = self._indices[0].look_up(table.column(self._columns[0]))
        for name, index in zip(self._columns[1:], self._indices[1:], strict=True):
            pairs = _pair_codes(codes, index.look_up(table.column(name)), len(index.values))
            self._pairs.append(np.unique(pairs[pairs >= 0]))
            codes = find_positions(self._pairs[-1], pairs)
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
        codes = self._indices[0].look_up(table.column(self._columns[0]))
        for name, index, pairs in zip(self._columns[1:], self._indices[1:], self._pairs, strict=True):
            codes = find_positions(pairs, _pair_codes(codes, index.look_up(table.column(name)), len(index.values)))
        rows = np.flatnonzero(codes >= 0)
        return rows, codes[rows]


class _ValueIndex:
    """The numbers of distinct values, which are looked up without hashing all of them again for each column.

    Args:
        values: The values, without nulls.
    """

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self._integers = _to_integers(values) if 0 < len(values) < np.iinfo(np.int32).max else None
        self._span = 0 if self._integers is None else int(self._integers.max()) - int(self._integers.min())
        self._lookup: _LookupTable | _SortedIntegers | None = None

    def look_up(self, column: pa.ChunkedArray) -> Codes:
        """The number of each value of a column; -1 for nulls, and for other values."""
        codes: Codes
        rows = None if self._integers is None or column.type != self.values.type else _to_integers(column)
        if self._integers is None or rows is None:
            positions = pc.index_in(_as_comparable(column), value_set=self.values, skip_nulls=True)
            codes = pc.fill_null(positions, -1).to_numpy().astype(np.int64)
            return codes
        lookup = self._lookup
        # A table from the smallest to the largest key is small beside the keys, or the rows to look up.
        is_dense = self._span < max(len(rows) * _ENTRIES_PER_ROW, len(self._integers) * _ENTRIES_PER_KEY)
        if not isinstance(lookup, _LookupTable) and is_dense:
            self._lookup = lookup = _LookupTable(self._integers)
        elif lookup is None:
            self._lookup = lookup = _SortedIntegers(self._integers)
        codes = lookup.look_up(rows)
        if column.null_count:
            codes[np.asarray(column.is_null())] = -1
        return codes


def _to_integers(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.integer[Any]] | None:
    """The values of integers, dates and times, with any value for nulls; None for those of other types."""
    kind = values.type
    is_time = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    if not is_time and not pa.types.is_integer(kind):
        return None
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64()) if is_time else values
    integers: npt.NDArray[np.integer[Any]] = values.fill_null(0).to_numpy()
    return integers


class _LookupTable:
    """The numbers of integer keys, in an array from the smallest to the largest key: a lookup does not hash the row.

    Args:
        keys: The distinct keys; at least one.
    """

    def __init__(self, keys: npt.NDArray[np.integer[Any]]) -> None:
        self._word = np.dtype(f"u{keys.dtype.itemsize}")
        # Differences of unsigned words wrap around, so values below the smallest are beyond the table, too.
        self._first = np.array(keys.min(), keys.dtype).view(self._word)
        self._numbers = np.full(int(keys.max()) - int(keys.min()) + 2, -1, np.int32)
        self._numbers[keys.view(self._word) - self._first] = np.arange(len(keys), dtype=np.int32)

    def look_up(self, rows: npt.NDArray[np.integer[Any]]) -> Codes:
        """The number of the key that equals each value; -1 for values that are no key."""
        places = rows.view(self._word) - self._first
        last = len(self._numbers) - 1
        if last < np.iinfo(self._word).max:
            np.minimum(places, self._word.type(last), out=places)
        wide = places.view(np.int64) if self._word.itemsize == 8 else places
        numbers: Codes = self._numbers.take(wide, mode="clip").astype(np.int64)
        return numbers


class _SortedIntegers:
    """The numbers of integer keys in ascending order; hashes rule out most rows that have no key.

    Args:
        keys: The distinct keys; at least one.
    """

    def __init__(self, keys: npt.NDArray[np.integer[Any]]) -> None:
        self._order = np.argsort(keys)
        self._keys = keys[self._order]
        bits = min(max((len(keys) * _HASHES_PER_KEY).bit_length(), 10), _MOST_HASH_BITS)
        self._shift = np.uint64(64 - bits)
        self._has_hash = np.zeros(1 << bits, np.bool_)
        self._has_hash[self._hash(keys)] = True

    def look_up(self, rows: npt.NDArray[np.integer[Any]]) -> Codes:
        """The number of the key that equals each value; -1 for values that are no key."""
        possible = np.flatnonzero(self._has_hash.take(self._hash(rows), mode="clip"))
        positions = find_positions(self._keys, rows[possible])
        is_key = positions >= 0
        codes = np.full(len(rows), -1, np.int64)
        codes[possible[is_key]] = self._order[positions[is_key]]
        return codes

    def _hash(self, values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        # Fibonacci hashing: the upper bits of a product (Knuth, The Art of Computer Programming, section 6.4).
        hashes = values.astype(np.int64, copy=False).view(np.uint64) * _GOLDEN
        hashes >>= self._shift
        return hashes.view(np.int64)


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


Rows = npt.NDArray[np.int64]

SPOOLED_BYTES: Final = 16 * 1024 * 1024
"""A stream of more bytes is written to a file."""
STEP_BYTES: Final = 8 * 1024 * 1024
"""About how many bytes of rows in a file are taken at a time."""
LARGE_STEP_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes of rows in memory are taken at a time."""
_VIEWS: Final = (pa.string_view(), pa.binary_view())

_MOST_BATCHES: Final = 64
_LEAST_BYTES: Final = 1024 * 1024
"""More than `_MOST_BATCHES` batches of fewer bytes than this are combined, because rows are taken batch by batch."""
_KEPT_ARRAYS: Final = 16_384
"""The most arrays of a file's parts that are cached."""


class _Parts(Sequence[pa.RecordBatch]):
    """Batches in a memory-mapped file, each of which is made when it is accessed.

    Args:
        schema: Their columns.
        mapped: The file.
        ends: Where each part ends.
        num_rows: The number of rows of each part.
        names: The columns in the file, in its order; None for those of the schema.
    """

    def __init__(
        self,
        schema: pa.Schema,
        mapped: mmap.mmap,
        ends: Sequence[int],
        num_rows: Sequence[int],
        names: Sequence[str] | None = None,
    ) -> None:
        self.schema = schema
        self.num_rows = num_rows
        self.nbytes = ends[-1]
        self._mapped = mapped
        self._data = pa.py_buffer(mapped)
        self._ends = ends
        self._names = schema.names if names is None else names
        self._places = {name: place for place, name in enumerate(self._names)}
        self._kept: OrderedDict[int, pa.RecordBatch] = OrderedDict()
        self._num_kept = max(1, _KEPT_ARRAYS // max(len(schema), 1))

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.num_rows)

    def __getitem__(self, index: Any) -> Any:
        """One part, whose values are read from the file when they are used."""
        if index in self._kept:
            self._kept.move_to_end(index)
            return self._kept[index]
        self._kept[index] = self._read(index, self.schema)
        if len(self._kept) > self._num_kept:
            self._kept.popitem(last=False)
        return self._kept[index]

    def select(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all parts; the arrays are not cached."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches([self._read(index, schema) for index in range(len(self))])

    def relabelled(self, schema: pa.Schema) -> _Parts:
        """These parts, with columns of another order, nullability or metadata."""
        return _Parts(schema, self._mapped, self._ends, self.num_rows, self._names)

    def release(self) -> None:
        """Release the pages of the file from memory; they are read again when they are used."""
        advise: Any = getattr(self._mapped, "madvise", None)  # Windows has neither it nor its options
        if advise is not None:
            advise(mmap.MADV_DONTNEED)

    def _read(self, index: int, schema: pa.Schema) -> pa.RecordBatch:
        start, end = self._ends[index - 1] if index else 0, self._ends[index]
        options = pa.ipc.IpcReadOptions(included_fields=[self._places[name] for name in schema.names])
        batch = pa.ipc.open_stream(self._data.slice(start, end - start), options=options).read_next_batch()
        columns = [relabel(batch.column(field.name), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class SourceRows:
    """The rows of a source, which can be taken by number, part by part.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: pa.Table | _Parts) -> None:
        self._batches: Sequence[pa.RecordBatch]
        counts: Sequence[int]
        if isinstance(rows, pa.Table):
            batches = rows.to_batches()
            if len(batches) > _MOST_BATCHES and _bytes_of(rows) < len(batches) * _LEAST_BYTES:
                rows = combine_chunks(rows, keeps_chunks=True)
                batches = rows.to_batches()
            self._batches, counts, size = batches, [batch.num_rows for batch in batches], LARGE_STEP_BYTES
        else:
            self._batches, counts, size = rows, rows.num_rows, STEP_BYTES
        self._rows = rows
        self._starts = np.cumsum([0, *counts])
        self._step = max(1, size * int(self._starts[-1]) // max(_bytes_of(rows), 1))

    @classmethod
    def of(cls, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table], *, is_stream: bool) -> SourceRows:
        """The rows of a source.

        Args:
            schema: Its columns.
            batches: Its rows.
            is_stream: Whether the batches are produced one by one; False if all of them are already in memory.

        Raises:
            SchemaError: A string is not UTF-8; the message names column and row.
        """
        waiting: list[pa.Table] = []
        num_bytes, tables = 0, _read_tables(batches)
        for table in tables:
            waiting.append(table)
            num_bytes += _bytes_of(table)
            if is_stream and num_bytes > SPOOLED_BYTES:
                del table
                return cls(_map_to_disk(chain(_drain(waiting), tables)))
        return cls(pa.concat_tables(waiting) if waiting else empty_table(schema))

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._rows.schema

    def select(self, columns: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        return self._rows.select(list(columns))

    def converted(self, schema: pa.Schema, convert: Callable[[pa.Table], pa.Table]) -> SourceRows:
        """These rows in other types.

        Args:
            schema: The schema of the converted rows.
            convert: Converts a table of rows to this schema.
        """
        if isinstance(self._rows, pa.Table):
            return SourceRows(convert(self._rows))
        if all(field.type == self.schema.field(field.name).type for field in schema):
            return SourceRows(self._rows.relabelled(schema))
        batches = _map_to_disk(convert(pa.Table.from_batches([batch])) for batch in self._batches)
        self._rows.release()
        return SourceRows(batches)

    def steps(self, rows: Rows) -> Iterator[Rows]:
        """Yield the row numbers in parts whose rows fit into memory; after each part its memory is released."""
        for start in range(0, len(rows), self._step):
            yield rows[start : start + self._step]
            self.release()

    def take(self, rows: Rows) -> pa.Table:
        """The rows with these numbers, in this order: slices of consecutive rows, copies of others."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        parts, places = [], np.flatnonzero(np.diff(owners[order], prepend=-1))
        for first, last in pairwise([*places, len(rows)]):
            positions = order[first:last]
            number = int(owners[positions[0]])
            batch, batch_rows = self._batches[number], rows[positions] - self._starts[number]
            if bool((np.diff(batch_rows) == 1).all()):
                parts.append(batch.slice(int(batch_rows[0]), len(batch_rows)))
            else:
                parts.append(batch.take(pa.array(batch_rows)))
                self.release()
        table = pa.Table.from_batches(parts, schema=self.schema)
        if bool((np.diff(order) == 1).all()):
            return table
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return combine_chunks(table).take(pa.array(back))

    def release(self) -> None:
        """Release the memory of rows that were read from the file."""
        if isinstance(self._rows, _Parts):
            self._rows.release()


def _read_tables(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    row = 0
    for rows in one_by_one(batches):
        check_utf8(rows, row)  # not only where they are written: the message has the row of the source
        row += rows.num_rows
        yield pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        del rows


def _bytes_of(rows: pa.Table | _Parts) -> int:
    """The bytes of rows; with view columns the bytes of whole buffers, as pyarrow 24 crashes at `nbytes` of views."""
    if isinstance(rows, pa.Table) and any(field.type in _VIEWS for field in rows.schema):
        return int(rows.get_total_buffer_size())
    return int(rows.nbytes)


def _drain(tables: list[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables, and remove each from the list, so that its memory can be freed."""
    tables.reverse()
    while tables:
        yield tables.pop()


def _of_size(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables; small tables are combined to about `STEP_BYTES`."""
    waiting: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        waiting.append(table)
        num_bytes += _bytes_of(table)
        del table  # frees its memory before the next table is made
        if num_bytes >= STEP_BYTES:
            yield pa.concat_tables(_drain(waiting))
            num_bytes = 0
    if waiting:
        yield pa.concat_tables(_drain(waiting))


def _map_to_disk(tables: Iterator[pa.Table]) -> _Parts:
    """Write at least one table to an unnamed temporary file, and map it into memory."""
    schema: pa.Schema | None = None
    ends: list[int] = []
    num_rows: list[int] = []
    pool = pa.default_memory_pool()  # it would keep memory that is not used any more, besides what this needs
    pool.release_unused()
    with tempfile.TemporaryFile(prefix="lance-merge-") as file:
        for table in _of_size(tables):
            schema = schema or table.schema
            size = max(1, STEP_BYTES * table.num_rows // max(_bytes_of(table), 1))
            # Extension types that are not registered would be lost.
            for batch in combine_chunks(in_storage_types(table), keeps_chunks=True).to_batches(max_chunksize=size):
                with pa.ipc.new_stream(file, batch.schema) as writer:
                    writer.write_batch(batch)
                ends.append(file.tell())
                num_rows.append(batch.num_rows)
            del table, batch
        assert schema is not None, "there is a table"
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pool.release_unused()
    return _Parts(schema, mapped, ends, num_rows)

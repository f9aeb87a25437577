"""BLOOMFILTER: a Bloom filter of the values of each run of rows.

bloomfilter.lance, one row per zone, in no particular order:

    fragment_id, zone_start, zone_length    uint64, see `zones`
    has_null            bool
    bloom_filter_data   binary, a split block Bloom filter: blocks of eight 32-bit words, little-endian

The schema's metadata has `bloomfilter_item` and `bloomfilter_probability` as decimals, and `null_bitmap` with the
number of a global buffer where the file has one; it is not used here.

A value sets eight bits of one block. The upper half of its hash (see `xxhash`) selects the block, block =
(upper half * blocks) >> 32, and the lower half the bit of each word, bit = (lower half * salt of the word) >> 27.
Zeros are hashed as they are: -0.0 and 0.0 have different hashes, though they are equal.

Source: https://parquet.apache.org/docs/file-format/bloomfilter/, and for the size of a filter equation 3 of Putze,
Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.errors import CorruptFileError
from lance_core.index.kinds.xxhash import hash_values
from lance_core.index.kinds.zones import ZONE_COLUMNS, Zones, divide
from lance_core.index.query.conditions import Compare, IsIn, IsNull, Test
from lance_core.index.query.rows import Bools, Candidates, IndexedRows, Ints, View
from lance_core.index.query.values import combine_to_array, is_exact

FILE: Final = "bloomfilter.lance"
DEFAULT_ITEMS: Final = 8192
DEFAULT_PROBABILITY: Final = 0.00057
_ITEMS_KEY: Final = "bloomfilter_item"
_PROBABILITY_KEY: Final = "bloomfilter_probability"
_COLUMNS: Final = (*ZONE_COLUMNS, "has_null", "bloom_filter_data")

_BLOCK_BYTES: Final = 32
_WORDS: Final = 8
_LARGEST: Final = 27
_SALTS: Final = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)
_HALF: Final = np.uint64(32)
_TERMS: Final = 750
_MANY_CHECKS: Final = 20_000_000

_ACCEPTED: Final = (
    pa.types.is_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
)


def accepts(kind: pa.DataType) -> bool:
    """Whether values of a type can be hashed like pylance hashes them."""
    return any(test(kind) for test in _ACCEPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomFilter(Zones):
    """The filters of a segment.

    Attributes:
        kind: Type of the values, which the file does not record.
        nulls: Whether each zone has nulls.
        filters: The bytes of each filter.
        items: Number of values for which a filter is sized.
        probability: Probability of a false match.
    """

    kind: pa.DataType
    nulls: Bools
    filters: pa.Array
    items: int = DEFAULT_ITEMS
    probability: float = DEFAULT_PROBABILITY

    @property
    def nbytes(self) -> int:
        """Approximate memory size."""
        return int(self.filters.nbytes + 25 * len(self))

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, str], kind: pa.DataType) -> BloomFilter:
        """Read the rows of a file.

        Raises:
            CorruptFileError: The rows are not Bloom filters.
        """
        missing = sorted(set(_COLUMNS) - set(table.schema.names))
        if missing:
            raise CorruptFileError(f"a BLOOMFILTER without {missing}")
        table = table.combine_chunks()
        filters = combine_to_array(table.column("bloom_filter_data"))
        sizes = pc.fill_null(pc.binary_length(filters), 0).to_numpy(zero_copy_only=False)
        if ((sizes == 0) | (sizes % _BLOCK_BYTES != 0)).any():
            raise CorruptFileError(f"a Bloom filter that is not made of blocks of {_BLOCK_BYTES} bytes")
        try:
            items = int(metadata.get(_ITEMS_KEY, DEFAULT_ITEMS))
            probability = float(metadata.get(_PROBABILITY_KEY, DEFAULT_PROBABILITY))
        except ValueError as error:
            raise CorruptFileError(f"a BLOOMFILTER with parameters that are not numbers: {error}") from error
        places = [table.column(name).to_numpy().astype(np.int64) for name in ZONE_COLUMNS]
        return cls(
            fragment_ids=places[0],
            starts=places[1],
            lengths=places[2],
            kind=kind,
            nulls=np.asarray(table.column("has_null").to_numpy(zero_copy_only=False), np.bool_),
            filters=filters,
            items=items,
            probability=probability,
        )

    def to_table(self) -> pa.Table:
        """The rows of the file."""
        places = [pa.array(values, pa.uint64()) for values in (self.fragment_ids, self.starts, self.lengths)]
        columns = [*places, pa.array(self.nulls), self.filters]
        schema = pa.schema(
            [pa.field(name, column.type, nullable=False) for name, column in zip(_COLUMNS, columns, strict=True)],
            metadata={_ITEMS_KEY: str(self.items), _PROBABILITY_KEY: str(self.probability)},
        )
        return pa.Table.from_arrays(columns, schema=schema)

    def fits(self, kind: pa.DataType) -> bool:
        """Whether the filters are of values of that type."""
        return self.kind == kind and accepts(kind)

    def statistics(self) -> dict[str, object]:
        """Counters, under pylance's names."""
        numbers = {"num_blocks": len(self), "number_of_items": self.items, "probability": self.probability}
        return {"type": "BloomFilter", **numbers}

    def parameters(self) -> dict[str, int | float]:
        """Its build parameters."""
        return {"number_of_items": self.items, "probability": self.probability}

    def answer(self, test: Test, truth: bool, view: View, covered: Bools) -> Candidates | None:
        """The rows for which a test can be true; a filter has no answer about rows for which it is false."""
        if not truth:
            return None
        if isinstance(test, IsNull):
            return self.spread(self.nulls, view, covered)
        values = _read_compared_values(test, self.kind)
        if values is None or len(values) * len(self) > _MANY_CHECKS:
            return None  # reading the rows themselves is cheaper
        return self.spread(self._can_hold(hash_values(values)), view, covered)

    def _can_hold(self, hashes: Any) -> Bools:
        """Whether each zone can hold one of some values."""
        can_hold = np.zeros(len(self), np.bool_)
        if not len(hashes):
            return can_hold
        sizes = pc.binary_length(self.filters).to_numpy(zero_copy_only=False)
        for size in np.unique(sizes).tolist():
            zones = np.flatnonzero(sizes == size)
            same_size = self.filters if len(zones) == len(self) else self.filters.take(pa.array(zones))
            start = np.frombuffer(same_size.buffers()[1], np.int32)[same_size.offset]
            data = np.frombuffer(same_size.buffers()[2], np.uint8)[start : start + size * len(zones)].reshape(-1, size)
            bits = _choose_bits(hashes, size // _BLOCK_BYTES)
            for value_bits in bits:
                is_set = data[:, value_bits >> 3] & (1 << (value_bits & 7)).astype(np.uint8)
                can_hold[zones] |= (is_set != 0).all(axis=1)
        return can_hold


class BloomBuilder:
    """Builds a BLOOMFILTER segment from rows.

    Args:
        kind: Type of the values.
        items: Rows of a zone, and number of values for which its filter is sized.
        probability: Highest probability of a false match.
    """

    def __init__(self, kind: pa.DataType, items: int, probability: float) -> None:
        self._kind = kind
        self._items = items
        self._probability = probability
        self._size = filter_size(items, probability)
        self._places: list[tuple[int, int, int]] = []
        self._nulls: list[bool] = []
        self._filters: list[bytes] = []

    def add(self, fragment_id: int, num_rows: int, parts: Iterable[IndexedRows]) -> None:
        """Add the filters of a fragment: its id, its number of physical rows, and its live rows."""
        for start, length, zone_values in divide(parts, num_rows, self._items):
            self._places.append((fragment_id, start, length))
            self._nulls.append(any(values.null_count for values in zone_values))
            is_set = np.zeros(self._size * 8, np.bool_)
            for values in zone_values:
                is_set[_choose_bits(hash_values(values.drop_null()), self._size // _BLOCK_BYTES)] = True
            self._filters.append(np.packbits(is_set, bitorder="little").tobytes())

    def finish(self) -> BloomFilter:
        """The filters."""
        places = np.array(self._places, np.int64).reshape(-1, 3).T
        return BloomFilter(
            fragment_ids=places[0],
            starts=places[1],
            lengths=places[2],
            kind=self._kind,
            nulls=np.array(self._nulls, np.bool_),
            filters=pa.array(self._filters, pa.binary()),
            items=self._items,
            probability=self._probability,
        )


def filter_size(items: int, probability: float) -> int:
    """Bytes of a filter: the least power of two with at most this probability of a false match, at least one block."""
    smallest = _BLOCK_BYTES.bit_length() - 1
    power = next((n for n in range(smallest, _LARGEST) if _false_positive_rate(items, n) <= probability), _LARGEST)
    return int(2**power)


def _false_positive_rate(items: int, power: int) -> float:
    """The probability of a false match in a filter of 2 ** power bytes: Poisson over the values of a block."""
    bits = 8 << power
    if items / bits > 2:
        return 1.0  # the sum converges slowly here
    load = 8 * _BLOCK_BYTES * items / bits
    total = 0.0
    for i in reversed(range(_TERMS)):
        in_block = i * math.log(load) - load - math.lgamma(i + 1)
        missed = 1 - (1 - 1 / 32) ** i
        total += math.exp(in_block + _WORDS * math.log(missed)) if missed else 0.0
    return min(total, 1.0)


def _choose_bits(hashes: Any, blocks: int) -> Ints:
    """The eight bits of each value."""
    block = (((hashes >> _HALF) * np.uint64(blocks)) >> _HALF).astype(np.int64)
    lower = hashes.astype(np.uint32)
    inner = ((lower[:, np.newaxis] * _SALTS) >> np.uint32(27)).astype(np.int64)
    bits: Ints = block[:, np.newaxis] * (8 * _BLOCK_BYTES) + np.arange(_WORDS) * 32 + inner
    return bits


def _read_compared_values(test: Test, kind: pa.DataType) -> pa.Array | None:
    """The values that a test compares with, in the stored type; None for a test that a filter cannot answer."""
    if isinstance(test, Compare) and test.operator == "equal" and test.value.is_valid:
        values = pa.array([test.value], test.value.type)
    elif isinstance(test, IsIn):
        values = test.values.drop_null()
    else:
        return None
    if values.type != kind:
        try:
            stored = values.cast(kind) if is_exact(kind, values.type) else None
        except pa.ArrowInvalid:
            return None
        if stored is None or not stored.cast(values.type, safe=False).equals(values):
            return None  # Arrow may compare a value as equal to stored values although the cast changes it
        values = stored
    if not pa.types.is_floating(kind):
        return values
    if pc.any(pc.is_nan(values)).as_py():
        return None
    zeros = pc.any(pc.equal(values, pa.scalar(0.0, kind))).as_py()
    return pa.concat_arrays([values, pa.array([0.0, -0.0], kind)]) if zeros else values

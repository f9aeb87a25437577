"""Reads and writes sets of rows as indices store them: sets of row addresses or of stable row ids.

    u32 LE      number of entries, then for each in ascending order:
    u32 LE          fragment: the upper half of the address or row id
    u32 LE          size of the bitmap; 0 stands for all rows of the fragment
    bytes           a 32-bit portable roaring bitmap of the lower halves

A set with size 0, for all rows of a fragment, is rejected here, and is never written.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import CorruptFileError
from lance_core.index.query.rows import ALL, NONE, SOME, Bools, Candidates, IndexedRows, Ints, U64s, View
from lance_core.row_addresses import (
    bitmap_of,
    bitmaps_by_fragment,
    find_positions,
    fragment_ids_of,
    make_row_addresses,
    offsets_of,
)

RowSet: TypeAlias = Mapping[int, BitMap]
"""Lower halves by upper half."""

_COUNT: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<II")


def decode(data: bytes) -> dict[int, BitMap]:
    """Read a set.

    Raises:
        CorruptFileError: The bytes are not a set, or stand for all rows of a fragment.
    """
    bitmaps: dict[int, BitMap] = {}
    try:
        (count,) = _COUNT.unpack_from(data)
        position = _COUNT.size
        for _ in range(count):
            upper, size = _ENTRY.unpack_from(data, position)
            position += _ENTRY.size
            if not size or position + size > len(data):
                raise CorruptFileError("a set of rows whose bitmap is missing or ends early")
            bitmaps[upper] = BitMap.deserialize(data[position : position + size])
            position += size
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(f"a set of rows cannot be read: {error}") from error
    except struct.error as error:
        raise CorruptFileError(f"a set of rows ends early: {error}") from error
    return bitmaps


def encode(rows: RowSet) -> bytes:
    """Write a set, with run-length encoded runs of rows."""
    parts = []
    for upper, lower in sorted(rows.items()):
        if lower:
            lower.run_optimize()
            data = lower.serialize()
            parts += [_ENTRY.pack(upper, len(data)), data]
    return b"".join([_COUNT.pack(len(parts) // 2), *parts])


def build_row_set(numbers: U64s) -> dict[int, BitMap]:
    """The set of some addresses or row ids."""
    return bitmaps_by_fragment(numbers)


def build_row_sets(numbers: U64s, owners: Ints, count: int) -> list[dict[int, BitMap]]:
    """The sets of addresses or row ids by their owners, which are numbers from 0 to `count`."""
    order = np.lexsort((numbers, owners))
    numbers, owners = numbers[order], owners[order]
    uppers, lowers = fragment_ids_of(numbers), numbers.astype(np.uint32).tobytes()
    is_first = np.ones(len(numbers), bool)
    is_first[1:] = (owners[1:] != owners[:-1]) | (uppers[1:] != uppers[:-1])
    starts = np.flatnonzero(is_first)
    bounds = [*(starts * 4).tolist(), len(lowers)]
    sets: list[dict[int, BitMap]] = [{} for _ in range(count)]
    groups = zip(owners[starts].tolist(), uppers[starts].tolist(), pairwise(bounds), strict=True)
    for owner, upper, (start, stop) in groups:
        sets[owner][upper] = BitMap(array("I", lowers[start:stop]))
    return sets


def unite(sets: list[RowSet]) -> dict[int, BitMap]:
    """The union of sets."""
    if len(sets) == 1:
        return dict(sets[0])
    gathered: dict[int, list[BitMap]] = {}
    for rows in sets:
        for upper, lower in rows.items():
            gathered.setdefault(upper, []).append(lower)
    return {upper: BitMap.union(*lowers) if len(lowers) > 1 else lowers[0] for upper, lowers in gathered.items()}


def locate_rows(rows: RowSet, view: View, covered: Bools, *, by_id: bool) -> Candidates:
    """The rows of a set as candidates: the listed rows of covered fragments, and all rows of other fragments.

    Args:
        rows: The set.
        view: The fragments.
        covered: The fragments for which the set is complete.
        by_id: Whether the set has stable row ids, which are looked up in the covered fragments only.

    Raises:
        CorruptFileError: A row is beyond the end of its fragment, or never existed.
    """
    state = np.where(covered, NONE, ALL).astype(np.uint8)
    lower_by_place = _locate_ids(rows, view, covered) if by_id else _locate_addresses(rows, view, covered)
    rows_by_place: dict[int, BitMap] = {}
    for place, lower in lower_by_place.items():
        if lower:
            physical = int(view.physical_rows[place])
            if physical and lower.max() >= physical:
                raise CorruptFileError(
                    f"it has row offset {lower.max()} of fragment {view.ids[place]}, which has {physical} rows"
                )
            state[place] = SOME
            rows_by_place[place] = lower
    return Candidates(state, rows_by_place)


def _locate_addresses(rows: RowSet, view: View, covered: Bools) -> dict[int, BitMap]:
    uppers = np.fromiter(rows, np.int64, len(rows))
    view.check_fragments(uppers)
    places = view.places(uppers).tolist()
    return {
        place: rows[upper]
        for upper, place in zip(uppers.tolist(), places, strict=True)
        if place >= 0 and covered[place]
    }


def _locate_ids(rows: RowSet, view: View, covered: Bools) -> dict[int, BitMap]:
    parts = [make_row_addresses(upper, offsets_of(lower)) for upper, lower in sorted(rows.items()) if lower]
    listed_ids = np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    view.check_row_ids(listed_ids)
    rows_by_place: dict[int, BitMap] = {}
    if not len(listed_ids):
        return rows_by_place
    for place in np.flatnonzero(covered).tolist():
        ids = view.ids_of(place)
        first, last = np.searchsorted(listed_ids, (ids.min(), ids.max() + np.uint64(1))) if len(ids) else (0, 0)
        if first == last:
            continue
        rows_by_place[place] = bitmap_of(np.flatnonzero(find_positions(listed_ids[first:last], ids) >= 0))
    return rows_by_place


class RowCollector:
    """Collects the values of rows and their numbers: the base of builders that need all rows at once.

    Args:
        kind: Type of the values.
        by_id: Whether the numbers are stable row ids rather than addresses.
    """

    def __init__(self, kind: pa.DataType, *, by_id: bool = False) -> None:
        self._kind = kind
        self._by_id = by_id
        self._values: list[pa.Array] = []
        self._numbers: list[U64s] = []

    def add(self, _fragment_id: int, _num_rows: int, parts: Iterable[IndexedRows]) -> None:
        """Add the live rows of a fragment."""
        for part in parts:
            self._values.append(part.values)
            self._numbers.append(part.ids if self._by_id else part.addresses)

    def collect(self) -> tuple[pa.Array, U64s]:
        """The values of all rows, and their numbers; they are released here."""
        values = pa.concat_arrays(self._values) if self._values else pa.nulls(0, self._kind)
        numbers = np.concatenate(self._numbers) if self._numbers else np.zeros(0, np.uint64)
        self._values, self._numbers = [], []
        return values, numbers

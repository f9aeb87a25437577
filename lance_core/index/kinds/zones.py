"""Zones: runs of rows of fragments that a ZONEMAP or BLOOMFILTER describes.

A zone is part of one fragment, and is given by its first offset and the number of offsets that it spans, deleted rows
included. Zones are in no particular order. Zones of one fragment may overlap, because zones of replaced files are
kept. A row can match if one of its zones can, or if it has no zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import CorruptFileError
from lance_core.index.query.rows import ALL, NONE, SOME, Bools, Candidates, IndexedRows, Ints, View
from lance_core.row_addresses import row_offsets

ZONE_COLUMNS: Final = ("fragment_id", "zone_start", "zone_length")
"""Columns of a file, each uint64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """The positions of zones.

    Attributes:
        fragment_ids: The fragment of each zone.
        starts: The first offset of each zone.
        lengths: The number of offsets of each zone.
    """

    fragment_ids: Ints
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.fragment_ids)

    def fragments(self) -> BitMap:
        """The fragments that have zones."""
        return BitMap(np.unique(self.fragment_ids).tolist())

    @classmethod
    def concat(cls, parts: Sequence[Self], **parameters: float) -> Self:
        """The zones of several segments, at least one, of one type.

        Args:
            parts: The segments.
            parameters: The build parameters of the result.
        """
        columns = [part._columns() for part in parts]  # noqa: SLF001 - same class
        joined: dict[str, Any] = {
            name: np.concatenate(pieces) if isinstance(pieces[0], np.ndarray) else pa.concat_arrays(pieces)
            for name in columns[0]
            if (pieces := [column[name] for column in columns])
        }
        return replace(parts[0], **joined | parameters)

    def take(self, zones: Ints) -> Self:
        """Some of the zones, by their numbers."""
        chosen = {
            name: column[zones] if isinstance(column, np.ndarray) else column.take(pa.array(zones))
            for name, column in self._columns().items()
        }
        return replace(self, **chosen)

    def of_fragments(self, view: View, chosen: Bools) -> Self:
        """The zones of some fragments."""
        return self.take(np.flatnonzero(_is_chosen(view.places(self.fragment_ids), chosen)))

    def _columns(self) -> dict[str, Any]:
        """The arrays of the record, which have one value for each zone."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray | pa.Array)}

    def layout(self, view: View, covered: Bools) -> tuple[Ints, Ints, Bools]:
        """The zones of some fragments, in order.

        Args:
            view: The fragments.
            covered: The fragments whose zones are wanted.

        Returns:
            In order of fragments and rows, the position of each zone's fragment in the view, and the number of the
            zone; for each fragment, whether its zones span each of its rows exactly once.

        Raises:
            CorruptFileError: A zone ends after its fragment, or the fragment never existed.
        """
        view.check_fragments(self.fragment_ids)
        places = view.places(self.fragment_ids)
        zones = np.flatnonzero(_is_chosen(places, covered))
        order = zones[np.lexsort((self.starts[zones], places[zones]))]
        where, starts = places[order], self.starts[order]
        ends, physical = starts + self.lengths[order], view.physical_rows
        beyond = (ends > physical[where]) & (physical[where] > 0)
        if beyond.any():
            place = where[np.argmax(beyond)]
            raise CorruptFileError(f"a zone ends after the {physical[place]} rows of fragment {view.ids[place]}")
        count = len(view.ids)
        spanned = np.bincount(where, weights=ends - starts, minlength=count).astype(np.int64)
        overlaps = np.zeros(count, np.bool_)
        overlaps[where[1:][(where[1:] == where[:-1]) & (starts[1:] < ends[:-1])]] = True
        return where, order, ~overlaps & (spanned == physical) & (physical > 0)

    def spread(self, possible: Bools, view: View, covered: Bools) -> Candidates:
        """The rows in a zone that can match, or in no zone.

        Args:
            possible: For each zone, whether it can match.
            view: The fragments.
            covered: The fragments that the zones are trusted for; all rows of others can match.

        Raises:
            CorruptFileError: A zone ends after its fragment.
        """
        where, order, is_whole = self.layout(view, covered)
        can, starts = possible[order], self.starts[order]
        ends, physical = starts + self.lengths[order], view.physical_rows
        count = len(view.ids)
        num_zones = np.bincount(where, minlength=count)
        num_possible = np.bincount(where, weights=can, minlength=count).astype(np.int64)
        state = np.full(count, ALL, np.uint8)
        state[covered & is_whole & (num_possible == 0)] = NONE
        mixed = covered & (num_zones > 0) & (num_possible < num_zones) & (state == ALL) & (physical > 0)
        rows: dict[int, BitMap] = {}
        for place in np.flatnonzero(mixed).tolist():
            part = slice(*np.searchsorted(where, (place, place + 1)))
            left = _find_remaining_rows(int(physical[place]), starts[part], ends[part], can[part])
            state[place] = SOME if left else NONE
            if left:
                rows[place] = left
        return Candidates(state, rows)


def divide(parts: Iterable[IndexedRows], num_rows: int, size: int) -> Iterator[tuple[int, int, list[pa.Array]]]:
    """Divide the rows of a fragment into zones.

    Together the zones span all offsets, including those of deleted rows, so that they cover the whole fragment.

    Args:
        parts: Its live rows.
        num_rows: Its physical rows.
        size: Offsets of a zone.

    Yields:
        The first offset of each zone with live rows, the number of offsets, and the values of its rows.
    """
    zone, collected = 0, list[pa.Array]()
    begin = 0  # first offset of the current zone; the first zone begins with the fragment
    for part in parts:
        values, offsets, position = part.values, row_offsets(part.addresses), 0
        while position < len(values):
            row_zone = int(offsets[position]) // size
            if row_zone > zone and collected:
                yield begin, row_zone * size - begin, collected
                begin, collected = row_zone * size, []
            zone = max(zone, row_zone)
            stop = int(np.searchsorted(offsets, (zone + 1) * size))
            collected.append(values.slice(position, stop - position))
            position = stop
    if collected:
        yield begin, num_rows - begin, collected


def _is_chosen(places: Ints, chosen: Bools) -> Bools:
    """For each position whether its fragment is chosen; -1 stands for no fragment."""
    is_chosen = places >= 0
    is_chosen[is_chosen] = chosen[places[is_chosen]]
    return is_chosen


def _find_remaining_rows(num_rows: int, starts: Ints, ends: Ints, possible: Bools) -> BitMap:
    """The rows of a fragment in a zone that can match, or in no zone."""
    left = BitMap(range(num_rows))
    for start, end in zip(starts[~possible].tolist(), ends[~possible].tolist(), strict=True):
        left.remove_range(start, end)
    for start, end in zip(starts[possible].tolist(), ends[possible].tolist(), strict=True):
        left.add_range(start, end)
    return left

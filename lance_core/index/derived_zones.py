"""Derives the zones of compacted fragments from the zones of the fragments that they replaced, without reading rows.

A compaction keeps the order of the rows and drops deleted ones, so that each zone of an old fragment becomes a run of
rows of the new ones. The bounds of a zone also bound a part of it, but the number of nulls in a part is unknown: where
a zone with nulls is divided, the rows have to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.index.kinds.zonemap import ZoneMap


@dataclass(frozen=True, slots=True)
class Replaced:
    """Fragments that a compaction replaced.

    Attributes:
        old: The id, the physical rows and the deleted rows of each replaced fragment, in order.
        new: The id and the rows of each replacement, in order.
    """

    old: Sequence[tuple[int, int, BitMap]]
    new: Sequence[tuple[int, int]]


def derive_zones(zones: ZoneMap, replaced: Replaced) -> ZoneMap | None:
    """The zones of the new fragments; None if they cannot be derived from the zones of the old ones.

    Args:
        zones: The zones of the old fragments, and of others.
        replaced: The old and the new fragments.
    """
    parts = _find_live_zones(zones, replaced)
    if parts is None:
        return None
    sums = np.cumsum([0, *(count for _, count in parts)])
    ends = np.cumsum([0, *(count for _, count in replaced.new)])
    if sums[-1] != ends[-1]:
        return None
    moves: list[tuple[int, int, int, int]] = []  # zone, fragment, first row, rows
    for place, (fragment_id, _) in enumerate(replaced.new):
        begin, end = int(ends[place]), int(ends[place + 1])
        first = int(np.searchsorted(sums, begin, "right")) - 1
        while first < len(parts) and sums[first] < end:
            start, stop = max(begin, int(sums[first])), min(end, int(sums[first + 1]))
            if stop - start < parts[first][1] and _has_some_nulls(zones, parts[first][0]):
                return None
            moves.append((parts[first][0], fragment_id, start - begin, stop - start))
            first += 1
    return _join_moves(zones, moves)


def _find_live_zones(zones: ZoneMap, replaced: Replaced) -> list[tuple[int, int]] | None:
    """The zones of the old fragments in order, and their live rows; None unless they span each row exactly once."""
    result = []
    for fragment_id, num_rows, deleted in replaced.old:
        old_zones = np.flatnonzero(zones.fragment_ids == fragment_id)
        position = 0
        for zone in old_zones[np.argsort(zones.starts[old_zones], kind="stable")].tolist():
            start, length = int(zones.starts[zone]), int(zones.lengths[zone])
            if start != position:
                return None
            position = start + length
            live = length - deleted.range_cardinality(start, position)
            if live < length and _has_some_nulls(zones, zone):
                return None
            if live:
                result.append((zone, live))
        if position != num_rows:
            return None
    return result


def _has_some_nulls(zones: ZoneMap, zone: int) -> bool:
    """Whether a zone has both values and nulls or NaN."""
    return int(zones.nulls[zone] + zones.nans[zone]) > 0 and int(zones.nulls[zone]) < int(zones.lengths[zone])


def _join_moves(zones: ZoneMap, moves: Sequence[tuple[int, int, int, int]]) -> ZoneMap:
    """The derived zones; neighbours with the same single value are merged."""
    sources = np.array([zone for zone, *_ in moves], np.int64)
    lows, highs = zones.lows.take(pa.array(sources)), zones.highs.take(pa.array(sources))
    same = pc.fill_null(pc.equal(lows, highs), False).to_numpy(zero_copy_only=False)
    same = same & (zones.nulls[sources] == 0) & (zones.nans[sources] == 0)
    if len(sources) > 1:
        like_next = pc.fill_null(pc.equal(lows.slice(0, len(lows) - 1), lows.slice(1)), False)
        joins = same[:-1] & same[1:] & like_next.to_numpy(zero_copy_only=False)
    else:
        joins = np.zeros(0, np.bool_)
    rows = list(_merge_moves(moves, joins.tolist()))
    chosen = np.array([zone for zone, *_ in rows], np.int64)
    numbers = np.array([row[1:] for row in rows], np.int64).reshape(-1, 3).T
    is_null = zones.nulls[chosen] == zones.lengths[chosen]
    nulls = np.where(is_null, numbers[2], zones.nulls[chosen])
    return replace(zones.take(chosen), nulls=nulls, fragment_ids=numbers[0], starts=numbers[1], lengths=numbers[2])


def _merge_moves(
    moves: Sequence[tuple[int, int, int, int]], joins: Sequence[bool]
) -> Iterator[tuple[int, int, int, int]]:
    zone, fragment_id, start, count = -1, -1, 0, 0
    for i, (source_zone, where, first, rows) in enumerate(moves):
        if i and joins[i - 1] and where == fragment_id:
            count += rows
            continue
        if i:
            yield zone, fragment_id, start, count
        zone, fragment_id, start, count = source_zone, where, first, rows
    if moves:
        yield zone, fragment_id, start, count

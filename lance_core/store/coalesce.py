"""Merges byte ranges that lie close together, so that one read serves several of them.

    wanted   [==]  [===]                  [==]     [====]
    read     [=========]                  [=============]
             gap <= max_gap: one read     up to max_size; beyond it only one range, or ranges that touch or overlap

The ranges may be given in any order; each is returned as a view of the read that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lance_core.errors import InvalidInputError
from lance_core.store.base import ByteRange, BytesLike


class MergedRange(NamedTuple):
    """One read, and the wanted ranges that it serves.

    Attributes:
        start: First byte.
        end: End, excluded.
        members: Positions in the list of wanted ranges.
    """

    start: int
    end: int
    members: tuple[int, ...]


def merge_ranges(ranges: Sequence[ByteRange], *, max_gap: int, max_size: int) -> list[MergedRange]:
    """Plan the reads for some ranges.

    Args:
        ranges: Wanted ranges, in any order; empty ones are left out, overlapping ones are read once.
        max_gap: Largest gap in bytes that is read rather than skipped.
        max_size: Ranges are not merged beyond this size, unless they touch or overlap; one range alone may be larger.

    Returns:
        The reads in ascending order.

    Raises:
        InvalidInputError: A range is negative or ends before it starts.
    """
    for start, end in ranges:
        if start < 0 or end < start:
            raise InvalidInputError(f"not a range of bytes: {start} to {end}")
    order = sorted((i for i in range(len(ranges)) if ranges[i][1] > ranges[i][0]), key=lambda i: ranges[i])
    merged: list[MergedRange] = []
    members: list[int] = []
    low = high = 0
    for i in order:
        start, end = ranges[i]
        joins = start <= high or (start - high <= max_gap and max(high, end) - low <= max_size)
        if members and joins:
            members.append(i)
            high = max(high, end)
            continue
        if members:
            merged.append(MergedRange(low, high, tuple(members)))
        members, low, high = [i], start, end
    if members:
        merged.append(MergedRange(low, high, tuple(members)))
    return merged


def split_merged(
    ranges: Sequence[ByteRange], merged: Sequence[MergedRange], parts: Sequence[BytesLike]
) -> list[BytesLike]:
    """Split the bytes of merged reads into the wanted ranges, without copying."""
    result: list[BytesLike] = [b""] * len(ranges)
    for read, part in zip(merged, parts, strict=True):
        view = memoryview(part)
        for i in read.members:
            start, end = ranges[i]
            result[i] = part if (start, end) == (read.start, read.end) else view[start - read.start : end - read.start]
    return result

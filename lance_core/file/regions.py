"""Plans which regions of a data file to copy in order to copy some of its pages.

    file       |page|page| other |page|page|page| other |metadata|
    regions    |=========|       |==============|

A region begins and ends at multiples of 64 bytes, and moves as a whole: buffers keep their positions modulo 64, and the
padding after them is copied with them. The storage copies large regions best, so that small regions are joined with
their neighbors if few bytes lie between. These bytes are copied as well, but no reader uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lance_core.encoding.page import ByteRange
from lance_core.file.metadata import ALIGNMENT

_MOST_UNUSED: Final = 1 / 32
"""Largest share of the bytes of regions that may be unused."""


@dataclass(slots=True)
class Region:
    """A range of a file that is copied as a whole.

    Attributes:
        start: Its first byte.
        end: The byte after its last.
        buffers: The buffers in it: for each the ranges of the buffers of its page, and its number among them.
    """

    start: int
    end: int
    buffers: list[tuple[list[ByteRange], int]] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.end - self.start

    def move_to(self, position: int) -> None:
        """Change the ranges of the buffers to those in the new file, in which the region begins at `position`."""
        moved = position - self.start
        for ranges, index in self.buffers:
            start, end = ranges[index]
            ranges[index] = (start + moved, end + moved)


def regions_of(pages: Iterable[list[ByteRange]], size: int, least: int) -> list[Region]:
    """The regions for some pages of a file, in the order of the file.

    Args:
        pages: For each page the ranges of its buffers, which `Region.move_to` changes; empty buffers are in no region.
        size: Bytes of the file.
        least: The size below which a region is joined with the one before it, if few bytes lie between.
    """
    buffers = [(ranges[index], ranges, index) for ranges in pages for index in range(len(ranges))]
    regions: list[Region] = []
    for (start, end), ranges, index in sorted(buffers, key=lambda each: each[0]):
        if start == end:
            continue
        low, high = start - start % ALIGNMENT, max(end, min(end + -end % ALIGNMENT, size))
        if regions and low <= regions[-1].end:
            regions[-1].end = max(regions[-1].end, high)
        else:
            regions.append(Region(low, high))
        regions[-1].buffers.append((ranges, index))
    return _join_small(regions, least)


def _join_small(regions: list[Region], least: int) -> list[Region]:
    """Join small regions with the one before, as long as few unused bytes are copied."""
    left = int(_MOST_UNUSED * sum(region.num_bytes for region in regions))
    result = regions[:1]
    for region in regions[1:]:
        last, gap = result[-1], region.start - result[-1].end
        if gap <= left and min(last.num_bytes, region.num_bytes) < least:
            left -= gap
            last.end = region.end
            last.buffers += region.buffers
        else:
            result.append(region)
    return result

"""What was chosen for a page of a column, for the next small pages of it.

Statistics of a small page cost more than its encoding, and the pages of one writer are much alike. A choice is taken
again as long as pages come out about as small as the one that it was made for, and is looked at afresh now and then:
values may have become better to compress. Most of these pages are made by the pattern of that one (see `repeat`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.choosing.strategy import TINY_VALUES, Choice
from lance_core.encoding.datablock import DataBlock, FixedSizeListBlock, FixedWidthBlock, VariableBlock
from lance_core.encoding.page import EncodedPage
from lance_core.encoding.repeat import Leaf, Pattern, constant_page, pattern_of, repeated
from lance_core.schema import Schema

__all__ = ["Choices"]

_SMALL_BYTES: Final = 64 * 1024
_USES: Final = 16
"""Pages after which statistics are taken again; twice as many each time that they say the same again."""
_MOST_USES: Final = 256
_WORSE: Final = 1.25
"""Bytes per value, against those of the page that the choice was made for, from which it is no longer taken."""
_PADDING: Final = 64
_PACKED_LEVELS: Final = 512
"""Levels of a page that are packed."""

_Key: TypeAlias = tuple[int, bool, int]


@dataclass(slots=True)
class _Known:
    choice: Choice
    bytes_per_value: float
    pattern: Pattern | None
    limit: int = _USES
    uses: int = 0

    def fits(self, num_bytes: int, num_values: int) -> bool:
        """Whether a page came out as small as expected."""
        return num_bytes <= _WORSE * self.bytes_per_value * num_values + _PADDING


class Choices:
    """The choices for the pages of one schema, by the column, the presence of levels and the order of the size.

    Several writers may use them at the same time.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}

    @classmethod
    def of(cls, schema: Schema, version: str) -> Choices:
        """Those of a schema, for all writers of its files of a version: of one write, and of appends on one handle."""
        found: Choices = schema.memo.setdefault(f"choices {version}", cls())
        return found

    def repeated(self, column: int, leaf: Leaf, array: Any) -> EncodedPage | None:
        """A page of 2.2 like an earlier one of its column; None if the encoder has to look at the values.

        Args:
            column: Its number.
            leaf: How its values lie in memory.
            array: Its values, of some kilobytes.
        """
        count, nulls = len(array), array.null_count
        if nulls == count:
            return None
        if not nulls:
            page = constant_page(leaf, array)
            if page is not None:
                return page
        key = _key(column, count, has_levels=nulls > 0)
        known = self._known.get(key)
        if known is None or known.pattern is None or known.uses >= known.limit:
            return None
        page = repeated(leaf, array, known.pattern)
        if page is None:
            return None
        if not known.fits(sum(map(len, page.buffers)), count):
            self._known.pop(key, None)
            return None
        known.uses += 1
        return page

    def again(self, column: int, block: DataBlock, *, has_levels: bool) -> Choice | None:
        """The choice for a page; None if statistics must be taken."""
        key = _key(column, block.num_values, has_levels=has_levels)
        known = self._known.get(key)
        if known is None or known.uses >= known.limit or not block.num_values:
            return None
        if not _is_small(block) or _may_be_constant(block):
            return None
        known.uses += 1
        return known.choice

    def fits(self, column: int, page: EncodedPage, num_values: int, *, has_levels: bool) -> bool:
        """Whether a page came out as expected; if not, the choice is forgotten."""
        key = _key(column, num_values, has_levels=has_levels)
        known = self._known.get(key)
        if known is not None and known.fits(page.size_bytes, num_values):
            return True
        self._known.pop(key, None)
        return False

    def keep(self, column: int, choice: Choice, page: EncodedPage, block: DataBlock, *, has_levels: bool) -> None:
        """Remember what was chosen for a page."""
        if block.num_values and choice.layout != "constant" and _is_small(block):
            assert isinstance(page.encoding, PageLayout)
            key = _key(column, block.num_values, has_levels=has_levels)
            before = self._known.get(key)
            limit = _USES if before is None or before.choice != choice else min(2 * before.limit, _MOST_USES)
            pattern = pattern_of(page.encoding)
            self._known[key] = _Known(choice, page.size_bytes / block.num_values, pattern, limit)


def _key(column: int, num_values: int, *, has_levels: bool) -> _Key:
    return column, has_levels, (num_values > TINY_VALUES) + (num_values >= _PACKED_LEVELS)


def _is_small(block: DataBlock) -> bool:
    if isinstance(block, FixedWidthBlock):
        return block.data.size <= _SMALL_BYTES
    if isinstance(block, VariableBlock):
        return int(block.offsets[-1]) - int(block.offsets[0]) <= _SMALL_BYTES
    return isinstance(block, FixedSizeListBlock) and _is_small(block.items)


def _may_be_constant(block: DataBlock) -> bool:
    """Whether the ends are alike, so that all values may be."""
    if isinstance(block, FixedSizeListBlock):
        return False  # lists are never written as constants
    if isinstance(block, FixedWidthBlock):
        width = block.bits_per_value // 8
        return not width or block.data[:width].tobytes() == block.data[-width:].tobytes()
    assert isinstance(block, VariableBlock)
    first, second, before, last = (int(block.offsets[at]) for at in (0, 1, -2, -1))
    return block.data[first:second].tobytes() == block.data[before:last].tobytes()

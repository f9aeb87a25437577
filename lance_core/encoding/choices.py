"""What was chosen for a page of a column, for the next small pages of it.

Statistics of a small page cost more than its encoding, and the pages of one writer are much alike. A choice is taken
again as long as pages come out about as small as the one that it was made for, and is looked at afresh now and then:
values may have become better to compress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, VariableBlock
from lance_core.encoding.page import EncodedPage
from lance_core.encoding.strategy import Choice

__all__ = ["Choices"]

_SMALL_BYTES: Final = 64 * 1024
_USES: Final = 16
"""Pages after which statistics are taken again."""
_WORSE: Final = 1.25
"""Bytes per value, against those of the page that the choice was made for, from which it is no longer taken."""
_PADDING: Final = 64


@dataclass(slots=True)
class _Known:
    choice: Choice
    bytes_per_value: float
    uses: int = 0


class Choices:
    """The choices of one writer, by a number for the column and the presence of levels."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def again(self, column: int, block: DataBlock) -> Choice | None:
        """The choice for a page; None if statistics must be taken."""
        known = self._known.get(column)
        if known is None or not block.num_values or not _is_small(block) or _may_be_constant(block):
            return None
        known.uses += 1
        if known.uses > _USES:
            del self._known[column]
            return None
        return known.choice

    def fits(self, column: int, page: EncodedPage, num_values: int) -> bool:
        """Whether a page came out as expected; if not, the choice is forgotten."""
        known = self._known[column]
        if page.size_bytes <= _WORSE * known.bytes_per_value * num_values + _PADDING:
            return True
        del self._known[column]
        return False

    def keep(self, column: int, choice: Choice, page: EncodedPage, block: DataBlock) -> None:
        """Remember what was chosen for a page."""
        if block.num_values and choice.layout != "constant" and _is_small(block):
            self._known[column] = _Known(choice, page.size_bytes / block.num_values)


def _is_small(block: DataBlock) -> bool:
    if isinstance(block, FixedWidthBlock):
        return block.data.size <= _SMALL_BYTES
    if isinstance(block, VariableBlock):
        return int(block.offsets[-1]) - int(block.offsets[0]) <= _SMALL_BYTES
    return False


def _may_be_constant(block: DataBlock) -> bool:
    """Whether the ends are alike, so that all values may be."""
    if isinstance(block, FixedWidthBlock):
        width = block.bits_per_value // 8
        return not width or block.data[:width].tobytes() == block.data[-width:].tobytes()
    assert isinstance(block, VariableBlock)
    first, second, before, last = (int(block.offsets[at]) for at in (0, 1, -2, -1))
    return block.data[first:second].tobytes() == block.data[before:last].tobytes()

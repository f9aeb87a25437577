"""Keeps the encoding that was chosen for a page of a column, and reuses it for the next small pages of the column.

Statistics of a small page cost more than its encoding, and the pages of one writer are similar. A choice is reused as
long as pages are about as small as the page for which it was made. Statistics are computed again from time to time,
because later values may compress better. Most of these pages are written by the pattern of the earlier one (see
`repeat`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.choosing.strategy import TINY_VALUES, PageEncoding
from lance_core.encoding.compression.out_of_line_bitpacking import PACKED_LEVELS
from lance_core.encoding.datablock import DataBlock, FixedSizeListBlock, FixedWidthBlock, VariableBlock
from lance_core.encoding.page import EncodedPage
from lance_core.encoding.repeat import Leaf, Pattern, constant_page, pattern_of, repeated
from lance_core.schema import Schema

__all__ = ["Choices"]

_SMALL_BYTES: Final = 64 * 1024
_USES: Final = 16
"""Pages after which statistics are computed again; the number doubles each time that the choice stays the same."""
_MOST_USES: Final = 256
_WORSE: Final = 1.25
"""A choice is dropped if a page has more bytes per value than the page of the choice, by this factor."""
_PADDING: Final = 64

_Key: TypeAlias = tuple[int, bool, int]


@dataclass(slots=True)
class _LastChoice:
    choice: PageEncoding
    bytes_per_value: float
    pattern: Pattern | None
    limit: int = _USES
    uses: int = 0

    def fits(self, num_bytes: int, num_values: int) -> bool:
        """Whether a page is as small as expected."""
        return num_bytes <= _WORSE * self.bytes_per_value * num_values + _PADDING


class Choices:
    """The choices for the pages of one schema, by column, presence of levels and magnitude of the size.

    Several writers may use them at the same time.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, _LastChoice] = {}

    @classmethod
    def of(cls, schema: Schema, version: str) -> Choices:
        """The choices of a schema and a version, shared by the files of a write and by appends on one handle."""
        choices: Choices = schema.memo.setdefault(f"choices {version}", cls())
        return choices

    def repeated(self, column: int, leaf: Leaf, array: Any) -> EncodedPage | None:
        """A page of a 2.2 file like an earlier one of its column; None if the encoder has to choose.

        Args:
            column: Number of the column.
            leaf: The memory layout of its values.
            array: The values, some kilobytes.
        """
        count, nulls = len(array), array.null_count
        if nulls == count:
            return None
        if not nulls:
            page = constant_page(leaf, array)
            if page is not None:
                return page
        key = _choice_key(column, count, has_levels=nulls > 0)
        earlier = self._known.get(key)
        if earlier is None or earlier.pattern is None or earlier.uses >= earlier.limit:
            return None
        page = repeated(leaf, array, earlier.pattern)
        if page is None:
            return None
        if not earlier.fits(sum(map(len, page.buffers)), count):
            self._known.pop(key, None)
            return None
        earlier.uses += 1
        return page

    def again(self, column: int, block: DataBlock, *, has_levels: bool) -> PageEncoding | None:
        """The encoding chosen for an earlier page, to be used again; None if statistics must be computed."""
        key = _choice_key(column, block.num_values, has_levels=has_levels)
        earlier = self._known.get(key)
        if earlier is None or earlier.uses >= earlier.limit or not block.num_values:
            return None
        if not _is_small(block) or _may_be_constant(block):
            return None
        earlier.uses += 1
        return earlier.choice

    def fits(self, column: int, page: EncodedPage, num_values: int, *, has_levels: bool) -> bool:
        """Whether a page is as small as expected; if not, the choice is dropped."""
        key = _choice_key(column, num_values, has_levels=has_levels)
        earlier = self._known.get(key)
        if earlier is not None and earlier.fits(page.size_bytes, num_values):
            return True
        self._known.pop(key, None)
        return False

    def keep(self, column: int, choice: PageEncoding, page: EncodedPage, block: DataBlock, *, has_levels: bool) -> None:
        """Keep the choice for a page."""
        if block.num_values and choice.layout != "constant" and _is_small(block):
            assert isinstance(page.encoding, PageLayout)
            key = _choice_key(column, block.num_values, has_levels=has_levels)
            before = self._known.get(key)
            limit = _USES if before is None or before.choice != choice else min(2 * before.limit, _MOST_USES)
            pattern = pattern_of(page.encoding)
            self._known[key] = _LastChoice(choice, page.size_bytes / block.num_values, pattern, limit)


def _choice_key(column: int, num_values: int, *, has_levels: bool) -> _Key:
    return column, has_levels, (num_values > TINY_VALUES) + (num_values >= PACKED_LEVELS)


def _is_small(block: DataBlock) -> bool:
    if isinstance(block, FixedWidthBlock):
        return block.data.size <= _SMALL_BYTES
    if isinstance(block, VariableBlock):
        return int(block.offsets[-1]) - int(block.offsets[0]) <= _SMALL_BYTES
    return isinstance(block, FixedSizeListBlock) and _is_small(block.items)


def _may_be_constant(block: DataBlock) -> bool:
    """Whether the first and the last value are equal, so that all values may be equal."""
    if isinstance(block, FixedSizeListBlock):
        return False  # lists are never written as constants
    if isinstance(block, FixedWidthBlock):
        width = block.bits_per_value // 8
        return not width or block.data[:width].tobytes() == block.data[-width:].tobytes()
    assert isinstance(block, VariableBlock)
    first, second, before, last = (int(block.offsets[at]) for at in (0, 1, -2, -1))
    return block.data[first:second].tobytes() == block.data[before:last].tobytes()

"""Encodes small pages that are like an earlier page of their column, in a few operations.

The encoder writes the first small page of a column. The next pages are similar: they differ in their values, and their
descriptions in a few counts. Such pages need no statistics, no shredding into levels and no arrays over chunks:

    description of the earlier page -> Pattern -> buffers of the new page, and its description with other counts

This works in 2.2 files for pages of raw values or of one chunk, in columns of numbers, of strings, and of fixed size
lists of numbers. The bytes equal those of the encoder for the same choice.

`Choices` keeps the encoding that was chosen for a page of a column, for the next small pages of the column. Statistics
of a small page cost more than its encoding, and the pages of one writer are similar. A choice is reused as long as
pages are about as small as the page for which it was made. Statistics are computed again from time to time, because
later values may compress better.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import (
    CompressiveEncoding,
    ConstantLayout,
    FullZipLayout,
    MiniBlockLayout,
    PageLayout,
)
from lance_core._proto.file2_pb2 import Encoding
from lance_core.encoding.choosing.strategy import TINY_VALUES, PageEncoding
from lance_core.encoding.compression.fastlanes import BLOCK_VALUES
from lance_core.encoding.compression.general import Compressor, read_compressor
from lance_core.encoding.compression.out_of_line_bitpacking import MIN_PACKED_LEVELS, pack_one_bit_levels
from lance_core.encoding.compression.registry import COMPRESSIONS
from lance_core.encoding.compression.rle import levels_are_runs, runs_of_levels
from lance_core.encoding.compression.variable import build_block_of_values, build_chunk_of_values
from lance_core.encoding.datablock import DataBlock, FixedSizeListBlock, FixedWidthBlock, VariableBlock
from lance_core.encoding.page import EncodedPage, page_encoding
from lance_core.encoding.repdef import Layer, find_nulls, list_layers_of_description
from lance_core.schema import Schema

_ANY_NUMBER: Final = 2**31 - 1
_MOST_VALUES: Final = 4096
_MOST_BYTES: Final = 64 * 1024
_ALIGNMENT: Final = 8
_CHUNK_FILLS: Final = tuple(b"\xfe" * length for length in range(_ALIGNMENT))
_MANY_ITEMS: Final = 256
_DESCRIPTIONS: Final = 64


class Leaf(NamedTuple):
    """A column that is one array of values.

    Attributes:
        width: Bytes per value; for strings, bytes per offset.
        is_string: Whether its values have varying lengths.
        list_size: Numbers per value in fixed size lists; else 0.
    """

    width: int
    is_string: bool = False
    list_size: int = 0


def leaf_of(kind: pa.DataType) -> Leaf | None:
    """The memory layout of values of a type; None for types whose pages are not repeated."""
    if pa.types.is_primitive(kind):
        return Leaf(kind.bit_width // 8) if kind.bit_width in (8, 16, 32, 64) else None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return Leaf(4, is_string=True)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return Leaf(8, is_string=True)
    if pa.types.is_fixed_size_list(kind) and kind.list_size:
        item = leaf_of(kind.value_type)
        is_of_numbers = item is not None and pa.types.is_primitive(kind.value_type)
        return Leaf(item.width * kind.list_size, list_size=kind.list_size) if item and is_of_numbers else None
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The properties of a page that the next pages share.

    Attributes:
        layout: The description.
        values: "raw" for a full-zip page, else the name of the compression of the values, or of the indices.
        compressor: The general compression of a chunk's values.
        has_nulls: Whether the page has definition levels.
        has_null_runs: Whether the definition levels are runs.
        has_items: Whether values are indices into a dictionary.
        described: Cached descriptions, by the counts in them.
    """

    layout: PageLayout
    values: str
    compressor: Compressor | None = None
    has_nulls: bool = False
    has_null_runs: bool = False
    has_items: bool = False
    described: dict[tuple[int, int], Encoding] = field(default_factory=dict, compare=False)

    @property
    def most_values(self) -> int:
        """Most values of a page of one chunk; pages without chunks have no limit."""
        if self.values == "raw":
            return _ANY_NUMBER
        is_packed = self.values == "inline_bitpacking" or self.has_nulls
        return BLOCK_VALUES if is_packed else _MOST_VALUES

    def description(self, count: int, num_items: int) -> Encoding:
        """The description of a page of `count` values, with `num_items` items of a dictionary."""
        encoding = self.described.get((count, num_items))
        if encoding is None:
            layout = PageLayout()
            layout.CopyFrom(self.layout)
            if self.values == "raw":
                layout.full_zip_layout.num_items = layout.full_zip_layout.num_visible_items = count
            else:
                layout.mini_block_layout.num_items = count
                layout.mini_block_layout.num_dictionary_items = num_items
            if len(self.described) >= _DESCRIPTIONS:
                self.described.clear()
            encoding = self.described[count, num_items] = page_encoding(layout)
        return encoding


def pattern_of(layout: PageLayout) -> Pattern | None:
    """The pattern of a page; None for pages that are not repeated."""
    if layout.HasField("full_zip_layout"):
        return _raw_pattern(layout, layout.full_zip_layout)
    return _chunk_pattern(layout, layout.mini_block_layout) if layout.HasField("mini_block_layout") else None


def _raw_pattern(layout: PageLayout, zipped: FullZipLayout) -> Pattern | None:
    values = zipped.value_compression
    if values.HasField("fixed_size_list") and not values.fixed_size_list.has_validity:
        values = values.fixed_size_list.values
    is_raw = not zipped.bits_rep and not zipped.bits_def and zipped.HasField("bits_per_value")
    return Pattern(layout=layout, values="raw") if is_raw and values.HasField("flat") else None


def _chunk_pattern(layout: PageLayout, chunks: MiniBlockLayout) -> Pattern | None:
    if not chunks.has_large_chunk or chunks.num_buffers != 1 or chunks.repetition_index_depth:
        return None
    has_nulls = list(chunks.layers) == list_layers_of_description([Layer.NULLABLE_ITEM])
    if not has_nulls and list(chunks.layers) != list_layers_of_description([Layer.ALL_VALID_ITEM]):
        return None
    has_items = chunks.HasField("dictionary")
    if has_items and not chunks.dictionary.HasField("variable"):
        return None
    values_and_compressor = _value_form(chunks.value_compression)
    if values_and_compressor is None:
        return None
    return Pattern(
        layout=layout,
        values=values_and_compressor[0],
        compressor=values_and_compressor[1],
        has_nulls=has_nulls,
        has_null_runs=has_nulls and chunks.def_compression.HasField("rle"),
        has_items=has_items,
    )


def _value_form(encoding: CompressiveEncoding) -> tuple[str, Compressor | None] | None:
    compress = None
    if encoding.HasField("general"):
        compress = read_compressor(encoding)
        if compress is None:
            return None
        encoding = encoding.general.values
    kind = encoding.WhichOneof("compression")
    return (kind, compress) if kind == "variable" or (kind and COMPRESSIONS[kind].encode_words) else None


def try_to_repeat(leaf: Leaf, array: Any, pattern: Pattern) -> EncodedPage | None:
    """A page like an earlier one.

    Args:
        leaf: The memory layout of the values.
        array: The values, some kilobytes; it has nulls if and only if the earlier page had some.
        pattern: The earlier page.

    Returns:
        The page; None if these values need another encoding.
    """
    count = len(array)
    if count > pattern.most_values:
        return None
    if pattern.values == "raw":
        data = _to_words(array, leaf, count)
        return None if data is None else _make_page(pattern, [data.tobytes()], count)
    nulls = find_nulls(array) if pattern.has_nulls else None
    buffers: list[bytes] = []
    num_items = 0
    if pattern.has_items:
        dictionary = _find_indices(array, count) if leaf.is_string else None
        if dictionary is None:
            return None
        indices, items, num_items = dictionary
        buffers = [items]
        values = _encode_by_pattern(pattern, indices)
    elif leaf.is_string:
        values = _string_buffers(array, leaf, count) if pattern.values == "variable" else None
    else:
        words = _to_words(array, leaf, count)
        if words is None or leaf.list_size:
            return None
        if nulls is not None:
            words = np.where(nulls, words[int(np.argmin(nulls))], words)
        values = _encode_by_pattern(pattern, words)
    if values is not None and pattern.compressor is not None:
        values = pattern.compressor.compress_if_smaller(values)
    levels = b"" if nulls is None else _encode_levels(nulls, as_runs=pattern.has_null_runs)
    if values is None or levels is None:
        return None
    chunk = _lay_out_chunk(values, levels, 0 if nulls is None else count)
    meta = ((len(chunk) // _ALIGNMENT - 1) << 4).to_bytes(4, "little")
    return _make_page(pattern, [meta, chunk, *buffers], count, num_items)


def _encode_by_pattern(pattern: Pattern, words: npt.NDArray[Any]) -> bytes | None:
    encode = COMPRESSIONS[pattern.values].encode_words
    return None if encode is None else encode(words)


def _make_page(pattern: Pattern, buffers: list[bytes], count: int, num_items: int = 0) -> EncodedPage:
    encoding = pattern.description(count, num_items)
    return EncodedPage(num_rows=count, length=count, encoding=encoding, buffers=tuple(buffers))


def try_to_build_constant_page(leaf: Leaf, array: Any) -> EncodedPage | None:
    """A constant page of values without nulls; None if they differ or are lists."""
    count = len(array)
    if leaf.list_size:
        return None
    if leaf.is_string:
        string = _find_common_string(array, leaf, count)
        if string is None:
            return None
        lengths = np.array([0, len(string)], f"<i{leaf.width}").tobytes()
        scalar = b"".join((struct.pack("<3I", 2, len(lengths), len(string)), lengths, string))
        return EncodedPage(num_rows=count, length=count, encoding=_make_constant(None), buffers=(scalar,))
    words = _to_words(array, leaf, count)
    if words is None or words[0] != words[-1] or bool((words != words[0]).any()):
        return None
    return EncodedPage(num_rows=count, length=count, encoding=_make_constant(words[:1].tobytes()), buffers=())


@lru_cache(maxsize=1024)
def _make_constant(value: bytes | None) -> Encoding:
    layout = ConstantLayout(layers=list_layers_of_description([Layer.ALL_VALID_ITEM]))
    if value is not None:
        layout.inline_value = value
    return page_encoding(PageLayout(constant_layout=layout))


def _find_common_string(array: Any, leaf: Leaf, count: int) -> bytes | None:
    """The string that all values equal; None if they differ."""
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, f"<i{leaf.width}", count + 1, array.offset * leaf.width)
    first, last = int(offsets[0]), int(offsets[-1])
    size = int(offsets[1]) - first
    if size * count != last - first:
        return None
    whole = b"" if data is None else data.slice(first, last - first).to_pybytes()
    is_same = whole[:size] * count == whole and bool((np.diff(offsets) == size).all())
    return whole[:size] if is_same else None


def _to_words(array: Any, leaf: Leaf, count: int) -> npt.NDArray[Any] | None:
    """The values as unsigned words, fixed size lists as bytes; None if numbers in lists are null."""
    if not leaf.list_size:
        return np.frombuffer(array.buffers()[1], f"<u{leaf.width}", count, array.offset * leaf.width)
    items = array.values
    if items.null_count:
        return None
    start = (items.offset + array.offset * leaf.list_size) * (leaf.width // leaf.list_size)
    return np.frombuffer(items.buffers()[1], np.uint8, count * leaf.width, start)


def _string_buffers(array: Any, leaf: Leaf, count: int) -> bytes | None:
    """The offsets and bytes of strings; None if they are too long for a chunk."""
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, f"<i{leaf.width}", count + 1, array.offset * leaf.width)
    first, last = int(offsets[0]), int(offsets[-1])
    head = (count + 1) * leaf.width
    if head + last - first > _MOST_BYTES - _ALIGNMENT:
        return None
    body = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return build_chunk_of_values(offsets, body)


def _find_indices(array: Any, count: int) -> tuple[npt.NDArray[Any], bytes, int] | None:
    """The indices of strings, their dictionary and its number of items; None if a dictionary would not pay."""
    encoded = array.dictionary_encode()
    items = encoded.dictionary
    if 2 * len(items) >= count or len(items) >= _MANY_ITEMS:
        return None
    indices = encoded.indices
    if indices.null_count:
        indices = indices.fill_null(0)
    words = np.frombuffer(indices.buffers()[1], "<u4", count, indices.offset * 4)
    _, places, data = items.buffers()
    width = 8 if pa.types.is_large_string(items.type) or pa.types.is_large_binary(items.type) else 4
    offsets = np.frombuffer(places, f"<i{width}", len(items) + 1, items.offset * width)
    first, last = int(offsets[0]), int(offsets[-1])
    body = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return words, build_block_of_values(offsets, body), len(items)


def _lay_out_chunk(values: bytes, levels: bytes, num_levels: int) -> bytes:
    """One chunk: its header, levels and values (see `structural.chunk_layout`)."""
    end = _CHUNK_FILLS[-len(values) % _ALIGNMENT]
    if not num_levels:
        return b"".join((struct.pack("<HI", 0, len(values)), _CHUNK_FILLS[2], values, end))
    head = struct.pack("<HHI", num_levels, len(levels), len(values))
    return b"".join((head, levels, _CHUNK_FILLS[-len(levels) % _ALIGNMENT], values, end))


def _encode_levels(nulls: npt.NDArray[np.bool_], *, as_runs: bool) -> bytes | None:
    """Definition levels, which are 1 for nulls: one bit each if there are many, else runs or words of 16 bits.

    Returns:
        The bytes; None if these levels are stored in the other form than those of the earlier page.
    """
    if nulls.size >= MIN_PACKED_LEVELS:
        return pack_one_bit_levels(nulls)
    if levels_are_runs(nulls) != as_runs:
        return None
    return runs_of_levels(nulls) if as_runs else nulls.astype("<u2").tobytes()


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

    def try_to_repeat_page(self, column: int, leaf: Leaf, array: Any) -> EncodedPage | None:
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
            page = try_to_build_constant_page(leaf, array)
            if page is not None:
                return page
        key = _choice_key(column, count, has_levels=nulls > 0)
        earlier = self._known.get(key)
        if earlier is None or earlier.pattern is None or earlier.uses >= earlier.limit:
            return None
        page = try_to_repeat(leaf, array, earlier.pattern)
        if page is None:
            return None
        if not earlier.fits(sum(map(len, page.buffers)), count):
            self._known.pop(key, None)
            return None
        earlier.uses += 1
        return page

    def reuse_choice(self, column: int, block: DataBlock, *, has_levels: bool) -> PageEncoding | None:
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
    return column, has_levels, (num_values > TINY_VALUES) + (num_values >= MIN_PACKED_LEVELS)


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

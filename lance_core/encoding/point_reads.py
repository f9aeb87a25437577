"""Reads a few rows of a column: the position of each value is computed, and only the bytes of that value are read.

    page          cached after the first read              read for a value
    mini-block    where chunks begin, the dictionary       its chunk
    full-zip      nothing                                  its bytes
    constant      the value                                nothing

What is cached of a page is kept with the metadata of its file. Pages with lists, and compressions without a
`make_chunk_gatherer`, are read by `decoder`, as for many rows; both return the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import ConstantLayout, FullZipLayout, MiniBlockLayout, PageLayout
from lance_core.encoding.compression.chunks import ChunkBuffers, ChunkGatherer, Counts
from lance_core.encoding.compression.flat import flat_bits
from lance_core.encoding.compression.registry import decode_block, make_chunk_gatherer
from lance_core.encoding.datablock import FixedWidthBlock, VariableBlock
from lance_core.encoding.page import SMALL_PAGE, ByteRange, BytesLike, PageInfo, Steps, as_bytes
from lance_core.encoding.repdef import Layer, list_layers_of_description
from lance_core.encoding.structural.chunk_layout import take_one_apart
from lance_core.encoding.structural.gathered import decode_some_levels
from lance_core.errors import CorruptFileError

_VALID: Final = list_layers_of_description([Layer.ALL_VALID_ITEM])
_NULLABLE: Final = list_layers_of_description([Layer.NULLABLE_ITEM])
_MOST_KEPT: Final = 1024 * 1024
"""Most bytes of chunk descriptions, or of a dictionary, that are cached for a page."""

Values: TypeAlias = tuple[list[BytesLike], npt.NDArray[np.bool_] | None]
"""Bytes of values in the form of `ChunkGatherer`, and for each value whether it is valid; None if all are."""


class PointPage:
    """A page whose values are read one by one; this base class is a constant page: one value, or only nulls.

    Args:
        bits: Bits of a value, 0 for varying length.
        value: The bytes of the only value; None for null.
    """

    __slots__ = ("bits", "value")

    def __init__(self, bits: int, value: bytes | None = None) -> None:
        self.bits = bits
        self.value = value

    def unknown(self) -> list[ByteRange]:
        """The ranges that have to be read before positions of values are known; empty once their content is cached."""
        return []

    def learn(self, _answers: Sequence[BytesLike]) -> int:
        """Cache the content of the ranges of `unknown`, and return the approximate number of cached bytes."""
        return 0

    def whole(self) -> ByteRange | None:
        """The range of all values, if they are few enough to be read together with `unknown`."""
        return None

    def ranges(self, _rows: Sequence[int]) -> list[ByteRange]:
        """The ranges of the values of ascending rows of the page."""
        return []

    def values(self, rows: Sequence[int], _answers: Sequence[memoryview]) -> Values:
        """The values of rows, from the bytes of their `ranges`."""
        if self.value is None:
            return [self.blank] * len(rows), np.zeros(len(rows), np.bool_)
        return [self.value * len(rows)], None

    @property
    def takes_runs(self) -> bool:
        """Whether a run of many rows costs little more than a few."""
        return self.bits > 0

    @property
    def blank(self) -> bytes:
        """The bytes in place of a null."""
        return bytes(-(-self.bits // 8))


class _Raw(PointPage):
    """A full-zip page of values of one width without levels."""

    __slots__ = ("_start",)

    def __init__(self, bits: int, where: ByteRange, num_rows: int) -> None:
        super().__init__(bits)
        self._start, end = where
        if (end - self._start) // (bits // 8) < num_rows:
            raise CorruptFileError(f"{end - self._start} bytes are too few for {num_rows} values of {bits} bits")

    def ranges(self, rows: Sequence[int]) -> list[ByteRange]:
        step, start = self.bits // 8, self._start
        if isinstance(rows, range) or rows[-1] - rows[0] + 1 == len(rows):
            return [(start + rows[0] * step, start + (rows[-1] + 1) * step)]
        return [(start + row * step, start + (row + 1) * step) for row in rows]

    def values(self, _rows: Sequence[int], answers: Sequence[memoryview]) -> Values:
        return list(answers), None


@dataclass(frozen=True, slots=True)
class _ChunkTable:
    """The chunks of a page.

    Attributes:
        bounds: Where each chunk begins in the file, and where the last one ends.
        ends: The number of values up to the end of each chunk.
        items: The dictionary; None without one.
    """

    bounds: Counts
    ends: Counts
    items: FixedWidthBlock | VariableBlock | None


_Part: TypeAlias = tuple[int, int, Sequence[int]]


class _Chunked(PointPage):
    """A mini-block page without lists."""

    __slots__ = ("_gather", "_layout", "_page", "_table", "_width")

    def __init__(self, bits: int, page: PageInfo, layout: MiniBlockLayout, gather: ChunkGatherer, width: int) -> None:
        super().__init__(bits)
        self._page = page
        self._layout = layout
        self._gather = gather
        self._width = width
        self._table: _ChunkTable | None = None

    def unknown(self) -> list[ByteRange]:
        if self._table is not None:
            return []
        return [self._page.buffer(0), *([self._page.buffer(2)] if self._layout.num_dictionary_items else [])]

    def whole(self) -> ByteRange | None:
        start, end = self._page.buffer(1)
        return (start, end) if end - start <= SMALL_PAGE else None

    def learn(self, answers: Sequence[BytesLike]) -> int:
        meta = as_bytes(answers[0])
        width = 4 if self._layout.has_large_chunk else 2
        if meta.size % width or not meta.size:
            raise CorruptFileError(f"the chunk meta of {meta.size} bytes is not a number of words of {width} bytes")
        words = meta.view(f"<u{width}").astype(np.int64)
        start, end = self._page.buffer(1)
        bounds = np.empty(words.size + 1, np.int64)
        bounds[0] = start
        np.cumsum(((words >> 4) + 1) * 8, out=bounds[1:])
        bounds[1:] += start
        ends = np.cumsum(np.left_shift(1, words & 15))
        before, num_items = int(ends[-2]) if ends.size > 1 else 0, self._layout.num_items
        if int(bounds[-1]) > end:
            raise CorruptFileError(f"chunks of {int(bounds[-1]) - start} bytes in a buffer of {end - start}")
        if before > num_items or num_items != self._page.num_rows:
            raise CorruptFileError(f"{max(before, num_items)} values in a page of {self._page.num_rows} rows")
        ends[-1] = num_items
        items = self._decode_items(answers[1]) if self._layout.num_dictionary_items else None
        self._table = _ChunkTable(bounds, ends, items)
        item_bytes = 0 if items is None else memoryview(answers[1]).nbytes
        return 512 + int(bounds.nbytes + ends.nbytes) + 2 * item_bytes

    def _decode_items(self, data: BytesLike) -> FixedWidthBlock | VariableBlock:
        copied = as_bytes(bytes(data))  # a copy, so that the rest of the read is not kept
        block = decode_block(self._layout.dictionary, copied, self._layout.num_dictionary_items)
        if isinstance(block, VariableBlock) and not self.bits:
            return block
        if isinstance(block, FixedWidthBlock) and block.bits_per_value == self.bits:
            return block
        raise CorruptFileError(f"the dictionary is a {type(block).__name__}, but values have {self.bits} bits")

    @property
    def takes_runs(self) -> bool:
        return self.bits > 0 and not self._layout.num_dictionary_items

    def _find_parts(self, rows: Sequence[int]) -> list[_Part]:
        """The chunks of some rows: number of the chunk, number of its values, and positions of the rows in it."""
        table = self._table
        assert table is not None
        if isinstance(rows, range):
            return self._parts_of_run(table, rows)
        parts: list[tuple[int, int, list[int]]] = []
        first = 0
        for row, chunk in zip(rows, np.searchsorted(table.ends, rows, side="right").tolist(), strict=True):
            if parts and parts[-1][0] == chunk:
                parts[-1][2].append(row - first)
                continue
            first = int(table.ends[chunk - 1]) if chunk else 0
            parts.append((chunk, int(table.ends[chunk]) - first, [row - first]))
        return list(parts)

    def _parts_of_run(self, table: _ChunkTable, rows: range) -> list[_Part]:
        chunk = int(np.searchsorted(table.ends, rows.start, side="right"))
        first = int(table.ends[chunk - 1]) if chunk else 0
        parts: list[_Part] = []
        while first < rows.stop:
            end = int(table.ends[chunk])
            places = range(max(rows.start - first, 0), min(rows.stop, end) - first)
            if places:
                parts.append((chunk, end - first, places))
            chunk, first = chunk + 1, end
        return parts

    def ranges(self, rows: Sequence[int]) -> list[ByteRange]:
        assert self._table is not None
        bounds = self._table.bounds
        return [(int(bounds[chunk]), int(bounds[chunk + 1])) for chunk, _, _ in self._find_parts(rows)]

    def values(self, rows: Sequence[int], answers: Sequence[memoryview]) -> Values:
        layout = self._layout
        has_nulls = layout.HasField("def_compression")
        values: list[BytesLike] = []
        levels: list[memoryview] = []
        parts = self._find_parts(rows)
        for (_, count, places), chunk in zip(parts, answers, strict=True):
            pieces = take_one_apart(
                chunk,
                num_levels=count if has_nulls else None,
                num_values=layout.num_buffers,
                wide_sizes=layout.has_large_chunk,
            )
            levels += pieces[:has_nulls]
            values += self._gather(pieces[has_nulls:], count, places)
        valid = self._decode_validity(levels, parts) if has_nulls else None
        return self._look_up(values, valid), valid

    def _look_up(self, buffers: list[BytesLike], valid: npt.NDArray[np.bool_] | None) -> list[BytesLike]:
        """The items of the dictionary, by index; the values themselves without a dictionary."""
        items = self._table.items if self._table is not None else None
        if items is None:
            return buffers
        indices = np.frombuffer(b"".join(buffers), f"<u{self._width // 8}").tolist()
        values: list[BytesLike] = []
        for place, index in enumerate(indices):
            if valid is not None and not valid[place]:
                values.append(self.blank)
                continue
            if index >= items.num_values:
                raise CorruptFileError(f"index {index} into a dictionary of {items.num_values} items")
            if isinstance(items, VariableBlock):
                start, end = items.offsets[index : index + 2].tolist()
            else:
                start, end = index * self.bits // 8, (index + 1) * self.bits // 8
            values.append(items.data[start:end].tobytes())
        return values

    def _decode_validity(self, levels: list[memoryview], parts: Sequence[_Part]) -> npt.NDArray[np.bool_]:
        """Which values are not null: those of definition level 0."""
        sizes = np.array([len(part) for part in levels], np.int64)
        padded = -(-sizes // 8) * 8
        counts = np.array([count for _, count, _ in parts], np.int64)
        data = b"".join(bytes(part) + bytes(-len(part) % 8) for part in levels)
        buffers = ChunkBuffers(data=as_bytes(data), starts=np.cumsum(padded) - padded, sizes=sizes)
        before = (np.cumsum(counts) - counts).tolist()
        positions = [np.asarray(places) + first for first, (_, _, places) in zip(before, parts, strict=True)]
        block = decode_some_levels(self._layout.def_compression, buffers, counts, np.concatenate(positions))
        if not isinstance(block, FixedWidthBlock) or block.bits_per_value != 16:
            raise CorruptFileError("levels are not 16 bits wide")
        definition = block.data.view("<u2")
        if int(definition.max()) > 1:
            raise CorruptFileError(f"definition level {int(definition.max())} is higher than the layers allow (1)")
        valid: npt.NDArray[np.bool_] = definition == 0
        return valid


def value_bits(kind: pa.DataType) -> int | None:
    """Bits of a value of a type, 0 for strings and bytes; None for a type whose values are not read one by one."""
    if _is_fixed(kind):
        return int(kind.bit_width) or None
    if pa.types.is_fixed_size_list(kind) and _is_fixed(kind.value_type) and kind.value_type.bit_width % 8 == 0:
        return int(kind.value_type.bit_width) * kind.list_size or None
    is_string = any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    )
    return 0 if is_string else None


def _is_fixed(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind))


def point_page(page: PageInfo, kind: pa.DataType, bits: int) -> PointPage | None:
    """The reader of single values of a page; None if they cannot be read one by one.

    Args:
        page: The page.
        kind: Type of the values.
        bits: Their `value_bits`.

    Raises:
        CorruptFileError: The description is invalid.
        UnsupportedError: The description has an unknown encoding.
    """
    layout = page.encoding
    if not isinstance(layout, PageLayout):
        return None
    name = layout.WhichOneof("layout")
    is_list = pa.types.is_fixed_size_list(kind)
    if name == "full_zip_layout":
        return _raw_page(page, layout.full_zip_layout, bits, kind.list_size if is_list else 0)
    if is_list:
        return None
    if name == "mini_block_layout":
        return _chunked_page(page, layout.mini_block_layout, bits)
    return _constant_page(page, layout.constant_layout, bits) if name == "constant_layout" else None


def _raw_page(page: PageInfo, layout: FullZipLayout, bits: int, list_size: int) -> PointPage | None:
    encoding, size = layout.value_compression, bits
    if list_size and encoding.WhichOneof("compression") == "fixed_size_list":
        lists = encoding.fixed_size_list
        if lists.has_validity or lists.items_per_value != list_size:
            return None
        encoding, size = lists.values, bits // list_size
    elif list_size:
        return None
    is_flat = encoding.WhichOneof("compression") == "flat" and flat_bits(encoding) == size
    is_plain = is_flat and layout.bits_per_value == bits and not layout.bits_rep and not layout.bits_def
    if not is_plain or bits % 8 or not bits or list(layout.layers) != _VALID:
        return None
    return _Raw(bits, page.buffer(0), page.num_rows)


def _chunked_page(page: PageInfo, layout: MiniBlockLayout, bits: int) -> PointPage | None:
    if (
        list(layout.layers) not in (_VALID, _NULLABLE)
        or layout.HasField("rep_compression")
        or layout.repetition_index_depth
    ):
        return None
    if layout.HasField("def_compression") != (list(layout.layers) == _NULLABLE):
        return None
    has_items = layout.num_dictionary_items > 0
    sizes = [end - start for start, end in (page.buffer(i) for i in (0, 2)[: 1 + has_items])]
    gatherer = make_chunk_gatherer(layout.value_compression, layout.num_buffers)
    if gatherer is None or max(sizes) > _MOST_KEPT:
        return None
    gather, width = gatherer
    if has_items:
        return _Chunked(bits, page, layout, gather, width) if width in (8, 16, 32, 64) and bits != 1 else None
    return _Chunked(bits, page, layout, gather, width) if width == bits else None


def _constant_page(page: PageInfo, layout: ConstantLayout, bits: int) -> PointPage | None:
    if page.buffers:
        return None
    if layout.HasField("inline_value"):
        is_plain = list(layout.layers) == _VALID and bits > 1 and len(layout.inline_value) * 8 == bits
        return PointPage(bits, layout.inline_value) if is_plain else None
    return PointPage(bits) if list(layout.layers) == _NULLABLE else None


def read_points(
    pages: Sequence[tuple[PointPage, Sequence[int]]], kind: pa.DataType, report_cached: Callable[[int], None]
) -> Steps[pa.Array]:
    """Read values of a column.

    Args:
        pages: Pages, and ascending rows of each page; at least one row.
        kind: Type of the values.
        report_cached: Called with the approximate number of bytes that a page caches.

    Raises:
        CorruptFileError: The bytes do not follow the format.
    """
    new = [page for page, _ in pages if page.unknown()]
    whole: dict[int, tuple[int, memoryview]] = {}
    if new:
        new_reads = [(page, page.unknown(), page.whole()) for page in new]
        answers = iter((yield [r for _, ranges, rest in new_reads for r in (*ranges, *([rest] if rest else []))]))
        for page, ranges, rest in new_reads:
            report_cached(page.learn([next(answers) for _ in ranges]))
            if rest is not None:
                whole[id(page)] = rest[0], memoryview(next(answers)).cast("B")
    reads = [(page, rows, page.ranges(rows)) for page, rows in pages]
    missing = [r for page, _, ranges in reads if id(page) not in whole for r in ranges]
    answers = iter((yield missing) if missing else [])
    pieces: list[BytesLike] = []
    valid: list[npt.NDArray[np.bool_] | None] = []
    for page, rows, ranges in reads:
        if id(page) in whole:
            base, data = whole[id(page)]
            page_data = [data[start - base : end - base] for start, end in ranges]
        else:
            page_data = [memoryview(next(answers)).cast("B") for _ in ranges]
        values, is_valid = page.values(rows, page_data)
        pieces += values
        valid.append(is_valid)
    counts = [len(rows) for _, rows in pages]
    if all(mask is None for mask in valid):
        return _build_array(pieces, None, sum(counts), kind)
    flags = [np.ones(count, np.bool_) if mask is None else mask for mask, count in zip(valid, counts, strict=True)]
    bits = np.packbits(np.concatenate(flags), bitorder="little")
    return _build_array(pieces, pa.py_buffer(bits), sum(counts), kind)


def _build_array(pieces: list[BytesLike], bitmap: pa.Buffer | None, count: int, kind: pa.DataType) -> pa.Array:
    bits = value_bits(kind)
    data = b"".join(pieces)
    if not bits:
        sizes = [len(piece) for piece in pieces]
        is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        offsets = np.zeros(count + 1, np.int64 if is_large else np.int32)
        if len(data) >= 2**31 and not is_large:
            raise CorruptFileError(
                f"{len(data)} bytes of values in a column of type {kind}, whose offsets have 32 bits"
            )
        np.cumsum(sizes, out=offsets[1:])
        return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])
    if len(data) != count * -(-bits // 8):
        raise CorruptFileError(f"{len(data)} bytes for {count} values of {bits} bits")
    if bits == 1:
        data = np.packbits(np.frombuffer(data, np.uint8), bitorder="little").tobytes()
    if pa.types.is_fixed_size_list(kind):
        items = pa.Array.from_buffers(kind.value_type, count * kind.list_size, [None, pa.py_buffer(data)])
        return pa.Array.from_buffers(kind, count, [bitmap], children=[items])
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(data)])

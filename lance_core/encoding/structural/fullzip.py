"""Full-zip pages: every value can be reached by itself.

Buffer 0 is a sequence of entries, one per level:

    control word    repetition << bits_def | definition, little-endian; bits_rep + bits_def bits take
                    none if 0, 1 byte up to 8, 2 up to 16, else 4
    value           fixed width (`bits_per_value`): the bytes, if the level has a slot (a null item has one);
                    a boolean is a byte 0 or 1
                    varying (`bits_per_offset`): length, u32 or u64, and the bytes, if the definition is 0

    fixed width without levels      |v0|v1|v2|...            the raw values: nothing to zip
    fixed width, nulls              |c|v0|c|v1|...           equal steps
    varying width, nulls            |c|len|bytes|c|c|len|bytes|
    fixed width in lists            |c|v|c|v|c|c|v|          null and empty lists are a control word only

Buffer 1, the repetition index, exists if entries have no equal steps: the start of each row, and the end of the last
one, as integers of the smallest of 1, 2, 4 and 8 bytes that holds the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, FullZipLayout, PageLayout
from lance_core.encoding.compression.chunks import Counts, expand_runs, gather_ranges
from lance_core.encoding.compression.registry import decode_per_value, encode_per_value
from lance_core.encoding.datablock import FixedWidthBlock, VariableBlock, ascends
from lance_core.encoding.page import (
    SMALL_PAGE,
    Bytes,
    BytesLike,
    DecodedRows,
    EncodedPage,
    PageInfo,
    RowRuns,
    Steps,
    allocate_bytes,
    as_bytes,
    coalesce_pieces,
    merge_ranges,
)
from lance_core.encoding.repdef import (
    Layer,
    LevelArray,
    Levels,
    Mask,
    count_lists,
    find_slots,
    list_layers_of_description,
    max_definition,
)
from lance_core.encoding.structural.entries import EntryForm, control_bytes, find_entries, gather_integers
from lance_core.errors import CorruptFileError

# Runs that have on average at least this many values without levels are copied or viewed run by run, others by value.
_LONG_RUN: Final = 64


def encode(
    levels: Levels, values: FixedWidthBlock | VariableBlock, encoding: CompressiveEncoding, *, num_rows: int
) -> EncodedPage:
    """Write a page.

    Args:
        levels: Nesting and nulls.
        values: The encoded values of the slots (see `compression.encode_per_value`).
        encoding: The description of their compression.
        num_rows: Top-level rows.
    """
    lists, highest = count_lists(levels.layers), max_definition(levels.layers)
    bits_rep = lists.bit_length() if levels.repetition is not None else 0
    bits_def = highest.bit_length() if levels.definition is not None else 0
    layout = FullZipLayout(
        bits_rep=bits_rep,
        bits_def=bits_def,
        num_items=levels.num_levels,
        num_visible_items=values.num_values,
        value_compression=encoding,
        layers=list_layers_of_description(levels.layers),
    )
    control = _build_control_words(levels, bits_rep, bits_def)
    buffers: list[BytesLike]
    if isinstance(values, FixedWidthBlock):
        layout.bits_per_value = values.bits_per_value
        data, starts = _zip_fixed(levels, values, control)
        buffers = [data] if levels.repetition is None else [data, _index(levels, starts, data.size, lists)]
    else:
        layout.bits_per_offset = values.offsets.itemsize * 8
        data, starts = _zip_variable(levels, values, control)
        buffers = [data, _index(levels, starts, data.size, lists)]
    return EncodedPage(
        num_rows=num_rows, length=num_rows, encoding=PageLayout(full_zip_layout=layout), buffers=tuple(buffers)
    )


def plain_layout(bits: int, count: int) -> PageLayout:
    """The description of a page of raw numbers, without levels; its buffer holds the numbers as they are."""
    layers = (Layer.ALL_VALID_ITEM,)
    levels = Levels(layers=layers, num_levels=count, repetition=None, definition=None)
    values = FixedWidthBlock(data=np.empty(0, np.uint8), bits_per_value=bits, num_values=count)
    page = encode(levels, values, encode_per_value(values, "flat")[0], num_rows=count)
    layout = page.encoding
    assert isinstance(layout, PageLayout)
    return layout


def expand_bits(block: FixedWidthBlock) -> FixedWidthBlock:
    """Booleans as the bytes of full-zip pages."""
    data = np.unpackbits(block.data, count=block.num_values, bitorder="little")
    return FixedWidthBlock(data=data, bits_per_value=8, num_values=block.num_values)


def _build_control_words(levels: Levels, bits_rep: int, bits_def: int) -> npt.NDArray[np.uint8]:
    """Control words as rows of bytes: shape (levels, bytes per word)."""
    width = control_bytes(bits_rep, bits_def)
    words = np.zeros(levels.num_levels, np.uint32)
    if levels.repetition is not None:
        words |= levels.repetition.astype(np.uint32) << np.uint32(bits_def)
    if levels.definition is not None:
        words |= levels.definition
    return words.view(np.uint8).reshape(-1, 4)[:, :width]


def _zip_fixed(levels: Levels, values: FixedWidthBlock, control: npt.NDArray[np.uint8]) -> tuple[Bytes, Counts]:
    width, size = control.shape[1], values.bits_per_value // 8
    if width == 0:
        return values.data, np.empty(0, np.int64)
    slots = find_slots(levels)
    if slots is None:
        out = allocate_bytes(levels.num_levels * (width + size)).reshape(levels.num_levels, width + size)
        out[:, :width] = control
        out[:, width:] = values.data.reshape(-1, size)
        return out.ravel(), np.arange(levels.num_levels, dtype=np.int64) * (width + size)
    sizes = np.where(slots, width + size, width).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    flat = allocate_bytes(int(sizes.sum()))
    for byte in range(width):
        flat[starts + byte] = control[:, byte]
    target, source = flat.data, values.data.data
    for index, start in enumerate((starts[slots] + width).tolist()):
        target[start : start + size] = source[index * size : (index + 1) * size]
    return flat, starts


def _zip_variable(levels: Levels, values: VariableBlock, control: npt.NDArray[np.uint8]) -> tuple[Bytes, Counts]:
    width, prefix = control.shape[1], values.offsets.itemsize
    value_starts, lengths = values.offsets[:-1].astype(np.int64), np.diff(values.offsets).astype(np.int64)
    has_value = np.ones(levels.num_levels, np.bool_)
    if levels.definition is not None:
        has_value = levels.definition == 0
        slots = find_slots(levels)
        present = has_value if slots is None else has_value[slots]
        value_starts, lengths = value_starts[present], lengths[present]
    sizes = np.full(levels.num_levels, width, np.int64)
    sizes[has_value] += prefix + lengths
    starts = np.cumsum(sizes) - sizes
    flat = allocate_bytes(int(sizes.sum()))
    for byte in range(width):
        flat[starts + byte] = control[:, byte]
    targets = starts[has_value] + width
    for byte in range(prefix):
        flat[targets + byte] = (lengths >> (8 * byte)) & 0xFF
    target, source = flat.data, values.data.data
    for to, start, length in zip((targets + prefix).tolist(), value_starts.tolist(), lengths.tolist(), strict=True):
        target[to : to + length] = source[start : start + length]
    return flat, starts


def _index(levels: Levels, starts: Counts, total: int, row_level: int) -> npt.NDArray[Any]:
    rows = starts if levels.repetition is None else starts[levels.repetition == row_level]
    width = next(width for width in (1, 2, 4, 8) if total < 1 << (8 * width))
    return np.append(rows, total).astype(f"<u{width}")


def group_key(page: PageInfo, layout: FullZipLayout, *, is_whole: bool) -> bytes | None:
    """The key of a page: pages with the same key are decoded together; None for a page that is decoded alone.

    A large page that is read whole is decoded alone, because decoding it together with others would copy it.
    """
    start, end = page.buffer(0)
    is_large = is_whole and end - start > SMALL_PAGE
    if is_large or layout.bits_rep or layout.WhichOneof("details") != "bits_per_value":
        return None
    shared = FullZipLayout()
    shared.CopyFrom(layout)
    shared.num_items = shared.num_visible_items = 0
    return shared.SerializeToString(deterministic=True)


def decode(
    pages: Sequence[PageInfo], layout: FullZipLayout, layers: tuple[Layer, ...], rows: RowRuns
) -> Steps[DecodedRows]:
    """Read rows of a page, or of several with the same `group_key`.

    Args:
        pages: The pages.
        layout: The description of the first one.
        layers: The layers that the description names.
        rows: The wanted rows, counted from the first row of the first page.

    Returns:
        Exactly the wanted rows.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: A compression is not known.
    """
    details = layout.WhichOneof("details")
    bits = layout.bits_per_offset if details == "bits_per_offset" else layout.bits_per_value
    if details is None or bits % 8 or bits == 0 or (details == "bits_per_offset" and bits not in (32, 64)):
        raise CorruptFileError(f"a full-zip page of {bits} bits per value or offset")
    if layout.bits_rep > 16 or layout.bits_def > 16:
        raise CorruptFileError("levels of more than 16 bits")
    kind = EntryForm(
        layers=layers,
        bits_rep=layout.bits_rep,
        bits_def=layout.bits_def,
        size=bits // 8,
        is_variable=details == "bits_per_offset",
    )
    if kind.is_variable or kind.bits_rep:
        data, row_starts, row_ends = yield from _read_indexed(pages[0], rows)
    else:
        step = kind.width + kind.size
        starts, lengths, owners = _find_places(pages, rows, step)
        ranges, counts = merge_ranges(starts, starts + lengths, owners)
        data, places = coalesce_pieces((yield ranges))
        firsts = starts + np.repeat(places - np.array([start for start, _ in ranges], np.int64), counts)
        if kind.width == 0 and rows.count >= starts.size * _LONG_RUN:
            data = gather_ranges(data, firsts, lengths)
            plain = FixedWidthBlock(data=data, bits_per_value=bits, num_values=rows.count)
            levels = Levels(layers=layers, num_levels=rows.count, repetition=None, definition=None)
            return DecodedRows(covered=rows, levels=levels, values=decode_per_value(layout.value_compression, plain))
        row_starts = np.arange(rows.count, dtype=np.int64) * step
        if starts.size > 1:
            # From the rows of all runs to those of each run.
            row_starts += np.repeat(firsts - np.cumsum(lengths) + lengths, lengths // step)
        row_ends = row_starts + step
    levels, values = _unzip(kind, data, row_starts, row_ends)
    return DecodedRows(covered=rows, levels=levels, values=decode_per_value(layout.value_compression, values))


def _find_places(pages: Sequence[PageInfo], rows: RowRuns, step: int) -> tuple[Counts, Counts, Counts]:
    """The starts of the runs of wanted rows in the file, their sizes, and their pages; each row takes `step` bytes."""
    starts, lengths = [], []
    first = 0
    for page in pages:
        start, end = page.buffer(0)
        if (end - start) // step < page.num_rows:
            raise CorruptFileError(f"{end - start} bytes are too few for {page.num_rows} values of {step} bytes")
        page_rows = rows if len(pages) == 1 else rows.within(first, first + page.num_rows)
        starts.append(page_rows.starts * step + start)
        lengths.append((page_rows.ends - page_rows.starts) * step)
        first += page.num_rows
    owners = np.repeat(np.arange(len(pages)), [page_starts.size for page_starts in starts])
    return np.concatenate(starts), np.concatenate(lengths), owners


def _read_indexed(page: PageInfo, rows: RowRuns) -> Steps[tuple[Bytes, Counts, Counts]]:
    """The bytes of some rows, and the start and end of each row in them."""
    (start, end), (index_start, index_end) = page.buffer(0), page.buffer(1)
    width, rest = divmod(index_end - index_start, page.num_rows + 1)
    if rest or width not in (1, 2, 4, 8):
        raise CorruptFileError(f"a repetition index of {index_end - index_start} bytes for {page.num_rows} rows")
    whole = rows.covers(page.num_rows) or end - start <= SMALL_PAGE
    if whole:
        answers = yield [(index_start, index_end), (start, end)]
        index = as_bytes(answers[0]).view(f"<u{width}").astype(np.int64)
        _check_index(index, end - start)
        row_numbers = slice(None) if rows.covers(page.num_rows) else rows.rows()
        return as_bytes(answers[1]), index[:-1][row_numbers], index[1:][row_numbers]
    answers = yield [
        (index_start + a * width, index_start + (b + 1) * width)
        for a, b in zip(rows.starts.tolist(), rows.ends.tolist(), strict=True)
    ]
    indices = [as_bytes(answer).view(f"<u{width}").astype(np.int64) for answer in answers]
    for index in indices:
        _check_index(index, end - start)
    pieces = yield [(start + int(index[0]), start + int(index[-1])) for index in indices]
    shift, row_starts, row_ends = 0, [], []
    for index in indices:
        row_starts.append(index[:-1] - index[0] + shift)
        row_ends.append(index[1:] - index[0] + shift)
        shift += int(index[-1] - index[0])
    data = np.concatenate([as_bytes(piece) for piece in pieces])
    return data, np.concatenate(row_starts), np.concatenate(row_ends)


def _check_index(index: Counts, size: int) -> None:
    if index.size and (int(index[0]) < 0 or int(index[-1]) > size or not ascends(index)):
        raise CorruptFileError(f"the repetition index points outside the {size} bytes of the values")


def _unzip(
    kind: EntryForm, data: Bytes, row_starts: Counts, row_ends: Counts
) -> tuple[Levels, FixedWidthBlock | VariableBlock]:
    if kind.width == 0 and not kind.is_variable:
        levels = Levels(layers=kind.layers, num_levels=row_starts.size, repetition=None, definition=None)
        plain = _gather_values(data, row_starts, kind.size)
        return levels, FixedWidthBlock(data=plain, bits_per_value=kind.size * 8, num_values=row_starts.size)
    starts = row_starts
    if kind.bits_rep:
        starts = find_entries(kind, data, row_starts, row_ends)
    repetition, definition = _gather_levels(kind, data, starts)
    levels = Levels(layers=kind.layers, num_levels=starts.size, repetition=repetition, definition=definition)
    slots = find_slots(levels)
    at = (starts if slots is None else starts[slots]) + kind.width
    if not kind.is_variable:
        if at.size and int(at[-1]) + kind.size > data.size:
            raise CorruptFileError("a value ends after the page")
        gathered = _gather_fixed(data, at, kind.size)
        return levels, FixedWidthBlock(data=gathered, bits_per_value=kind.size * 8, num_values=at.size)
    valid = None
    if definition is not None:
        valid = (definition if slots is None else definition[slots]) == 0
    return levels, _gather_variable(data, at, kind.size, valid)


def _gather_values(data: Bytes, starts: Counts, size: int) -> Bytes:
    """Copies of values of `size` bytes."""
    low, high = int(starts.min()), int(starts.max()) + size
    if low < 0 or high > data.size:
        raise CorruptFileError("a value ends after the page")
    numbers, rest = np.divmod(starts - low, size)
    if rest.any():
        return _gather_fixed(data, starts, size)
    kind = f"<u{size}" if size in (1, 2, 4, 8) else f"V{size}"
    return data[low:high].view(kind)[numbers].view(np.uint8)


def _gather_levels(kind: EntryForm, data: Bytes, starts: Counts) -> tuple[LevelArray | None, LevelArray | None]:
    words = gather_integers(data, starts, kind.width)
    repetition = (words >> kind.bits_def).astype(np.uint16) if kind.bits_rep else None
    definition = (words & ((1 << kind.bits_def) - 1)).astype(np.uint16) if kind.bits_def else None
    return repetition, definition


def _gather_fixed(data: Bytes, starts: Counts, size: int) -> Bytes:
    if starts.size > 1:
        step = int(starts[1] - starts[0])
        if bool((np.diff(starts) == step).all()):
            rows = np.ndarray((starts.size, size), np.uint8, data, int(starts[0]), (step, 1))
            return np.ascontiguousarray(rows).ravel()
    if size <= 64:
        return data[expand_runs(starts, np.full(starts.size, size, np.int64))]
    return gather_ranges(data, starts, np.full(starts.size, size, np.int64))


def _gather_variable(data: Bytes, starts: Counts, prefix: int, valid: Mask | None) -> VariableBlock:
    lengths = np.zeros(starts.size, np.int64)
    present = starts if valid is None else starts[valid]
    value_sizes = gather_integers(data, present, prefix)
    if value_sizes.size and (int(value_sizes.min()) < 0 or int((present + prefix + value_sizes).max()) > data.size):
        raise CorruptFileError("a value is longer than its page")
    lengths[slice(None) if valid is None else valid] = value_sizes
    offsets = np.zeros(starts.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if int(offsets[-1]) > data.size:
        raise CorruptFileError("values overlap")
    values = gather_ranges(data, present + prefix, value_sizes)
    narrow = prefix == 4 and int(offsets[-1]) < 2**31
    return VariableBlock(offsets=offsets.astype(np.int32) if narrow else offsets, data=values, num_values=starts.size)

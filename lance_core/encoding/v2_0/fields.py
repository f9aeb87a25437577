"""Reads the fields of 2.0 files, whose structs and lists have columns of their own.

    struct    the children, row by row
    list      per page the ends of the lists, counted from the page's first item; the items of all pages follow each
              other in the child's column, which has pages of its own
    string    before 0.15 also a list: its bytes are in the next column, as items of 8 bits
    blob      a packed struct of position and size; the payloads are elsewhere in the file

See `decoder` for the pages of these columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_core._proto.encodings_v2_0_pb2 import ArrayEncoding
from lance_core.encoding.concatenate import concatenate
from lance_core.encoding.datablock import VariableBlock, block_to_array
from lance_core.encoding.page import PageInfo, RowRuns, Steps, as_bytes, lock_step
from lance_core.encoding.v2_0.decoder import decode_values, read_ends
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field, arrow_type_of
from lance_core.schema.field import is_packed

_BLOB_DESCRIPTOR = pa.struct([pa.field("position", pa.uint64()), pa.field("size", pa.uint64())])


class PageLookup(Protocol):
    """The interface of an object that returns the pages of a column by number."""

    def page(self, index: int, first_row: int, num_rows: int) -> PageInfo:
        """One page."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainColumn:
    """One column of a 2.0 file.

    Attributes:
        pages: Its pages.
        bounds: First item of each page, and the number of items.
        is_blob: Whether its values are descriptors of blobs.
        bytes_column: The column with the bytes of its strings, if they are stored as lists; else None.
    """

    pages: PageLookup
    bounds: npt.NDArray[np.int64]
    is_blob: bool
    bytes_column: PlainColumn | None = None

    def pages_of(self, rows: RowRuns) -> list[tuple[PageInfo, RowRuns]]:
        """The pages of some rows, each with its rows, counted from its first."""
        pages = []
        index = max(int(np.searchsorted(self.bounds, rows.starts[0], side="right")) - 1, 0) if rows.starts.size else 0
        while rows.starts.size and index < self.bounds.size - 1 and int(self.bounds[index]) < int(rows.ends[-1]):
            start, end = int(self.bounds[index]), int(self.bounds[index + 1])
            part = rows.clip(start, end).shift(-start)
            if part.count:
                pages.append((self.pages.page(index, start, end - start), part))
            index += 1
        if sum(part.count for _, part in pages) != rows.count:
            raise CorruptFileError(f"the column has only {int(self.bounds[-1])} items")
        return pages


def read_field(field: Field, columns: Mapping[int, PlainColumn], rows: RowRuns) -> Steps[pa.Array]:
    """Read some values of a field.

    Args:
        field: The field.
        columns: The columns of it and of the fields below, by field id.
        rows: The wanted rows, or the wanted items if the field is below lists.

    Returns:
        An array of the wanted values.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: An encoding or type is not supported.
    """
    kind = arrow_type_of(field)
    if not rows.count:
        return pa.nulls(0, kind)
    if field.logical_type == "map" or (field.children and field.logical_type.startswith("fixed_size_list")):
        raise UnsupportedError(f"a 2.0 file cannot hold the type {field.logical_type}")
    if field.logical_type == "struct" and not is_packed(field):
        children = yield from lock_step([read_field(child, columns, rows) for child in field.children])
        return pa.Array.from_buffers(kind, rows.count, [None], children=children)
    column = columns[field.id]
    if field.children and not is_packed(field):
        return (yield from _read_list(field, columns, rows))
    if column.is_blob:
        return (yield from _read_blobs(column, kind, rows))
    if column.bytes_column is not None:
        return (yield from _read_listed_bytes(column, column.bytes_column, kind, rows))
    parts = yield from lock_step([decode_values(page, kind, part) for page, part in column.pages_of(rows)])
    return concatenate(parts)


def _read_list(field: Field, columns: Mapping[int, PlainColumn], rows: RowRuns) -> Steps[pa.Array]:
    lengths, valid, item_rows = yield from _find_lists(columns[field.id], rows)
    items = yield from read_field(field.children[0], columns, item_rows)
    return _list_array(field, lengths, valid, items)


def _read_listed_bytes(column: PlainColumn, inner: PlainColumn, kind: pa.DataType, rows: RowRuns) -> Steps[pa.Array]:
    """Strings or bytes that are stored as lists of bytes."""
    lengths, valid, item_rows = yield from _find_lists(column, rows)
    parts = yield from lock_step([decode_values(page, pa.uint8(), part) for page, part in inner.pages_of(item_rows)])
    data = pa.concat_arrays(parts) if parts else pa.array([], pa.uint8())
    if data.null_count:
        raise CorruptFileError("bytes of a string are null")
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    block = VariableBlock(offsets=offsets, data=data.to_numpy(), num_values=rows.count)
    bitmap = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return block_to_array(block, kind, bitmap)


def _find_lists(column: PlainColumn, rows: RowRuns) -> Steps[tuple[Any, Any, RowRuns]]:
    """Length and validity of each wanted list, and the items of all of them."""
    base = 0
    readers, bases = [], []
    pages = column.pages_of(rows)
    # Items of the pages before the first wanted one have to be counted as well.
    first_items = _number_first_items(column)
    for page, part in pages:
        encoding = page.encoding
        if not isinstance(encoding, ArrayEncoding) or encoding.WhichOneof("array_encoding") != "list":
            raise CorruptFileError("a page of lists has another encoding")
        base = first_items[page.first_row]
        bases.append(base)
        readers.append(read_ends(page, encoding.list.offsets, encoding.list.null_offset_adjustment, part))
    pieces = yield from lock_step(readers)
    run_starts, run_ends, lengths, valid = [], [], [], []
    for (starts, ends, good), (_, part), base in zip(pieces, pages, bases, strict=True):
        last = np.cumsum(part.ends - part.starts) - 1
        first = last - (part.ends - part.starts) + 1
        run_starts.append(starts[first] + base)
        run_ends.append(ends[last] + base)
        lengths.append(ends - starts)
        valid.append(good)
    begins, finishes = np.concatenate(run_starts), np.concatenate(run_ends)
    filled = finishes > begins
    items = RowRuns(starts=begins[filled], ends=finishes[filled])
    return np.concatenate(lengths), np.concatenate(valid), items


def _number_first_items(column: PlainColumn) -> dict[int, int]:
    """For each page of lists, by its first row: the number of its first item."""
    first_items, total = {}, 0
    for index, start in enumerate(column.bounds[:-1].tolist()):
        page = column.pages.page(index, start, int(column.bounds[index + 1]) - start)
        first_items[start] = total
        if isinstance(page.encoding, ArrayEncoding):
            total += page.encoding.list.num_items
    return first_items


def _list_array(field: Field, lengths: Any, valid: Any, items: pa.Array) -> pa.Array:
    kind = arrow_type_of(field)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if int(offsets[-1]) != len(items):
        raise CorruptFileError(f"the lists have {int(offsets[-1])} items, but there are {len(items)}")
    if not pa.types.is_large_list(kind):
        if int(offsets[-1]) >= 2**31:
            raise UnsupportedError("more than 2^31 items in one array; read fewer rows at a time")
        offsets = offsets.astype(np.int32)
    bitmap = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, lengths.size, [bitmap, pa.py_buffer(offsets)], children=[items])


def _read_blobs(column: PlainColumn, kind: pa.DataType, rows: RowRuns) -> Steps[pa.Array]:
    parts = yield from lock_step([decode_values(page, _BLOB_DESCRIPTOR, part) for page, part in column.pages_of(rows)])
    descriptors: Any = concatenate(parts)
    positions = descriptors.field(0).to_numpy()
    sizes = descriptors.field(1).to_numpy()
    if pa.types.is_struct(kind):
        null = (sizes == 0) & (positions != 0)
        parts = [pa.array(np.where(null, 0, positions)), pa.array(sizes)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=pa.array(null) if null.any() else None)
    if positions.size and int(np.maximum(positions, sizes).max()) >= 2**62:
        raise CorruptFileError("a blob lies beyond any file")
    present = sizes > 0
    ranges = [
        (int(start), int(start) + int(size)) for start, size in zip(positions[present], sizes[present], strict=True)
    ]
    answers = (yield ranges) if ranges else []
    offsets = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes.astype(np.int64), out=offsets[1:])
    data = np.concatenate([as_bytes(a) for a in answers]) if answers else np.empty(0, np.uint8)
    valid = present | (positions == 0)
    bitmap = None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(pa.large_binary(), sizes.size, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])
    return array if kind == pa.large_binary() else array.cast(kind)

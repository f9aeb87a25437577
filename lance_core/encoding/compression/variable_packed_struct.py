"""Variable packed structs: rows of fields, some of which vary in length. Full-zip pages of 2.2 only.

    value   |field of one width|u32 length|bytes of a variable field|...|       length: u64 if bits_per_length is 64

The description has one entry per field: its encoding, and either `bits_per_value` or `bits_per_length`. A struct that
is null has no bytes; its fields are decoded as zeros and empty values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, VariablePackedStruct
from lance_core.encoding.compression import registry
from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.datablock import (
    Bytes,
    DataBlock,
    FixedWidthBlock,
    PackedStructBlock,
    VariableBlock,
    compute_offsets,
)
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError

_MAX_BITS = 2**31


class _RowCursor:
    """Rows that are read field by field, with a current position in each row."""

    def __init__(self, block: VariableBlock) -> None:
        self._data = block.data
        self._count = block.num_values
        starts = block.offsets[:-1].astype(np.int64)
        ends = block.offsets[1:].astype(np.int64)
        self._present = np.flatnonzero(ends > starts)
        self._at = starts[self._present]
        self._ends = ends[self._present]

    def _advance(self, sizes: Counts | int) -> Counts:
        """Advance by `sizes` bytes in every row and return their start."""
        starts = self._at
        self._at = starts + sizes
        if (self._at > self._ends).any():
            raise CorruptFileError("a packed struct ends inside a field")
        return starts

    def fixed(self, width: int) -> Bytes:
        """The next field of `width` bytes, zero where the row is absent."""
        starts = self._advance(width)
        out = np.zeros((self._count, width), np.uint8)
        out[self._present] = self._data[starts[:, None] + np.arange(width)]
        return out.reshape(-1)

    def variable(self, length_bytes: int) -> VariableBlock:
        """The next field with a length before it, empty where the row is absent."""
        heads = self._data[self._advance(length_bytes)[:, None] + np.arange(length_bytes)]
        lengths = heads.reshape(-1).view(f"<i{length_bytes}").astype(np.int64)
        if (lengths < 0).any() or (lengths > self._ends - self._at).any():
            raise CorruptFileError("a packed struct ends inside a field")
        starts = self._advance(lengths)
        sizes = np.zeros(self._count, np.int64)
        sizes[self._present] = lengths
        offsets = compute_offsets(sizes)
        places = np.repeat(starts - offsets[self._present], lengths) + np.arange(int(offsets[-1]))
        return VariableBlock(offsets=offsets, data=self._data[places], num_values=self._count)

    def finish(self) -> None:
        """Check that no bytes are left."""
        if (self._at != self._ends).any():
            raise CorruptFileError("a packed struct goes on after its last field")


def _decode_per_value(encoding: CompressiveEncoding, block: FixedWidthBlock | VariableBlock) -> PackedStructBlock:
    if not isinstance(block, VariableBlock):
        raise CorruptFileError("variable packed structs in a page of values of one width")
    rows = _RowCursor(block)
    children: list[DataBlock] = []
    for field in encoding.variable_packed_struct.fields:
        layout = field.WhichOneof("layout")
        raw: FixedWidthBlock | VariableBlock
        if layout == "bits_per_value":
            bits = field.bits_per_value
            if bits == 0 or bits % 8 or bits > _MAX_BITS or bits * block.num_values > _MAX_BITS * 64:
                raise CorruptFileError(f"packed fields of {bits} bits")
            raw = FixedWidthBlock(data=rows.fixed(bits // 8), bits_per_value=bits, num_values=block.num_values)
        elif field.bits_per_length in (32, 64):
            raw = rows.variable(field.bits_per_length // 8)
        else:
            raise CorruptFileError(f"packed fields with lengths of {field.bits_per_length} bits")
        children.append(registry.decode_per_value(field.value, raw))
    rows.finish()
    return PackedStructBlock(children=tuple(children), num_values=block.num_values)


def _encode_per_value(block: DataBlock, _argument: str) -> tuple[CompressiveEncoding, VariableBlock]:
    if not isinstance(block, PackedStructBlock) or not block.children:
        raise InvalidInputError(f"a {type(block).__name__} is not a struct that could be packed")
    encoding = CompressiveEncoding(variable_packed_struct=VariablePackedStruct())
    parts: list[FixedWidthBlock | VariableBlock] = []
    for child in block.children:
        value, part = registry.encode_per_value(child, _field_compression(child))
        field = encoding.variable_packed_struct.fields.add(value=value)
        if isinstance(part, VariableBlock):
            field.bits_per_length = part.offsets.itemsize * 8
        elif part.bits_per_value % 8:
            raise UnsupportedError("a packed struct cannot hold fields of single bits")
        else:
            field.bits_per_value = part.bits_per_value
        parts.append(part)
    return encoding, _join_rows(parts, block.num_values)


def _field_compression(block: DataBlock) -> str:
    if isinstance(block, FixedWidthBlock):
        return "flat"
    if isinstance(block, VariableBlock):
        return "variable"
    return "fixed_size_list"


def _join_rows(parts: list[FixedWidthBlock | VariableBlock], num_values: int) -> VariableBlock:
    sizes = np.zeros(num_values, np.int64)
    for part in parts:
        if isinstance(part, VariableBlock):
            sizes += np.diff(part.offsets) + part.offsets.itemsize
        else:
            sizes += part.bits_per_value // 8
    offsets = compute_offsets(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    at = offsets[:-1].astype(np.int64)
    for part in parts:
        if isinstance(part, FixedWidthBlock):
            width = part.bits_per_value // 8
            _scatter_rows(out, at, part.data[: num_values * width].reshape(num_values, width))
            continue
        lengths: npt.NDArray[Any] = np.diff(part.offsets)
        heads = lengths.astype(f"<u{part.offsets.itemsize}").view(np.uint8)
        _scatter_rows(out, at, heads.reshape(num_values, part.offsets.itemsize))
        shift = np.repeat(at - part.offsets[:-1], lengths)
        used = np.arange(int(part.offsets[0]), int(part.offsets[-1]))
        out[used + shift] = part.data[used]
        at += lengths
    return VariableBlock(offsets=offsets, data=out, num_values=num_values)


def _scatter_rows(out: Bytes, at: Counts, rows: Bytes) -> None:
    """Write row i to ``out[at[i]:]`` and advance ``at[i]`` to the end of the row."""
    out[at[:, None] + np.arange(rows.shape[1])] = rows
    at += rows.shape[1]


COMPRESSION = registry.Compression(
    name="variable_packed_struct", decode_per_value=_decode_per_value, encode_per_value=_encode_per_value
)

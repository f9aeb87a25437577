"""Blobs: a page of descriptors, and payloads elsewhere.

Blobs of 2.0 and 2.1 (field metadata `lance-encoding:blob`):

    descriptor      u64 position in the file, u64 size; a packed struct of the inner layout
    empty           size 0, position 0
    null            size 0, position = definition << 16 | repetition; 1 in 2.0

The descriptors themselves are never null; the layers of the blob layout define the levels. A field of type
`large_binary` reads the payloads of blobs, a struct their descriptors.

Blobs of 2.2 (extension `lance.blob.v2`) are a packed struct whose nulls are those of the page:

    kind u8, position u64, size u64, blob_id u32, blob_uri string

A data file returns these descriptors. `verbs/scan/blob_payloads.py` reads the payloads; only those of kind 0 are in the
same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.compression.registry import encode_miniblock
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, PackedStructBlock, VariableBlock
from lance_core.encoding.page import DecodedRows, EncodedPage, RowRuns, Steps, as_bytes
from lance_core.encoding.repdef import (
    Layer,
    Levels,
    count_lists,
    find_nulls,
    list_layers_of_description,
    max_definition,
)
from lance_core.encoding.structural import chunk_layout
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field, Schema
from lance_core.schema.field import is_blob_v2, is_blob_v2_payload, map_fields

_MAX_FILE: Final = 2**63

DESCRIPTOR_V2: Final = ("kind", "position", "size", "blob_id", "blob_uri")
"""Names of the parts of a descriptor of 2.2."""
DESCRIPTOR_V2_TYPES: Final = ("uint8", "uint64", "uint64", "uint32", "string")
"""Names of the Arrow types of these parts, in the same order."""


def build_descriptors(array: pa.Array, positions: Sequence[int], *, null: int = 1 << 16) -> Counts:
    """The descriptors of blobs: shape (blobs, 2).

    Args:
        array: The payloads.
        positions: Their positions in the file; ignored for null and empty ones.
        null: The position of a null: 1 in 2.0.
    """
    sizes = _sizes(array)
    table = np.zeros((len(array), 2), np.int64)
    table[:, 0] = np.where(sizes > 0, np.asarray(positions, np.int64), 0)
    table[:, 1] = sizes
    nulls = find_nulls(array)
    if nulls is not None:
        table[nulls] = (null, 0)
    return table


def _sizes(array: Any) -> Counts:
    lengths = pa.compute.binary_length(array).fill_null(0)
    return np.asarray(lengths).astype(np.int64)


def encode(array: pa.Array, positions: Sequence[int], *, large_chunks: bool) -> EncodedPage:
    """Write a page of descriptors.

    Args:
        array: The payloads of a top-level column.
        positions: Their positions in the file.
        large_chunks: Whether the file is 2.2.
    """
    table = build_descriptors(array, positions)
    parts = [np.ascontiguousarray(table[:, column]) for column in range(2)]
    children = tuple(
        FixedWidthBlock(data=part.view(np.uint8), bits_per_value=64, num_values=part.size) for part in parts
    )
    chunks = encode_miniblock(PackedStructBlock(children=children, num_values=len(array)), "packed_struct")
    flat = Levels(layers=(Layer.ALL_VALID_ITEM,), num_levels=len(array), repetition=None, definition=None)
    inner = chunk_layout.encode(flat, chunks, num_rows=len(array), dictionary=None, large_chunks=large_chunks)
    assert inner is not None
    assert isinstance(inner.encoding, PageLayout)
    layout = PageLayout()
    layout.blob_layout.inner_layout.CopyFrom(inner.encoding)
    layer = Layer.NULLABLE_ITEM if array.null_count else Layer.ALL_VALID_ITEM
    layout.blob_layout.layers.extend(list_layers_of_description([layer]))
    return EncodedPage(num_rows=len(array), length=len(array), encoding=layout, buffers=inner.buffers)


class BlobKind(IntEnum):
    """Where the payload of a blob of 2.2 is stored."""

    INLINE = 0
    PACKED = 1
    DEDICATED = 2
    EXTERNAL = 3


class Descriptor(NamedTuple):
    """The descriptor of a blob of 2.2; `verbs/scan/blob_payloads.py` explains its parts for each kind."""

    kind: BlobKind
    position: int = 0
    size: int = 0
    blob_id: int = 0
    uri: str = ""


_NO_BLOB: Final = Descriptor(BlobKind.INLINE)


def descriptor_array(blobs: Sequence[Descriptor | None]) -> pa.StructArray:
    """Descriptors of 2.2 as structs; None for a null."""
    parts = zip(*[_NO_BLOB if blob is None else blob for blob in blobs], strict=True)
    columns = list(parts) or [()] * len(DESCRIPTOR_V2)
    kinds = [pa.type_for_alias(kind) for kind in DESCRIPTOR_V2_TYPES]
    fields = [pa.field(name, kind, nullable=False) for name, kind in zip(DESCRIPTOR_V2, kinds, strict=True)]
    children = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.StructArray.from_arrays(
        children, fields=fields, mask=pa.array([blob is None for blob in blobs], pa.bool_())
    )


def describe_field(field: Field) -> Field:
    """A field of blobs of 2.2 as the struct of their descriptors."""
    parts = zip(DESCRIPTOR_V2, DESCRIPTOR_V2_TYPES, strict=True)
    children = tuple(Field(name=name, logical_type=kind, nullable=False) for name, kind in parts)
    return replace(field, logical_type="struct", children=children)


def gives_payloads(field: Field) -> bool:
    """Whether reading the field gives payloads of blobs of 2.2, rather than their descriptors."""
    if is_blob_v2_payload(field):
        return True
    return is_blob_v2(field) and [child.name for child in field.children][:2] == ["data", "uri"]


def describe_schema(schema: Schema) -> Schema | None:
    """The columns with descriptors in place of payloads; None if there are no payloads among them."""
    if "described" not in schema.memo:
        has_payloads = any(gives_payloads(field) for field, _ in schema.walk())
        described = map_fields(schema, lambda field: describe_field(field) if gives_payloads(field) else field)
        schema.memo["described"] = described if has_payloads else None
    described_schema: Schema | None = schema.memo["described"]
    return described_schema


def decode(inner: Steps[DecodedRows], layers: tuple[Layer, ...], field: Field, rows: RowRuns) -> Steps[DecodedRows]:
    """Read blobs.

    Args:
        inner: The decoder of the page of descriptors.
        layers: The layers of the blob layout.
        field: The field that is read: binary for payloads, struct for descriptors.
        rows: The wanted rows.

    Returns:
        Exactly the wanted rows.

    Raises:
        CorruptFileError: The descriptors do not follow the format.
        UnsupportedError: The blobs are inside lists.
    """
    if count_lists(layers):
        raise UnsupportedError("blobs inside lists are not supported")
    decoded = yield from inner
    if decoded.values is None:
        return decoded
    positions, sizes = _descriptors(decoded.values)
    chosen = rows.positions_in(decoded.covered)
    positions, sizes = positions[chosen], sizes[chosen]
    null = (sizes == 0) & (positions != 0)
    definition = None
    if max_definition(layers):
        definition = np.where(null, positions >> 16, 0).astype(np.uint16)
    levels = Levels(layers=layers, num_levels=positions.size, repetition=None, definition=definition)
    if field.logical_type == "struct":
        parts = [
            FixedWidthBlock(data=part.view(np.uint8), bits_per_value=64, num_values=part.size)
            for part in (np.where(null, 0, positions), sizes)
        ]
        values: DataBlock = PackedStructBlock(children=tuple(parts), num_values=positions.size)
        return DecodedRows(covered=rows, levels=levels, values=values)
    present = np.flatnonzero(sizes > 0)
    starts, lengths = positions[present].tolist(), sizes[present].tolist()
    answers = (yield [(a, a + n) for a, n in zip(starts, lengths, strict=True)]) if starts else []
    offsets = np.zeros(positions.size + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = np.concatenate([as_bytes(a) for a in answers]) if answers else np.empty(0, np.uint8)
    values = VariableBlock(offsets=offsets, data=data, num_values=positions.size)
    return DecodedRows(covered=rows, levels=levels, values=values)


def _descriptors(values: DataBlock) -> tuple[Counts, Counts]:
    if isinstance(values, PackedStructBlock):
        parts = [c.view() for c in values.children if isinstance(c, FixedWidthBlock) and c.bits_per_value == 64]
    elif isinstance(values, FixedWidthBlock) and values.bits_per_value == 128:
        table = values.data[: values.num_values * 16].view("<u8").reshape(-1, 2)
        parts = [table[:, 0], table[:, 1]]
    else:
        parts = []
    if len(parts) != 2:
        raise CorruptFileError("blob descriptors are not pairs of 64-bit numbers")
    positions, sizes = parts
    if positions.size and int(np.maximum(positions, sizes).max()) >= _MAX_FILE // 2:
        raise CorruptFileError("a blob lies beyond any file")
    return positions.astype(np.int64), sizes.astype(np.int64)

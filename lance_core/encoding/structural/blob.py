"""Blob pages (2.0 and 2.1): a page of descriptors, and payloads elsewhere in the file.

    descriptor      u64 position in the file, u64 size; a packed struct of the inner layout
    empty           size 0, position 0
    null            size 0, position = definition << 16 | repetition

The descriptors themselves are never null; the layers of the blob layout say what the levels mean. Read as
`large_binary` a blob is its payload, read as a struct it is its descriptor.
"""

__all__ = ["decode"]

import numpy as np

from lance_core.encoding.compression.chunks import Counts
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, PackedStructBlock, VariableBlock
from lance_core.encoding.page import Steps, as_bytes
from lance_core.encoding.repdef import Layer, Levels, count_lists, max_definition
from lance_core.encoding.structural.decoded import DecodedRows, RowRuns
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field

_MAX_FILE = 2**63


def decode(inner: Steps[DecodedRows], layers: tuple[Layer, ...], field: Field, rows: RowRuns) -> Steps[DecodedRows]:
    """Read blobs.

    Args:
        inner: The decoder of the page of descriptors.
        layers: The layers of the blob layout.
        field: The field that is read: binary for payloads, struct for descriptors.
        rows: Which rows are wanted.

    Returns:
        Exactly the wanted rows.

    Raises:
        CorruptFileError: The descriptors do not follow the format.
        UnsupportedError: Blobs inside lists.
    """
    if count_lists(layers):
        raise UnsupportedError("blobs inside lists")
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

"""Constant pages: one value, or only nulls.

                                         no levels                 levels
    all null                             no buffer                 repetition, definition
    value of at most 32 bytes, inline    no buffer                 repetition, definition
    value in a buffer                    scalar                    scalar, repetition, definition

A page with levels has both level buffers, which may be empty. Their levels are u16, or compressed, with their number in
the description. A page of nulls without buffers has no nesting. In 2.1 all constant pages are pages of nulls.

    scalar      u32 number of buffers, u32 size of each, the buffers: of a string its two offsets, i32 or i64, and its
                bytes
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from lance_core._proto.encodings_v2_1_pb2 import CompressiveEncoding, ConstantLayout, PageLayout
from lance_core.encoding.compression.fastlanes import BLOCK_VALUES
from lance_core.encoding.compression.registry import decode_block, encode_block
from lance_core.encoding.datablock import DataBlock, FixedWidthBlock, VariableBlock, count_runs
from lance_core.encoding.page import Bytes, BytesLike, DecodedRows, EncodedPage, PageInfo, RowRuns, Steps, as_bytes
from lance_core.encoding.repdef import Layer, LevelArray, Levels, find_slots, list_layers_of_description
from lance_core.errors import CorruptFileError

MAX_INLINE_BYTES: Final = 32
_FEW_LEVELS: Final = 16
_RUN_BYTES: Final = 3


def encode(
    levels: Levels, value: bytes | VariableBlock | None, *, num_rows: int, packs_levels: bool = False
) -> EncodedPage:
    """Write a page.

    Args:
        levels: Nesting and nulls; all null if there is no value.
        value: The bytes of a fixed width value, a block of one string, or None.
        num_rows: Top-level rows.
        packs_levels: Whether levels of a page of nulls may be compressed, as in files of 2.2; the reference library
            reads no compressed levels beside a value.
    """
    layout = ConstantLayout(layers=list_layers_of_description(levels.layers))
    buffers: list[BytesLike] = []
    if isinstance(value, bytes) and len(value) <= MAX_INLINE_BYTES:
        layout.inline_value = value
    elif isinstance(value, bytes):
        buffers.append(_pack_scalar([value]))
    elif value is not None:
        first, last = int(value.offsets[0]), int(value.offsets[-1])
        offsets = np.array([0, last - first], value.offsets.dtype)
        buffers.append(_pack_scalar([offsets.tobytes(), value.data[first:last].tobytes()]))
    if not _is_flat(levels, has_value=value is not None):
        packs_levels &= value is None
        buffers.append(_build_level_buffer(levels.repetition, layout, "rep", packs_levels))
        buffers.append(_build_level_buffer(levels.definition, layout, "def", packs_levels))
    return EncodedPage(
        num_rows=num_rows, length=num_rows, encoding=PageLayout(constant_layout=layout), buffers=tuple(buffers)
    )


def _build_level_buffer(levels: LevelArray | None, layout: ConstantLayout, kind: str, packs_levels: bool) -> BytesLike:
    """The bytes of levels; the description names their compression if it saves space."""
    if levels is None:
        return np.empty(0, np.uint16)
    if not packs_levels or levels.size <= _FEW_LEVELS:
        return levels
    block = FixedWidthBlock(data=levels.view(np.uint8), bits_per_value=16, num_values=levels.size)
    # Fewer than 1,024 levels are not packed.
    bits = 16 if levels.size < BLOCK_VALUES else int(levels.max()).bit_length()
    is_of_runs = _RUN_BYTES * count_runs(levels) < levels.size * bits / 8
    encoding, data = encode_block(block, "rle" if is_of_runs else "out_of_line_bitpacking")
    if data.size >= block.data.size:
        return levels
    getattr(layout, f"{kind}_compression").CopyFrom(encoding)
    setattr(layout, f"num_{kind}_values", levels.size)
    return data


def _is_flat(levels: Levels, *, has_value: bool) -> bool:
    if has_value:
        return levels.repetition is None and levels.definition is None
    return levels.layers == (Layer.NULLABLE_ITEM,)


def _pack_scalar(parts: list[bytes]) -> bytes:
    sizes = np.array([len(parts), *(len(part) for part in parts)], "<u4")
    return b"".join([sizes.tobytes(), *parts])


def decode(page: PageInfo, layout: ConstantLayout, layers: tuple[Layer, ...], rows: RowRuns) -> Steps[DecodedRows]:
    """Read rows of a page.

    Args:
        page: The page.
        layout: Its description.
        layers: The layers that the description names.
        rows: The wanted rows.

    Returns:
        The wanted rows, or all rows if the page has levels.

    Raises:
        CorruptFileError: The bytes do not follow the format.
    """
    has_levels, has_scalar = len(page.buffers) >= 2, len(page.buffers) in (1, 3)
    if len(page.buffers) > 3 or (has_scalar and layout.HasField("inline_value")):
        raise CorruptFileError(f"a constant page with {len(page.buffers)} buffers")
    answers = (yield list(page.buffers)) if page.buffers else []
    items: DataBlock | None = None
    if layout.HasField("inline_value"):
        value = np.frombuffer(layout.inline_value, np.uint8)
        items = FixedWidthBlock(data=value, bits_per_value=len(value) * 8, num_values=1)
    elif has_scalar:
        items = _unpack_scalar(as_bytes(answers[0]))
    if has_levels:
        levels = Levels(
            layers=layers,
            num_levels=0,
            repetition=_decode_levels(layout, "rep", as_bytes(answers[-2])),
            definition=_decode_levels(layout, "def", as_bytes(answers[-1])),
        )
        sizes = [array.size for array in (levels.repetition, levels.definition) if array is not None]
        levels = replace(levels, num_levels=sizes[0] if sizes else page.num_rows)
        covered = RowRuns.of_range(0, page.num_rows)
    else:
        definition = None if items is not None else np.ones(rows.count, np.uint16)
        levels = Levels(layers=layers, num_levels=rows.count, repetition=None, definition=definition)
        covered = rows
    if items is None:
        return DecodedRows(covered=covered, levels=levels, values=None)
    slots = find_slots(levels)
    count = levels.num_levels if slots is None else int(np.count_nonzero(slots))
    indices = FixedWidthBlock(data=np.zeros(count * 4, np.uint8), bits_per_value=32, num_values=count)
    return DecodedRows(covered=covered, levels=levels, values=indices, items=(items,))


def _decode_levels(layout: ConstantLayout, kind: str, data: Bytes) -> LevelArray | None:
    if not data.size:
        return None
    if not layout.HasField("rep_compression" if kind == "rep" else "def_compression"):
        if data.size % 2:
            raise CorruptFileError("the levels take an odd number of bytes")
        return data.view("<u2")
    encoding: CompressiveEncoding = layout.rep_compression if kind == "rep" else layout.def_compression
    block = decode_block(encoding, data, layout.num_rep_values if kind == "rep" else layout.num_def_values)
    if not isinstance(block, FixedWidthBlock) or block.bits_per_value != 16:
        raise CorruptFileError("levels are not 16 bits wide")
    return block.data.view("<u2")[: block.num_values]


def _unpack_scalar(data: Bytes) -> DataBlock:
    count = int(data[:4].view("<u4")[0]) if data.size >= 4 else 0
    if count not in (1, 2) or data.size < 4 + 4 * count:
        raise CorruptFileError(f"a constant value of {count} buffers")
    sizes = data[4 : 4 + 4 * count].view("<u4").astype(np.int64)
    if int(sizes.sum()) != data.size - 4 - 4 * count:
        raise CorruptFileError("the sizes of the buffers of a constant value do not sum to its size")
    first = data[4 + 4 * count : 4 + 4 * count + int(sizes[0])]
    if count == 1:
        return FixedWidthBlock(data=first, bits_per_value=first.size * 8, num_values=1)
    payload = data[data.size - int(sizes[1]) :]
    if first.size not in (8, 16):
        raise CorruptFileError(f"offsets of {first.size} bytes in a constant value")
    offsets = first.copy().view("<i4" if first.size == 8 else "<i8")
    if int(offsets[0]) != 0 or int(offsets[1]) != payload.size:
        raise CorruptFileError("the offsets of a constant value do not fit its bytes")
    return VariableBlock(offsets=offsets, data=payload, num_values=1)

"""Encodes the columns of 2.1 and 2.2 files: arrays to pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from lance_core.encoding.choosing.options import EncodingOptions, check_packed_values, read_encoding_options
from lance_core.encoding.choosing.strategy import (
    Limits,
    PageEncoding,
    can_be_zipped,
    choose_fixed,
    choose_items,
    choose_list,
    choose_packed,
    choose_variable,
    is_dictionary_worthwhile,
)
from lance_core.encoding.compression.registry import encode_block, encode_miniblock, encode_per_value
from lance_core.encoding.datablock import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    PackedStructBlock,
    VariableBlock,
    view_array_as_block,
)
from lance_core.encoding.page import EncodedPage
from lance_core.encoding.repdef import Layer, Levels, ShreddedColumn, find_nulls, shred
from lance_core.encoding.repeat import Choices
from lance_core.encoding.structural import chunk_layout, constant, fullzip
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.schema import Field
from lance_core.schema.field import items_per_row, leaf_paths

_Earlier: TypeAlias = tuple[Choices | None, int]
"""The choices for earlier pages, and the number of the column."""


def encode_field(
    field: Field,
    array: pa.Array,
    limits: Limits,
    choices: Choices | None = None,
    first_column: int = 0,
    *,
    change: Callable[[ShreddedColumn], ShreddedColumn] | None = None,
) -> list[list[EncodedPage]]:
    """Encode some rows of a top-level field.

    Args:
        field: The field.
        array: Its values; at least one row.
        limits: Limits of the version of the file.
        choices: The choices for earlier pages of the same writer; None to choose by the values alone.
        first_column: Number of the field's first column, for `choices`.
        change: What is written in place of each column.

    Returns:
        For each column of the field, in the order of `leaf_paths`, its pages; they cover all rows.

    Raises:
        UnsupportedError: The format cannot hold such values.
    """
    columns = shred(field, array) if change is None else map(change, shred(field, array))
    return [_encode_column(column, array, i, limits, (choices, first_column + i)) for i, column in enumerate(columns)]


def _encode_column(
    column: ShreddedColumn, array: pa.Array, index: int, limits: Limits, earlier: _Earlier
) -> list[EncodedPage]:
    """One page, or several if the levels between two values do not fit a chunk."""
    page = _encode_page(column, limits, earlier)
    if page is not None and not column.top.children:
        return [page]
    if page is not None:
        path = next(path for position, path in enumerate(leaf_paths(column.top)) if position == index)
        return [replace(page, length=page.num_rows * items_per_row(path))]
    if len(array) < 2:
        raise UnsupportedError(
            f"field {column.field.name!r}: one row has more consecutive null or empty lists than a chunk can hold"
        )
    pages = []
    for part in (array.slice(0, len(array) // 2), array.slice(len(array) // 2)):
        smaller = next(c for i, c in enumerate(shred(column.top, part)) if i == index)
        pages += _encode_column(smaller, part, index, limits, (None, 0))
    return pages


def _encode_page(column: ShreddedColumn, limits: Limits, earlier: _Earlier) -> EncodedPage | None:
    levels, values, num_rows = column.levels, column.values, column.num_rows
    if pa.types.is_struct(values.type) and values.type.num_fields == 0:
        return _encode_empty_struct(column)
    if _is_all_null(levels, values):
        return constant.encode(levels, None, num_rows=num_rows, packs_levels=limits.large_chunks)
    options = read_encoding_options(column.field, column.top)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_struct(values.type):
        check_packed_values(column.field, values)
    if pa.types.is_dictionary(values.type):
        bits = values.type.index_type.bit_width
        return _encode_dictionary(levels, _move_nulls_to_indices(values), num_rows, limits, options, bits)
    block = _fill_nulls(view_array_as_block(values), values)
    limits = _limit_chunks(block, limits, options)
    choices, number = earlier
    if choices is None:
        return _encode_values(levels, values, block, num_rows, limits, options)[0]
    has_levels = _has_levels(levels)
    again = choices.reuse_choice(number, block, has_levels=has_levels)
    if again is not None:
        page, _ = _encode_values(levels, values, block, num_rows, limits, options, again)
        if page is not None and choices.fits(number, page, block.num_values, has_levels=has_levels):
            return page
    page, choice = _encode_values(levels, values, block, num_rows, limits, options)
    if page is not None:
        choices.keep(number, choice, page, block, has_levels=has_levels)
    return page


def _encode_values(
    levels: Levels,
    values: Any,
    block: DataBlock,
    num_rows: int,
    limits: Limits,
    options: EncodingOptions,
    choice: PageEncoding | None = None,
) -> tuple[EncodedPage | None, PageEncoding]:
    """A page of values and its encoding, which is chosen unless `choice` is given; no page if a chunk is too large."""
    choice = _choose(block, levels, limits, options) if choice is None else choice
    if choice.layout == "dictionary":
        encoded = values.dictionary_encode()
        if is_dictionary_worthwhile(view_array_as_block(encoded.dictionary), block, options):
            page = _encode_dictionary(levels, encoded, num_rows, limits, options)
            if page is not None:
                return page, choice
        choice = _choose(block, levels, limits, options, dictionary=False)
    return _encode_choice(levels, block, num_rows, limits, choice), choice


def _encode_empty_struct(column: ShreddedColumn) -> EncodedPage:
    """Structs without fields have no values: they are written as a page of nulls, which readers ignore."""
    if column.levels.definition is not None or column.levels.repetition is not None:
        raise UnsupportedError(f"field {column.field.name!r}: a struct without fields cannot be null or in a list")
    levels = replace(column.levels, layers=(Layer.NULLABLE_ITEM,) * len(column.levels.layers))
    return constant.encode(levels, None, num_rows=column.num_rows)


def _is_all_null(levels: Levels, values: pa.Array) -> bool:
    if pa.types.is_null(values.type) or len(values) == 0 or values.null_count == len(values):
        return True
    return levels.definition is not None and bool((levels.definition != 0).all())


def _move_nulls_to_indices(values: Any) -> Any:
    """A dictionary array without nulls among its items."""
    return values.dictionary_decode().dictionary_encode() if values.dictionary.null_count else values


def _fill_nulls(block: DataBlock, values: pa.Array) -> DataBlock:
    """Put an existing value into the slots of nulls, which compresses well and hides the old content of the slots."""
    if not values.null_count or not isinstance(block, FixedWidthBlock) or block.bits_per_value % 8:
        return block
    nulls = find_nulls(values)
    if nulls is None:
        return block
    if block.bits_per_value in (8, 16, 32, 64):
        words = block.view()[: block.num_values]
        data = np.where(nulls, words[int(np.argmin(nulls))], words).view(np.uint8)
    else:
        rows = block.data.reshape(block.num_values, block.bits_per_value // 8).copy()
        rows[nulls] = rows[int(np.argmin(nulls))]
        data = rows.ravel()
    return FixedWidthBlock(data=data, bits_per_value=block.bits_per_value, num_values=block.num_values)


def _limit_chunks(block: DataBlock, limits: Limits, options: EncodingOptions) -> Limits:
    """The limits with chunks as small as requested, but large enough for the longest value."""
    if options.chunk_bytes is None or not isinstance(block, VariableBlock) or not block.num_values:
        return limits
    least = 2 * int(np.diff(block.offsets).max()) + 5 * block.offsets.itemsize
    return replace(limits, chunk_bytes=max(options.chunk_bytes, least))


def _has_levels(levels: Levels) -> bool:
    return levels.repetition is not None or levels.definition is not None


def _choose(
    block: DataBlock, levels: Levels, limits: Limits, options: EncodingOptions, *, dictionary: bool = True
) -> PageEncoding:
    has_levels = _has_levels(levels)
    if isinstance(block, FixedWidthBlock):
        return choose_fixed(block, has_levels=has_levels, limits=limits, options=options, dictionary=dictionary)
    if isinstance(block, VariableBlock):
        return choose_variable(block, has_levels=has_levels, limits=limits, options=options, dictionary=dictionary)
    if isinstance(block, FixedSizeListBlock):
        return choose_list(block, has_levels=has_levels, options=options)
    if isinstance(block, PackedStructBlock):
        return choose_packed(block)
    raise UnsupportedError(f"a {type(block).__name__} cannot be written")


def _encode_choice(
    levels: Levels, block: DataBlock, num_rows: int, limits: Limits, choice: PageEncoding
) -> EncodedPage | None:
    if choice.layout == "constant":
        return constant.encode(levels, _first_value(block), num_rows=num_rows)
    if choice.layout == "miniblock":
        page = _encode_miniblock(levels, block, num_rows, limits, choice)
        if page is not None:
            return page
    if not can_be_zipped(block):
        return None
    if isinstance(block, FixedWidthBlock) and block.bits_per_value == 1:
        block = fullzip.expand_bits(block)
    is_chosen = choice.layout == "fullzip" and isinstance(block, VariableBlock)
    encoding, values = encode_per_value(block, choice.compression if is_chosen else _per_value_name(block))
    return fullzip.encode(levels, values, encoding, num_rows=num_rows)


def _encode_miniblock(
    levels: Levels, block: DataBlock, num_rows: int, limits: Limits, choice: PageEncoding
) -> EncodedPage | None:
    try:
        values = encode_miniblock(block, choice.compression, max_values=limits.max_values, max_bytes=limits.max_bytes)
    except InvalidInputError:
        # A value is too large for a chunk: the page becomes a full-zip page.
        return None
    return chunk_layout.encode(levels, values, num_rows=num_rows, dictionary=None, large_chunks=limits.large_chunks)


def _per_value_name(block: DataBlock) -> str:
    if isinstance(block, FixedSizeListBlock):
        return "fixed_size_list"
    if isinstance(block, PackedStructBlock):
        fixed = all(isinstance(child, FixedWidthBlock) for child in block.children)
        return "packed_struct" if fixed else "variable_packed_struct"
    return "variable" if isinstance(block, VariableBlock) else "flat"


def _first_value(block: DataBlock) -> bytes | VariableBlock:
    if isinstance(block, VariableBlock):
        return VariableBlock(offsets=block.offsets[:2], data=block.data, num_values=1)
    assert isinstance(block, FixedWidthBlock)
    if block.bits_per_value == 1:
        return bytes([int(block.data[0]) & 1])
    return block.data[: block.bits_per_value // 8].tobytes()


def _encode_dictionary(
    levels: Levels, values: Any, num_rows: int, limits: Limits, options: EncodingOptions, bits: int = 32
) -> EncodedPage | None:
    indices = values.indices
    if indices.null_count:
        indices = indices.fill_null(0)
    words = np.ascontiguousarray(indices.to_numpy(zero_copy_only=False)).astype(f"<u{bits // 8}")
    block = FixedWidthBlock(data=words.view(np.uint8), bits_per_value=bits, num_values=words.size)
    items = view_array_as_block(values.dictionary)
    encoding, data = encode_block(items, choose_items(items, limits, options))
    dictionary = chunk_layout.Dictionary(encoding=encoding, data=data, num_items=len(values.dictionary))
    # Requests for a layout and for byte planes concern values, not indices.
    options = replace(options, layout=None, bss=None)
    choice = choose_fixed(block, has_levels=True, limits=limits, options=options, dictionary=False)
    try:
        chunks = encode_miniblock(block, choice.compression, max_values=limits.max_values, max_bytes=limits.max_bytes)
    except InvalidInputError:
        # Packed chunks have 1024 values, which can exceed the chunk size in the field's metadata.
        chunks = encode_miniblock(block, "flat", max_values=limits.max_values, max_bytes=limits.max_bytes)
    return chunk_layout.encode(
        levels, chunks, num_rows=num_rows, dictionary=dictionary, large_chunks=limits.large_chunks
    )

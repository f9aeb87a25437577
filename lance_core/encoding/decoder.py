"""Decodes pages of 2.1 and 2.2 files: calls the decoder of a page's structural layout and assembles an Arrow array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.assemble import assemble, take_rows
from lance_core.encoding.page import DecodedRows, PageInfo, RowRuns, Steps
from lance_core.encoding.repdef import Layer
from lance_core.encoding.structural import blob, constant, fullzip, miniblock
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field
from lance_core.schema.field import items_per_row

_MAX_LAYERS: Final = 128


def group_key(page: PageInfo, field: Field, *, is_whole: bool) -> bytes | None:
    """The key of a page, None for a page that is decoded alone.

    Consecutive pages are decoded together if they have the same key and the same `is_whole`.
    """
    layout = page.encoding
    if not isinstance(layout, PageLayout) or field.logical_type.startswith("dict:"):
        return None
    name = layout.WhichOneof("layout")
    if name == "mini_block_layout":
        return miniblock.group_key(layout.mini_block_layout)
    return fullzip.group_key(page, layout.full_zip_layout, is_whole=is_whole) if name == "full_zip_layout" else None


def key_is_of_encoding(encoding: object) -> bool:
    """Whether all pages with this description have the same `group_key`."""
    return isinstance(encoding, PageLayout) and encoding.WhichOneof("layout") == "mini_block_layout"


def decode_pages(pages: Sequence[PageInfo], path: Sequence[Field], rows: RowRuns) -> Steps[pa.Array]:
    """Read rows of one column from a page, or from several consecutive pages with the same `group_key`.

    Args:
        pages: The pages; their `encoding` is a `PageLayout`.
        path: The fields from the top-level one down to the column.
        rows: The wanted rows, ascending, counted from the first row of the first page.

    Returns:
        An array of the wanted rows. Structs in it have only the child on the path.

    Raises:
        CorruptFileError: The bytes do not follow the format.
        UnsupportedError: The layout or a compression is not known.
    """
    factor = items_per_row(path)
    item_rows = rows
    if factor != 1:
        pages = [replace(page, num_rows=page.num_rows * factor) for page in pages]
        # A chunk may end inside a fixed size list that is counted by its items: such pages are read whole.
        item_rows = RowRuns.of_range(0, sum(page.num_rows for page in pages))
    layout = pages[0].encoding
    if not isinstance(layout, PageLayout):
        raise CorruptFileError("the page has no page layout")
    decoded = yield from _decode_layout(pages, layout, path[-1], item_rows)
    array = assemble(path, decoded)
    covered = decoded.covered
    if factor != 1:
        covered = RowRuns(starts=covered.starts // factor, ends=covered.ends // factor)
    if len(array) != covered.count:
        raise CorruptFileError(f"the levels describe {len(array)} rows, but {covered.count} are expected")
    return take_rows(array, covered, rows)


def parse_layers(numbers: Sequence[int]) -> tuple[Layer, ...]:
    """The layers of a page description.

    Raises:
        CorruptFileError: The page has no layers or more than 128.
        UnsupportedError: A layer is not known.
    """
    if not 0 < len(numbers) <= _MAX_LAYERS:
        raise CorruptFileError(f"the page has {len(numbers)} layers, not 1 to {_MAX_LAYERS}")
    try:
        return tuple(Layer(number) for number in numbers)
    except ValueError as error:
        raise UnsupportedError(f"the page has an unknown layer: {error}") from error


def _decode_layout(pages: Sequence[PageInfo], layout: PageLayout, field: Field, rows: RowRuns) -> Steps[DecodedRows]:
    page = pages[0]
    name = layout.WhichOneof("layout")
    if name == "mini_block_layout":
        return (yield from miniblock.decode(pages, parse_layers(layout.mini_block_layout.layers), rows))
    if name == "full_zip_layout":
        zipped = layout.full_zip_layout
        return (yield from fullzip.decode(pages, zipped, parse_layers(zipped.layers), rows))
    if name == "constant_layout":
        same = layout.constant_layout
        return (yield from constant.decode(page, same, parse_layers(same.layers), rows))
    if name == "blob_layout":
        outer = parse_layers(layout.blob_layout.layers)
        inside = replace(page, encoding=layout.blob_layout.inner_layout)
        inner = _decode_layout([inside], layout.blob_layout.inner_layout, field, rows)
        return (yield from blob.decode(inner, outer, field, rows))
    raise UnsupportedError("the layout of the page is unknown or missing")

"""Splits nested Arrow arrays into levels and values per column; the writing counterpart of `repdef`.

A nested array is traversed from its root to each of its leaves. Every row becomes one entry, every list item after the
first of its list becomes one more entry, and an entry that ends early (null or empty) is marked with a code. Codes are
numbered from the root inwards, because the layers below are not known yet; at the leaf they are converted to definition
levels, which count from the leaf outwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core.encoding.levels.paths import is_column, layer_kind
from lance_core.encoding.levels.repdef import Layer, LevelArray, Levels, Mask
from lance_core.errors import UnsupportedError
from lance_core.schema import Field

__all__ = ["ShreddedColumn", "has_nulls_inside", "null_mask", "shred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedColumn:
    """One column of a nested array.

    Attributes:
        top: The top-level field of the column.
        field: The field of the column.
        levels: Nesting and nulls.
        values: The slots, including those of null items.
        num_rows: Top-level rows.
    """

    top: Field
    field: Field
    levels: Levels
    values: pa.Array
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """The state of the traversal.

    Attributes:
        count: Entries: one level each at the end.
        depth: The list layer, from the root (1), that each entry continues; 0 begins a row. None if all begin rows.
        codes: The code of each entry that has ended, 0 for others. None if no entry has ended.
        slots: For each entry whether it has a slot in the array below; None if all have.
        layers: The layers from the root inwards.
        num_codes: The number of codes so far.
    """

    count: int
    depth: LevelArray | None = None
    codes: LevelArray | None = None
    slots: Mask | None = None
    layers: tuple[Layer, ...] = ()
    num_codes: int = 0


def shred(field: Field, array: pa.Array) -> Iterator[ShreddedColumn]:
    """Split a top-level array into its columns.

    Args:
        field: The Lance field of the array.
        array: Any array of the field's Arrow type; it may be a slice.

    Yields:
        One record per column, depth-first.

    Raises:
        UnsupportedError: A fixed size list of structs is inside a list.
    """
    num_rows = len(array)
    for leaf, entries, values in _walk(field, array, _Entries(count=num_rows)):
        yield ShreddedColumn(top=field, field=leaf, levels=_finish(entries), values=values, num_rows=num_rows)


def null_mask(array: pa.Array) -> Mask | None:
    """For each slot whether it is null; None if no slot is."""
    if isinstance(array.type, pa.BaseExtensionType):
        return null_mask(array.storage)
    if pa.types.is_null(array.type):
        return np.ones(len(array), np.bool_) if len(array) else None
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        mask: Mask = np.asarray(array.dictionary_decode().is_null(), dtype=np.bool_)
        return mask
    bitmap = array.buffers()[0]
    if bitmap is None or array.null_count == 0:
        return None
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8)[first:last], bitorder="little")
    start = array.offset % 8
    valid: Mask = bits[start : start + len(array)].view(np.bool_)
    return ~valid


def has_nulls_inside(array: Any, index: int) -> bool:
    """Whether a child of a struct is null where the struct itself is not."""
    child = array.field(index)
    return bool(child.null_count) and bool(pc.any(pc.and_(pc.is_valid(array), pc.is_null(child))).as_py())


def _walk(field: Field, array: pa.Array, entries: _Entries) -> Iterator[tuple[Field, _Entries, pa.Array]]:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if is_column(field):
        yield field, _add_items(entries, null_mask(array)), array
        return
    kind = layer_kind(field)
    if kind == "item":
        entries = _add_items(entries, null_mask(array))
        for index, child in enumerate(field.children):
            yield from _walk(child, array.field(index), entries)
    elif kind == "list":
        below, values = _add_lists(entries, array)
        yield from _walk(field.children[0], values, below)
    else:
        below, values = _add_fixed_size_lists(field, entries, array)
        yield from _walk(field.children[0], values, below)


def _spread(mask: Mask, entries: _Entries) -> Mask:
    """A mask over slots as a mask over entries that have not ended."""
    if entries.slots is None:
        spread = mask
    else:
        spread = np.zeros(entries.count, np.bool_)
        spread[entries.slots] = mask
    return spread if entries.codes is None else spread & (entries.codes == 0)


def _mark(codes: LevelArray | None, mask: Mask, code: int) -> LevelArray:
    if codes is None:
        codes = np.zeros(mask.size, np.uint16)
    return np.where(mask, np.uint16(code), codes)


def _add_items(entries: _Entries, nulls: Mask | None) -> _Entries:
    """Add a layer of items, which can be null because of a null struct above.

    Readers of a single leaf use only this layer, so that it must have the nulls of outer structs.
    """
    mask = None if nulls is None else _spread(nulls, entries)
    if mask is not None and mask.any():
        return replace(
            entries,
            codes=_mark(entries.codes, mask, entries.num_codes + 1),
            layers=(*entries.layers, Layer.NULLABLE_ITEM),
            num_codes=entries.num_codes + 1,
        )
    if _is_below_null(entries):
        return replace(entries, layers=(*entries.layers, Layer.NULLABLE_ITEM), num_codes=entries.num_codes + 1)
    return replace(entries, layers=(*entries.layers, Layer.ALL_VALID_ITEM))


def _is_below_null(entries: _Entries) -> bool:
    """Whether a slot is below a null struct or a null fixed size list, whose items keep their slots."""
    if entries.codes is None:
        return False
    codes = entries.codes if entries.slots is None else entries.codes[entries.slots]
    return bool(codes.any())


def _add_lists(entries: _Entries, array: Any) -> tuple[_Entries, pa.Array]:
    offsets = _list_offsets(array)
    lengths = np.diff(offsets)
    nulls = null_mask(array)
    alive = _spread(np.ones(lengths.size, np.bool_), entries)
    null_here = None if nulls is None else _spread(nulls, entries)
    if entries.slots is not None:
        spread_lengths = np.zeros(entries.count, lengths.dtype)
        spread_lengths[entries.slots] = lengths
    else:
        spread_lengths = lengths
    item_counts = np.where(alive, spread_lengths, 0)
    if null_here is not None:
        item_counts[null_here] = 0
    below_null = not bool(alive.all() if entries.slots is None else alive[entries.slots].all())
    entries = _mark_lists(entries, null_here, alive & (item_counts == 0), below_null=below_null)
    total = int(item_counts.sum())
    if total == int(offsets[-1] - offsets[0]):
        values = array.values.slice(int(offsets[0]), total)
    else:
        # Items of lists that are null or below a null are dropped.
        starts = np.zeros(entries.count, np.int64)
        starts[slice(None) if entries.slots is None else entries.slots] = offsets[:-1]
        before = np.cumsum(item_counts) - item_counts
        values = array.values.take(pa.array(np.repeat(starts - before, item_counts) + np.arange(total)))
    return _expand(entries, item_counts), values


def _list_offsets(array: Any) -> npt.NDArray[Any]:
    large = pa.types.is_large_list(array.type)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64)
    dtype = np.int64 if large else np.int32
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)


def _mark_lists(entries: _Entries, nulls: Mask | None, ended: Mask, *, below_null: bool) -> _Entries:
    """Mark the lists that are null or empty (`ended` has both) and add their layer.

    If a list is below a null struct, its layer must allow nulls: readers find levels without a value there.
    """
    codes, num_codes = entries.codes, entries.num_codes
    null_here = nulls is not None and bool(nulls.any())
    has_null = below_null or null_here
    empty = ended & ~nulls if nulls is not None else ended
    has_empty = bool(empty.any())
    if has_null:
        num_codes += 1
    if nulls is not None and null_here:
        codes = _mark(codes, nulls, num_codes)
    if has_empty:
        num_codes += 1
        codes = _mark(codes, empty, num_codes)
    layer = {
        (False, False): Layer.ALL_VALID_LIST,
        (True, False): Layer.NULLABLE_LIST,
        (False, True): Layer.EMPTYABLE_LIST,
        (True, True): Layer.NULL_AND_EMPTY_LIST,
    }[has_null, has_empty]
    return replace(entries, codes=codes, num_codes=num_codes, layers=(*entries.layers, layer))


def _expand(entries: _Entries, lengths: npt.NDArray[Any]) -> _Entries:
    """One entry per list item; an entry that has ended stays one, without a slot."""
    counts = np.maximum(lengths, 1)
    total = int(counts.sum())
    starts = np.cumsum(counts) - counts
    list_depth = sum(1 for layer in entries.layers if layer.is_list)
    depth = np.full(total, list_depth, np.uint16)
    depth[starts] = 0 if entries.depth is None else entries.depth
    codes = None if entries.codes is None else np.repeat(entries.codes, counts)
    slots = None
    ended = lengths == 0
    if ended.any():
        slots = np.ones(total, np.bool_)
        slots[starts[ended]] = False
    return replace(entries, count=total, depth=depth, codes=codes, slots=slots)


def _add_fixed_size_lists(field: Field, entries: _Entries, array: Any) -> tuple[_Entries, pa.Array]:
    """The layer of a fixed size list of structs counts items, not lists."""
    if entries.depth is not None:
        raise UnsupportedError(f"field {field.name!r}: fixed size lists of structs inside lists are not supported")
    dimension = array.type.list_size
    entries = _add_items(entries, null_mask(array))
    values = array.values.slice(array.offset * dimension, len(array) * dimension)
    codes = None if entries.codes is None else np.repeat(entries.codes, dimension)
    return replace(entries, count=entries.count * dimension, codes=codes), values


def _finish(entries: _Entries) -> Levels:
    layers = tuple(reversed(entries.layers))
    lists = sum(1 for layer in layers if layer.is_list)
    repetition = None
    if lists:
        repetition = np.uint16(lists) - entries.depth if entries.depth is not None else None
    definition = None
    if entries.codes is not None:
        definition = _levels_of_codes(entries.layers)[entries.codes]
    return Levels(layers=layers, num_levels=entries.count, repetition=repetition, definition=definition)


def _levels_of_codes(layers: tuple[Layer, ...]) -> LevelArray:
    """Definition level of each code: codes count from the root inwards, levels from the leaf outwards."""
    levels = np.zeros(sum(layer.num_levels for layer in layers) + 1, np.uint16)
    code = 0
    below = int(levels.size) - 1
    for layer in layers:
        below -= layer.num_levels
        for step in range(layer.num_levels):
            code += 1
            levels[code] = below + step + 1
    return levels

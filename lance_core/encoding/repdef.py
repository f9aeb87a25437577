"""Repetition and definition levels: nesting and nulls of one column as two integers per value.

A column has layers, listed from the leaf outwards. Levels are 16-bit and mean:

    definition    0 is a value that is not null. The layers, from the leaf outwards, get the numbers 1, 2, 3 ...:
                      ALL_VALID_ITEM, ALL_VALID_LIST   none
                      NULLABLE_ITEM                    one: this item is null
                      NULLABLE_LIST                    one: this list is null
                      EMPTYABLE_LIST                   one: this list is empty
                      NULL_AND_EMPTY_LIST              two: null, then empty
    repetition    0 continues the innermost list; k begins a new list at the k-th list layer from the leaf;
                  the highest begins a row. Absent if there is no list layer.

    [[1, 2], null, [], [null]]   layers  NULLABLE_ITEM, NULL_AND_EMPTY_LIST
        repetition  1  0  1  1  1
        definition  0  0  2  3  1
        values      1  2        ?     a null item keeps its slot; null and empty lists have none

A level has a slot among the values if its definition is at most the highest level of the item layers below the
first list layer.

Splits nested Arrow arrays into levels and values per column; the writing counterpart of `repdef`.

A nested array is traversed from its root to each of its leaves. Every row becomes one entry, every list item after the
first of its list becomes one more entry, and an entry that ends early (null or empty) is marked with a code. Codes are
numbered from the root inwards, because the layers below are not known yet; at the leaf they are converted to definition
levels, which count from the leaf outwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_core._proto.encodings_v2_1_pb2 import RepDefLayer
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field
from lance_core.schema.field import is_column, layer_kind

LevelArray: TypeAlias = npt.NDArray[np.uint16]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Layer(IntEnum):
    """The kinds of layers of nesting, with their numbers in page descriptions."""

    ALL_VALID_ITEM = 1
    ALL_VALID_LIST = 2
    NULLABLE_ITEM = 3
    NULLABLE_LIST = 4
    EMPTYABLE_LIST = 5
    NULL_AND_EMPTY_LIST = 6

    @property
    def is_list(self) -> bool:
        """Whether this is a layer of lists."""
        return self not in (Layer.ALL_VALID_ITEM, Layer.NULLABLE_ITEM)

    @property
    def num_levels(self) -> int:
        """The number of its definition levels."""
        if self is Layer.NULL_AND_EMPTY_LIST:
            return 2
        return 0 if self in (Layer.ALL_VALID_ITEM, Layer.ALL_VALID_LIST) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The levels of a run of rows of one column.

    Attributes:
        layers: From the leaf outwards.
        num_levels: Length of the level arrays, also if both are absent.
        repetition: One per level; None without list layers.
        definition: One per level; None if no layer takes a level.
    """

    layers: tuple[Layer, ...]
    num_levels: int
    repetition: LevelArray | None
    definition: LevelArray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemLayer:
    """The validity of the items of one layer; None if all are valid."""

    validity: Mask | None
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLayer:
    """Offsets (``length + 1``, from 0) of the lists of one layer into the layer below, and which lists are valid."""

    offsets: npt.NDArray[np.int64]
    validity: Mask | None
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unraveled:
    """The meaning of levels, one record per layer from the leaf outwards.

    Attributes:
        layers: The layers, in the order of `Levels.layers`.
        num_slots: Number of values of the column.
    """

    layers: tuple[ItemLayer | ListLayer, ...]
    num_slots: int


def list_layers_of_description(layers: Sequence[Layer]) -> list[RepDefLayer.ValueType]:
    """The layers as a page description lists them."""
    return [RepDefLayer.ValueType(layer) for layer in layers]


def count_lists(layers: Sequence[Layer]) -> int:
    """The number of list layers, which is the highest repetition level."""
    return sum(1 for layer in layers if layer.is_list)


def max_definition(layers: Sequence[Layer]) -> int:
    """The highest definition level of the layers."""
    return sum(layer.num_levels for layer in layers)


def slot_levels(layers: Sequence[Layer]) -> int:
    """The highest definition level with a slot among the values."""
    highest = 0
    for layer in layers:
        if layer.is_list:
            break
        highest += layer.num_levels
    return highest


def find_slots(levels: Levels) -> Mask | None:
    """For each level whether it has a slot among the values; None if all have one."""
    if levels.definition is None or count_lists(levels.layers) == 0:
        return None
    highest = slot_levels(levels.layers)
    if highest == max_definition(levels.layers):
        return None
    return levels.definition <= highest


def find_present(levels: Levels) -> Mask:
    """For each slot among the values whether its value is neither null nor inside of a null."""
    if levels.definition is None:
        return np.ones(levels.num_levels, np.bool_)
    slots = find_slots(levels)
    present: Mask = (levels.definition if slots is None else levels.definition[slots]) == 0
    return present


def unravel(levels: Levels) -> Unraveled:
    """Turn levels into validity and offsets per layer.

    The first level always begins a row, whatever its repetition: a run of levels may begin inside a row.

    Raises:
        CorruptFileError: A level is higher than the layers allow.
    """
    check_levels(levels)
    repetition, definition = levels.repetition, levels.definition
    if repetition is not None and levels.num_levels and repetition[0] != count_lists(levels.layers):
        repetition = repetition.copy()
        repetition[0] = count_lists(levels.layers)
    slots: Mask | None = find_slots(levels)
    num_slots = levels.num_levels if slots is None else int(np.count_nonzero(slots))
    layers: list[ItemLayer | ListLayer] = []
    handed_out, lists = 0, 0
    for index, layer in enumerate(levels.layers):
        first_level = handed_out + 1
        handed_out += layer.num_levels
        if not layer.is_list:
            layers.append(_read_item_layer(layer, definition, slots, levels.num_levels, first_level))
            continue
        lists += 1
        above = handed_out + slot_levels(levels.layers[index + 1 :])
        outer = _find_scope(levels.num_levels, repetition, definition, lists, above)
        layers.append(_read_list_layer(layer, definition, slots, outer, first_level))
        slots = outer
    return Unraveled(layers=tuple(layers), num_slots=num_slots)


def check_levels(levels: Levels) -> None:
    """Reject levels that the layers do not define, and arrays of a wrong length.

    Raises:
        CorruptFileError: A level or a length is invalid.
    """
    highest = (count_lists(levels.layers), max_definition(levels.layers))
    for name, part_levels, limit in zip(
        ("repetition", "definition"), (levels.repetition, levels.definition), highest, strict=True
    ):
        if part_levels is None:
            continue
        if part_levels.size != levels.num_levels:
            raise CorruptFileError(f"{part_levels.size} {name} levels where {levels.num_levels} are expected")
        if part_levels.size and int(part_levels.max()) > limit:
            raise CorruptFileError(f"{name} level {int(part_levels.max())} is higher than the layers allow ({limit})")
    if highest[0] and levels.repetition is None and levels.num_levels:
        raise CorruptFileError("a column of lists has no repetition levels")


def _find_scope(
    num_levels: int, repetition: LevelArray | None, definition: LevelArray | None, lists: int, highest: int
) -> Mask:
    """The levels at which an element of the layers above the `lists`-th list begins."""
    if repetition is None:
        return np.zeros(num_levels, np.bool_)
    mask: Mask = repetition >= lists
    if definition is not None:
        mask &= definition <= highest
    return mask


def _read_item_layer(
    layer: Layer, definition: LevelArray | None, slots: Mask | None, num_levels: int, level: int
) -> ItemLayer:
    length = num_levels if slots is None else int(np.count_nonzero(slots))
    if layer is Layer.ALL_VALID_ITEM or definition is None:
        return ItemLayer(validity=None, length=length)
    mine = definition if slots is None else definition[slots]
    return ItemLayer(validity=mine < level, length=length)


def _read_list_layer(
    layer: Layer, definition: LevelArray | None, inner: Mask | None, outer: Mask, first_level: int
) -> ListLayer:
    starts = np.flatnonzero(outer)
    offsets = np.empty(starts.size + 1, np.int64)
    if inner is None:
        offsets[:-1] = starts
        offsets[-1] = outer.size
    else:
        before = np.cumsum(inner, dtype=np.int32 if inner.size < 2**31 else np.int64)
        offsets[:-1] = before[starts] - inner[starts]
        offsets[-1] = before[-1] if before.size else 0
    validity = None
    if definition is not None:
        mine = definition[starts]
        last_level = first_level + layer.num_levels - 1
        # Levels above this layer's own mean that a list or struct around it is null.
        validity = mine <= last_level
        if layer in (Layer.NULLABLE_LIST, Layer.NULL_AND_EMPTY_LIST):
            validity &= mine != first_level
        if validity.all():
            validity = None
    return ListLayer(offsets=offsets, validity=validity, length=starts.size)


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


def find_nulls(array: pa.Array) -> Mask | None:
    """For each slot whether it is null; None if no slot is."""
    if isinstance(array.type, pa.BaseExtensionType):
        return find_nulls(array.storage)
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
        yield field, _add_items(entries, find_nulls(array)), array
        return
    kind = layer_kind(field)
    if kind == "item":
        entries = _add_items(entries, find_nulls(array))
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
    offsets = list_offsets(array)
    lengths = np.diff(offsets)
    nulls = find_nulls(array)
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


def list_items(array: Any) -> tuple[npt.NDArray[Any], pa.Array]:
    """The items of lists, without those before and after a slice, and the offsets of each list in them."""
    offsets = list_offsets(array)
    return offsets - offsets[0], array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def list_offsets(array: Any) -> npt.NDArray[Any]:
    """The offsets of lists in their items: one per list, and the end of the last one."""
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
    entries = _add_items(entries, find_nulls(array))
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
        definition = _convert_codes_to_levels(entries.layers)[entries.codes]
    return Levels(layers=layers, num_levels=entries.count, repetition=repetition, definition=definition)


def _convert_codes_to_levels(layers: tuple[Layer, ...]) -> LevelArray:
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

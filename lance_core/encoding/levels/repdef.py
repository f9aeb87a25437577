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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lance_core._proto.encodings_v2_1_pb2 import RepDefLayer
from lance_core.errors import CorruptFileError

__all__ = [
    "ItemLayer",
    "Layer",
    "Levels",
    "ListLayer",
    "Unraveled",
    "count_lists",
    "max_definition",
    "slot_mask",
    "unravel",
    "wire_layers",
]

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


def wire_layers(layers: Sequence[Layer]) -> list[RepDefLayer.ValueType]:
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


def slot_mask(levels: Levels) -> Mask | None:
    """For each level whether it has a slot among the values; None if all have one."""
    if levels.definition is None or count_lists(levels.layers) == 0:
        return None
    highest = slot_levels(levels.layers)
    if highest == max_definition(levels.layers):
        return None
    return levels.definition <= highest


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
    slots: Mask | None = slot_mask(levels)
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

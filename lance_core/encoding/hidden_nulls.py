"""Recognizes pages that hide the nulls of an outer struct from readers of a single field.

Earlier releases of this library wrote "all valid" for items below null structs if no item itself was null. The layers
of a page, from the item outwards:

    layers      ALL_VALID_ITEM, NULLABLE_ITEM       misread: readers of a single field use the first layer only
                NULLABLE_ITEM, NULLABLE_ITEM        correct
                ALL_VALID_ITEM, NULLABLE_LIST, ..   correct: lists below a null have no items

This library reads such pages correctly; the reference library returns the content of the slot as a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.repdef import Layer


def hides_nulls(description: Message) -> bool:
    """Whether the layers of a page declare items as all valid below a struct that can be null."""
    if not isinstance(description, PageLayout):
        return False
    name = description.WhichOneof("layout")
    layout = getattr(description, name) if name is not None else None
    return layout is not None and _is_misread(layout.layers)


def _is_misread(layers: Sequence[int]) -> bool:
    all_valid = False
    for layer in layers:
        if layer == Layer.ALL_VALID_ITEM:
            all_valid = True
        elif layer != Layer.NULLABLE_ITEM:
            all_valid = False  # a list, whose own layer records the nulls of the structs around it
        elif all_valid:
            return True
    return False

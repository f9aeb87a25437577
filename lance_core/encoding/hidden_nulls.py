"""Pages that hide the nulls of an outer struct from readers of a single field.

Earlier releases of this library wrote "all valid" for items below null structs if no item was null itself:

    layers      ALL_VALID_ITEM, NULLABLE_ITEM       misread: who reads the field alone looks at the first layer only
                NULLABLE_ITEM, NULLABLE_ITEM        right
                ALL_VALID_ITEM, NULLABLE_LIST, ..   right: lists below a null have no items

This library reads such pages rightly; the reference library takes what stands in the slot for a value.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from lance_core._proto.encodings_v2_1_pb2 import PageLayout
from lance_core.encoding.levels.repdef import Layer

__all__ = ["hides_nulls"]


def hides_nulls(description: Message) -> bool:
    """Whether a page says "all valid" of items that lie below nulls."""
    if not isinstance(description, PageLayout):
        return False
    name = description.WhichOneof("layout")
    layout = getattr(description, name) if name is not None else None
    return layout is not None and _are_misread(layout.layers)


def _are_misread(layers: Sequence[int]) -> bool:
    all_valid = False
    for layer in layers:
        if layer == Layer.ALL_VALID_ITEM:
            all_valid = True
        elif layer != Layer.NULLABLE_ITEM:
            all_valid = False  # a list: nulls around it show in its own layer
        elif all_valid:
            return True
    return False

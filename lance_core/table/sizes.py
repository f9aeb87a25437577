"""Ids and sizes of fragments, read quickly from manifests with tens of thousands of them.

All fragments are parsed in one go, by messages that have these two fields only.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError

__all__ = ["fragment_sizes"]

_MOST_ROWS = 2**32


def fragment_sizes(raw: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The id and the physical rows of each fragment.

    Args:
        raw: The serialized fragments.

    Returns:
        Ids and rows; 0 rows where the manifest does not tell them, or tells more than an offset can name: whoever
        reads such a fragment says what is wrong.

    Raises:
        CorruptFileError: One is no fragment.
    """
    together = _Whole()
    together.fragments.extend(raw)  # type: ignore[attr-defined]
    try:
        found = _Sizes.FromString(together.SerializeToString()).fragments  # type: ignore[attr-defined]
    except DecodeError as error:
        raise CorruptFileError("a fragment of the manifest is no DataFragment") from error
    ids = np.fromiter(map(attrgetter("id"), found), np.uint64, len(found))
    rows = np.fromiter(map(attrgetter("physical_rows"), found), np.uint64, len(found))
    return ids.astype(np.int64), np.where(rows <= _MOST_ROWS, rows, 0).astype(np.int64)


def _message_classes() -> tuple[type[Message], type[Message]]:
    """Messages with a list of fragments: as bytes, and as the two fields."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="lance_core/fragment_sizes.proto", package="lance_core")
    one = file.message_type.add(name="FragmentSize")
    for name in ("id", "physical_rows"):
        number = table_pb2.DataFragment.DESCRIPTOR.fields_by_name[name].number
        one.field.add(name=name, number=number, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    whole = file.message_type.add(name="WholeFragments")
    whole.field.add(name="fragments", number=1, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    sizes = file.message_type.add(name="FragmentSizes")
    sizes.field.add(
        name="fragments",
        number=1,
        type=kinds.TYPE_MESSAGE,
        type_name=".lance_core.FragmentSize",
        label=kinds.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("lance_core.WholeFragments", "lance_core.FragmentSizes")
    first, second = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return first, second


_Whole, _Sizes = _message_classes()

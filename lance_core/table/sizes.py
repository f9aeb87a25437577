"""Ids and physical rows of fragments, read quickly from manifests with tens of thousands of them.

All fragments are parsed at once: with numpy, the next field of each fragment at a time, if they are many; with protobuf
messages of these two fields if they are few, have unknown or unusually many fields, or are corrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.partial_message import partial_message

__all__ = ["fragment_sizes"]

U64s = npt.NDArray[np.uint64]

_MOST_ROWS: Final = 2**32
_MANY: Final = 256
"""Number of fragments from which numpy takes less time than messages."""
_MOST_FIELDS: Final = 16
_LONGEST: Final = 9
"""Bytes of the longest varint that is read here: 63 bits."""
_ID: Final = 1 << 3
_ROWS: Final = 4 << 3
_IS_KNOWN: Final = np.zeros(256, np.bool_)
_HAS_BYTES: Final = np.zeros(256, np.bool_)
_HAS_BYTES[[number << 3 | 2 for number in (2, 3, 5, 6, 7, 8, 9, 10)]] = True  # files, deletions, row ids and versions
_IS_KNOWN[:] = _HAS_BYTES
_IS_KNOWN[[_ID, _ROWS]] = True

_SerializedFragments: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, {"fragments": None})
_FragmentSizes: Final = partial_message(
    table_pb2.Manifest.DESCRIPTOR, {"fragments": {"id": None, "physical_rows": None}}
)


def fragment_sizes(raw: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The id and the physical rows of each fragment.

    Args:
        raw: The serialized fragments.

    Returns:
        Ids and rows; 0 rows where the manifest records none, or more than offsets can count, which readers of the
        fragment report.

    Raises:
        CorruptFileError: The bytes are not a fragment.
    """
    numbers = _varints(raw) if len(raw) >= _MANY else None
    if numbers is None:
        serialized = _SerializedFragments(fragments=raw).SerializeToString()
        try:
            found = _FragmentSizes.FromString(serialized).fragments
        except DecodeError as error:
            raise CorruptFileError("a fragment of the manifest is no DataFragment") from error
        ids = np.fromiter(map(attrgetter("id"), found), np.uint64, len(found))
        rows = np.fromiter(map(attrgetter("physical_rows"), found), np.uint64, len(found))
    else:
        ids, rows = numbers[_ID], numbers[_ROWS]
    return ids.astype(np.int64), np.where(rows <= _MOST_ROWS, rows, 0).astype(np.int64)


def _varints(raw: Sequence[bytes]) -> Mapping[int, U64s] | None:
    """The numbers of each fragment by their tags, the next field of all fragments at a time; None if one is unusual.

    A field is a tag of one byte (field number << 3 | 0 for a varint, 2 for a length and bytes), and its value.
    """
    lengths = np.fromiter(map(len, raw), np.int64, len(raw))
    data = np.frombuffer(b"".join(raw) + bytes(_LONGEST + 1), np.uint8)
    ends = np.cumsum(lengths)
    at = ends - lengths
    found = {_ID: np.zeros(len(raw), np.uint64), _ROWS: np.zeros(len(raw), np.uint64)}
    left = np.flatnonzero(lengths)
    for _ in range(_MOST_FIELDS):
        if not len(left):
            return found
        place = at[left]
        tags = data[place]
        value, place = _varint(data, place + 1)
        for tag, numbers in found.items():
            numbers[left[tags == tag]] = value[tags == tag]
        more = np.where(_HAS_BYTES[tags], value, 0)
        if not _IS_KNOWN[tags].all() or more.max() > len(data):
            return None
        place += more.astype(np.int64)
        if (place > ends[left]).any():
            return None
        at[left] = place
        left = left[place < ends[left]]
    return None


def _varint(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> tuple[U64s, npt.NDArray[np.int64]]:
    """The varints at some positions, and their ends; one that is too long ends beyond all data."""
    value = np.zeros(len(at), np.uint64)
    end = np.full(len(at), len(data), np.int64)
    going = np.arange(len(at))
    for i in range(_LONGEST):
        byte = data[at[going] + i]
        value[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * i)
        end[going[byte < 0x80]] = at[going[byte < 0x80]] + i + 1
        going = going[byte >= 0x80]
        if not len(going):
            break
    return value, end

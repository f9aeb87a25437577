"""Row addresses: where a row is stored, in one number of 64 bits.

    | fragment id, 32 bits | row offset, 32 bits |

A stable row id has no such parts, but sets of stable row ids are stored by the same two halves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

U64Array: TypeAlias = npt.NDArray[np.uint64]

_OFFSET_BITS: Final = np.uint64(32)
_OFFSET_MASK: Final = np.uint64(0xFFFF_FFFF)


def make_row_address(fragment_id: int, offset: int) -> int:
    """`fragment_id << 32 | offset`."""
    return (fragment_id << 32) | offset


def make_row_addresses(fragment_id: int, offsets: npt.NDArray[Any]) -> U64Array:
    """`fragment_id << 32 | offset`, for an array of offsets."""
    return (np.uint64(fragment_id) << _OFFSET_BITS) | offsets.astype(np.uint64)


def fragment_ids_of(addresses: U64Array) -> npt.NDArray[np.int64]:
    """The upper 32 bits of each address."""
    return (addresses >> _OFFSET_BITS).astype(np.int64)


def row_offsets(addresses: U64Array) -> npt.NDArray[np.int64]:
    """The lower 32 bits of each address."""
    return (addresses & _OFFSET_MASK).astype(np.int64)


def group_by_fragment(addresses: U64Array) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """The row offsets of addresses by their fragments.

    Args:
        addresses: Row addresses in any order.

    Yields:
        A fragment id and the offsets of its rows, in the order of the addresses; fragments ascend.
    """
    owners = fragment_ids_of(addresses)
    if len(owners) and bool((owners[1:] < owners[:-1]).any()):
        order = np.argsort(owners, kind="stable")
        owners, addresses = owners[order], addresses[order]
    offsets = row_offsets(addresses)
    starts = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(owners)], strict=False):
        yield int(owners[start]), offsets[start:stop]


def find_positions(ascending: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The position of each value in an ascending array; -1 for a value that it lacks."""
    if not len(ascending):
        return np.full(len(values), -1, np.int64)
    positions = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[positions] == values, positions, -1)


def bitmaps_by_fragment(addresses: npt.NDArray[np.uint64 | np.int64]) -> dict[int, BitMap]:
    """The row offsets of addresses in any order, as a bitmap for each fragment."""
    unsigned = addresses.astype(np.uint64, copy=False)
    return {i: bitmap_of(rows) for i, rows in group_by_fragment(unsigned)}


def bitmap_of(offsets: npt.NDArray[np.unsignedinteger | np.signedinteger]) -> BitMap:
    """A roaring bitmap of row offsets."""
    # pyroaring copies an array.array as a whole, but reads a numpy array item by item.
    return BitMap(array("I", offsets.astype(np.uint32, copy=False).tobytes()))


def offsets_of(rows: BitMap) -> npt.NDArray[np.int64]:
    """The row offsets of a roaring bitmap, ascending."""
    return np.frombuffer(rows.to_array(), np.uint32).astype(np.int64)

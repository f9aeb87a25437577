"""The serialized fragments of a manifest, and the splice by which the next manifest takes them over.

    entry    0x12 = field 2 with bytes | their length, a varint | DataFragment message
    run      entry | entry | ...

A commit copies the bytes between the changed entries unchanged, without parsing them:

    before   0 1 2 | 3  | 4 5 6 | 7 | 8 9
    after    0 1 2 | 3' | 4 5 6 |   | 8 9 | 10       3 updated, 7 removed, 10 added
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.partial_message import partial_message

__all__ = ["FragmentRun"]

_Entries: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, {"fragments": None})


class FragmentRun(Sequence[bytes]):
    """Serialized fragments, as a sequence; the entries are parsed when a fragment is first needed.

    Args:
        data: The entries, one after the other.
        count: Number of entries.
    """

    __slots__ = ("_bounds", "_count", "_entries", "data")

    def __init__(self, data: bytes | memoryview, count: int) -> None:
        self.data = data
        self._count = count
        self._entries: Sequence[bytes] | None = None
        self._bounds: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, fragments: Iterable[bytes]) -> FragmentRun:
        """Create a run from serialized fragments."""
        message: Any = _Entries(fragments=fragments)
        result = cls(message.SerializeToString(), len(message.fragments))
        result._entries = message.fragments
        return result

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self._parse()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parse())

    def __eq__(self, other: object) -> bool:
        # The same length can be written in several ways.
        return isinstance(other, FragmentRun) and (_is_equal(self.data, other.data) or list(self) == list(other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[FragmentRun], tuple[bytes, int]]:
        return FragmentRun, (bytes(self.data), self._count)

    def bounds(self) -> npt.NDArray[np.int64]:
        """Where each entry begins in `data`, and the end of the last one."""
        if self._bounds is None:
            self._bounds = _find_bounds(self._parse())
            if self._bounds[-1] != len(self.data):  # a length with more bytes than it needs
                self.data = FragmentRun.of(self).data
        return self._bounds

    def spliced(self, changes: Mapping[int, bytes | None], added: Sequence[bytes]) -> FragmentRun:
        """Return the run after a change.

        Args:
            changes: The new fragments by the positions of those that they replace; None where one is removed.
            added: Further fragments, for the end.
        """
        pieces: list[bytes | memoryview] = []
        start = 0
        if changes:
            bounds = self.bounds()
            view = memoryview(self.data)
            for place in sorted(changes):
                fragment = changes[place]
                pieces.append(view[start : bounds[place]])
                pieces.append(b"" if fragment is None else FragmentRun.of([fragment]).data)
                start = int(bounds[place + 1])
        pieces.append(memoryview(self.data)[start:])
        pieces.append(FragmentRun.of(added).data)
        removed = sum(fragment is None for fragment in changes.values())
        return FragmentRun(b"".join(pieces), len(self) - removed + len(added))

    def differing(self, other: FragmentRun) -> range:
        """The positions of this run's fragments between the beginning and the end that both runs share."""
        bounds, other_bounds = self.bounds(), other.bounds()
        data, other_data = np.frombuffer(self.data, np.uint8), np.frombuffer(other.data, np.uint8)
        shared = _count_equal(data, other_data)
        first = int(np.searchsorted(bounds, shared, "right")) - 1
        shared = _count_equal(data[bounds[first] :][::-1], other_data[bounds[first] :][::-1])
        last = int(np.searchsorted(bounds, len(data) - shared, "left"))
        is_aligned = len(other_data) - (len(data) - bounds[last]) in other_bounds if shared else True
        return range(first, last if is_aligned else len(self))

    def _parse(self) -> Sequence[bytes]:
        if self._entries is None:
            try:
                entries: Sequence[bytes] = _Entries.FromString(self.data).fragments
            except DecodeError as error:
                raise CorruptFileError("the fragments of the manifest cannot be parsed") from error
            if len(entries) != self._count:
                raise CorruptFileError(f"the manifest has {len(entries)} fragments instead of {self._count}")
            self._entries = entries
        return self._entries


def _is_equal(data: bytes | memoryview, other: bytes | memoryview) -> bool:
    return np.array_equal(np.frombuffer(data, np.uint8), np.frombuffer(other, np.uint8))


def _count_equal(data: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    """Number of bytes at the beginnings of two arrays that are the same."""
    count = min(len(data), len(other))
    unlike = data[:count] != other[:count]
    return int(unlike.argmax()) if unlike.any() else count


def _find_bounds(fragments: Sequence[bytes]) -> npt.NDArray[np.int64]:
    lengths = np.fromiter(map(len, fragments), np.int64, len(fragments))
    sizes = lengths + 2  # the tag, and a length of one byte
    for bits in range(7, 35, 7):  # each byte of a varint holds seven bits
        sizes += lengths >> bits > 0
    bounds = np.zeros(len(fragments) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds

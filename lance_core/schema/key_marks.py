"""Reads which fields are members of the unenforced primary key and of the unenforced clustering key.

    Arrow field metadata                               wire, field of `Field`
    lance-schema:unenforced-primary-key                12  bool
    lance-schema:unenforced-primary-key:position       13  place in the key from 1 on, 0 = none
    -                                                  14  bool of the clustering key
    lance-schema:unenforced-clustering-key:position    15  place in it

pylance 14.0.2 writes 12 for every member of a primary key, and only 15 for members of a clustering key, of whose
metadata it reads only the position. Here either number makes a field a member, and both are written back as they were
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = [
    "CLUSTERING_KEY_POSITION",
    "NO_MARK",
    "PRIMARY_KEY",
    "PRIMARY_KEY_POSITION",
    "KeyMark",
    "clustering_key_mark",
    "primary_key_mark",
]

PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION: Final = f"{PRIMARY_KEY}:position"
CLUSTERING_KEY_POSITION: Final = "lance-schema:unenforced-clustering-key:position"

_TRUE = (b"1", b"true", b"on", b"yes", b"y")
_MAX_POSITION = (1 << 32) - 1


class KeyMark(NamedTuple):
    """A field's membership in a key, as the two numbers of the protobuf message."""

    flag: bool = False
    position: int = 0

    @property
    def is_member(self) -> bool:
        """Whether the field belongs to the key."""
        return self.flag or self.position > 0

    @property
    def order(self) -> tuple[bool, int]:
        """The sort key of members: those with a position come first, the others follow in order of their fields."""
        return not self.position, self.position


NO_MARK: Final = KeyMark()
"""The mark of a field that is not part of the key."""


def primary_key_mark(metadata: Mapping[str, bytes]) -> KeyMark:
    """Read the primary key's mark from the Arrow metadata of a field; any position, even 0, makes it a member."""
    position = _position(metadata.get(PRIMARY_KEY_POSITION))
    if position is not None:
        return KeyMark(flag=True, position=position)
    return KeyMark(flag=metadata.get(PRIMARY_KEY, b"").lower() in _TRUE)


def clustering_key_mark(metadata: Mapping[str, bytes]) -> KeyMark | None:
    """Read the clustering key's mark from the Arrow metadata of a field; None without a position."""
    position = _position(metadata.get(CLUSTERING_KEY_POSITION))
    return None if position is None else KeyMark(position=position)


def _position(string: bytes | None) -> int | None:
    """The number in a string of digits, which may begin with a plus; None for other strings, or above 32 bits."""
    digits = (string or b"").removeprefix(b"+")
    if not digits.isdigit():
        return None
    position = int(digits)
    return position if position <= _MAX_POSITION else None

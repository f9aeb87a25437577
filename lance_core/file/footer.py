"""The last 40 bytes of a 2.x data file.

All integers are unsigned and little-endian.

    OFFSET  SIZE  MEANING
         0     8  where the metadata of column 0 begins
         8     8  where the column metadata offset table begins
        16     8  where the global buffer offset table begins
        24     4  number of global buffers
        28     4  number of columns
        32     2  major version
        34     2  minor version
        36     4  magic, always b"LANC"

The last 8 bytes of a 0.1 file have the same layout; before them is the position of its metadata (8 bytes).
A reader fetches the end of the file, checks the magic, then the version, and rejects unknown versions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from lance_core.errors import CorruptFileError

__all__ = ["FOOTER_SIZE", "MAGIC", "Footer", "read_version"]

MAGIC: Final = b"LANC"
_LAYOUT: Final = struct.Struct("<QQQIIHH4s")
_END: Final = struct.Struct("<HH4s")

FOOTER_SIZE: Final = _LAYOUT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The positions of the parts of one data file.

    >>> footer = Footer(column_metadata=64, column_table=80, buffer_table=96, num_buffers=1, num_columns=1,
    ...                 major=2, minor=2)
    >>> Footer.from_bytes(footer.to_bytes()) == footer
    True
    """

    column_metadata: int
    column_table: int
    buffer_table: int
    num_buffers: int
    num_columns: int
    major: int
    minor: int

    def to_bytes(self) -> bytes:
        """The 40 bytes."""
        return _LAYOUT.pack(
            self.column_metadata,
            self.column_table,
            self.buffer_table,
            self.num_buffers,
            self.num_columns,
            self.major,
            self.minor,
            MAGIC,
        )

    @classmethod
    def from_bytes(cls, tail: bytes) -> Self:
        """Parse the end of a file.

        Args:
            tail: The last bytes of the file, at least 40.

        Raises:
            CorruptFileError: The file is too short, or is not a Lance file.
        """
        read_version(tail)
        if len(tail) < FOOTER_SIZE:
            raise CorruptFileError(f"{len(tail)} bytes are too short for a data file")
        *parts, _magic = _LAYOUT.unpack(tail[-FOOTER_SIZE:])
        names = ("column_metadata", "column_table", "buffer_table", "num_buffers", "num_columns", "major", "minor")
        return cls(**dict(zip(names, parts, strict=True)))


def read_version(tail: bytes) -> tuple[int, int]:
    """The major and minor version at the end of any Lance file.

    Raises:
        CorruptFileError: The file is too short, or the magic is missing.
    """
    if len(tail) < _END.size:
        raise CorruptFileError(f"{len(tail)} bytes are too short for a data file")
    major, minor, magic = _END.unpack(tail[-_END.size :])
    if magic != MAGIC:
        raise CorruptFileError(
            f"the file ends in {bytes(magic)!r}, not in {MAGIC!r}: it is not a Lance file, or truncated"
        )
    return major, minor

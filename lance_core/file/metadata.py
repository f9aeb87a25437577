"""The metadata of a 2.x data file, between the pages and the footer.

    page buffers and global buffers     each at a multiple of 64 bytes, padded with "H"
    column metadata                     one ColumnMetadata message per column, back to back
    column metadata offset table        (u64 position, u64 size) per column
    global buffer offset table          (u64 position, u64 size) per global buffer
    footer                              the last 40 bytes

Global buffer 0 is the FileDescriptor: the schema and the number of rows. Descriptions of columns and pages are
google.protobuf.Any messages, usually inside the column metadata (`direct`), possibly elsewhere (`indirect`).

The last 40 bytes of a 2.x data file.

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

The versions of the file format have numbers in footers and in manifests:

    data_storage_version    footer      DataFile of a manifest
    0.1, legacy             (0, 2)      (0, 2)      (0, 1) is read as well
    2.0                     (0, 3)      (2, 0)      both are read in both places
    2.1                     (2, 1)      (2, 1)
    2.2, stable             (2, 2)      (2, 2)

2.3 ("next") is rejected: it is not stable yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Self, TypeAlias, overload

import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from lance_core._proto.encodings_v2_0_pb2 import ColumnEncoding
from lance_core._proto.file2_pb2 import ColumnMetadata, Encoding
from lance_core._proto.file_pb2 import FileDescriptor
from lance_core.encoding.page import TYPES, ByteRange, BytesLike, PageInfo, page_encoding
from lance_core.encoding.structural.fullzip import plain_layout
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError
from lance_core.schema import Schema, schema_from_protobuf, schema_to_protobuf
from lance_core.store import ObjectStore


class FileVersion(Enum):
    """A version of the file format; its value is the `data_storage_version`."""

    V0_1 = "0.1"
    V2_0 = "2.0"
    V2_1 = "2.1"
    V2_2 = "2.2"

    @property
    def footer_numbers(self) -> tuple[int, int]:
        """The version numbers in the footer of a file."""
        return _FOOTER[self]

    @property
    def manifest_numbers(self) -> tuple[int, int]:
        """The version numbers of a file in a manifest."""
        return _MANIFEST[self]

    @property
    def has_levels(self) -> bool:
        """Whether pages have repetition and definition levels: 2.1 and later."""
        return self in (FileVersion.V2_1, FileVersion.V2_2)

    @classmethod
    def from_string(cls, name: str | None) -> FileVersion:
        """The version of a `data_storage_version`; None and "stable" are the default.

        Raises:
            UnsupportedError: The version is unstable.
            InvalidInputError: The version does not exist.
        """
        if name in (None, "stable"):
            return DEFAULT_VERSION
        if name in ("2.3", "next"):
            raise UnsupportedError(
                f"data storage version {name!r} is unstable and not supported: use {DEFAULT_VERSION.value}"
            )
        try:
            return cls("0.1" if name == "legacy" else name)
        except ValueError:
            names = ", ".join(version.value for version in cls)
            raise InvalidInputError(f"unknown data storage version {name!r}: use {names}, legacy or stable") from None

    @classmethod
    def for_dataset(cls, requested_version: str | None, dataset_version: str) -> FileVersion:
        """The version of new files in a dataset: the requested `data_storage_version`, or that of the dataset.

        Raises:
            UnsupportedError: The requested version is unstable, or only one of the two versions is 0.1.
            InvalidInputError: The requested version does not exist.
        """
        default = cls.from_string(dataset_version)
        version = default if requested_version is None else cls.from_string(requested_version)
        if (version is cls.V0_1) is not (default is cls.V0_1):
            raise UnsupportedError(
                f"Cannot write data files in version {version.value} to a dataset with default version "
                f"{default.value}: V1 and V2 storage versions cannot be mixed"
            )
        return version

    @classmethod
    def from_numbers(cls, major: int, minor: int) -> FileVersion:
        """The version of a footer or of a manifest's data file.

        Raises:
            UnsupportedError: The numbers belong to no known version.
        """
        version = _BY_NUMBERS.get((major, minor))
        if version is None:
            raise UnsupportedError(
                f"file version {major}.{minor} is not supported: supported are 0.1, 2.0, 2.1 and 2.2"
            )
        return version


DEFAULT_VERSION: Final = FileVersion.V2_2
"""The version that is written by default."""

_FOOTER: Final = {
    FileVersion.V0_1: (0, 2),
    FileVersion.V2_0: (0, 3),
    FileVersion.V2_1: (2, 1),
    FileVersion.V2_2: (2, 2),
}
_MANIFEST: Final = {**_FOOTER, FileVersion.V2_0: (2, 0)}
_BY_NUMBERS: Final = {
    **{numbers: version for version, numbers in _FOOTER.items()},
    (2, 0): FileVersion.V2_0,
    (0, 1): FileVersion.V0_1,
}


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


ReadBytes: TypeAlias = Callable[[int, int], BytesLike]
"""(start, end) -> the bytes of this range of a file; the end is excluded."""

ALIGNMENT: Final = 64
PADDING: Final = b"H"
_MAX_DESCRIPTION: Final = 64 * 1024 * 1024
_SMALL_DESCRIPTION: Final = 1024

_COLUMN_ENCODING: Final = "/lance.encodings.ColumnEncoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPages:
    """The pages of one column, parsed when they are first accessed.

    Attributes:
        messages: The pages as the column metadata describes them.
        num_items: Length of each page.
        size: Size of the file.
        column: The column's encoding.
        read: Reads a range of the file, for descriptions outside of the column metadata.
        buffers: Buffers of the column as a whole.
        points: Cached metadata for reading single values of its pages (see `point_task`).
    """

    messages: Sequence[ColumnMetadata.Page]
    num_items: np.ndarray[tuple[int], np.dtype[np.int64]]
    size: int
    column: ColumnEncoding
    read: ReadBytes
    buffers: tuple[ByteRange, ...] = ()
    points: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def page(self, index: int, first_row: int, num_rows: int, base: int = 0) -> PageInfo:
        """One page; `base` is added to the positions of its buffers.

        Raises:
            CorruptFileError: A buffer is outside the file, or the page's description cannot be parsed.
            UnsupportedError: The page's description is of an unknown kind.
        """
        message = self.messages[index]
        offsets, lengths = message.buffer_offsets[:], message.buffer_sizes[:]
        if len(offsets) != len(lengths):
            raise CorruptFileError("a page has different numbers of buffer offsets and sizes")
        buffers = []
        for offset, length in zip(offsets, lengths, strict=True):
            if offset + length > self.size:
                raise CorruptFileError(f"a buffer ends at {offset + length}, after the {self.size} bytes of the file")
            buffers.append((base + offset, base + offset + length))
        return PageInfo(
            first_row=first_row,
            num_rows=num_rows,
            length=int(self.num_items[index]),
            encoding=_parse_page_encoding(message.encoding, self.read, self.size),
            buffers=tuple(buffers),
        )


class ColumnList(Sequence[ColumnPages]):
    """The columns of a file, each parsed at its first access, because most reads need few columns of a wide file.

    Args:
        count: The number of columns.
        make: (number of a column) -> the column.
    """

    __slots__ = ("_count", "_make", "_pages")

    def __init__(self, count: int, make: Callable[[int], ColumnPages]) -> None:
        self._count = count
        self._make = make
        self._pages: dict[int, ColumnPages] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> ColumnPages: ...

    @overload
    def __getitem__(self, index: slice) -> list[ColumnPages]: ...

    def __getitem__(self, index: int | slice) -> ColumnPages | list[ColumnPages]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        pages = self._pages.get(index)
        if pages is None:
            index = range(self._count)[index]
            pages = self._pages[index] = self._make(index)
        return pages


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    """The metadata of a file.

    Attributes:
        version: Its format.
        schema: The schema of the file, with the field ids of the time when it was written.
        num_rows: Rows in the file.
        size_bytes: Its size.
        columns: The pages of each column, by column index.
        global_buffers: The ranges of the global buffers.
        metadata_range: The range of the column metadata and its offset table; empty in 0.1.
    """

    version: FileVersion
    schema: Schema
    num_rows: int
    size_bytes: int
    columns: Sequence[ColumnPages]
    global_buffers: tuple[ByteRange, ...]
    metadata_range: ByteRange = (0, 0)


def column_to_bytes(pages: Sequence[ColumnMetadata.Page], *, is_blob: bool) -> bytes:
    """The metadata of one column; a column of 2.0 blobs is marked as such."""
    message = ColumnMetadata(encoding=_describe_encoding(is_blob=is_blob), pages=pages)
    return message.SerializeToString()


@lru_cache(maxsize=2)
def _describe_encoding(*, is_blob: bool) -> Encoding:
    column = ColumnEncoding()
    (column.blob.inner if is_blob else column).values.SetInParent()
    wrapped = AnyMessage(type_url=_COLUMN_ENCODING, value=column.SerializeToString())
    encoding = Encoding()
    encoding.direct.encoding = wrapped.SerializeToString()
    return encoding


@lru_cache(maxsize=1024)
def plain_encoding(bits: int, count: int) -> Encoding:
    """The description of a full-zip page of numbers without levels, cached; callers must not change it."""
    return page_encoding(plain_layout(bits, count))


def check_column_table(table: Sequence[ByteRange], start: int, footer: Footer) -> None:
    """Make sure that the metadata of all columns is between the pages and the offset table.

    Args:
        table: The column metadata offset table.
        start: First position at which column metadata can begin.
        footer: The file's footer.

    Raises:
        CorruptFileError: The metadata of a column is elsewhere.
    """
    for index, (position, end) in enumerate(table):
        if position < start or end > footer.column_table:
            raise CorruptFileError(f"the metadata of column {index} is not between the pages and the offset table")


def _parse_column(data: bytes, index: int, size: int, read: ReadBytes) -> ColumnPages:
    """Parse the metadata of one column.

    Args:
        data: Its bytes.
        index: Number of the column.
        size: Size of the file.
        read: Reads a range of the file.

    Raises:
        CorruptFileError: The bytes cannot be parsed.
        UnsupportedError: The description of the column is of an unknown kind.
    """
    message = ColumnMetadata()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise CorruptFileError(f"the metadata of column {index} cannot be parsed") from error
    lengths = [page.length for page in message.pages]
    if sum(lengths) >= 2**62:
        raise CorruptFileError(f"column {index} has {sum(lengths)} items")
    return ColumnPages(
        messages=message.pages,
        num_items=np.array(lengths, np.int64),
        size=size,
        column=_parse_column_encoding(message.encoding, read, size),
        read=read,
        buffers=tuple((at, at + n) for at, n in zip(message.buffer_offsets, message.buffer_sizes, strict=False)),
    )


def descriptor_to_bytes(schema: Schema, num_rows: int) -> bytes:
    """Global buffer 0."""
    described: bytes | None = schema.memo.get("descriptor")
    if described is None:
        descriptor = FileDescriptor()
        descriptor.schema.fields.extend(schema_to_protobuf(schema))
        for key, value in schema.metadata.items():
            descriptor.schema.metadata[key] = value
        described = schema.memo["descriptor"] = descriptor.SerializeToString()
    return described + FileDescriptor(length=num_rows).SerializeToString()


@lru_cache(maxsize=32)
def descriptor_from_bytes(data: bytes) -> tuple[Schema, int]:
    """Schema and number of rows of global buffer 0, cached because files of a dataset often have the same.

    Raises:
        CorruptFileError: The bytes cannot be parsed.
    """
    try:
        descriptor = FileDescriptor.FromString(data)
    except DecodeError as error:
        raise CorruptFileError("the file descriptor cannot be parsed") from error
    return schema_from_protobuf(descriptor.schema.fields, descriptor.schema.metadata), descriptor.length


def table_to_bytes(ranges: Sequence[ByteRange]) -> bytes:
    """An offset table: position and size of each range."""
    return np.array([(start, end - start) for start, end in ranges], "<u8").tobytes()


def table_from_bytes(data: memoryview, count: int, size: int) -> list[ByteRange]:
    """Parse an offset table.

    Args:
        data: The bytes that begin with the table.
        count: Number of entries.
        size: Size of the file, which bounds all ranges.

    Raises:
        CorruptFileError: The table is cut short, or a range lies outside the file.
    """
    if count * 16 > len(data):
        raise CorruptFileError(f"an offset table of {count} entries in {len(data)} bytes")
    entries = np.frombuffer(data[: count * 16], "<u8").reshape(count, 2).tolist()
    for position, length in entries:
        if position + length > size:
            raise CorruptFileError(f"a range ends at {position + length}, after the {size} bytes of the file")
    return [(position, position + length) for position, length in entries]


def _read_description(encoding: Encoding, read: ReadBytes, size: int) -> tuple[str, Message | None]:
    """The type of a description and its message, which callers must not change; None for an unknown type."""
    where = encoding.WhichOneof("location")
    if where is None or where == "none":
        raise CorruptFileError("a description is missing")
    data = encoding.direct.encoding
    if where == "indirect":
        start = encoding.indirect.buffer_location
        end = start + encoding.indirect.buffer_length
        if end > size or end - start > _MAX_DESCRIPTION:
            raise CorruptFileError(f"a description of {end - start} bytes at {start} in a file of {size}")
        data = bytes(read(start, end))
    try:
        return _parse_cached(data) if len(data) <= _SMALL_DESCRIPTION else _parse_description(data)
    except DecodeError as error:
        raise CorruptFileError("a description cannot be parsed") from error


def _parse_description(data: bytes) -> tuple[str, Message | None]:
    wrapped = AnyMessage.FromString(data)
    kind = ColumnEncoding if wrapped.type_url == _COLUMN_ENCODING else TYPES.get(wrapped.type_url)
    return wrapped.type_url, None if kind is None else kind.FromString(wrapped.value)


_parse_cached = lru_cache(maxsize=4096)(_parse_description)
"""Pages of small files often have the same description."""


def _parse_page_encoding(encoding: Encoding, read: ReadBytes, size: int) -> Message:
    name, message = _read_description(encoding, read, size)
    if message is None or name not in TYPES:
        raise UnsupportedError(f"a page is described by the unknown message {name!r}")
    return message


def _parse_column_encoding(encoding: Encoding, read: ReadBytes, size: int) -> ColumnEncoding:
    name, message = _read_description(encoding, read, size)
    if not isinstance(message, ColumnEncoding):
        raise UnsupportedError(f"a column is described by the unknown message {name!r}")
    return message


def lazy_columns(store: ObjectStore, key: str, table: Sequence[ByteRange], tail: memoryview, start: int) -> ColumnList:
    """The columns of a file.

    Args:
        store: The store of the file.
        key: Its key.
        table: The column metadata offset table.
        tail: The bytes of the file from `start` on.
        start: First position of `tail` in the file.
    """
    size = start + len(tail)

    def read(begin: int, end: int) -> BytesLike:
        return store.get_range(key, begin, end)

    first = min((position for position, _ in table), default=start)
    last = max((end for _, end in table), default=start)
    described = bytes(tail[first - start : last - start])  # a copy, so that the rest of the tail is not kept

    def column(index: int) -> ColumnPages:
        position, end = table[index]
        try:
            return _parse_column(described[position - first : end - first], index, size, read)
        except (CorruptFileError, UnsupportedError) as error:
            raise type(error)(f"{key}: {error}") from error

    return ColumnList(len(table), column)

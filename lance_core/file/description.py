"""Describes the metadata and the sizes of a data file, in classes with pylance's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from lance_core.encoding.page import ByteRange
from lance_core.errors import UnsupportedError
from lance_core.file.metadata import ColumnPages, FileMetadata, FileVersion
from lance_core.schema import resolve_extensions, schema_to_arrow


@dataclass(frozen=True, slots=True)
class LanceBufferDescriptor:
    """The position of a buffer.

    Attributes:
        position: Its first byte in the file.
        size: Its number of bytes.
    """

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class LancePageMetadata:
    """One page of a column.

    Attributes:
        buffers: Its buffers.
        encoding: The description of its encoding, as a string for display.
    """

    buffers: list[LanceBufferDescriptor]
    encoding: str


@dataclass(frozen=True, slots=True)
class LanceColumnMetadata:
    """One column.

    Attributes:
        column_buffers: Buffers of the column as a whole.
        pages: Its pages.
    """

    column_buffers: list[LanceBufferDescriptor]
    pages: list[LancePageMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceFileMetadata:
    """The metadata of a file.

    Attributes:
        schema: Its columns.
        num_rows: Rows in it.
        major_version: Major version in the footer: 0 for format 2.0.
        minor_version: Minor version in the footer: 3 for format 2.0.
        num_data_bytes: Bytes before the description of the columns, without global buffers.
        num_column_metadata_bytes: Bytes that describe the columns.
        num_global_buffer_bytes: Bytes of the global buffers.
        global_buffers: The buffers of the file as a whole; the first has the schema.
        columns: The columns of the file.
    """

    schema: pa.Schema
    num_rows: int
    major_version: int
    minor_version: int
    num_data_bytes: int
    num_column_metadata_bytes: int
    num_global_buffer_bytes: int
    global_buffers: list[LanceBufferDescriptor]
    columns: list[LanceColumnMetadata]


@dataclass(frozen=True, slots=True)
class LanceColumnStatistics:
    """Size of one column.

    Attributes:
        num_pages: Its pages.
        size_bytes: Bytes of their buffers.
    """

    num_pages: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LanceFileStatistics:
    """Sizes of the columns of a file.

    Attributes:
        columns: The sizes of the columns, in their order in the file.
    """

    columns: list[LanceColumnStatistics]


def describe_file(metadata: FileMetadata) -> LanceFileMetadata:
    """The metadata of a file.

    Raises:
        UnsupportedError: The file is of version 0.1, which has another layout.
        CorruptFileError: The description of a page is invalid.
    """
    _reject_legacy(metadata)
    start, end = metadata.metadata_range
    buffers = _describe_buffers(metadata.global_buffers)
    global_bytes = sum(buffer.size for buffer in buffers)
    major, minor = metadata.version.footer_numbers
    return LanceFileMetadata(
        schema=resolve_extensions(schema_to_arrow(metadata.schema)),
        num_rows=metadata.num_rows,
        major_version=major,
        minor_version=minor,
        num_data_bytes=start - global_bytes,
        num_column_metadata_bytes=end - start,
        num_global_buffer_bytes=global_bytes,
        global_buffers=buffers,
        columns=[
            LanceColumnMetadata(_describe_buffers(column.buffers), _describe_pages(column))
            for column in metadata.columns
        ],
    )


def measure_columns(metadata: FileMetadata) -> LanceFileStatistics:
    """Pages and bytes of each column.

    Raises:
        UnsupportedError: The file is of version 0.1, which has another layout.
    """
    _reject_legacy(metadata)
    return LanceFileStatistics(
        [
            LanceColumnStatistics(len(column.messages), sum(sum(page.buffer_sizes) for page in column.messages))
            for column in metadata.columns
        ]
    )


def _describe_pages(column: ColumnPages) -> list[LancePageMetadata]:
    pages = [column.page(index, 0, 0) for index in range(len(column.messages))]
    return [LancePageMetadata(_describe_buffers(page.buffers), str(page.encoding)) for page in pages]


def _describe_buffers(ranges: Iterable[ByteRange]) -> list[LanceBufferDescriptor]:
    return [LanceBufferDescriptor(start, end - start) for start, end in ranges]


def _reject_legacy(metadata: FileMetadata) -> None:
    if metadata.version is FileVersion.V0_1:
        raise UnsupportedError("columns and pages of 0.1 files cannot be described")

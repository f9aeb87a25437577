"""Data files of columns, which are written and read as a whole or in parts."""

from lance_core.file.container import WrittenFile
from lance_core.file.lance_file import (
    LanceBufferDescriptor,
    LanceColumnMetadata,
    LanceColumnStatistics,
    LanceFileMetadata,
    LanceFileReader,
    LanceFileStatistics,
    LanceFileWriter,
    LancePageMetadata,
    ReaderResults,
    stable_version,
)
from lance_core.file.metadata import DEFAULT_VERSION, FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.file.session import LanceFileSession, ListResult
from lance_core.file.writer import DataFileWriter

__all__ = [
    "DEFAULT_VERSION",
    "DataFileReader",
    "DataFileWriter",
    "FileVersion",
    "LanceBufferDescriptor",
    "LanceColumnMetadata",
    "LanceColumnStatistics",
    "LanceFileMetadata",
    "LanceFileReader",
    "LanceFileSession",
    "LanceFileStatistics",
    "LanceFileWriter",
    "LancePageMetadata",
    "ListResult",
    "ReaderResults",
    "WrittenFile",
    "stable_version",
]

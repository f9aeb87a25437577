"""`LanceFileReader` and `LanceFileWriter`, under pylance's names: single data files outside of a dataset.

The metadata and the sizes of a file are described in classes with pylance's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from lance_core.arguments import checked_methods, reject
from lance_core.encoding.page import ByteRange
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.extension_types import contains_json
from lance_core.file.metadata import DEFAULT_VERSION, ColumnPages, FileMetadata, FileVersion
from lance_core.file.reader import DataFileReader
from lance_core.file.writer import DEFAULT_PAGE_BYTES, TOTAL_BUFFERED, DataFileWriter
from lance_core.schema import (
    Schema,
    arrow_type_of,
    check_names,
    field_from_arrow,
    resolve_extensions,
    schema_from_arrow,
    schema_to_arrow,
)
from lance_core.schema.relabel import relabel
from lance_core.store import ObjectStore, canonical_uri, open_store

BATCH_ROWS: Final = 1024


def stable_version() -> str:
    """The file version that is written by default."""
    return str(DEFAULT_VERSION.value)


class ReaderResults:
    """Requested rows, which are read while they are consumed; they can be consumed once.

    Args:
        schema: Their schema.
        batches: The rows.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._reader = pa.RecordBatchReader.from_batches(schema, batches)

    def to_batches(self) -> pa.RecordBatchReader:
        """The rows as an Arrow reader."""
        return self._reader

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        return self._reader.read_all()


@checked_methods
class LanceFileReader:
    """Reads one data file.

    Args:
        path: Path or URI of the file.
        storage_options: Credentials and options of the storage, under object_store's names.
        columns: Columns to read, in order; a dotted path reads part of a struct. None reads all.
        **unsupported: Other arguments of pylance, which are rejected.

    Raises:
        ObjectNotFoundError: The file does not exist.
        CorruptFileError: The file is not a data file.
        SchemaError: A column does not exist.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        **unsupported: Any,
    ) -> None:
        reject("LanceFileReader", unsupported)
        store, key = _open_folder(path, storage_options)
        self._file = DataFileReader.open(store, key)
        schema = self._file.schema
        self._schema = schema if columns is None else schema.project(list(columns))

    def num_rows(self) -> int:
        """Rows in the file."""
        return self._file.num_rows

    def metadata(self) -> LanceFileMetadata:
        """The metadata of the file.

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        return describe_file(self._file.metadata)

    def file_statistics(self) -> LanceFileStatistics:
        """Pages and bytes of each column.

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        return measure_columns(self._file.metadata)

    def read_global_buffer(self, index: int) -> bytes:
        """Bytes that belong to the file as a whole, as `LanceFileWriter.add_global_buffer` added them.

        Raises:
            InvalidInputError: The file has no global buffer of that index.
        """
        return bytes(self._file.read_global_buffer(index))

    def read_all(self, *, batch_size: int = BATCH_ROWS, batch_readahead: int = 16) -> ReaderResults:
        """All rows.

        Args:
            batch_size: Most rows of a batch.
            batch_readahead: Accepted for pylance's sake, without effect: a limit of bytes bounds reading ahead.
        """
        return self._read(range(self._file.num_rows), batch_size, batch_readahead)

    def read_range(
        self, start: int, num_rows: int, *, batch_size: int = BATCH_ROWS, batch_readahead: int = 16
    ) -> ReaderResults:
        """A range of rows, with the other arguments of `read_all`.

        Raises:
            InvalidInputError: The range ends after the file.
        """
        if start < 0 or num_rows < 0 or start + num_rows > self._file.num_rows:
            raise InvalidInputError(
                f"rows {start} to {start + num_rows} are outside of the file, which has {self._file.num_rows} rows"
            )
        return self._read(range(start, start + num_rows), batch_size, batch_readahead)

    def take_rows(
        self, indices: Sequence[int], *, batch_size: int = BATCH_ROWS, batch_readahead: int = 16
    ) -> ReaderResults:
        """Rows by ascending numbers, with the other arguments of `read_all`.

        Raises:
            InvalidInputError: A number is negative or beyond the end of the file, or the numbers do not ascend.
        """
        return self._read(np.asarray(indices, np.int64), batch_size, batch_readahead)

    def _read(self, rows: Any, batch_size: int, batch_readahead: int) -> ReaderResults:
        if batch_readahead < 0:
            raise InvalidInputError(f"batch_readahead must be at least 0, not {batch_readahead}")
        storage_schema = schema_to_arrow(self._schema)
        typed = resolve_extensions(storage_schema)
        for index, field in enumerate(typed):
            if contains_json(field.type):  # pylance, too, returns the stored form of JSON from single files
                typed = typed.set(index, storage_schema.field(index))

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._file.read(self._schema, None, rows, batch_rows=batch_size):
                columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(batch.columns, typed, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=typed)

        return ReaderResults(typed, batches())


@checked_methods
class LanceFileWriter:
    """Writes one data file. As a context manager the writer closes the file, or drops it if the body raises.

    Args:
        path: Path or URI of the file.
        schema: The columns; None takes those of the first batch.
        version: Version of the file; None for the default.
        storage_options: Credentials and options of the storage, under object_store's names.
        max_page_bytes: Bytes of a column that fill a page; None for 8 MiB. From 2.1 on at least 64 KiB.
        data_cache_bytes: Most buffered bytes of all columns together, so that pages of files with many columns are
            smaller than `max_page_bytes`; None for 96 MiB. From 2.1 on at least 64 KiB per column.
        **unsupported: Other arguments of pylance, which are rejected.

    Raises:
        UnsupportedError: The version is unstable, a type cannot be stored, or an argument is not offered.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        schema: pa.Schema | None = None,
        *,
        version: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        max_page_bytes: int | None = None,
        data_cache_bytes: int | None = None,
        **unsupported: Any,
    ) -> None:
        reject("LanceFileWriter", unsupported)
        _check_at_least_one(max_page_bytes=max_page_bytes, data_cache_bytes=data_cache_bytes)
        self._store, self._key = _open_folder(path, storage_options)
        self._version = FileVersion.from_string(version)
        self._page_bytes = max_page_bytes
        self._cache_bytes = data_cache_bytes
        self._schema = None if schema is None else schema_from_arrow(schema)
        self._file: DataFileWriter | None = None
        self._global_buffers: list[bytes] = []
        self._schema_metadata: dict[str, str] = {}
        self._lock = Lock()
        self.closed = False
        self.size_bytes: int | None = None

    def write_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows. Several threads may write; the rows of one call stay together.

        Raises:
            SchemaError: A column of the file is missing, is of another type, or has nulls that are not allowed. Other
                columns of the batch are ignored.
            InvalidInputError: The file is closed.
        """
        with self._lock:
            self._write(batch)

    def _write(self, batch: pa.RecordBatch | pa.Table) -> None:
        self._check_open()
        if self._schema is None:
            self._schema = schema_from_arrow(batch.schema)
        check_names(batch.schema)
        batch_names = set(batch.schema.names)
        missing = [name for name in self._schema.names if name not in batch_names]
        if missing:
            raise SchemaError(f"the batch lacks the columns {missing}; it has {batch.schema.names}")
        self._open_writer(self._schema).write(_encode_json_columns(batch.select(self._schema.names)))

    def close(self) -> int | None:
        """Finish the file, and return the number of its rows; None if it was closed already.

        If this fails, the file is dropped.

        Raises:
            SchemaError: No rows were written and no schema was given, so that the columns are unknown.
        """
        with self._lock:
            if self.closed:
                return None
            if self._schema is None:
                raise SchemaError(
                    f"{self._key}: Schema is unknown and file cannot be created: a file without rows needs a schema"
                )
            try:
                return self._finish(self._open_writer(self._schema))
            except BaseException:
                self._abort()
                raise

    def _finish(self, file: DataFileWriter) -> int:
        for data in self._global_buffers:
            file.add_global_buffer(data)
        for key, value in self._schema_metadata.items():
            file.add_schema_metadata(key, value)
        written = file.finish()
        self.closed, self.size_bytes = True, written.size_bytes
        return written.num_rows

    def _abort(self) -> None:
        self.closed = True
        if self._file is not None:
            self._file.abort()

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add a key to the metadata of the file's schema, or replace its value.

        Raises:
            InvalidInputError: The file is closed.
            UnsupportedError: The file is of version 0.1.
        """
        with self._lock:
            self._check_open()
            self._reject_legacy("metadata that is added after the schema")
            self._schema_metadata[key] = value

    def add_global_buffer(self, data: bytes) -> int:
        """Add bytes that belong to the file as a whole; they are kept until it is closed.

        Returns:
            The index for `LanceFileReader.read_global_buffer`, from 1 on.

        Raises:
            InvalidInputError: The file is closed.
            UnsupportedError: The file is of version 0.1.
        """
        with self._lock:
            self._check_open()
            self._reject_legacy("global buffers")
            self._global_buffers.append(bytes(data))
            return len(self._global_buffers)

    def _check_open(self) -> None:
        if self.closed:
            raise InvalidInputError(f"{self._key}: the file is closed")

    def _reject_legacy(self, what: str) -> None:
        if self._version is FileVersion.V0_1:
            raise UnsupportedError(f"{self._key}: a 0.1 file does not support {what}")

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, or drop the file if the body raised."""
        if kind is None:
            self.close()
        else:
            with self._lock:
                self._abort()

    def _open_writer(self, schema: Schema) -> DataFileWriter:
        if self._file is None:
            cache_bytes = TOTAL_BUFFERED if self._cache_bytes is None else self._cache_bytes
            page_bytes = DEFAULT_PAGE_BYTES if self._page_bytes is None else self._page_bytes
            if self._cache_bytes is not None:
                # Pages of 2.0 can be smaller than `DataFileWriter` makes them because of `buffered_bytes`.
                page_bytes = min(page_bytes, max(1, cache_bytes // max(1, len(schema.fields))))
            self._file = DataFileWriter(
                self._store, self._key, schema, version=self._version, page_bytes=page_bytes, buffered_bytes=cache_bytes
            )
        return self._file


def _encode_json_columns(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows, with JSON columns in their stored form."""
    for index, field in enumerate(rows.schema):
        if contains_json(field.type):
            column, kind = rows.column(index), arrow_type_of(field_from_arrow(field))
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            stored = [relabel(chunk, kind) for chunk in chunks]
            jsonb = pa.chunked_array(stored, kind) if isinstance(column, pa.ChunkedArray) else stored[0]
            rows = rows.set_column(index, field.with_type(kind), jsonb)
    return rows


def _open_folder(path: str | PathLike[str], storage_options: Mapping[str, str] | None) -> tuple[ObjectStore, str]:
    """The store of the file's folder, and the file's key there."""
    folder, _, name = canonical_uri(fspath(path)).rpartition("/")
    if not name:
        raise InvalidInputError(f"{path} is not a file")
    return open_store(folder or "/", storage_options), name


def _check_at_least_one(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise InvalidInputError(f"{name} must be positive, not {number}")


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

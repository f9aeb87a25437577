"""Writes one data file.

Rows are buffered per column until they fill a page of some megabytes; a page is encoded in the pool while rows of the
next one are buffered. Buffers are appended to the file as they become ready, each at a multiple of 64 bytes, and the
metadata follows when the writer is finished (see `metadata`). Before that the file is not visible under its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lance_core.encoding.choosing.strategy import TINY_VALUES, Limits
from lance_core.encoding.concatenate import DictionaryCapacity, concatenate, has_narrow_dictionary
from lance_core.encoding.encoder import encode_field
from lance_core.encoding.page import EncodedPage
from lance_core.encoding.repdef import ShreddedColumn, find_present
from lance_core.encoding.repeat import Choices, Leaf
from lance_core.encoding.structural import blob
from lance_core.encoding.v2_0 import encoder as v2_0_encoder
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError
from lance_core.file.container import BlobFiles, PageFile, WrittenFile, external
from lance_core.file.legacy import LegacyFileWriter
from lance_core.file.metadata import DEFAULT_VERSION, FileVersion, plain_encoding
from lance_core.file.pool import num_threads, submit
from lance_core.file.write_plan import Collected, ColumnWritePlan, Releaser, check_nulls, checked_strings, write_plan
from lance_core.schema import Field, Schema
from lance_core.schema.field import is_blob, is_blob_v2
from lance_core.schema.relabel import relabel
from lance_core.store import ObjectStore

DEFAULT_PAGE_BYTES: Final = 8 * 1024 * 1024
TOTAL_BUFFERED: Final = 96 * 1024 * 1024
_MIN_PAGE_BYTES: Final = 64 * 1024
# Passing a page to another thread costs more than encoding this many bytes.
_INLINE_BYTES: Final = 256 * 1024
_WIDE_BYTES: Final = 1024
_MAX_PAGE_ROWS: Final = 2**31 - 1
_SMALL_BYTES: Final = 64 * 1024


class _Pending(NamedTuple):
    """Pages that are being encoded, and the bytes of their rows.

    Attributes:
        first_column: Number of the first column of the field.
        num_bytes: Bytes of the rows.
        is_wide: Whether the rows have 1 KiB and more each; such rows hold the memory of their batch.
        pages: The future pages of each column.
    """

    first_column: int
    num_bytes: int
    is_wide: bool
    pages: Future[list[list[EncodedPage]]]


class DataFileWriter:
    """Writes batches into one data file.

    Args:
        store: The store of the file.
        key: The file's key.
        schema: The columns, with their ids in the dataset.
        version: The format.
        page_bytes: Bytes of a column that fill a page; files of many columns have smaller pages to bound the memory.
        choices: Encodings that were chosen for earlier files of the same schema.
        buffered_bytes: Most buffered bytes of all columns together, unless the smallest pages need more.
        first_row: How many rows of the data are in earlier files, for messages.

    Raises:
        UnsupportedError: The version cannot store the schema.
        InvalidInputError: The metadata of a field requests an impossible encoding.
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        schema: Schema,
        *,
        version: FileVersion = DEFAULT_VERSION,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        choices: Choices | None = None,
        buffered_bytes: int = TOTAL_BUFFERED,
        first_row: int = 0,
    ) -> None:
        self._choices = choices
        self._plan = write_plan(schema, version)
        self._key = key
        self._schema = schema
        self._version = version
        wide = buffered_bytes // max(len(schema.fields), 1)
        # A 2.0 page is the unit of reading, so that callers may request smaller pages.
        smallest = _MIN_PAGE_BYTES if version.has_levels else min(_MIN_PAGE_BYTES, page_bytes)
        self._page_bytes = max(smallest, min(page_bytes, wide))
        self._limits = Limits(large_chunks=version is FileVersion.V2_2)
        self._pending: deque[_Pending] = deque()
        self._collected = [Collected(plan) for plan in self._plan.columns]
        self._releaser = Releaser(self._collected)
        self.num_rows = 0
        self._first_row = first_row
        self._done = False
        self._blobs = BlobFiles(store, key)
        kinds = self._plan.arrow_schema.types
        is_narrow = any(map(has_narrow_dictionary, kinds))
        self._room = DictionaryCapacity(self._plan.arrow_schema.names, kinds) if is_narrow else None
        self._legacy: LegacyFileWriter | None = None
        if version is FileVersion.V0_1:
            self._legacy = LegacyFileWriter(store, key, schema, self._plan.arrow_schema.types)
        self._sink = store.open_writer(key) if self._legacy is None else self._legacy.sink
        self._file = PageFile(self._sink, key, schema, version)

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far, without buffered rows and pages that are being encoded."""
        return self._file.position if self._legacy is None else self._legacy.position

    def has_reached(self, num_bytes: int) -> bool:
        """Whether the file has `num_bytes` bytes, without buffered rows.

        The call waits for pages that are being encoded only if the result depends on them.
        """
        pending = sum(job.num_bytes for job in self._pending)
        if self.bytes_written < num_bytes <= self.bytes_written + pending:
            self._drain(0)
        return self.bytes_written >= num_bytes

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows.

        Args:
            batch: Rows with the columns of the schema, in any order.

        Raises:
            SchemaError: A column is missing, unknown or of another type, or has nulls that are not allowed,
                or a string that is not UTF-8.
            InvalidInputError: The writer is finished.
        """
        if self._done:
            raise InvalidInputError(f"{self._key}: the writer is finished")
        columns = self._convert_columns(batch)
        if self._room is not None:
            path = self._room.take(columns)
            if path is not None:
                raise InvalidInputError(
                    f"column {path!r} has more values in these rows than the indices of its dictionary can count: cast "
                    "the column to a dictionary with wider indices, or to its values"
                )
        self.num_rows += batch.num_rows
        if self._legacy is not None:
            self._legacy.write(columns, batch.num_rows)
            return
        passed = 0
        for collected, chunks in zip(self._collected, columns, strict=True):
            for chunk in chunks:
                passed += self._collect(collected, chunk)
        self._releaser.passed(passed)
        self._write_ready(waits=passed >= self._page_bytes)

    def has_room_for(self, batch: pa.RecordBatch | pa.Table) -> bool:
        """Whether the values of the rows fit into the dictionaries of the file; if so, they count from now on."""
        return self._room is None or self._room.take(self._convert_columns(batch)) is None

    def _convert_columns(self, batch: pa.RecordBatch | pa.Table) -> list[list[pa.Array]]:
        """The chunks of each column, as arrays of the types that are written, without empty ones."""
        names = self._plan.arrow_schema.names
        if batch.schema.equals(self._plan.arrow_schema):
            columns = _split_plain_columns(batch)
        elif sorted(batch.schema.names) != sorted(names):
            raise SchemaError(f"{self._key}: the batch has the columns {batch.schema.names}, but the file has {names}")
        else:
            columns = [_convert_chunks(batch, plan.field, plan.target) for plan in self._plan.columns]
        for plan, chunks in zip(self._plan.columns, columns, strict=True):
            if plan.is_checked:
                for chunk in chunks:
                    check_nulls(plan.field, chunk)
            if plan.has_strings:
                row = self._first_row + self.num_rows
                for index, chunk in enumerate(chunks):
                    chunks[index] = checked_strings(plan.field.name, chunk, row)
                    row += len(chunk)
        return columns

    def add_global_buffer(self, data: bytes) -> int:
        """Append bytes that belong to the file as a whole, and return their index, from 1 on.

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        self._reject_legacy("global buffers")
        return self._file.add_global_buffer(data)

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add a key to the metadata of the schema, or replace its value.

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        self._reject_legacy("metadata that is added after the schema")
        self._file.add_schema_metadata(key, value)

    def finish(self) -> WrittenFile:
        """Write the remaining rows and the metadata, and make the file visible."""
        self.complete()
        return self.close()

    def complete(self) -> None:
        """Write the remaining rows and the metadata; then `close` waits for the storage and makes the file visible."""
        if self._done:
            raise InvalidInputError(f"{self._key}: the writer is finished")
        self._done = True
        if self._legacy is not None:
            self._legacy.finish()
            return
        # Threads encode large pages while this thread encodes small ones; a thread for a single page saves no time.
        left = sorted(self._collected, key=lambda column: column.num_bytes < _INLINE_BYTES)
        is_alone = not self._pending and len(left) == 1
        for collected in left:
            self._flush(collected, in_this_thread=is_alone)
        self._drain(0)
        self._blobs.complete()
        self._file.complete(self.num_rows)

    def written(self) -> WrittenFile:
        """The result that `close` will return for a complete file.

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        self._reject_legacy("a description before it is closed")
        return self._file.written(self.num_rows)

    def close_early(self) -> Sequence[Callable[[], object]]:
        """Make a complete file visible; the returned calls make it durable (`ObjectWriter.close_early`).

        Raises:
            UnsupportedError: The file is of version 0.1.
        """
        self._reject_legacy("a visible name before it is durable")
        calls = self._file.close_early()
        self._blobs.keep()
        return calls

    def close(self, *, durable_name: bool = True) -> WrittenFile:
        """Make a complete file visible. Any thread may call this.

        Args:
            durable_name: Whether to make its name durable as well; if False, the caller calls `store.sync_names`.
        """
        if self._legacy is None:
            written = self._file.close(self.num_rows, durable_name=durable_name)
            self._blobs.keep()
            return written
        return WrittenFile(
            key=self._key,
            size_bytes=self._sink.close(),
            num_rows=self.num_rows,
            field_ids=tuple(field.id for field, _ in self._schema.walk()),
            column_indices=(),
            version=self._version,
            dictionaries=self._legacy.dictionaries(),
        )

    def abort(self) -> None:
        """Drop the file; does nothing once it is visible."""
        self._done = True
        for pending in self._pending:
            pending.pages.cancel()
        self._pending.clear()
        self._sink.abort()
        self._blobs.abort()

    def _reject_legacy(self, what: str) -> None:
        if self._legacy is not None:
            raise UnsupportedError(f"{self._key}: a 0.1 file does not support {what}")

    def _collect(self, collected: Collected, chunk: pa.Array) -> int:
        """Add rows of a column, encode them once they fill a page, and return the number of their bytes."""
        size: int = max(chunk.nbytes, 1)
        full = self._page_bytes - self._page_bytes // 64
        if collected.num_bytes + size < full and len(chunk) <= _MAX_PAGE_ROWS:
            collected.add(chunk, size + 1)
            return size
        position = 0
        while position < len(chunk):
            room = self._page_bytes - collected.num_bytes
            rows = min(len(chunk) - position, max(1, room * len(chunk) // size), _MAX_PAGE_ROWS)
            piece = chunk.slice(position, rows)
            collected.add(piece, size * rows // len(chunk) + 1)
            position += rows
            if collected.num_bytes >= full:
                self._flush(collected)
        return size

    def _flush(self, collected: Collected, *, in_this_thread: bool = False) -> None:
        if not collected.arrays:
            return
        plan, num_bytes = collected.plan, collected.num_bytes
        arrays = collected.take()
        if plan.is_blob:
            self._flush_blobs(plan, concatenate(arrays))
            return
        if num_bytes < _INLINE_BYTES and all(job.first_column != plan.first_column for job in self._pending):
            arrays = [concatenate(arrays)]
            if plan.leaf is None or num_bytes > _SMALL_BYTES or not self._write_small(plan, plan.leaf, arrays[0]):
                pages = _encode(plan, arrays, self._limits, self._version, self._choices)
                self._write_pages(plan.first_column, pages)
            return
        if in_this_thread:
            self._write_pages(plan.first_column, _encode(plan, arrays, self._limits, self._version))
            return
        is_wide = num_bytes >= _WIDE_BYTES * sum(map(len, arrays))
        future = submit(_encode, plan, arrays, self._limits, self._version)
        self._pending.append(_Pending(plan.first_column, num_bytes, is_wide, future))
        self._drain(num_threads() + 1)

    def _write_small(self, plan: ColumnWritePlan, leaf: Leaf, array: pa.Array) -> bool:
        """Write a few raw numbers, or a page like an earlier one; return False if the encoder has to choose.

        A few numbers are left to the encoder if some are null, or if all are equal.
        """
        count, width = len(array), leaf.width
        if count <= TINY_VALUES and not (leaf.is_string or leaf.list_size or array.null_count):
            data = array.buffers()[1].slice(array.offset * width, count * width).to_pybytes()
            if data != data[:width] * count:
                encoding = plain_encoding(8 * width, count)
                self._file.add_page(plan.first_column, [data], encoding=encoding, length=count, num_rows=count)
                return True
        if self._choices is None or not self._limits.large_chunks:
            return False
        page = self._choices.try_to_repeat_page(plan.first_column, leaf, array)
        if page is not None:
            self._file.add_encoded(plan.first_column, page)
        return page is not None

    def _flush_blobs(self, plan: ColumnWritePlan, array: Any) -> None:
        """Write payloads, each aligned, and then the pages, of which one has their positions."""
        if not is_blob(plan.field):
            pages = encode_field(plan.field, array, self._limits, change=self._place_blobs)
            self._write_pages(plan.first_column, pages)
            return
        positions = []
        for value in array:
            payload = value.as_buffer()
            positions.append(self._file.position)
            if payload is not None and payload.size:
                self._file.append(payload)
        if self._version.has_levels:
            page = blob.encode(array, positions, large_chunks=self._limits.large_chunks)
        else:
            page = v2_0_encoder.encode_blobs(blob.build_descriptors(array, positions, null=1))
        self._file.add_encoded(plan.first_column, page)

    def _place_blobs(self, column: ShreddedColumn) -> ShreddedColumn:
        """Store the payloads of a column of blobs of 2.2, and return their descriptors; other columns are returned."""
        if not is_blob_v2(column.field):
            return column
        field, pairs = column.field, zip(column.values, find_present(column.levels), strict=True)
        descriptors = [self._place_blob(field, value) if is_present else None for value, is_present in pairs]
        return replace(column, field=blob.describe_field(field), values=blob.descriptor_array(descriptors))

    def _place_blob(self, field: Field, value: pa.StructScalar) -> blob.Descriptor:
        """Store the payload of a blob of 2.2 in this file or in a file of blobs, unless it is given by URI."""
        data = value["data"].as_buffer()
        rest = {name: value[name].as_py() for name in value if name != "data"}
        return external(field, {"data": data, **rest}) or self._blobs.place(field, data, self._append_payload)

    def _append_payload(self, payload: pa.Buffer) -> int:
        """Append a payload, and return its position."""
        position = self._file.position
        self._file.append(payload)
        return position

    def _write_ready(self, *, waits: bool) -> None:
        """Write the encoded pages; with `waits` also wide pages that are still being encoded.

        Until then pages hold the memory of their batch, or of copies of its rows.
        """
        while self._pending and (self._pending[0].pages.done() or (waits and self._pending[0].is_wide)):
            self._drain(len(self._pending) - 1)

    def _drain(self, most: int) -> None:
        """Write encoded pages until at most `most` are still being encoded."""
        while len(self._pending) > most:
            pending = self._pending.popleft()
            self._write_pages(pending.first_column, pending.pages.result())

    def _write_pages(self, first_column: int, columns: list[list[EncodedPage]]) -> None:
        for index, pages in enumerate(columns):
            for page in pages:
                self._file.add_encoded(first_column + index, page)


def _encode(
    plan: ColumnWritePlan, arrays: list[pa.Array], limits: Limits, version: FileVersion, choices: Choices | None = None
) -> list[list[EncodedPage]]:
    array = concatenate(arrays)
    if version.has_levels:
        return encode_field(plan.field, array, limits, choices, plan.first_column)
    return v2_0_encoder.encode_field(plan.field, array)


def _split_plain_columns(batch: Any) -> list[list[pa.Array]]:
    """The chunks of each column, for rows that already have the types that are written."""
    if isinstance(batch, pa.Table):
        batches = batch.to_batches() if batch.num_columns > 1 else []
        if len(batches) != 1:
            return [[chunk for chunk in column.chunks if len(chunk)] for column in batch.columns]
        batch = batches[0]
    return [[array] for array in batch.columns] if batch.num_rows else [[] for _ in batch.columns]


def _convert_chunks(batch: Any, field: Field, target: pa.DataType) -> list[pa.Array]:
    """The values of a column as arrays of the type that is written."""
    column = batch.column(batch.schema.get_field_index(field.name))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [chunk if chunk.type == target else _conform(chunk, field, target) for chunk in chunks if len(chunk)]


def _conform(chunk: Any, field: Field, target: pa.DataType) -> pa.Array:
    try:
        return relabel(chunk, target)
    except SchemaError as error:
        raise SchemaError(f"column {field.name!r} is of type {chunk.type}, not {target}: {error}") from error

"""The frame of a 2.x data file, filled page by page with encoded pages.

    page buffers, each at a multiple of 64 bytes, in the order of writing
    file descriptor, column metadata, offset tables, footer        (see `metadata`)

A reader begins at the end of the file, with the footer.

Writes payloads of blobs of 2.2: small ones into the data file, larger ones into files of blobs beside it.

    size of the payload                                             kind
    at most `blob-inline-size-threshold`, 64 KiB by default         inline: in the data file
    at most `blob-dedicated-size-threshold`, 4 MiB by default       packed: in a file with others
    more                                                            dedicated: a file of its own

A packed file has at most `blob-pack-file-size-threshold` bytes, 1 GiB by default. The three thresholds are metadata of
the field, with `lance-encoding:` before their names.

    data/<name>.lance
    data/<name>/<bits>.blob         <bits>: the 32 bits of the number of the file (1, 2, ...), the lowest bit first

Source: tables written by pylance 14.0.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa

from lance_core._proto.file2_pb2 import ColumnMetadata, Encoding
from lance_core.encoding.page import ByteRange, BytesLike, EncodedPage, page_encoding
from lance_core.encoding.structural import blob
from lance_core.encoding.structural.blob import BlobKind, Descriptor
from lance_core.errors import InvalidInputError
from lance_core.file.metadata import (
    ALIGNMENT,
    PADDING,
    FileVersion,
    Footer,
    column_to_bytes,
    descriptor_to_bytes,
    table_to_bytes,
)
from lance_core.file.write_plan import write_plan
from lance_core.schema import Field, Schema
from lance_core.schema.field import is_blob
from lance_core.store import ObjectStore, ObjectWriter, remove_leftovers

# Small buffers are collected into writes of about this many bytes; larger ones are written without a copy.
_WRITE_BYTES: Final = 256 * 1024
# Some kilobytes of padding may precede a range of at least this many bytes, so that file systems can share its blocks.
_SHARED_BYTES: Final = 1 << 20
_PADDINGS: Final = tuple(PADDING * length for length in range(ALIGNMENT))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """The description of a finished file for a manifest.

    Attributes:
        key: Its key in the store.
        size_bytes: Its size.
        num_rows: Rows in it.
        field_ids: The fields that have columns in it.
        column_indices: The columns of these fields; none in 0.1.
        version: Its format.
        dictionaries: In 0.1 the values of dictionary columns by field id, which the manifest has to repeat.
    """

    key: str
    size_bytes: int
    num_rows: int
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    version: FileVersion
    dictionaries: Mapping[int, pa.Array] = dataclasses.field(default_factory=dict)


class PageFile:
    """A data file that is being written.

    Args:
        sink: The target of the bytes.
        key: The file's key.
        schema: The columns.
        version: The format: 2.0 or later.
    """

    def __init__(self, sink: ObjectWriter, key: str, schema: Schema, version: FileVersion) -> None:
        self._key = key
        self._schema = schema
        self._version = version
        self.plan = write_plan(schema, version)
        self._pages: list[list[ColumnMetadata.Page]] = [[] for _ in self.plan.fields]
        self._next_row = [0] * len(self.plan.fields)
        self.position = 0  # of the next byte: the number of bytes so far
        self._unwritten: list[BytesLike] = []
        self._unwritten_bytes = 0
        self._global_buffers: list[ByteRange] = []
        self._schema_metadata: dict[str, bytes] = {}
        self._sink = sink

    @property
    def least_copy_bytes(self) -> int:
        """The least size of a range for which `append_range` is better than reading and appending."""
        return self._sink.least_copy_bytes

    def add_page(
        self, column: int, buffers: Sequence[BytesLike], *, encoding: Encoding, length: int, num_rows: int
    ) -> None:
        """Append a page.

        Args:
            column: Its column.
            buffers: Its buffers, in order.
            encoding: Its description.
            length: The length to record for it.
            num_rows: Rows in it.
        """
        self.add_placed(column, [self.append(buffer) for buffer in buffers], encoding, length, num_rows)

    def add_placed(
        self, column: int, buffers: Sequence[ByteRange], encoding: Encoding, length: int, num_rows: int
    ) -> None:
        """Add a page whose buffers are in the file already, after the pages of its column so far.

        Args:
            column: Its column.
            buffers: Where its buffers are.
            encoding: Its description.
            length: The length to record for it.
            num_rows: Rows in it.
        """
        self._pages[column].append(
            ColumnMetadata.Page(
                buffer_offsets=[start for start, _ in buffers],
                buffer_sizes=[end - start for start, end in buffers],
                length=length,
                encoding=encoding,
                priority=self._next_row[column] if self._version.has_levels else 0,
            )
        )
        self._next_row[column] += num_rows

    def add_encoded(self, column: int, page: EncodedPage) -> None:
        """Append an encoded page."""
        encoding = page_encoding(page.encoding)
        self.add_page(column, page.buffers, encoding=encoding, length=page.length, num_rows=page.num_rows)

    def add_global_buffer(self, data: BytesLike) -> int:
        """Append bytes that belong to the file as a whole, and return their index, from 1 on: 0 is the descriptor."""
        self._global_buffers.append(self.append(data))
        return len(self._global_buffers)

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add a key to the metadata of the schema, or replace its value."""
        self._schema_metadata[key] = value.encode()

    def finish(self, num_rows: int) -> WrittenFile:
        """Write the metadata, and make the file visible."""
        self.complete(num_rows)
        return self.close(num_rows)

    def complete(self, num_rows: int) -> None:
        """Write the metadata."""
        descriptor = self.append(descriptor_to_bytes(self._describe_schema(), num_rows))
        buffers = [descriptor, *self._global_buffers]
        start, column_table = self.position, []
        for field, own_pages in zip(self.plan.fields, self._pages, strict=True):
            if self._version.has_levels:
                message = column_to_bytes(own_pages, is_blob=False)
            else:
                message = column_to_bytes(_merge_struct_pages(own_pages), is_blob=is_blob(field))
            column_table.append((self.position, self.position + len(message)))
            self._write(message)
        table_position = self.position
        self._write(table_to_bytes(column_table))
        buffer_table = self.position
        self._write(table_to_bytes(buffers))
        major, minor = self._version.footer_numbers
        footer = Footer(
            column_metadata=start,
            column_table=table_position,
            buffer_table=buffer_table,
            num_buffers=len(buffers),
            num_columns=len(self._pages),
            major=major,
            minor=minor,
        )
        self._write(footer.to_bytes())
        self._write_out()

    def _describe_schema(self) -> Schema:
        """The schema as the file records it."""
        has_blobs = any(column.is_blob for column in self.plan.columns)
        schema = (blob.describe_schema(self._schema) if has_blobs else None) or self._schema
        if not self._schema_metadata:
            return schema
        return dataclasses.replace(schema, metadata={**schema.metadata, **self._schema_metadata})

    def close(self, num_rows: int, *, durable_name: bool = True) -> WrittenFile:
        """Make a complete file visible; `durable_name` as in `ObjectWriter.close_unnamed`."""
        if durable_name:
            self._sink.close()
        else:
            self._sink.close_unnamed()
        return self.written(num_rows)

    def close_early(self) -> Sequence[Callable[[], object]]:
        """Make a complete file visible; see `ObjectWriter.close_early`."""
        return self._sink.close_early()

    def written(self, num_rows: int) -> WrittenFile:
        """The description of a complete file for a manifest."""
        return WrittenFile(
            key=self._key,
            size_bytes=self.position,
            num_rows=num_rows,
            field_ids=self.plan.field_ids,
            column_indices=tuple(range(len(self.plan.fields))),
            version=self._version,
        )

    def abort(self) -> None:
        """Drop the file; does nothing after `finish`."""
        self._sink.abort()

    def append(self, buffer: BytesLike) -> tuple[int, int]:
        """Write a buffer, pad to the next aligned position, and return the range of the buffer."""
        start = self.position
        size = len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes
        end = start + size
        padding = -end % ALIGNMENT
        self.position = end + padding
        if size >= _WRITE_BYTES:
            self._write_out()
            self._sink.write(buffer)
            size = 0
        else:
            self._unwritten.append(buffer)
        if padding:
            self._unwritten.append(_PADDINGS[padding])
        self._unwritten_bytes += size + padding
        if self._unwritten_bytes >= _WRITE_BYTES:
            self._write_out()
        return start, end

    def append_range(self, store: ObjectStore, key: str, start: int, end: int, *, read_bytes: int) -> int:
        """Append a range of another file; the storage copies it if it can.

        Args:
            store: The store of that file.
            key: Its key.
            start: First byte, a multiple of 64.
            end: Byte after the last.
            read_bytes: Bytes per read if the storage cannot copy.

        Returns:
            The position of the range in this file: a multiple of 64.
        """
        alignment = self._sink.copy_alignment if end - start >= _SHARED_BYTES else 1
        padding = (start - self.position) % max(alignment, ALIGNMENT)
        if padding:
            self._unwritten.append(PADDING * padding)
        self._write_out()
        position = self.position + padding
        self._sink.copy_range(store, key, start, end, read_bytes=read_bytes)
        self.position = position + end - start
        missing = -self.position % ALIGNMENT
        if missing:  # the other file ends there
            self._unwritten.append(_PADDINGS[missing])
            self.position += missing
        return position

    def _write(self, data: bytes) -> None:
        """Write metadata, which is not aligned and comes last."""
        self.position += len(data)
        self._unwritten.append(data)

    def _write_out(self) -> None:
        """Write the collected buffers to the store in one call."""
        if self._unwritten:
            self._sink.write(b"".join(self._unwritten))
            self._unwritten, self._unwritten_bytes = [], 0


def _merge_struct_pages(pages: list[ColumnMetadata.Page]) -> list[ColumnMetadata.Page]:
    """The pages of a 2.0 column; pages without buffers (structs, nulls) of one encoding become one page."""
    if (
        len(pages) < 2
        or any(page.buffer_sizes for page in pages)
        or len({p.encoding.direct.encoding for p in pages}) > 1
    ):
        return pages
    return [ColumnMetadata.Page(length=sum(page.length for page in pages), encoding=pages[0].encoding)]


_MAX_FILES: Final = 2**32 - 1


def blob_folder(data_key: str) -> str:
    """The folder of the files of blobs of a data file, as the prefix of their keys."""
    return data_key.removesuffix(".lance") + "/"


def sidecar_key(data_key: str, blob_id: int) -> str:
    """Key of a file of blobs of a data file."""
    bits = f"{blob_id:032b}"[::-1]
    return f"{blob_folder(data_key)}{bits}.blob"


@dataclass(frozen=True, slots=True)
class _BlobThresholds:
    """The most bytes of inline and packed payloads, and of packed files."""

    inline: int = 64 * 1024
    packed: int = 4 * 1024 * 1024
    file: int = 1024 * 1024 * 1024

    @classmethod
    def of(cls, field: Field) -> Self:
        """The thresholds of a column.

        Raises:
            InvalidInputError: A threshold is not a number, or is too small.
        """
        names = {"inline": ("inline-size", 0), "packed": ("dedicated-size", 1), "file": ("pack-file-size", 1)}
        thresholds = {}
        for name, (middle, least) in names.items():
            key = f"lance-encoding:blob-{middle}-threshold"
            if key not in field.metadata:
                continue
            value = field.metadata[key].decode()
            if not (value.isascii() and value.isdecimal()) or int(value) < least:
                raise InvalidInputError(
                    f"column {field.name!r}: {key} is {value!r}, but must be a number of bytes, at least {least}"
                )
            thresholds[name] = int(value)
        return cls(**thresholds)


@dataclass(slots=True)
class _Pack:
    """A file to which payloads of one column are appended."""

    writer: ObjectWriter
    blob_id: int
    size: int = 0


def external(field: Field, blob: Mapping[str, Any]) -> Descriptor | None:
    """The descriptor of a blob that is given by its URI; None if it has a payload.

    Raises:
        InvalidInputError: Both payload and URI are given, or neither, or the range of an external blob is invalid.
    """
    uri, position, size = blob.get("uri"), blob.get("position"), blob.get("size")
    if (blob["data"] is None) == (uri is None) or uri == "":
        parts = "neither" if blob["data"] is None and uri is None else "an empty `uri`" if uri == "" else "both"
        raise InvalidInputError(
            f"column {field.name!r}: a blob must have either `data` or a `uri`, but it has {parts}; a null blob is "
            "None, and an empty one has b'' as `data`"
        )
    if (position is None) != (size is None) or size == 0 or (uri is None and size is not None):
        raise InvalidInputError(
            f"column {field.name!r}: a blob can have `position` and `size` only together and with a `uri`, and `size` "
            "must be above 0"
        )
    return None if uri is None else Descriptor(BlobKind.EXTERNAL, position or 0, size or 0, 0, uri)


class BlobFiles:
    """The files of blobs of a data file that is being written.

    Args:
        store: The store of the data file.
        key: Its key.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._num_files = 0
        self._packs: dict[int, _Pack] = {}
        self._limits: dict[int, _BlobThresholds] = {}
        self._closed: list[str] = []

    def place(self, field: Field, value: pa.Buffer, inline: Callable[[pa.Buffer], int]) -> Descriptor:
        """Store one payload.

        Args:
            field: The column.
            value: The payload.
            inline: Appends a payload to the data file and returns its position.
        """
        limits = self._limits.setdefault(field.id, _BlobThresholds.of(field))
        size: int = value.size
        if size > limits.packed:
            number = self._next_number()
            with self._open_sidecar(number) as writer:
                writer.write(value)
            self._closed.append(sidecar_key(self._key, number))
            return Descriptor(kind=BlobKind.DEDICATED, size=size, blob_id=number)
        if size > limits.inline:
            pack = self._packs.get(field.id)
            if pack is not None and pack.size + size > limits.file:
                self._close_pack(field.id)
                pack = None
            if pack is None:
                number = self._next_number()
                pack = self._packs[field.id] = _Pack(self._open_sidecar(number), number)
            pack.writer.write(value)
            descriptor = Descriptor(kind=BlobKind.PACKED, position=pack.size, size=size, blob_id=pack.blob_id)
            pack.size += size
            return descriptor
        return Descriptor(kind=BlobKind.INLINE, position=inline(value) if size else 0, size=size)

    def complete(self) -> None:
        """Make all files visible and durable."""
        for field_id in list(self._packs):
            self._close_pack(field_id)

    def keep(self) -> None:
        """Record that the data file is visible, so that `abort` keeps the files."""
        self._closed.clear()

    def abort(self) -> None:
        """Remove the files; does nothing after `keep`."""
        for pack in self._packs.values():
            pack.writer.abort()
        self._packs.clear()
        remove_leftovers(self._store, self._closed)
        if self._num_files:
            self._store.remove_empty_folders(blob_folder(self._key).removesuffix("/"))
        self._closed.clear()

    def _next_number(self) -> int:
        if self._num_files == _MAX_FILES:
            raise InvalidInputError(f"{self._key}: more than {_MAX_FILES} files of blobs; write files of fewer rows")
        self._num_files += 1
        return self._num_files

    def _open_sidecar(self, number: int) -> ObjectWriter:
        return self._store.open_writer(sidecar_key(self._key, number))

    def _close_pack(self, field_id: int) -> None:
        pack = self._packs.pop(field_id)
        pack.writer.close()
        self._closed.append(sidecar_key(self._key, pack.blob_id))

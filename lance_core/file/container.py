"""The frame of a 2.x data file, filled page by page by whoever has encoded pages.

page buffers, each at a multiple of 64 bytes, in the order in which they come
file descriptor, column metadata, offset tables, footer        (see `metadata` and `footer`)
"""

__all__ = ["PageFile"]

from collections.abc import Sequence

from lance_core._proto.encodings_v2_0_pb2 import ColumnEncoding
from lance_core._proto.file2_pb2 import ColumnMetadata, Encoding
from lance_core.encoding.page import BytesLike
from lance_core.encoding.paths import column_fields, plain_columns
from lance_core.file.footer import Footer
from lance_core.file.metadata import ALIGNMENT, PADDING, column_to_bytes, descriptor_to_bytes, table_to_bytes
from lance_core.file.version import FileVersion
from lance_core.file.writer import WrittenFile
from lance_core.schema import Schema
from lance_core.store import ObjectStore


class PageFile:
    """A data file that is being put together.

    Args:
        store: Where to.
        key: The file's key.
        schema: The columns.
        version: The format: 2.0 or later.
    """

    def __init__(self, store: ObjectStore, key: str, schema: Schema, version: FileVersion) -> None:
        self._key = key
        self._schema = schema
        self._version = version
        if version.has_levels:
            self.fields = column_fields(schema)
        else:
            self.fields = [field for top in schema.fields for field in plain_columns(top)]
        self._pages: list[list[ColumnMetadata.Page]] = [[] for _ in self.fields]
        self._next_row = [0] * len(self.fields)
        self._position = 0
        self._sink = store.open_writer(key)

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far."""
        return self._position

    def add_page(
        self, column: int, buffers: Sequence[BytesLike], *, encoding: Encoding, length: int, num_rows: int
    ) -> None:
        """Append a page.

        Args:
            column: Its column.
            buffers: Its buffers, in order.
            encoding: Its description.
            length: What it says its length is.
            num_rows: Rows in it.
        """
        ranges = [self._append(buffer) for buffer in buffers]
        self._pages[column].append(
            ColumnMetadata.Page(
                buffer_offsets=[start for start, _ in ranges],
                buffer_sizes=[end - start for start, end in ranges],
                length=length,
                encoding=encoding,
                priority=self._next_row[column] if self._version.has_levels else 0,
            )
        )
        self._next_row[column] += num_rows

    def finish(self, num_rows: int) -> WrittenFile:
        """Write the metadata, and make the file visible."""
        descriptor = self._append(descriptor_to_bytes(self._schema, num_rows))
        encoding = ColumnEncoding()
        encoding.values.SetInParent()
        start, column_table = self._position, []
        for own_pages in self._pages:
            pages = own_pages if self._version.has_levels else _one_struct_page(own_pages)
            message = column_to_bytes(pages, encoding)
            column_table.append((self._position, self._position + len(message)))
            self._write(message)
        table_position = self._position
        self._write(table_to_bytes(column_table))
        buffer_table = self._position
        self._write(table_to_bytes([descriptor]))
        major, minor = self._version.footer_numbers
        footer = Footer(
            column_metadata=start,
            column_table=table_position,
            buffer_table=buffer_table,
            num_buffers=1,
            num_columns=len(self._pages),
            major=major,
            minor=minor,
        )
        self._write(footer.to_bytes())
        return WrittenFile(
            key=self._key,
            size_bytes=self._sink.close(),
            num_rows=num_rows,
            field_ids=tuple(field.id for field in self.fields),
            column_indices=tuple(range(len(self.fields))),
            version=self._version,
        )

    def abort(self) -> None:
        """Drop everything; does nothing after `finish`."""
        self._sink.abort()

    def _append(self, buffer: BytesLike) -> tuple[int, int]:
        """Write a buffer and fill up to the next aligned position."""
        start = self._position
        self._write(buffer)
        end = self._position
        padding = -end % ALIGNMENT
        if padding:
            self._write(PADDING * padding)
        return start, end

    def _write(self, buffer: BytesLike) -> None:
        self._sink.write(buffer)
        self._position += memoryview(buffer).nbytes


def _one_struct_page(pages: list[ColumnMetadata.Page]) -> list[ColumnMetadata.Page]:
    """The pages of a 2.0 column; those of a struct have no buffers and must be one."""
    alike = len({page.encoding.direct.encoding for page in pages}) == 1
    if len(pages) < 2 or not alike or any(page.buffer_sizes for page in pages):
        return pages
    return [ColumnMetadata.Page(length=sum(page.length for page in pages), encoding=pages[0].encoding)]

"""Reads and writes the files of indices, which are small data files with parameters in the metadata of their schema."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lance_core.errors import CorruptFileError, ObjectNotFoundError
from lance_core.file import DataFileReader, DataFileWriter, FileVersion
from lance_core.index.query.rows import Ints
from lance_core.schema import schema_from_arrow, schema_to_arrow
from lance_core.store import ObjectStore
from lance_core.table.index import IndexFile, IndexMetadata


def open_file(store: ObjectStore, prefix: str, name: str, index: IndexMetadata) -> DataFileReader:
    """Open a file of a segment.

    Raises:
        CorruptFileError: The file is missing, or its size differs from the segment's record.
    """
    size = next((file.size_bytes for file in index.files if file.path == name), None)
    try:
        return DataFileReader.open(store, f"{prefix}{name}", size=size or None)
    except ObjectNotFoundError as error:
        raise CorruptFileError(f"{prefix}{name} is missing") from error


def read_table(store: ObjectStore, prefix: str, name: str, index: IndexMetadata) -> tuple[pa.Table, dict[str, str]]:
    """All rows of a file of a segment, and the metadata of its schema.

    Raises:
        CorruptFileError: The file is missing or cannot be read.
    """
    reader = open_file(store, prefix, name, index)
    schema = schema_to_arrow(reader.schema)
    table = pa.Table.from_batches(list(reader.read(batch_rows=None)), schema=schema)
    return table, metadata_of(reader)


def read_columns(reader: DataFileReader, names: list[str], rows: Ints | None = None) -> pa.Table:
    """Some columns of a file, for all rows or for some ascending rows.

    Raises:
        CorruptFileError: A column is missing or cannot be read.
    """
    missing = sorted(set(names) - set(reader.schema.names))
    if missing:
        raise CorruptFileError(f"the file has no columns {missing}")
    columns = reader.schema.project(names)
    chosen: range | Ints | None = rows
    if rows is not None and len(rows) and len(rows) == int(rows[-1]) - int(rows[0]) + 1:
        chosen = range(int(rows[0]), int(rows[-1]) + 1)
    batches = list(reader.read(columns, None, chosen, batch_rows=None))
    return pa.Table.from_batches(batches, schema=schema_to_arrow(columns))


def metadata_of(reader: DataFileReader) -> dict[str, str]:
    """The metadata of a file's schema, as strings."""
    return {key: value.decode(errors="replace") for key, value in reader.schema.metadata.items()}


def write_table(
    store: ObjectStore, key: str, table: pa.Table, data_storage_version: str, buffers: Mapping[str, bytes]
) -> IndexFile:
    """Write a file of an index.

    Args:
        store: The dataset's store.
        key: Its key.
        table: Its rows; the metadata of their schema goes with them.
        data_storage_version: Format version of the dataset's files; a dataset of 0.1 has index files of 2.0.
        buffers: Global buffers of the file, by the metadata keys that record their numbers.
    """
    version = FileVersion.from_string(data_storage_version)
    if version is FileVersion.V0_1:
        version = FileVersion.V2_0
    writer = DataFileWriter(store, key, schema_from_arrow(table.schema), version=version)
    try:
        for name, data in buffers.items():
            writer.add_schema_metadata(name, str(writer.add_global_buffer(data)))
        writer.write(table)
        written = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return IndexFile(path=key.rpartition("/")[2], size_bytes=written.size_bytes)

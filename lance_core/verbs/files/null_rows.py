"""Checks that files of a dataset's version can hold null in columns that are null in rows that exist already.

A column that no file has is null without being written, until its rows are moved: an update, a merge or a compaction
writes the nulls, which files of some versions cannot hold. Null structs, for example, need version 2.1.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from lance_core.errors import SchemaError, UnsupportedError
from lance_core.file.metadata import FileVersion
from lance_core.file.writer import DataFileWriter
from lance_core.schema import Field, Schema, schema_to_arrow
from lance_core.store.memory import MemoryStore


def check_null_is_stored(field: Field, path: str, version: str) -> None:
    """Check that a file of a version can hold null in a field, by writing one row.

    Args:
        field: The field.
        path: Its path, for messages.
        version: The file version.

    Raises:
        SchemaError: A file of the version cannot hold it.
    """
    schema = Schema(fields=(field.without_ids(),)).with_ids(0)
    kinds = schema_to_arrow(schema)  # as files store them: JSON is binary
    try:
        store = MemoryStore("memory://null-rows")
        writer = DataFileWriter(store, "null.lance", schema, version=FileVersion.from_string(version))
        writer.write(pa.Table.from_arrays([pa.nulls(1, kinds.field(0).type)], schema=kinds))
        writer.complete()  # the file never becomes visible
    except (SchemaError, UnsupportedError) as error:
        raise SchemaError(
            f"column {path!r}: rows without a value could not be stored in a file of version {version} ({error}): give "
            "each row a value, or write a dataset of a version that can store them"
        ) from error


def check_lacking_columns(schema: Schema, names: Collection[str], version: str) -> None:
    """Check that files can hold null in the columns that new rows lack.

    Args:
        schema: The columns of the dataset.
        names: The columns of the rows.
        version: The file version.

    Raises:
        SchemaError: A file of the version cannot hold null in a column.
    """
    for field in schema.fields:
        if field.name not in names and version != "0.1":  # in which each fragment has all columns
            check_null_is_stored(field, field.name, version)

"""Small tables for tests of commits, made with pylance's data files."""

import lance
import pyarrow as pa

from lance_core.schema import schema_from_arrow
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.operations import Append, Overwrite
from lance_core.table.transaction import Transaction

SCHEMA = pa.schema([("a", pa.int64())])


def fragment_of(start, stop, path, options=None):
    """Write a data file and describe it."""
    table = pa.table({"a": list(range(start, stop))}, schema=SCHEMA)
    (written,) = lance.fragment.write_fragments(table, path, storage_options=options, schema=SCHEMA)
    return records([written])[0]


def records(fragments):
    """pylance's descriptions of new fragments as ours."""
    return [
        Fragment(
            files=tuple(
                DataFile(
                    path=file.path,
                    fields=tuple(file.fields),
                    column_indices=tuple(file.column_indices),
                    file_major_version=file.file_major_version,
                    file_minor_version=file.file_minor_version,
                    file_size_bytes=file.file_size_bytes,
                )
                for file in fragment.files
            ),
            physical_rows=fragment.physical_rows,
        )
        for fragment in fragments
    ]


def creation(*fragments, **properties):
    operation = Overwrite(fragments=fragments, schema=schema_from_arrow(SCHEMA))
    return Transaction(read_version=0, operation=operation, properties=properties)


def appending(read_version, *fragments, **properties):
    return Transaction(read_version=read_version, operation=Append(fragments=fragments), properties=properties)

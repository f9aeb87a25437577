"""Describe data files that were written on their own, so that a commit can add them to a dataset."""

from __future__ import annotations

from lance_core.errors import SchemaError
from lance_core.file.reader import DataFileReader
from lance_core.table.fragment import DataFile
from lance_core.verbs.context.handle import Snapshot


def data_file_at(snapshot: Snapshot, path: str, base_id: int | None) -> DataFile:
    """The record of a file below `data/`, its columns matched to the dataset's by name.

    Raises:
        SchemaError: The dataset lacks a column of the file.
        CorruptFileError: The file is not a data file.
    """
    return described_file(snapshot, path, base_id)[0]


def described_file(snapshot: Snapshot, path: str, base_id: int | None) -> tuple[DataFile, int]:
    """The record of a data file, and the number of its rows; raises what `data_file_at` raises."""
    bare = DataFile(path=path, fields=(), file_major_version=0, file_minor_version=0, base_id=base_id)
    store, key = snapshot.data_file(bare)
    size = store.head(key).size
    reader = DataFileReader.open(store, key, size=size)
    ids = {name: field.id for name, field in snapshot.manifest.schema.walk_paths()}
    fields, indices = [], []
    columns = reader.column_indices()
    for name, field in reader.schema.walk_paths():
        if name not in ids:
            raise SchemaError(f"{path}: the dataset has no column {'.'.join(name)!r}")
        if field.id in columns:
            fields.append(ids[name])
            indices.append(columns[field.id])
    major, minor = reader.version.manifest_numbers
    record = DataFile(
        path=path,
        fields=tuple(fields),
        column_indices=tuple(indices),
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=size,
        base_id=base_id,
    )
    return record, reader.num_rows

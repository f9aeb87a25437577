"""Dictionary columns of datasets of version 0.1, whose manifest repeats the dictionary values of the data files.

Other readers use the manifest's values for all files, so each file's dictionary must be a prefix of the dataset's. The
files of a new dataset extend each other's values; an append adds no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lance_core.errors import SchemaError, UnsupportedError
from lance_core.file import DataFileReader
from lance_core.schema import Field, Schema
from lance_core.store import ObjectStore
from lance_core.table.dictionaries import map_fields
from lance_core.table.fragment import Fragment
from lance_core.table.paths import data_key

__all__ = ["check_dictionaries", "known_dictionaries", "with_dictionaries"]


def known_dictionaries(schema: Schema, values: Mapping[int, pa.Array]) -> Schema:
    """The schema with the dictionary values of some fields, given by field id."""
    if not values:
        return schema
    return map_fields(schema, lambda f: replace(f, dictionary_values=values[f.id]) if f.id in values else f)


def with_dictionaries(schema: Schema, fragments: Sequence[Fragment], store: ObjectStore) -> Schema:
    """The schema of a new dataset with the dictionary values of its 0.1 files.

    Raises:
        SchemaError: The dictionary of one file is not a prefix of that of another.
        UnsupportedError: A file lies in a base path.
    """
    pairs = list(_read_dictionaries(schema, fragments, store))
    longest: dict[int, pa.Array] = {}
    for field, values in pairs:
        if field.id not in longest or len(values) > len(longest[field.id]):
            longest[field.id] = values
    complete = known_dictionaries(schema, longest)
    for field, values in pairs:
        _check(field, values, longest[field.id])
    return complete


def check_dictionaries(schema: Schema, fragments: Sequence[Fragment], store: ObjectStore) -> None:
    """Check that the dictionaries of new 0.1 files are prefixes of those of the dataset.

    Raises:
        SchemaError: A file has a value that the dictionary of the dataset lacks, or has in another place.
        UnsupportedError: A file lies in a base path.
    """
    for field, values in _read_dictionaries(schema, fragments, store):
        _check(field, values, field.dictionary_values)


def _check(field: Field, values: pa.Array, recorded: pa.Array | None) -> None:
    if recorded is None or not recorded.slice(0, len(values)).equals(values):
        raise SchemaError(
            f"column {field.name!r}: all files of a dataset of version 0.1 share one dictionary, and the data has "
            "other values; write the column as plain values, or write a dataset of a later version"
        )


def _read_dictionaries(
    schema: Schema, fragments: Sequence[Fragment], store: ObjectStore
) -> Iterator[tuple[Field, pa.Array]]:
    """Yield the dictionary fields of a schema, each with the values that a 0.1 file has for it, file by file."""
    fields = {field.id: field for field, _ in schema.walk() if field.logical_type.startswith("dict:")}
    for file in (file for fragment in fragments for file in fragment.files) if fields else ():
        if file.file_major_version != 0 or fields.keys().isdisjoint(file.fields):
            continue
        if file.base_id is not None:
            raise UnsupportedError(
                f"{file.path} is a file of version 0.1 with dictionary columns, and cannot be in a base path; write a "
                "dataset of a later version"
            )
        reader = DataFileReader.open(store, data_key(file.path))
        for field_id, values in reader.dictionaries().items():
            if field_id in fields:
                yield fields[field_id], values

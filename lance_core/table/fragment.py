"""Fragments: sets of rows of a dataset, each with a few files of different columns of the same rows.

A record of the wire is a dataclass that is written as a protobuf message, field by field. A field of a record has the
name of the message's field, unless the record renames it:

    record      message
    None        absent
    tuple       repeated
    mapping     map
    UUID        UUID
    Schema      schema and schema_metadata
    record      the record's message

Fields that the message does not have are not written; a field that is absent from a message has its default.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Self

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from lance_core._proto import file_pb2, table_pb2, transaction_pb2
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Schema, schema_from_protobuf, schema_to_protobuf
from lance_core.schema.field import column_fields
from lance_core.table.deletion import DeletionFile
from lance_core.table.paths import data_key

TOMBSTONE = -2
"""The value in a data file's `fields` for a column that a later file replaces."""
_ID_BITS: Final = 32


_records: dict[str, type[WireRecord]] = {}
"""The record of each message."""


class WireRecord:
    """A dataclass that is written as a protobuf message.

    Attributes:
        message: The message's class.
        renamed: Names of the message's fields by those of the record, where they differ.
    """

    __slots__ = ()
    message: ClassVar[type[Message]]
    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        _records[cls.message.DESCRIPTOR.full_name] = cls

    def to_protobuf(self) -> Any:
        """Return the message of the wire."""
        values: dict[str, Any] = {}
        record_class: Any = type(self)
        for name, field in _wire_fields(record_class).items():
            match getattr(self, name):
                case Schema() as schema:
                    values[field.name] = schema_to_protobuf(schema)
                    if "schema_metadata" in self.message.DESCRIPTOR.fields_by_name:
                        values["schema_metadata"] = dict(schema.metadata)
                case tuple() as items:
                    values[field.name] = [_to_wire(item) for item in items]
                case Mapping() as items:
                    values[field.name] = {key: _to_wire(item) for key, item in items.items()}
                case value:
                    values[field.name] = _to_wire(value)
        return self.message(**values)

    @classmethod
    def from_protobuf(cls, message: Any) -> Self:
        """Build the record from its protobuf message."""
        return cls(**wire_values(cls, message))


def wire_values(record_class: Any, message: Any) -> dict[str, Any]:
    """The values of a record's fields that a message has."""
    values: dict[str, Any] = {}
    for name, field in _wire_fields(record_class).items():
        value, kind = getattr(message, field.name), field.message_type
        if kind is not None and kind.full_name == file_pb2.Field.DESCRIPTOR.full_name:
            values[name] = schema_from_protobuf(value, getattr(message, "schema_metadata", {}))
        elif kind is not None and kind.GetOptions().map_entry:
            kind = kind.fields_by_name["value"].message_type
            values[name] = {key: _from_wire(kind, item) for key, item in value.items()}
        elif field.is_repeated:
            values[name] = tuple(_from_wire(kind, item) for item in value)
        elif not field.has_presence or message.HasField(field.name):
            values[name] = _from_wire(kind, value)
    return values


@cache
def _wire_fields(record_class: Any) -> dict[str, FieldDescriptor]:
    """The message's field for each field of a record that is written."""
    on_wire = record_class.message.DESCRIPTOR.fields_by_name
    names = {field.name: record_class.renamed.get(field.name, field.name) for field in fields(record_class)}
    return {name: on_wire[wire_name] for name, wire_name in names.items() if wire_name in on_wire}


def _to_wire(value: Any) -> Any:
    match value:
        case WireRecord():
            return value.to_protobuf()
        case uuid.UUID():
            return table_pb2.UUID(uuid=value.bytes)
        case tuple():
            return transaction_pb2.Transaction.UInt32List(values=value)
    return value


def _from_wire(kind: Descriptor | None, value: Any) -> Any:
    if kind is None:
        return value
    match kind.name:
        case "UUID":
            return uuid.UUID(bytes=value.uuid)
        case "UInt32List":
            return tuple(value.values)
    return _records[kind.full_name].from_protobuf(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePath(WireRecord):
    """A folder outside the dataset's root that may hold files of the dataset.

    Attributes:
        id: Number by which files refer to it.
        path: URI without credentials, or an absolute local path.
        name: Optional name.
        is_dataset_root: Whether it has `data/`, `_deletions/` and `_indices/`, rather than the files themselves.
    """

    id: int
    path: str
    name: str | None = None
    is_dataset_root: bool = False

    message = table_pb2.BasePath


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of columns.

    Attributes:
        path: Path below `data/` of its base.
        fields: Field ids in the file; `TOMBSTONE` marks one that a later file replaces.
        column_indices: Column of each field; empty in 0.1 files, where it means nothing.
        file_major_version: Format version as manifests number it: 2.0 is (2, 0), 0.1 is (0, 2).
        file_minor_version: Second part of it.
        file_size_bytes: Size; 0 = unknown.
        base_id: Base path of the file; None for the dataset itself.
    """

    path: str
    fields: tuple[int, ...]
    column_indices: tuple[int, ...] = ()
    file_major_version: int
    file_minor_version: int
    file_size_bytes: int = 0
    base_id: int | None = None

    def to_protobuf(self) -> table_pb2.DataFile:
        """Return the message of the wire."""
        return table_pb2.DataFile(
            path=self.path,
            fields=self.fields,
            column_indices=self.column_indices,
            file_major_version=self.file_major_version,
            file_minor_version=self.file_minor_version,
            file_size_bytes=self.file_size_bytes,
            base_id=self.base_id,
        )

    @classmethod
    def from_protobuf(cls, message: table_pb2.DataFile) -> DataFile:
        """Build the record from its protobuf message."""
        return cls(
            path=message.path,
            fields=tuple(message.fields),
            column_indices=tuple(message.column_indices),
            file_major_version=message.file_major_version,
            file_minor_version=message.file_minor_version,
            file_size_bytes=message.file_size_bytes,
            base_id=message.base_id if message.HasField("base_id") else None,
        )

    @property
    def version(self) -> str:
        """The format's version, for example "2.2".

        Raises:
            UnsupportedError: No known version has these numbers.
        """
        return data_file_version(self.file_major_version, self.file_minor_version)

    def columns(self) -> Sequence[tuple[int, int]]:
        """Each field id with its column, -1 for none. In 0.1 files the column is the position among the fields.

        Raises:
            CorruptFileError: The numbers of columns and fields differ, or two fields have the same column.
        """
        count = len(self.fields)
        if (self.file_major_version, self.file_minor_version) in _LEGACY_NUMBERS:
            return list(zip(self.fields, range(count), strict=True))
        if len(self.column_indices) != count:
            raise CorruptFileError(
                f"data file {self.path}: column_indices has {len(self.column_indices)} columns for {count} fields"
            )
        named = [index for index in self.column_indices if index >= 0]
        if len(set(named)) < len(named):
            double = next(index for index in named if named.count(index) > 1)
            raise CorruptFileError(f"data file {self.path}: column_indices names column {double} twice")
        return list(zip(self.fields, self.column_indices, strict=True))

    def check_columns(self, has_column: Mapping[int, bool]) -> None:
        """Make sure that exactly the fields of a schema that need a column have one in the file.

        Args:
            has_column: The fields of the schema (`fields_with_columns`).

        Raises:
            CorruptFileError: A field lacks its column, a field that needs no column has one, or `columns` raises this
                error.
        """
        pairs = self.columns()
        if self.version in ("0.1", "2.0"):
            return
        for field_id, index in pairs:
            if has_column.get(field_id, index >= 0) != (index >= 0):
                said = f"column {index} for field {field_id}, which has no column of its own"
                raise CorruptFileError(
                    f"data file {self.path}: column_indices has {said if index >= 0 else f'none for field {field_id}'}"
                )


def fields_with_columns(schema: Schema) -> dict[int, bool]:
    """For each field of a schema, whether it has a column in files of version 2.1 and later."""
    has_column = dict.fromkeys((field.id for field, _ in schema.walk()), False)
    has_column.update((field.id, True) for field in column_fields(schema))
    return has_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment(WireRecord):
    """One fragment.

    Attributes:
        id: Fragment id; 0 in a transaction's new fragments means that the commit assigns one.
        files: Its data files.
        physical_rows: Rows in the files, deleted ones included; 0 = unknown in datasets of 2023.
        deletion_file: The deletion file; None without deleted rows.
        row_ids: Serialized RowIdSequence; None without stable row ids.
        last_updated_at_versions: Serialized RowDatasetVersionSequence.
        created_at_versions: Serialized RowDatasetVersionSequence.
    """

    id: int = 0
    files: tuple[DataFile, ...] = ()
    physical_rows: int = 0
    deletion_file: DeletionFile | None = None
    row_ids: bytes | None = None
    last_updated_at_versions: bytes | None = None
    created_at_versions: bytes | None = None

    message = table_pb2.DataFragment

    @property
    def num_deleted_rows(self) -> int:
        """Number of deleted rows."""
        return self.deletion_file.num_deleted_rows if self.deletion_file is not None else 0

    @property
    def num_rows(self) -> int:
        """Number of live rows."""
        return self.physical_rows - self.num_deleted_rows

    def without_dead_files(self, live_fields: Collection[int] | None = None) -> Fragment:
        """Drop the data files without a live field.

        Args:
            live_fields: Ids of the fields that keep a file; None for all ids but tombstones.
        """
        files = tuple(
            file
            for file in self.files
            if any(f != TOMBSTONE if live_fields is None else f in live_fields for f in file.fields)
        )
        return self if len(files) == len(self.files) else replace(self, files=files)

    def to_protobuf(self) -> table_pb2.DataFragment:
        """Return the message of the wire.

        Raises:
            CorruptFileError: A number is larger than the format can hold.
        """
        try:
            return table_pb2.DataFragment(
                id=self.id,
                files=[file.to_protobuf() for file in self.files],
                deletion_file=self.deletion_file.to_protobuf() if self.deletion_file is not None else None,
                physical_rows=self.physical_rows,
                inline_row_ids=self.row_ids,  # type: ignore[arg-type]  # None = absent
                inline_last_updated_at_versions=self.last_updated_at_versions,  # type: ignore[arg-type]  # None = absent
                inline_created_at_versions=self.created_at_versions,  # type: ignore[arg-type]  # None = absent
            )
        except (ValueError, OverflowError) as error:
            raise CorruptFileError(f"fragment {self.id} cannot be written: {error}") from error

    @classmethod
    def from_protobuf(cls, message: table_pb2.DataFragment) -> Fragment:
        """Build the record from its protobuf message.

        Raises:
            CorruptFileError: The id has more than the 32 bits that row addresses have for it.
            UnsupportedError: The fragment has overlay files, or keeps row ids or row versions outside of the manifest.
        """
        check_fragment_id(message.id)
        if message.overlays:
            raise UnsupportedError(f"fragment {message.id} has overlay files, which are not supported")
        for name in _ELSEWHERE:
            if message.HasField(name):
                raise UnsupportedError(
                    f"fragment {message.id} has {name}, but row ids and row versions are read from the manifest only"
                )
        return cls(
            id=message.id,
            files=tuple(DataFile.from_protobuf(file) for file in message.files),
            physical_rows=message.physical_rows,
            deletion_file=DeletionFile.from_protobuf(message.deletion_file)
            if message.HasField("deletion_file")
            else None,
            row_ids=message.inline_row_ids if message.HasField("inline_row_ids") else None,
            last_updated_at_versions=message.inline_last_updated_at_versions
            if message.HasField("inline_last_updated_at_versions")
            else None,
            created_at_versions=message.inline_created_at_versions
            if message.HasField("inline_created_at_versions")
            else None,
        )


_ELSEWHERE: Final = (
    "external_row_ids",
    "external_last_updated_at_versions",
    "external_created_at_versions",
    "spilled_row_ids",
    "spilled_last_updated_at_versions",
    "spilled_created_at_versions",
)
"""Fields of a fragment message by which row ids or row versions are kept in another file."""


def data_file_version(major: int, minor: int) -> str:
    """Return the data storage version that a data file's numbers in a manifest stand for.

    Raises:
        UnsupportedError: No known version has these numbers.
    """
    name = _FILE_VERSIONS.get((major, minor))
    if name is None:
        raise UnsupportedError(f"data file version {major}.{minor} is not known")
    return name


_LEGACY_NUMBERS = frozenset(((0, 0), (0, 1), (0, 2)))

_FILE_VERSIONS = {
    (0, 0): "0.1",
    (0, 1): "0.1",
    (0, 2): "0.1",
    (0, 3): "2.0",
    (2, 0): "2.0",
    (2, 1): "2.1",
    (2, 2): "2.2",
    (2, 3): "2.3",
}


def data_files(fragments: Iterable[Fragment]) -> Iterable[DataFile]:
    """Yield the data files of fragments."""
    for fragment in fragments:
        yield from fragment.files


def own_data_keys(files: Iterable[DataFile]) -> list[str]:
    """The keys of data files, without those of files in other base paths."""
    return [data_key(file.path) for file in files if file.base_id is None]


def check_fragment_id(number: int) -> None:
    """Reject an id with more than the 32 bits that row addresses have for it.

    Raises:
        CorruptFileError: The id is too large.
    """
    if number >> _ID_BITS:
        raise CorruptFileError(f"fragment id {number} has more than {_ID_BITS} bits")

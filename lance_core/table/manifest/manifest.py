"""Manifests: one committed version of a dataset.

    offset 0   sections, each u32 LE length and a protobuf message of that length:
               IndexSection (if there are indices), Transaction; in 0.1 datasets first of all the values of
               dictionaries
    P          u32 LE length, then the Manifest message
    end - 16   i64 LE  P
    end - 8    u16 LE  major version 0
    end - 6    u16 LE  minor version 2
    end - 4    "LANC"

The sections are found by the positions in the message's fields `index_section` and `transaction_section` (older files
use field 21 for the latter). The footer's version numbers are not checked: readers rely on the feature flags.

Fragments are the bulk of a large manifest and stay serialized, in one run between the fields of the schema and all
others; see `table.fragment_list`. Schemas rarely change and are parsed once.

The dictionaries of 0.1 datasets are repeated at the start of every manifest:

    offset 0   values page of each dictionary field, one after the other, as in a 0.1 data file (see `encoding.legacy`):
               plain values, or the bytes of the values and then i64 offsets into the file

The field's `dictionary` has the position of the values, or of their offsets, and their number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from lance_core._proto import file_pb2, table_pb2
from lance_core.encoding.legacy.decoder import PageTable, read_dictionary_values
from lance_core.encoding.legacy.encoder import encode_page
from lance_core.encoding.page import run_steps
from lance_core.errors import CorruptFileError, UnsupportedError
from lance_core.schema import Field, Schema, arrow_type_of, schema_from_protobuf, schema_to_protobuf
from lance_core.schema.field import map_fields
from lance_core.schema.library import LIBRARY, LIBRARY_VERSION
from lance_core.table import flags
from lance_core.table.fragment import BasePath, data_file_version
from lance_core.table.fragment_list import FragmentList, FragmentRun
from lance_core.table.index import IndexMetadata, decode_index_section, encode_index_section
from lance_core.table.partial_message import partial_message
from lance_core.table.paths import Naming
from lance_core.times import since_epoch

_FOOTER = struct.Struct("<qHH4s")
_LENGTH = struct.Struct("<I")
_MAGIC = b"LANC"
_MAX_MESSAGE = (1 << 31) - 1
_LEGACY = "0.1"
_FEW_FRAGMENTS: Final = 256
_USUAL_BYTES: Final = 16
"""A fragment with a data file has more bytes."""
_Shallow: Final = partial_message(table_pb2.Manifest.DESCRIPTOR, {"fields": None, "fragments": None})
# The range of times that a datetime holds in every time zone.
_FIRST_SECOND = int(datetime(1, 1, 3, tzinfo=UTC).timestamp())
_LAST_SECOND = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterVersion:
    """The library that wrote a manifest.

    Attributes:
        library: Its name.
        version: Its version, three numbers.
        prerelease: The part of the version after a dash.
        build_metadata: The part of the version after a plus.
    """

    library: str
    version: str
    prerelease: str | None = None
    build_metadata: str | None = None


WRITER = WriterVersion(library=LIBRARY, version=LIBRARY_VERSION)
"""The writer version in manifests of this library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLocation:
    """The location of a manifest that was read or written.

    Attributes:
        key: Its key below the dataset's root.
        size_bytes: Its size.
        naming: The scheme of its name.
        e_tag: The storage's identifier of this state of the file; None if the storage has none.
        modified: Time of the last write by the storage's clock, seconds since the epoch; None if it was not listed.
    """

    key: str
    size_bytes: int
    naming: Naming
    e_tag: str | None = None
    modified: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of a dataset.

    Attributes:
        version: Its number; the number of a detached version has the top bit set.
        schema: The columns.
        fragments: The rows, in order.
        timestamp_ns: Time of the commit, nanoseconds since the epoch; 0 = unknown.
        tag: A string of the transaction; empty in practice.
        reader_flags: Features that a reader must support (`table.flags`).
        writer_flags: Features that a writer must support.
        max_fragment_id: Highest fragment id ever used; None before the first.
        transaction_file: Name of the transaction file; empty if there is none.
        writer_version: The library that wrote the manifest; None if the manifest does not record it.
        next_row_id: The stable row id of the next new row.
        data_storage_version: Version of the data files: "0.1", "2.0", "2.1", "2.2".
        config: Table configuration.
        table_metadata: Strings of the user about the table.
        base_paths: Folders outside the root that hold files of the dataset.
        branch: Name of the branch; None on main.
        max_allocated_field_id: Highest field id ever used, if the dataset keeps track of it.
        indices: Its indices.
        transaction_bytes: The inline transaction, serialized; None if there is none.
        location: Its location; None if it was not committed yet.
    """

    version: int
    schema: Schema
    fragments: FragmentList
    timestamp_ns: int = 0
    tag: str = ""
    reader_flags: int = 0
    writer_flags: int = 0
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer_version: WriterVersion | None = None
    next_row_id: int = 0
    data_storage_version: str = "2.2"
    config: Mapping[str, str] = field(default_factory=dict)
    table_metadata: Mapping[str, str] = field(default_factory=dict)
    base_paths: tuple[BasePath, ...] = ()
    branch: str | None = None
    max_allocated_field_id: int | None = None
    indices: tuple[IndexMetadata, ...] = ()
    transaction_bytes: bytes | None = field(default=None, repr=False, compare=False)
    location: ManifestLocation | None = field(default=None, compare=False)

    @property
    def timestamp(self) -> datetime:
        """When the version was committed, in UTC."""
        return since_epoch(self.timestamp_ns)

    @property
    def is_early(self) -> bool:
        """Whether the records of the manifest's writer may need repair."""
        writer = self.writer_version
        return writer is None or (writer.library == "lance" and writer.version.startswith("0."))

    @property
    def uses_stable_row_ids(self) -> bool:
        """Whether rows have ids that they keep when they are moved."""
        return bool(self.reader_flags & flags.STABLE_ROW_IDS)

    @property
    def max_field_id(self) -> int:
        """Highest field id of the schema, the data files and `max_allocated_field_id`; -1 if there is none."""
        highest = max(
            self.schema.max_field_id, -1 if self.max_allocated_field_id is None else self.max_allocated_field_id
        )
        for message in self.fragments.messages():
            for file in message.files:
                highest = max(highest, *file.fields) if file.fields else highest
        return highest

    @property
    def first_new_field_id(self) -> int:
        """First field id of an overwrite: 0 if the dataset may reuse field ids, else the first that was never used."""
        return 0 if self.max_allocated_field_id is None else self.max_field_id + 1

    def check_writable(self) -> None:
        """Reject commits on top of this version, and deletion of its files, if it has unknown features.

        Raises:
            UnsupportedError: A feature flag is not known.
        """
        flags.check_writable(self.reader_flags, self.writer_flags)

    def base_path(self, base_id: int) -> BasePath:
        """Return the base path with an id.

        Raises:
            CorruptFileError: The manifest has no base path with this id.
        """
        for base in self.base_paths:
            if base.id == base_id:
                return base
        raise CorruptFileError(f"version {self.version} refers to base path {base_id}, which it does not have")

    def to_bytes(self, transaction: bytes | None = None) -> bytes:
        """Return the bytes of the manifest file.

        Args:
            transaction: The serialized transaction that made the version; None writes no transaction section.
        """
        parts: list[bytes | memoryview] = []
        index_section = transaction_section = None
        position = 0
        schema = self.schema
        if self.data_storage_version == _LEGACY:
            pages, schema = encode_dictionaries(schema)
            parts.append(pages)
            position = len(pages)
        if self.indices:
            index_section = position
            position += _append_section(parts, encode_index_section(self.indices))
        if transaction is not None:
            transaction_section = position
            position += _append_section(parts, transaction)
        try:
            message = self._message_parts(schema, index_section, transaction_section)
        except (ValueError, OverflowError) as error:
            # Impossible numbers in the version before lead to numbers that protobuf rejects.
            raise CorruptFileError(f"version {self.version} cannot be written: {error}") from error
        _append_section(parts, *message)
        parts.append(_FOOTER.pack(position, 0, 2, _MAGIC))
        return b"".join(parts)

    def _message_parts(
        self, schema: Schema, index_section: int | None, transaction_section: int | None
    ) -> tuple[bytes, bytes | memoryview, bytes]:
        """Serialize the message: fields, fragments and the rest one after the other, in the order of field numbers."""
        is_legacy = self.data_storage_version == _LEGACY
        memo = "legacy manifest" if is_legacy else "manifest"
        fields: bytes | None = schema.memo.get(memo)
        if fields is None:
            message = table_pb2.Manifest(fields=schema_to_protobuf(schema, legacy=is_legacy))
            fields = schema.memo[memo] = message.SerializeToString(deterministic=True)
        rest = table_pb2.Manifest(
            version=self.version,
            schema_metadata=dict(self.schema.metadata),
            index_section=index_section,
            tag=self.tag,
            reader_feature_flags=self.reader_flags,
            writer_feature_flags=self.writer_flags,
            max_fragment_id=self.max_fragment_id,
            transaction_file=self.transaction_file,
            next_row_id=self.next_row_id,
            data_format=table_pb2.Manifest.DataStorageFormat(file_format="lance", version=self.data_storage_version),
            config=dict(self.config),
            base_paths=[base.to_protobuf() for base in self.base_paths],
            table_metadata=dict(self.table_metadata),
            branch=self.branch,
            transaction_section=transaction_section,
            max_allocated_field_id=self.max_allocated_field_id,
        )
        rest.timestamp.seconds, rest.timestamp.nanos = divmod(self.timestamp_ns, 1_000_000_000)
        if self.writer_version is not None:
            rest.writer_version.library, rest.writer_version.version = (
                self.writer_version.library,
                self.writer_version.version,
            )
            if self.writer_version.prerelease is not None:
                rest.writer_version.prerelease = self.writer_version.prerelease
            if self.writer_version.build_metadata is not None:
                rest.writer_version.build_metadata = self.writer_version.build_metadata
        return fields, self.fragments.raw.data, rest.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, location: ManifestLocation | None = None) -> Manifest:
        """Read a manifest file.

        Args:
            data: The whole file.
            location: Its location.

        Raises:
            CorruptFileError: The bytes are not a manifest file; the error names the key if it is known.
            UnsupportedError: The manifest needs features that this library does not support.
        """
        try:
            view = memoryview(data)
            start, end = message_range(view)
            fields, fragments, rest = _divide(view[start:end])
            _check_ids(fragments)
            message = table_pb2.Manifest.FromString(rest)
            if not message.HasField("writer_version"):
                fragments = FragmentRun.of(map(_clear_counts, fragments))
            flags.check_readable(message.reader_feature_flags)
            if message.fragment_tree:
                raise UnsupportedError("the manifest keeps fragments in a fragment tree, which is not supported")
            flags.check_field_id_flag(message.writer_feature_flags, has_mark=message.HasField("max_allocated_field_id"))
            schema = _read_schema(fields, tuple(sorted(message.schema_metadata.items())))
            return cls._from_message(message, schema, fragments, view, location)
        except (CorruptFileError, DecodeError, ValueError) as error:
            name = location.key if location is not None else "manifest"
            raise CorruptFileError(f"{name}: {error}") from error

    @classmethod
    def _from_message(
        cls,
        message: table_pb2.Manifest,
        schema: Schema,
        raw: FragmentRun,
        view: memoryview,
        location: ManifestLocation | None,
    ) -> Manifest:
        has_deletions = None if message.reader_feature_flags & flags.DELETION_FILES else False
        indices = (
            decode_index_section(section_at(view, message.index_section)) if message.HasField("index_section") else ()
        )
        fragments = FragmentList(raw, has_deletions=has_deletions)
        storage_version = _data_storage_version(message, fragments)
        if message.reader_feature_flags & flags.STABLE_ROW_IDS:
            fragments.check_row_ids()
        return cls(
            version=message.version,
            schema=read_dictionaries(schema, view) if storage_version == _LEGACY else schema,
            fragments=fragments,
            timestamp_ns=timestamp_ns_of(message.timestamp),
            tag=message.tag,
            reader_flags=message.reader_feature_flags,
            writer_flags=message.writer_feature_flags,
            max_fragment_id=_max_fragment_id(message, fragments),
            transaction_file=message.transaction_file,
            writer_version=_writer_version(message),
            next_row_id=message.next_row_id,
            data_storage_version=storage_version,
            config=dict(message.config),
            table_metadata=dict(message.table_metadata),
            base_paths=tuple(
                sorted((BasePath.from_protobuf(base) for base in message.base_paths), key=lambda base: base.id)
            ),
            branch=message.branch if message.HasField("branch") else None,
            max_allocated_field_id=message.max_allocated_field_id
            if message.HasField("max_allocated_field_id")
            else None,
            indices=indices,
            transaction_bytes=transaction_section(message, view),
            location=location,
        )


@lru_cache(maxsize=16)
def _read_schema(raw: tuple[bytes, ...], metadata: tuple[tuple[str, bytes], ...]) -> Schema:
    """The schema of a manifest; most versions of a table share one schema and its derived results."""
    fields = [file_pb2.Field.FromString(field) for field in raw]
    schema = schema_from_protobuf(fields, dict(metadata))
    if len(set(schema.names)) < len(schema.names):
        raise CorruptFileError(f"two columns have the same name; the first columns are {schema.names[:20]}")
    if any(field.id < 0 for field in fields):
        raise CorruptFileError("a column has no id")
    return schema


def _divide(data: memoryview) -> tuple[tuple[bytes, ...], FragmentRun, bytes]:
    """Divide a Manifest message into the fields of its schema, its fragments, and all other fields."""
    message: Any = _Shallow.FromString(data)
    fields, fragments = tuple(message.fields), message.fragments
    count = len(fragments)
    message.ClearField("fragments")
    message.ClearField("fields")
    before, after = _Shallow(fields=fields).SerializeToString(), message.SerializeToString()
    start, end = len(before), len(data) - len(after)
    if data[:start] == before and data[end:] == after:
        return fields, FragmentRun(data[start:end], count), after
    return fields, FragmentRun.of(fragments), after  # the fields have another order


def _check_ids(fragments: FragmentRun) -> None:
    """Reject more than one empty fragment message: a small file could declare millions of them."""
    count = len(fragments)
    may_be_empty = count <= _FEW_FRAGMENTS or len(fragments.data) < count * _USUAL_BYTES
    if may_be_empty and sum(not fragment for fragment in fragments) > 1:
        raise CorruptFileError("several fragments with the id 0")


def _append_section(parts: list[bytes | memoryview], *data: bytes | memoryview) -> int:
    """Append a length-prefixed section and return its size."""
    size = sum(map(len, data))
    parts.extend((_LENGTH.pack(size), *data))
    return _LENGTH.size + size


def section_at(view: memoryview, position: int) -> bytes:
    """Return the bytes of the length-prefixed section at a position."""
    if not 0 <= position <= len(view) - _LENGTH.size:
        raise CorruptFileError(f"a section begins at byte {position} of {len(view)}")
    (length,) = _LENGTH.unpack_from(view, position)
    start = position + _LENGTH.size
    if start + length > len(view):
        raise CorruptFileError(f"a section at byte {position} declares {length} bytes, and the file has {len(view)}")
    return bytes(view[start : start + length])


def message_range(view: memoryview) -> tuple[int, int]:
    """Find the Manifest message."""
    if len(view) < _FOOTER.size + _LENGTH.size:
        raise CorruptFileError(f"{len(view)} bytes are too few for a manifest")
    position, _, _, magic = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if magic != _MAGIC:
        raise CorruptFileError("does not end with LANC")
    if not 0 <= position <= len(view) - _FOOTER.size - _LENGTH.size:
        raise CorruptFileError(f"the footer puts the manifest message at byte {position} of {len(view)}")
    (length,) = _LENGTH.unpack_from(view, position)
    start = position + _LENGTH.size
    if length > _MAX_MESSAGE or start + length > len(view) - _FOOTER.size:
        raise CorruptFileError(f"the manifest message at byte {position} declares {length} bytes")
    return start, start + length


def timestamp_ns_of(timestamp: Timestamp) -> int:
    """The time of a version, nanoseconds since the epoch.

    Raises:
        CorruptFileError: The time is outside the years 1 to 9998.
    """
    if not _FIRST_SECOND <= timestamp.seconds < _LAST_SECOND or not 0 <= timestamp.nanos < 1_000_000_000:
        raise CorruptFileError(f"a time of {timestamp.seconds} seconds and {timestamp.nanos} nanoseconds")
    return timestamp.seconds * 1_000_000_000 + timestamp.nanos


def transaction_section(message: table_pb2.Manifest, view: memoryview) -> bytes | None:
    """Return the inline transaction of a manifest, serialized; None if there is none."""
    if message.HasField("transaction_section"):
        return section_at(view, message.transaction_section)
    if message.HasField("transaction_section_deprecated"):
        return section_at(view, message.transaction_section_deprecated)
    return None


def _clear_counts(raw: bytes) -> bytes:
    """Clear the numbers of rows and deletions: writers without a recorded version wrote wrong ones."""
    fragment = table_pb2.DataFragment.FromString(raw)
    fragment.ClearField("physical_rows")
    if fragment.HasField("deletion_file"):
        fragment.deletion_file.ClearField("num_deleted_rows")
    return fragment.SerializeToString()


def _max_fragment_id(message: table_pb2.Manifest, fragments: FragmentList) -> int | None:
    if message.HasField("max_fragment_id"):
        return message.max_fragment_id
    return fragments.highest_id if fragments else None


def _writer_version(message: table_pb2.Manifest) -> WriterVersion | None:
    if not message.HasField("writer_version"):
        return None
    wire = message.writer_version
    return WriterVersion(
        library=wire.library,
        version=wire.version,
        prerelease=wire.prerelease if wire.HasField("prerelease") else None,
        build_metadata=wire.build_metadata if wire.HasField("build_metadata") else None,
    )


def _data_storage_version(message: table_pb2.Manifest, fragments: FragmentList) -> str:
    """Return the version of the data files.

    Manifests before 0.16 do not record it, and some of 0.16 record 0.1 although all files are 2.0. In both cases the
    version of the data files is returned, if they have only one.
    """
    said = message.data_format.version
    if said not in ("", "0.1"):
        return said
    version_numbers = {
        (file.file_major_version, file.file_minor_version)
        for fragment in fragments.messages()
        for file in fragment.files
    }
    versions = {data_file_version(*numbers) for numbers in version_numbers}
    if len(versions) == 1:
        return versions.pop()
    return said or ("2.2" if message.writer_feature_flags & flags.V2_DATA_FILES and not versions else "0.1")


def encode_dictionaries(schema: Schema) -> tuple[bytes, Schema]:
    """The values pages of all dictionaries of a schema, and the schema with their positions.

    The pages must be at the start of the file. Fields without values stay as they are.
    """
    parts: list[bytes] = []
    position = 0

    def place(field: Field) -> Field:
        nonlocal position
        if field.dictionary_values is None:
            return field
        page = encode_page(field, field.dictionary_values)
        start = position
        parts.append(page.data.tobytes())
        position += page.data.nbytes
        if page.offsets is not None:
            parts.append((page.offsets + start).astype("<i8").tobytes())
            start, position = position, position + page.offsets.nbytes
        return replace(field, dictionary=(start, page.length))

    placed = map_fields(schema, place)
    return b"".join(parts), placed


def read_dictionaries(schema: Schema, view: memoryview) -> Schema:
    """The schema with the values of its dictionaries.

    Raises:
        CorruptFileError: The values end after the file, or do not follow the format.
    """

    def read(field: Field) -> Field:
        if field.dictionary is None or not field.logical_type.startswith("dict:"):
            return field
        kind: Any = arrow_type_of(field)
        position, count = field.dictionary
        if position < 0 or not 0 <= count <= len(view):
            raise CorruptFileError(
                f"field {field.name!r} has a dictionary of {count} values at byte {position} of {len(view)}"
            )
        table = PageTable(pages={}, dictionaries={}, size=len(view))
        steps = read_dictionary_values(kind.value_type, table, position, count)
        values = run_steps(steps, lambda ranges: [np.frombuffer(view[a:b], np.uint8) for a, b in ranges])
        return replace(field, dictionary_values=values)

    return map_fields(schema, read)

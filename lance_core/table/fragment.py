"""Fragments: sets of rows of a dataset, each with a few files of different columns of the same rows.

A manifest can list a hundred thousand of them, so `FragmentList` keeps the serialized messages, reads one only when
it is accessed, and passes the bytes on unchanged when the next manifest is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, overload

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.encoding.levels.paths import column_fields
from lance_core.errors import CorruptFileError, InvalidInputError, UnsupportedError
from lance_core.schema import Schema
from lance_core.table.deletion import DeletionFile
from lance_core.table.sizes import fragment_sizes

__all__ = ["TOMBSTONE", "BasePath", "DataFile", "Fragment", "FragmentList", "data_file_version", "fields_with_columns"]

TOMBSTONE = -2
"""In a data file's fields, the mark of a column that a later file replaces."""
_ID_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePath:
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

    def to_protobuf(self) -> table_pb2.BasePath:
        """Return the message of the wire."""
        return table_pb2.BasePath(id=self.id, name=self.name, is_dataset_root=self.is_dataset_root, path=self.path)

    @classmethod
    def from_protobuf(cls, message: table_pb2.BasePath) -> BasePath:
        """Read the message of the wire."""
        return cls(
            id=message.id,
            path=message.path,
            name=message.name if message.HasField("name") else None,
            is_dataset_root=message.is_dataset_root,
        )


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
        """Read the message of the wire."""
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
            UnsupportedError: The numbers are of no known version.
        """
        return data_file_version(self.file_major_version, self.file_minor_version)

    def columns(self) -> Sequence[tuple[int, int]]:
        """Each field id with its column, -1 for none; in 0.1 files with its position among the fields.

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
            CorruptFileError: A field lacks its column, or another one has a column; or as `columns`.
        """
        pairs = self.columns()
        if self.version in ("0.1", "2.0"):
            return
        for field_id, index in pairs:
            if has_column.get(field_id, index >= 0) != (index >= 0):
                said = f"column {index} for field {field_id}, which is made of others"
                raise CorruptFileError(
                    f"data file {self.path}: column_indices has {said if index >= 0 else f'none for field {field_id}'}"
                )


def fields_with_columns(schema: Schema) -> dict[int, bool]:
    """For each field of a schema, whether it has a column in files of version 2.1 and later."""
    found = dict.fromkeys((field.id for field, _ in schema.walk()), False)
    found.update((field.id, True) for field in column_fields(schema))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
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
            live_fields: The fields that count; None for all but tombstones.
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
        """Read the message of the wire.

        Raises:
            CorruptFileError: The id has more than the 32 bits of row addresses.
            UnsupportedError: The fragment has overlays, or keeps row ids or row versions outside of the manifest.
        """
        _check_id(message.id)
        if message.overlays:
            raise UnsupportedError(f"fragment {message.id}: overlay files are not read")
        for name in _ELSEWHERE:
            if message.HasField(name):
                raise UnsupportedError(f"fragment {message.id}: {name} are not read, only those in the manifest")
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


class FragmentList(Sequence[Fragment]):
    """The fragments of a manifest: immutable, each parsed when it is accessed.

    Args:
        raw: The serialized fragments.
        has_deletions: Whether a fragment has a deletion file; None = not known yet.
    """

    __slots__ = (
        "_fresh",
        "_has_deletions",
        "_ids",
        "_known_live",
        "_live",
        "_positions",
        "_raw",
        "_records",
        "_sizes",
        "_totals",
    )

    def __init__(self, raw: Sequence[bytes], *, has_deletions: bool | None = None) -> None:
        self._raw = raw
        self._records: dict[int, Fragment] = {}
        self._ids: list[int] | None = None
        self._positions: dict[int, int] | None = None
        self._sizes: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self._live: list[int | None] | None = None
        self._totals: tuple[int, int] | None = None
        self._known_live: dict[bytes, int | None] | None = None
        self._has_deletions = has_deletions
        self._fresh: tuple[Fragment, ...] = ()

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> FragmentList:
        """Create a list from records."""
        records = list(fragments)
        result = cls([record.to_protobuf().SerializeToString() for record in records])
        result._records = dict(enumerate(records))
        result._fresh = tuple(records)
        return result

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Fragment]: ...

    def __getitem__(self, index: int | slice) -> Fragment | list[Fragment]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        record = self._records.get(index)
        if record is None:
            record = Fragment.from_protobuf(_parsed(self._raw[index]))
            self._records[index] = record
        return record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentList) and list(self._raw) == list(other._raw)

    def __hash__(self) -> int:
        return hash(tuple(self._raw))

    def __repr__(self) -> str:
        return f"FragmentList({len(self)} fragments)"

    def __reduce__(self) -> tuple[type[FragmentList], tuple[list[bytes]]]:
        return FragmentList, (list(self._raw),)

    @property
    def raw(self) -> Sequence[bytes]:
        """The serialized fragments."""
        return self._raw

    @property
    def ids(self) -> Sequence[int]:
        """The fragment ids, in order of the list."""
        if self._ids is None:
            self._ids = self.sizes()[0].tolist()
        return self._ids

    @property
    def fresh(self) -> tuple[Fragment, ...]:
        """The records that the last change added or updated; none for a list that was read."""
        return self._fresh

    @property
    def has_deletions(self) -> bool:
        """Whether a fragment has a deletion file."""
        if self._has_deletions is None:
            self._has_deletions = any(message.HasField("deletion_file") for message in self.messages())
        return self._has_deletions

    def messages(self) -> Iterator[table_pb2.DataFragment]:
        """Yield the protobuf messages, which are much cheaper than records."""
        return map(_parsed, self._raw)

    def sizes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The ids, and the physical rows of each; 0 where the manifest does not record them."""
        if self._sizes is None:
            found = fragment_sizes(self._raw)
            _check_id(int(found[0].view(np.uint64).max(initial=0)))
            self._sizes = found
        return self._sizes

    def places_with_rows(self) -> Sequence[int]:
        """The positions of fragments that can hold rows: all but those without files and without recorded rows."""
        places = np.flatnonzero(self.sizes()[1] == 0).tolist()
        empty = {place for place in places if not _parsed(self._raw[place]).files}
        return [place for place in range(len(self)) if place not in empty] if empty else range(len(self))

    def check_row_ids(self) -> None:
        """Reject fragments without row ids, which all have in a dataset with stable row ids.

        Raises:
            CorruptFileError: A fragment has no row ids.
            UnsupportedError: A fragment keeps its row ids in another file.
        """
        for message in self.messages():
            if not message.HasField("inline_row_ids"):
                Fragment.from_protobuf(message)
                raise CorruptFileError(
                    f"All fragments must have row ids in a dataset with stable row ids: fragment {message.id} has none"
                )

    def live_counts(self) -> list[int | None]:
        """The live rows of each fragment; None where the manifest does not record them."""
        if self._live is None and self._known_live is not None:
            known = self._known_live
            known.update({raw: _live_count(_parsed(raw)) for raw in self._raw if raw not in known})
            self._live = [known[raw] for raw in self._raw]
        elif self._live is None:
            self._count()
        return self._live or []

    def totals(self) -> tuple[int, int]:
        """The deleted rows and the bytes of the data files of all fragments, as far as the manifest records them."""
        if self._totals is None:
            self._count()
        return self._totals or (0, 0)

    def _count(self) -> None:
        """Compute all counts together, so that each fragment is parsed once."""
        live: list[int | None] = []
        deleted = num_bytes = 0
        for message in self.messages():
            live.append(_live_count(message))
            deleted += message.deletion_file.num_deleted_rows
            num_bytes += sum(file.file_size_bytes for file in message.files)
        self._live, self._totals = live, (deleted, num_bytes)

    def share_live_counts(self, known: dict[bytes, int | None]) -> None:
        """Count the rows of each fragment once for several versions, most fragments of which are the same.

        Args:
            known: The counts by serialized fragment; missing ones are added when they are needed.
        """
        self._known_live = known

    def get(self, fragment_id: int) -> Fragment | None:
        """Return the fragment of that id; None if there is none."""
        if self._positions is None:
            self._positions = {found: position for position, found in enumerate(self.ids)}
        position = self._positions.get(fragment_id)
        return None if position is None else self[position]

    def changed(
        self,
        *,
        removed: Collection[int] = (),
        updated: Mapping[int, Fragment] | None = None,
        added: Sequence[Fragment] = (),
    ) -> FragmentList:
        """Return the list after a change, sorted by id.

        Args:
            removed: Ids of deleted fragments; unknown ones are ignored.
            updated: Records that take the place of those with the same id; removed and unknown ones are ignored.
            added: New fragments, with ids.

        Raises:
            InvalidInputError: Two fragments would have the same id.
        """
        updated = {i: r for i, r in (updated or {}).items() if i not in removed and self.get(i) is not None}
        touched = [old for i in {*removed, *updated} if (old := self.get(i)) is not None]
        pairs: list[tuple[int, bytes]] = (
            [
                (i, updated[i].to_protobuf().SerializeToString() if i in updated else raw)
                for i, raw in zip(self.ids, self._raw, strict=True)
                if i not in removed
            ]
            if touched
            else list(zip(self.ids, self._raw, strict=True))
        )
        pairs.extend((new.id, new.to_protobuf().SerializeToString()) for new in added)
        result = _sorted_list(pairs)
        result._fresh = (*updated.values(), *added)  # noqa: SLF001 - the same class
        result._has_deletions = self._deletions_after(touched, result.fresh)  # noqa: SLF001 - the same class
        return result

    def _deletions_after(self, touched: Sequence[Fragment], put: Sequence[Fragment]) -> bool | None:
        if any(record.deletion_file is not None for record in put):
            return True
        if not self._has_deletions:
            return self._has_deletions
        return True if all(record.deletion_file is None for record in touched) else None


def _sorted_list(pairs: list[tuple[int, bytes]]) -> FragmentList:
    """Create a list from (id, serialized fragment) pairs in any order."""
    ids = [i for i, _ in pairs]
    ordered = sorted(ids)
    if len(set(ordered)) < len(ordered):
        twice = next(left for left, right in pairwise(ordered) if left == right)
        raise InvalidInputError(f"the commit would produce two fragments with id {twice}")
    if ordered != ids:
        pairs = sorted(pairs, key=lambda pair: pair[0])
        ids = ordered
    result = FragmentList([raw for _, raw in pairs])
    result._ids = ids  # noqa: SLF001 - completes the constructor
    return result


def data_file_version(major: int, minor: int) -> str:
    """Return the data storage version that a data file's numbers in a manifest stand for.

    Raises:
        UnsupportedError: The numbers are of no known version.
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


def _parsed(raw: bytes) -> table_pb2.DataFragment:
    try:
        message = table_pb2.DataFragment.FromString(raw)
    except DecodeError as error:
        raise CorruptFileError("a fragment of the manifest is no DataFragment") from error
    _check_id(message.id)
    return message


def _check_id(number: int) -> None:
    if number >> _ID_BITS:
        raise CorruptFileError(f"fragment {number}: ids have {_ID_BITS} bits")


def _live_count(message: table_pb2.DataFragment) -> int | None:
    deleted = message.deletion_file.num_deleted_rows
    if not message.files and not message.physical_rows:
        return 0
    if not message.physical_rows or (not deleted and message.HasField("deletion_file")):
        return None
    return message.physical_rows - deleted

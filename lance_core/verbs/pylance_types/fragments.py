"""Public descriptions of fragments and their files, in pylance's classes and JSON, to pass between processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from lance_core.errors import InvalidInputError
from lance_core.table import deletion as records_of_deletion
from lance_core.table import fragment as records
from lance_core.table.rowids import encode_row_ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lance_core.verbs.context.handle import Handle

_FILE_TYPES = {
    "array": records_of_deletion.DeletionFileType.ARROW,
    "bitmap": records_of_deletion.DeletionFileType.BITMAP,
}
_FILE_TYPE_NAMES = {kind: name for name, kind in _FILE_TYPES.items()}


class _CallablePath(str):
    """The path of a file as a string that can also be called, as `path` was a method once."""

    __slots__ = ()

    def __call__(self) -> str:
        warnings.warn("DataFile.path() is deprecated, use DataFile.path instead", DeprecationWarning, stacklevel=2)
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


@dataclass
class DataFile:
    """A data file of a fragment.

    Attributes:
        path: Path relative to `data/` of the base that the file lies in.
        fields: Ids of the fields in the file.
        column_indices: Position of the column of each field in the file.
        file_major_version: Major version of the file format.
        file_minor_version: Minor version of the file format.
        file_size_bytes: Size of the file; None if it is unknown.
        base_id: Base path that the file lies in; None for the dataset itself.
    """

    path: str
    fields: list[int]
    column_indices: list[int] = field(default_factory=list)
    file_major_version: int = 0
    file_minor_version: int = 0
    file_size_bytes: int | None = None
    base_id: int | None = None

    def __post_init__(self) -> None:
        """Let code written for older versions call the path."""
        self.path = _CallablePath(self.path)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled file, whose path was pickled as a plain string."""
        self.__dict__.update(state)
        self.__post_init__()

    @classmethod
    def create(cls, dataset: Handle, path: str, *, base_id: int | None = None) -> Self:
        """Describe a file that was written on its own, for `LanceOperation.DataReplacement`.

        Args:
            dataset: The dataset that it will belong to; columns are matched by name.
            path: Path relative to `data/` of the base that the file lies in.
            base_id: Base path that the file lies in; None for the dataset itself.

        Raises:
            SchemaError: The dataset lacks a column of the file.
        """
        from lance_core.verbs.pylance_types.data_files import data_file_at  # noqa: PLC0415 - descriptions need no reader

        return cls.from_record(data_file_at(dataset.snapshot, path, base_id))

    def to_record(self) -> records.DataFile:
        """The record of the table layer."""
        return records.DataFile(
            path=self.path,
            fields=tuple(self.fields),
            column_indices=tuple(self.column_indices or ()),
            file_major_version=self.file_major_version,
            file_minor_version=self.file_minor_version,
            file_size_bytes=self.file_size_bytes or 0,
            base_id=self.base_id,
        )

    @classmethod
    def from_record(cls, record: records.DataFile) -> Self:
        """The inverse of `to_record`."""
        return cls(
            path=record.path,
            fields=list(record.fields),
            column_indices=list(record.column_indices),
            file_major_version=record.file_major_version,
            file_minor_version=record.file_minor_version,
            file_size_bytes=record.file_size_bytes or None,
            base_id=record.base_id,
        )


@dataclass
class DeletionFile:
    """The deletion file of a fragment.

    Attributes:
        read_version: Version that the deleting transaction had read.
        id: Random number that makes the name of the file unique.
        file_type: "array" or "bitmap".
        num_deleted_rows: Number of deleted rows.
        base_id: Base path that the file lies in; None for the dataset itself.
    """

    read_version: int
    id: int
    file_type: str
    num_deleted_rows: int
    base_id: int | None = None

    def asdict(self) -> dict[str, Any]:
        """The values by name, as JSON takes them."""
        return asdict(self)

    def path(self, fragment_id: int) -> str:
        """The path of the file below its base, "_deletions/{fragment}-{read_version}-{id}.arrow" or ".bin"."""
        return self.to_record().key(fragment_id)

    def to_record(self) -> records_of_deletion.DeletionFile:
        """The record of the table layer."""
        if self.file_type not in _FILE_TYPES:
            raise InvalidInputError(
                f"the file_type of a deletion file must be one of {[*_FILE_TYPES]}, not {self.file_type!r}"
            )
        return records_of_deletion.DeletionFile(
            file_type=_FILE_TYPES[self.file_type],
            read_version=self.read_version,
            id=self.id,
            num_deleted_rows=self.num_deleted_rows,
            base_id=self.base_id,
        )

    @classmethod
    def from_record(cls, record: records_of_deletion.DeletionFile) -> Self:
        """The inverse of `to_record`."""
        return cls(
            read_version=record.read_version,
            id=record.id,
            file_type=_FILE_TYPE_NAMES[record.file_type],
            num_deleted_rows=record.num_deleted_rows,
            base_id=record.base_id,
        )


@dataclass
class FragmentMetadata:
    """A description of a fragment that another process can commit or read.

    Attributes:
        id: Fragment id; 0 for a new fragment, which the commit numbers.
        files: Its data files.
        physical_rows: Rows in the files, deleted ones included.
        deletion_file: The file with the offsets of deleted rows; None if no row is deleted.
        row_id_meta: Serialized row ids, in a dataset with stable row ids.
        created_at_version_meta: Serialized versions that created the rows.
        last_updated_at_version_meta: Serialized versions that last changed the rows.
    """

    id: int
    files: list[DataFile]
    physical_rows: int
    deletion_file: DeletionFile | None = None
    row_id_meta: bytes | None = None
    created_at_version_meta: bytes | None = None
    last_updated_at_version_meta: bytes | None = None

    @property
    def num_deletions(self) -> int:
        """Rows that are deleted."""
        return self.deletion_file.num_deleted_rows if self.deletion_file is not None else 0

    @property
    def num_rows(self) -> int:
        """Rows that are not deleted."""
        return self.physical_rows - self.num_deletions

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files, as far as their sizes are known."""
        return sum(file.file_size_bytes or 0 for file in self.files)

    def set_row_ids(self, row_ids: npt.NDArray[np.uint64]) -> None:
        """Set the stable row ids of the first rows, which were moved; the commit gives ids to the other rows."""
        self.row_id_meta = encode_row_ids(row_ids)

    def data_files(self) -> list[DataFile]:
        """The data files."""
        return self.files

    def to_json(self) -> dict[str, Any]:
        """The description as an object for `json.dumps`, in pylance's form."""
        return {
            "id": self.id,
            "files": [asdict(file) for file in self.files],
            "overlays": [],
            "physical_rows": self.physical_rows,
            "deletion_file": asdict(self.deletion_file) if self.deletion_file is not None else None,
            "row_id_meta": _tagged("Inline", self.row_id_meta),
            "created_at_version_meta": _tagged("inline", self.created_at_version_meta),
            "last_updated_at_version_meta": _tagged("inline", self.last_updated_at_version_meta),
        }

    @classmethod
    def from_json(cls, json_data: str | bytes | Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`, as a JSON string or as the object itself.

        Raises:
            InvalidInputError: The fragment has overlays, which are not offered.
        """
        data = json.loads(json_data) if isinstance(json_data, str | bytes) else json_data
        if data.get("overlays"):
            raise InvalidInputError(f"fragment {data['id']} has overlays, which are not offered")
        deletion = data.get("deletion_file")
        return cls(
            id=data["id"],
            files=[DataFile(**file) for file in data["files"]],
            physical_rows=data["physical_rows"],
            deletion_file=DeletionFile(**deletion) if deletion is not None else None,
            row_id_meta=_untagged(data.get("row_id_meta")),
            created_at_version_meta=_untagged(data.get("created_at_version_meta")),
            last_updated_at_version_meta=_untagged(data.get("last_updated_at_version_meta")),
        )

    def to_record(self) -> records.Fragment:
        """The record of the table layer."""
        return records.Fragment(
            id=self.id,
            files=tuple(file.to_record() for file in self.files),
            physical_rows=self.physical_rows,
            deletion_file=self.deletion_file.to_record() if self.deletion_file is not None else None,
            row_ids=self.row_id_meta,
            created_at_versions=self.created_at_version_meta,
            last_updated_at_versions=self.last_updated_at_version_meta,
        )

    @classmethod
    def from_record(cls, record: records.Fragment) -> Self:
        """The inverse of `to_record`."""
        deletion = record.deletion_file
        return cls(
            id=record.id,
            files=[DataFile.from_record(file) for file in record.files],
            physical_rows=record.physical_rows,
            deletion_file=DeletionFile.from_record(deletion) if deletion is not None else None,
            row_id_meta=record.row_ids,
            created_at_version_meta=record.created_at_versions,
            last_updated_at_version_meta=record.last_updated_at_versions,
        )


def _tagged(tag: str, data: bytes | None) -> dict[str, list[int]] | None:
    return None if data is None else {tag: list(data)}


def _untagged(value: Mapping[str, list[int]] | None) -> bytes | None:
    return None if value is None else bytes(next(iter(value.values())))

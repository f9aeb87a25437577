"""Collects the names of the files that versions refer to, so that cleanup keeps these files.

Names of data files, deletion files and indices are random and never used twice, so names alone are compared. Versions
can refer to one file by different base paths, or by two spellings of one base path: a file is kept if any version
refers to its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from lance_core._proto import table_pb2
from lance_core.errors import CorruptFileError
from lance_core.table.deletion import DeletionFile
from lance_core.table.manifest.file_references import FileReferences
from lance_core.table.paths import DATA_PREFIX, INDICES_PREFIX, data_key, transaction_key


class References:
    """Keys of files below a dataset's root, and prefixes of the keys of indices.

    Attributes:
        files: Data, deletion and transaction files.
        indices: Directories of indices, as `_indices/<uuid>/`.
        torn: Versions whose references are unknown, as their manifests cannot be read.
    """

    __slots__ = ("_seen", "files", "indices", "torn")

    def __init__(self, files: Iterable[str] = ()) -> None:
        self.files: set[str] = set(files)
        self.indices: set[str] = set()
        self.torn: list[FileReferences] = []
        self._seen: set[bytes] = set()

    def add(self, manifest: FileReferences) -> None:
        """Add all that a version refers to, in whatever base path it lies."""
        self.add_borrowed(manifest, all_files=True)
        if manifest.transaction_file:
            self.files.add(transaction_key(manifest.transaction_file))

    def add_borrowed(self, manifest: FileReferences, *, all_files: bool = False) -> None:
        """Add the files that a version of another branch refers to by base paths; all of its files with `all_files`."""
        for raw in manifest.raw_fragments:
            if raw in self._seen:
                continue
            self._seen.add(raw)
            try:
                fragment = table_pb2.DataFragment.FromString(raw)
            except DecodeError as error:
                message = f"a fragment in the manifest of version {manifest.version} cannot be parsed"
                raise CorruptFileError(message) from error
            for file in fragment.files:
                if all_files or file.HasField("base_id"):
                    self.files.add(data_key(file.path))
            if fragment.HasField("deletion_file") and (all_files or fragment.deletion_file.HasField("base_id")):
                self.files.add(DeletionFile.from_protobuf(fragment.deletion_file).key(fragment.id))
        self.indices.update(
            f"{INDICES_PREFIX}{index.uuid}/" for index in manifest.indices if all_files or index.base_id is not None
        )

    @property
    def data_files(self) -> set[str]:
        """The names of the data files."""
        return {key.removeprefix(DATA_PREFIX) for key in self.files}

    def update(self, references: Iterable[References]) -> None:
        """Add further references."""
        for other in references:
            self.files |= other.files
            self.indices |= other.indices

    def holds(self, key: str) -> bool:
        """Whether a version refers to the file with this key."""
        return key in self.files or (key.startswith(INDICES_PREFIX) and _directory(key) in self.indices)

    def shares(self, other: References) -> bool:
        """Whether these and other references have a file in common."""
        return not (self.files.isdisjoint(other.files) and self.indices.isdisjoint(other.indices))


def _directory(key: str) -> str:
    """The directory of an index that a key lies in."""
    return "/".join(key.split("/", 2)[:2]) + "/"

"""`LanceFileSession`, under pylance's name: opens, lists, copies and removes files below one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_core.arguments import checked_methods, reject
from lance_core.errors import InvalidInputError
from lance_core.file.lance_file import LanceFileReader, LanceFileWriter
from lance_core.store import canonical_uri, has_object, join_uri, open_store


@dataclass(frozen=True, slots=True)
class ListResult:
    """The content of a folder.

    Attributes:
        common_prefixes: Its folders, relative to the session's folder.
        objects: Its files, relative to the session's folder.
    """

    common_prefixes: list[str]
    objects: list[str]


@checked_methods
class LanceFileSession:
    """Opens, lists, copies and removes files below one folder; paths are relative to that folder.

    Args:
        base_path: Path or URI of the folder.
        storage_options: Credentials and options of the storage, under object_store's names.
        **unsupported: Other arguments of pylance, which are rejected.
    """

    def __init__(
        self, base_path: str | PathLike[str], storage_options: Mapping[str, str] | None = None, **unsupported: Any
    ) -> None:
        reject("LanceFileSession", unsupported)
        self._root = canonical_uri(fspath(base_path))
        self._options = storage_options
        self._store = open_store(self._root, storage_options)

    def open_reader(self, path: str, columns: Sequence[str] | None = None) -> LanceFileReader:
        """Open a data file, with the errors of `LanceFileReader`."""
        return LanceFileReader(self._full_uri(path), self._options, columns)

    def open_writer(self, path: str, *, schema: pa.Schema | None = None, **arguments: Any) -> LanceFileWriter:
        """Start a data file, with the arguments and errors of `LanceFileWriter`."""
        return LanceFileWriter(self._full_uri(path), schema, storage_options=self._options, **arguments)

    def contains(self, path: str) -> bool:
        """Whether a file exists."""
        return has_object(self._store, path)

    def list(self, path: str | None = None) -> list[str]:
        """Files below a folder, at any depth; None lists all."""
        return [meta.key for meta in self._store.list(_folder_prefix(path))]

    def list_with_delimiter(self, path: str | None = None) -> ListResult:
        """Files and folders in a folder; None is the session's folder."""
        prefix = _folder_prefix(path)
        folders: dict[str, None] = {}
        files = []
        for key in self.list(path):
            name, deeper, _ = key[len(prefix) :].partition("/")
            if deeper:
                folders[prefix + name] = None
            else:
                files.append(key)
        return ListResult(list(folders), files)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a range of a file.

        Raises:
            ObjectNotFoundError: The file does not exist.
            InvalidInputError: The offset or the length is negative.
            StoreError: The file is shorter.
        """
        if offset < 0 or length < 0:
            raise InvalidInputError(f"{path}: offset {offset} and length {length} must not be negative")
        return bytes(self._store.get_range(path, offset, offset + length))

    def delete_file(self, path: str) -> None:
        """Remove a file.

        Raises:
            ObjectNotFoundError: The file does not exist.
        """
        self._store.head(path)
        self._store.delete(path)

    def upload_file(self, local_path: str | PathLike[str], remote_path: str) -> None:
        """Copy a local file to the session's folder, in pieces.

        Raises:
            OSError: The local file cannot be read.
        """
        with Path(local_path).open("rb") as source, self._store.open_writer(remote_path) as target:
            while piece := source.read(_PIECE):
                target.write(piece)

    def download_file(self, remote_path: str, local_path: str | PathLike[str]) -> None:
        """Copy a file to a local file, in pieces.

        Raises:
            ObjectNotFoundError: The file does not exist.
            OSError: The local file cannot be written.
        """
        size = self._store.head(remote_path).size
        with Path(local_path).open("wb") as target:
            target.writelines(
                self._store.get_range(remote_path, start, min(start + _PIECE, size)) for start in range(0, size, _PIECE)
            )

    def _full_uri(self, path: str) -> str:
        if not path or ".." in path.split("/") or path.startswith("/"):
            raise InvalidInputError(f"{path!r} is not a path below {self._root}")
        return join_uri(self._root, path)


_PIECE = 8 * 1024 * 1024


def _folder_prefix(path: str | None) -> str:
    return f"{path.rstrip('/')}/" if path and path.strip("/") else ""

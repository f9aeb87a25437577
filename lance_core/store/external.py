"""Commits through a database, for storage without a reliable conditional put.

The manifest of a version is decided by inserting a row (place, version) into a database. The steps of a commit:

    1. put the manifest under a staging key      <key>-<uuid>
    2. insert (place, version) -> staging key    the commit; a row that exists means that another writer won
    3. put the manifest under its final key
    4. update the row to the final key
    5. delete the staging object

A writer can die after step 2, so a reader that finds a staging key performs steps 3 to 5 itself. All writers of a
dataset must go through the same database.

When a manifest is deleted its row is deleted first; an interrupted deletion can be repeated. The highest row stays, and
only versions above it are created, so that no number is used twice (DynamoDB cannot check this in the request that
inserts, so two writers can race there). Dropping the dataset deletes the highest row, after the last file. If the files
were deleted in another way, only that row is left, and no dataset can be created at the URI until `LanceDataset.drop`
has deleted the row.

    s3+ddb://bucket/path?ddbTableName=T              DynamoDB, with the rows that pylance reads and writes:
                                                     base_uri S (path without bucket), version N, path S, size N,
                                                     committer S; hash key base_uri, range key version
    storage option manifest_store=sqlite:///file     SQLite, for the writers of one host; not for pylance
    storage option manifest_store=postgresql://...   PostgreSQL, for the writers of many hosts; not for pylance
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, Protocol

from lance_core.errors import AlreadyExistsError, DatasetExistsError, ObjectNotFoundError, StoreError
from lance_core.store.base import (
    ByteRange,
    BytesLike,
    ObjectMeta,
    ObjectStore,
    ReadableBuffer,
    bytes_view,
    delete_each,
    has_object,
    remove_leftovers,
)
from lance_core.store.local import LocalStore

_logger = logging.getLogger(__name__)

_VERSIONS = "_versions/"
_SUFFIX = ".manifest"
_MAX_VERSION = (1 << 64) - 1


class ExternalManifests(Protocol):
    """The rows of an external database for one dataset: the key of the manifest of each version."""

    @property
    def gives_numbers_once(self) -> bool:
        """Whether `add` checks, in the same transaction, that no higher version has a row.

        Then a new version is always the last one: a number that cleanup has freed is never used again.
        """
        ...

    def get(self, version: int) -> str | None:
        """Return the key of the version's manifest; None if there is no row."""
        ...

    def latest(self) -> tuple[int, str] | None:
        """Return the highest version and its key; None if there is no row."""
        ...

    def add(self, version: int, key: str, size: int) -> bool:
        """Insert a row; False if there is one with another key."""
        ...

    def remove(self, version: int) -> None:
        """Delete a row, never the highest one; a missing row is fine."""
        ...

    def finalize(self, version: int, key: str, size: int) -> None:
        """Set the key of a row that exists."""
        ...

    def clear(self) -> None:
        """Delete all rows, the highest one last; a table without rows is fine."""
        ...


class ExternallyCommittedStore:
    """A store whose manifests are created through a table of a database; all other calls go to the inner store.

    Args:
        store: The store of the objects.
        table: The rows that decide about versions.
        root: The `root` of this store; None for the root of `store`.
    """

    def __init__(self, store: ObjectStore, table: ExternalManifests, root: str | None = None) -> None:
        self._store = store
        self.table = table
        self.root = root if root is not None else store.root
        self._newest = 0  # the highest version when the table was last read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for by pickle, before the inner store is set
            raise AttributeError(name)
        return getattr(self._store, name)

    @property
    def objects(self) -> ObjectStore:
        """The store of the objects."""
        return self._store

    def __repr__(self) -> str:
        return f"ExternallyCommittedStore({self.root!r})"

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        self._finish_commit_of_manifest(key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> BytesLike:
        """Return bytes `start` to `end`."""
        self._finish_commit_of_manifest(key)
        return self._store.get_range(key, start, end)

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes and the object's size."""
        self._finish_commit_of_manifest(key)
        return self._store.get_tail(key, length)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object."""
        self._finish_commit_of_manifest(key)
        return self._store.get_ranges(key, ranges)

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size and time."""
        self._finish_commit_of_manifest(key)
        return self._store.read(key)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        self._finish_commit_of_manifest(key)
        return self._store.head(key)

    def prepare_commits(self) -> None:
        """Do nothing: the table provides the condition."""

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str | None:
        """Write an object unless one exists; a manifest is created through the table.

        Raises:
            AlreadyExistsError: The object exists, or the manifest's version was committed.
            DatasetExistsError: The table has versions of a dataset whose manifests were all deleted.
            OutcomeUnknownError: Whether the object was written, or will be, is unknown.
        """
        version = _version_of(key)
        if version is None:
            return self._store.put_if_absent(key, data, durable=durable)
        staging, size = f"{key}-{uuid.uuid4()}", len(bytes_view(data))
        latest = self.table.latest()
        if latest is not None and latest[0] != version - 1:
            self._reject_dropped_dataset(*latest)
        if (latest is not None and latest[0] >= version) or has_object(self._store, key):
            raise AlreadyExistsError(f"{self.root}/{key}: exists already")
        if self._store.is_local:
            self._store.put_if_absent(staging, data, durable=durable)  # before its row, which may be durable at once
        else:
            self._store.put(staging, data)
        if not self.table.add(version, staging, size):
            remove_leftovers(self._store, [staging])
            raise AlreadyExistsError(f"{self.root}/{key}: exists already")
        e_tag = None
        try:
            e_tag = self._store.put(key, data)
            if durable:
                self._make_durable(key)
            self.table.finalize(version, key, size)
            self._store.delete(staging)
        except StoreError as error:
            # The version is committed; the next reader finishes it.
            _logger.debug("the next reader finishes the commit of version %d of %s: %s", version, self.root, error)
        return e_tag

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield objects in ascending order of keys, the latest version's manifest among them."""
        if prefix.startswith(_VERSIONS) or _VERSIONS.startswith(prefix):
            latest = self.table.latest()
            if latest is not None:
                self._finish_commit(*latest)
        return self._store.list(prefix, start_after=start_after, limit=limit)

    def delete(self, key: str) -> None:
        """Remove an object. If it is a manifest, its row is removed as well, unless it is the highest row."""
        self._remove_row(key)
        self._store.delete(key)

    def delete_many(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Remove objects, after the rows of manifests; returns the errors by key."""
        errors = delete_each(self._remove_row, keys)
        return errors | self._store.delete_many([key for key in keys if key not in errors])

    def _remove_row(self, key: str) -> None:
        """Remove the row of a manifest, unless it is the highest row; other objects have no row."""
        version = _version_of(key)
        if version is not None and self._has_version_since(version + 1):
            self.table.remove(version)

    def _has_version_since(self, version: int) -> bool:
        """Whether this version or a higher one was committed."""
        if self._newest < version:
            latest = self.table.latest()
            self._newest = latest[0] if latest is not None else 0
        return self._newest >= version

    def _reject_dropped_dataset(self, version: int, recorded_key: str) -> None:
        """Reject the commit if the highest row is all that is left of a dataset."""
        # A commit that is being finished keeps the staging object until the final one exists.
        keys = (recorded_key, _final_key(recorded_key))
        if not (any(has_object(self._store, key) for key in keys) or self._has_manifests()):
            raise DatasetExistsError(
                f"{self.root}: versions up to {version} were committed here, and their manifests were deleted: "
                f"LanceDataset.drop removes the rest of that dataset"
            )

    def _has_manifests(self) -> bool:
        return any(_version_of(meta.key) is not None for meta in self._store.list(_VERSIONS))

    def _finish_commit_of_manifest(self, key: str) -> None:
        version = _version_of(key)
        if version is not None:
            current = self.table.get(version)
            if current is not None:
                self._finish_commit(version, current)

    def _finish_commit(self, version: int, current: str) -> None:
        """Copy a staged manifest to its final key, update its row, and delete the staging object."""
        final = _final_key(current)
        if final == current:
            return
        try:
            self._store.copy(current, final)
        except ObjectNotFoundError:
            if not has_object(self._store, final):
                if self._has_manifests():
                    raise ObjectNotFoundError(
                        f"{self.root}: version {version} was committed, but its manifest {current} is missing; older "
                        "versions can be opened by their numbers"
                    ) from None
                return  # the dataset no longer exists: no commit to finish
        self._make_durable(final)
        self.table.finalize(version, final, self._store.head(final).size)
        self._store.delete(current)

    def _make_durable(self, key: str) -> None:
        """Sync a manifest on a disk before the table names it and its staging object is deleted."""
        if isinstance(self._store, LocalStore):
            self._store.sync(key)
            self._store.sync_folders([key])


class SqliteTable:
    """Rows in a SQLite file, for the writers of one host; the file must not be on a network drive.

    Args:
        path: The file, which is created if needed.
        place: The dataset, as a URI.
    """

    gives_numbers_once: Final = True

    def __init__(self, path: str, place: str) -> None:
        self._path = path
        self._place = place

    def get(self, version: int) -> str | None:
        """Return the key of the version's manifest."""
        rows = self._run("SELECT key FROM manifests WHERE place = ? AND version = ?", self._place, version)
        return str(rows[0][0]) if rows else None

    def latest(self) -> tuple[int, str] | None:
        """Return the highest version and its key."""
        query = "SELECT version, key FROM manifests WHERE place = ? ORDER BY version DESC LIMIT 1"
        rows = self._run(query, self._place)
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def add(self, version: int, key: str, size: int) -> bool:
        """Insert a row unless there is one of this or a higher version."""
        statement = (
            "INSERT INTO manifests SELECT ?, ?, ?, ? "
            "WHERE NOT EXISTS (SELECT 1 FROM manifests WHERE place = ? AND version >= ?)"
        )
        self._run(statement, self._place, version, key, size, self._place, version)
        return self.get(version) == key

    def remove(self, version: int) -> None:
        """Delete a row."""
        self._run("DELETE FROM manifests WHERE place = ? AND version = ?", self._place, version)

    def finalize(self, version: int, key: str, size: int) -> None:
        """Set the key of a row."""
        statement = "UPDATE manifests SET key = ?, size = ? WHERE place = ? AND version = ?"
        self._run(statement, key, size, self._place, version)

    def clear(self) -> None:
        """Delete all rows."""
        self._run("DELETE FROM manifests WHERE place = ?", self._place)

    def _run(self, statement: str, *values: str | int) -> Sequence[tuple[str | int, ...]]:
        try:
            with closing(sqlite3.connect(self._path, timeout=30.0)) as connection, connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS manifests "
                    "(place TEXT, version INTEGER, key TEXT, size INTEGER, PRIMARY KEY (place, version))"
                )
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: {error}") from error


def find_manifest_table(store: ObjectStore) -> ExternalManifests | None:
    """Return the table that decides on the versions of a store's dataset; None if the store itself decides."""
    return store.table if isinstance(store, ExternallyCommittedStore) else None


def _final_key(key: str) -> str:
    """The key without the `-<uuid>` of a staging key; a final key is returned as it is."""
    stem, separator, _ = key.rpartition(f"{_SUFFIX}-")
    return stem + _SUFFIX if separator else key


def _version_of(key: str) -> int | None:
    """Return the version whose manifest a key names; None for other keys, and for detached versions."""
    if not (key.startswith(_VERSIONS) and key.endswith(_SUFFIX)):
        return None
    digits = key[len(_VERSIONS) : -len(_SUFFIX)]
    if not (digits.isascii() and digits.isdigit()):
        return None
    return _MAX_VERSION - int(digits) if len(digits) == 20 else int(digits)

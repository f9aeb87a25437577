"""The handle on one version of a dataset, which is the base class of `LanceDataset`, and the target of a write."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from lance_core.commit import identity_of, latest_version, load_latest, load_manifest
from lance_core.errors import ArgumentTypeError, DatasetNotFoundError
from lance_core.schema import schema_to_bytes, typed_schema
from lance_core.store import CommitLock, ObjectStore, StorageOptions, canonical_uri, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.branch_roots import dataset_store, dataset_uri
from lance_core.verbs.context.references import Reference, TableRefs
from lance_core.verbs.context.snapshot import Session, Snapshot

__all__ = ["Handle", "TableTarget", "table_target"]


def _not_found_error(store: ObjectStore, uri: str) -> DatasetNotFoundError:
    """The error for a place without a dataset; on a local disk it states what is there instead."""
    hint = ""
    if store.is_local and Path(store.root).is_file():
        hint = ": a file is there, but a Lance table is a folder"
    elif store.is_local and Path(store.root).is_dir() and any(Path(store.root).iterdir()):
        hint = ": the folder is there, but has no Lance table: it has no manifest in _versions"
    return DatasetNotFoundError(f"Dataset at path {uri} was not found{hint}")


class Handle:
    """A handle on one version of a dataset.

    Args:
        uri: The dataset's root.
        storage_options: Credentials and options of the storage, under object_store's names.
        manifest: The version; None opens the latest.
        commit_lock: A function that takes the number of the version to be committed and returns a context manager. Each
            commit of this handle enters it before it puts the manifest. A pickled handle has no lock.
        session: The caches of file metadata and indices; None for a new session.
        default_scan_options: Default arguments of scans.

    Raises:
        DatasetNotFoundError: There is no dataset.
        ArgumentTypeError: The lock is not a function.
    """

    def __init__(
        self,
        uri: str | PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        manifest: Manifest | None = None,
        commit_lock: CommitLock | None = None,
        session: Session | None = None,
        default_scan_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._uri = canonical_uri(uri)
        self._options = StorageOptions(storage_options, commit_lock=commit_lock)
        self._store = open_store(self._uri, self._options)
        current = manifest if manifest is not None else load_latest(self._store)
        if current is None:
            raise _not_found_error(self._store, self._uri)
        self._manifest: Manifest = current
        self._session = session if session is not None else Session()
        self._scan_defaults = dict(default_scan_options or {})

    def __repr__(self) -> str:
        """The root and the version; debuggers may call it before the handle is initialized."""
        if not hasattr(self, "_manifest"):
            return f"<{type(self).__name__} that is not opened>"
        return f"{type(self).__name__}({self._uri!r}, version={self.version})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as URI and version number; the process that unpickles it reads the manifest itself."""
        handle_type = getattr(type(self), "plain_class", None) or type(self)
        return _reopen, (handle_type, self._uri, self.version, self._options, self._scan_defaults)

    @property
    def uri(self) -> str:
        """The dataset's root, in its canonical spelling."""
        return self._uri

    @property
    def commit_lock(self) -> CommitLock | None:
        """The lock that is held around commits."""
        return self._options.commit_lock

    @property
    def branch(self) -> str | None:
        """The branch that this version is on; None for main."""
        return self._manifest.branch

    @property
    def root_uri(self) -> str:
        """The root of the main branch, which contains the files of all branches and tags."""
        return dataset_uri(self._uri, self.branch)

    @property
    def _refs(self) -> TableRefs:
        """The tags and branches of the dataset, and this version, from which references are resolved."""
        return TableRefs(root=dataset_store(self._store, self.branch), current=self._manifest)

    @property
    def version(self) -> int:
        """Number of this version."""
        return self._manifest.version

    @property
    def identity(self) -> str:
        """An identifier of this version.

        If the dataset is dropped and created again, a version of the same number has another identifier.
        """
        return identity_of(self._manifest)

    @property
    def latest_version(self) -> int:
        """Number of the latest version, looked up now."""
        latest = latest_version(self._store)
        if latest is None:
            raise _not_found_error(self._store, self._uri)
        return latest

    @property
    def schema(self) -> pa.Schema:
        """The columns, as Arrow."""
        return typed_schema(self._manifest.schema)

    @property
    def lance_schema_bytes(self) -> bytes:
        """The serialized schema with its field ids, for a `FragmentWriter` in another process."""
        return schema_to_bytes(self._manifest.schema)

    @property
    def data_storage_version(self) -> str:
        """Version of the file format of new data files."""
        return self._manifest.data_storage_version

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows have ids that survive compaction."""
        return self._manifest.uses_stable_row_ids

    @property
    def max_field_id(self) -> int:
        """Highest field id of the schema and the data files, and of all allocated ids if the dataset records them."""
        return self._manifest.max_field_id

    @property
    def timestamp(self) -> datetime:
        """When this version was committed, in UTC."""
        return self._manifest.timestamp

    @property
    def total_bytes(self) -> int:
        """Bytes of this version's data files; files whose size is not recorded count as 0."""
        return self._manifest.fragments.totals()[1]

    def config(self) -> dict[str, str]:
        """The table's configuration.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> written = table.update_config({"owner": "data"})
            >>> table.config()
            {'owner': 'data'}
        """
        return dict(self._manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """The table's metadata: strings that the format does not interpret."""
        return dict(self._manifest.table_metadata)

    @property
    def source(self) -> Snapshot:
        """The snapshot that readers use: the manifest and the stores of its files."""
        return Snapshot(self._store, self._manifest, self._options, self._session)

    def checkout_version(self, version: Reference) -> Self:
        """A handle on another version.

        Args:
            version: A number on this branch, a tag, or (branch, number). None or "main" as branch is the main branch;
                None as number is the branch's latest version.

        Raises:
            VersionNotFoundError: The version, the tag or the branch does not exist.
            InvalidInputError: No tag or branch can have the name.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.checkout_version(1).count_rows()
            3
        """
        resolved = self._refs.resolve(version)
        if (resolved.branch, resolved.version) == (self.branch, self.version):
            return self._open_beside(self._uri, self._manifest)
        return self._open_beside(resolved.store.root, resolved.manifest())

    def checkout_latest(self) -> None:
        """Move this handle to the latest version.

        Raises:
            DatasetNotFoundError: The dataset was dropped.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> other = lance.write_dataset({"id": [4]}, "t.lance", mode="append")
            >>> table.checkout_latest()
            >>> table.version
            2
        """
        latest = load_latest(self._store, self._manifest)
        if latest is None:
            raise DatasetNotFoundError(f"{self._uri}: the dataset was dropped after it was opened")
        self._manifest = latest

    def session(self) -> Session:
        """The caches of this handle for file metadata and indices, which other handles can share.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> lance.dataset("t.lance", session=table.session()).version  # files are not opened again
            1
        """
        return self._session

    def _open_beside(self, uri: str, manifest: Manifest) -> Self:
        """A handle on another version, which shares the session of this one."""
        return type(self)(
            uri,
            storage_options=self._options,
            manifest=manifest,
            session=self._session,
            default_scan_options=self._scan_defaults,
        )

    def move_to(self, manifest: Manifest) -> None:
        """Move the handle to another version of the dataset."""
        self._manifest = manifest


def _reopen(
    kind: type[Handle], uri: str, version: int, options: Mapping[str, str], scan_defaults: Mapping[str, Any]
) -> Handle:
    manifest = load_manifest(open_store(uri, options), version)
    return kind(uri, storage_options=options, manifest=manifest, default_scan_options=scan_defaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """The target of a write.

    Attributes:
        uri: The dataset's root.
        store: Its store.
        options: Storage options, and the commit lock.
        base: The version that the write is based on; None if it is not known, or if there is no dataset.
    """

    uri: str
    store: ObjectStore
    options: StorageOptions
    base: Manifest | None = None


def table_target(
    where: str | PathLike[str] | Handle,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None = None,
) -> TableTarget:
    """The target of a write, from an argument of a public function; no file is read.

    Args:
        where: The dataset's root, or a handle, whose version is the base.
        storage_options: Credentials and options of the storage; None for those of the dataset.
        commit_lock: The lock that is held around commits; None for that of the dataset.

    Raises:
        ArgumentTypeError: The argument is neither a path nor a dataset, or the lock is not a function.
    """
    if not isinstance(where, Handle | str | PathLike):
        raise ArgumentTypeError(f"a dataset is given by str, Path or LanceDataset, not {type(where)}")
    if not isinstance(where, Handle) and fspath(where) == "memory://":
        where = f"memory://{uuid.uuid4()}"  # each write has its own place, as in pylance
    if not isinstance(where, Handle):
        options = StorageOptions(storage_options, commit_lock=commit_lock)
        return TableTarget(uri=fspath(where), store=open_store(where, options), options=options)
    source, lock = where.source, commit_lock or where.commit_lock
    options = StorageOptions(source.options if storage_options is None else storage_options, commit_lock=lock)
    is_same = options == source.options and options.commit_lock is where.commit_lock
    store = source.store if is_same else open_store(where.uri, options)
    return TableTarget(uri=where.uri, store=store, options=options, base=source.manifest)

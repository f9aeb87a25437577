"""Caches, a version with its stores, a handle that moves between versions, and the target of a write, for verbs.

Session        caches of file metadata and indices, which versions and handles can share
Snapshot       what readers use: the manifest and the stores of its files
Handle         a snapshot that can move to other versions; the base class of `LanceDataset`
TableTarget    the dataset that a write goes to, which need not exist
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit.rebase import deletion_vector
from lance_core.commit.versions import (
    identity_of,
    latest_version,
    load_latest,
    load_manifest,
    load_version_header,
    newest_versions,
    reload_latest,
)
from lance_core.errors import (
    ArgumentTypeError,
    CorruptFileError,
    DatasetNotFoundError,
    InvalidInputError,
    ObjectNotFoundError,
    RetryableConflictError,
)
from lance_core.file.reader import METADATA_CACHE_BYTES, MetadataCache
from lance_core.index.selection.candidates import Selection, select
from lance_core.index.selection.segments import INDEX_CACHE_BYTES, IndexCache, IndexReader
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT, retrying
from lance_core.schema import schema_to_bytes, typed_schema
from lance_core.store import CommitLock, ObjectStore, StorageOptions, canonical_uri, open_base, open_store
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import DATA_PREFIX, DELETIONS_PREFIX, INDICES_PREFIX, data_key
from lance_core.verbs.context.external_blobs import ExternalObjects
from lance_core.verbs.context.references import Reference, TableRefs, dataset_store, dataset_uri


class Session:
    """Caches that handles can share: metadata of data files, and contents of indices. A pickled session is empty.

    Args:
        index_cache_size_bytes: About how many bytes of indices are kept; None for 256 MiB.
        metadata_cache_size_bytes: About how many bytes of metadata are kept; None for 64 MiB.

    Raises:
        InvalidInputError: A size is not an integer, or is negative.
    """

    def __init__(self, index_cache_size_bytes: int | None = None, metadata_cache_size_bytes: int | None = None) -> None:
        sizes = {
            "index_cache_size_bytes": INDEX_CACHE_BYTES if index_cache_size_bytes is None else index_cache_size_bytes,
            "metadata_cache_size_bytes": (
                METADATA_CACHE_BYTES if metadata_cache_size_bytes is None else metadata_cache_size_bytes
            ),
        }
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidInputError(f"{name} must be a number of bytes from 0, not {size!r}")
        self.indices = IndexCache(max_bytes=sizes["index_cache_size_bytes"])
        self.files = MetadataCache(sizes["metadata_cache_size_bytes"])

    def __reduce__(self) -> tuple[type[Session], tuple[int, int]]:
        """Pickle the sizes of the caches without their contents."""
        return Session, (self.indices.max_bytes, self.files.max_bytes)

    def __repr__(self) -> str:
        """Show how much is kept."""
        index, metadata = self.index_cache_size_bytes(), self.files.num_bytes
        return f"Session(index_cache_size_bytes={index}, metadata_cache_size_bytes={metadata})"

    def size_bytes(self) -> int:
        """About how many bytes are kept."""
        return self.indices.num_bytes + self.files.num_bytes

    def index_cache_size_bytes(self) -> int:
        """About how many bytes of indices are kept."""
        return self.indices.num_bytes

    def is_same_as(self, other: Session) -> bool:
        """Whether two sessions share their caches."""
        return self is other


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version, and the stores of its files.

    Attributes:
        store: The dataset's own store.
        manifest: The version.
        options: Storage options, which are used for the base paths too.
        session: The caches of file metadata and indices.
    """

    store: ObjectStore
    manifest: Manifest
    options: Mapping[str, str] = field(default_factory=StorageOptions, repr=False)
    session: Session = field(default_factory=Session, repr=False, compare=False)
    _bases: dict[int, ObjectStore] = field(default_factory=dict, init=False, repr=False, compare=False)
    _external: list[ExternalObjects] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def index_cache(self) -> IndexCache:
        """The cache of indices."""
        return self.session.indices

    def with_manifest(self, manifest: Manifest) -> Snapshot:
        """Another version of the same dataset, with the same caches."""
        return Snapshot(self.store, manifest, self.options, self.session)

    def with_stores(self, change: Callable[[ObjectStore], ObjectStore]) -> Snapshot:
        """This version with other stores, such as stores that count reads."""
        changed = Snapshot(change(self.store), self.manifest, self.options)
        for base in self.manifest.base_paths:
            changed._bases[base.id] = change(self._base_store(base.id))
        return changed

    def data_file(self, file: DataFile) -> tuple[ObjectStore, str]:
        """Store and key of a data file.

        Raises:
            CorruptFileError: The manifest names a file outside of the folder of data files.
        """
        try:
            key = data_key(file.path)
        except CorruptFileError as error:
            where = self.manifest.location.key if self.manifest.location else f"version {self.manifest.version}"
            raise CorruptFileError(f"{self.store.root}/{where}: {error}") from error
        return self._locate(file.base_id, key, DATA_PREFIX)

    def deletions(self, fragment: Fragment) -> DeletionVector | None:
        """The deleted rows of a fragment; None if there are none.

        Raises:
            CorruptFileError: The deletion file is missing or invalid.
            VersionNotFoundError: A cleanup removed the version, and its deletion files.
            ObjectNotFoundError: The deletion file is missing, in a version that is not the latest.
        """
        file = fragment.deletion_file
        if file is None:
            return None
        store, key = self.deletion_file(fragment)
        try:
            return deletion_vector(store.get(key), fragment, self.manifest)
        except ObjectNotFoundError as error:
            load_version_header(self.store, self.manifest.version)
            where = f"version {self.manifest.version}, fragment {fragment.id}: its deletion file {key} is missing"
            if next(newest_versions(self.store)) != self.manifest.version:
                raise ObjectNotFoundError(f"{where}; a cleanup may be removing that version") from error
            raise CorruptFileError(where) from error
        except CorruptFileError as error:
            raise CorruptFileError(f"{store.root}/{key}: {error}") from error

    def deleted_rows(self, fragment: Fragment) -> BitMap:
        """The offsets of the deleted rows of a fragment, a bitmap to read only; the errors are those of `deletions`."""
        deletions = self.deletions(fragment)
        return BitMap() if deletions is None else deletions.bitmap

    def deletion_file(self, fragment: Fragment) -> tuple[ObjectStore, str]:
        """Store and key of the deletion file of a fragment that has one."""
        file = fragment.deletion_file
        assert file is not None
        return self._locate(file.base_id, file.key(fragment.id), DELETIONS_PREFIX)

    def locate_index(self, index: IndexMetadata) -> tuple[ObjectStore, str]:
        """Store of an index segment's files, and the prefix of their keys."""
        return self._locate(index.base_id, f"{INDICES_PREFIX}{index.uuid}/", INDICES_PREFIX)

    @property
    def indices(self) -> IndexReader:
        """The reader of the files of the indices."""
        return IndexReader(self.locate_index, self.index_cache)

    def select(self, expression: pc.Expression) -> Selection | None:
        """The rows that can match a filter according to the indices; None if the indices exclude no rows."""
        return select(expression, self.manifest, self.indices)

    @property
    def external_blobs(self) -> ExternalObjects:
        """The objects outside of the dataset that its blobs refer to."""
        if not self._external:
            self._external.append(ExternalObjects(self.store.root, self.manifest.base_paths, self.options))
        return self._external[0]

    def _locate(self, base_id: int | None, key: str, prefix: str) -> tuple[ObjectStore, str]:
        """The store of a file, and its key there: in a base path for files alone, keys have no prefix."""
        if base_id is None:
            return self.store, key
        is_root = self.manifest.base_path(base_id).is_dataset_root
        return self._base_store(base_id), key if is_root else key.removeprefix(prefix)

    def _base_store(self, base_id: int) -> ObjectStore:
        if base_id not in self._bases:
            self._bases[base_id] = open_base(self.manifest.base_path(base_id).path, self.store.root, self.options)
        return self._bases[base_id]


def retry_on_latest(
    snapshot: Snapshot,
    attempt: Callable[[Snapshot], _Result],
    *,
    conflict_retries: int = CONFLICT_RETRIES,
    retry_timeout: timedelta = RETRY_TIMEOUT,
) -> _Result:
    """Compute and commit a change on a version; after each conflict, repeat both on the latest version.

    Args:
        snapshot: The version to begin with.
        attempt: Computes the change and commits it.
        conflict_retries: How many attempts may follow the first one.
        retry_timeout: Time after which no further attempt begins.

    Raises:
        RetryableConflictError: Each attempt ended in a conflict.
        EarlierAttemptCommittedError: An earlier attempt of the same write has committed meanwhile.
        InvalidInputError: A limit is negative.
    """
    return retrying(
        snapshot,
        lambda base, _: attempt(base),
        lambda base, _: base.with_manifest(reload_latest(base.store, base.manifest)),
        conflict_retries=conflict_retries,
        retry_timeout=retry_timeout,
        exhausted=lambda number, error: RetryableConflictError(
            f"Too many concurrent writers. Attempted {number - 1} retries. Last conflict: {error}"
        ),
    )


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
    def snapshot(self) -> Snapshot:
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
            IncompatibleConflictError: The dataset was dropped and made again, which is noticed where the check costs
                no request.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> table.insert(pa.table({"id": [4]}))
            >>> table.checkout_version(1).count_rows()
            3
        """
        resolved = self._refs.resolve(version)
        if (resolved.branch, resolved.version) == (self.branch, self.version):
            return self._open_beside(self._uri, self._manifest)
        manifest = resolved.manifest()
        if not self._store.put_is_a_request:
            self._refs.reject_successor()
        return self._open_beside(resolved.store.root, manifest)

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


def resolve_target(
    dataset: str | PathLike[str] | Handle,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None = None,
) -> TableTarget:
    """The target of a write, from an argument of a public function; no file is read.

    Args:
        dataset: The dataset's root, or a handle, whose version is the base.
        storage_options: Credentials and options of the storage; None for those of the dataset.
        commit_lock: The lock that is held around commits; None for that of the dataset.

    Raises:
        ArgumentTypeError: The argument is neither a path nor a dataset, or the lock is not a function.
    """
    if not isinstance(dataset, Handle | str | PathLike):
        raise ArgumentTypeError(f"a dataset is given by str, Path or LanceDataset, not {type(dataset)}")
    if not isinstance(dataset, Handle) and fspath(dataset) == "memory://":
        dataset = f"memory://{uuid.uuid4()}"  # each write has its own place, as in pylance
    if not isinstance(dataset, Handle):
        options = StorageOptions(storage_options, commit_lock=commit_lock)
        return TableTarget(uri=fspath(dataset), store=open_store(dataset, options), options=options)
    snapshot, lock = dataset.snapshot, commit_lock or dataset.commit_lock
    options = StorageOptions(snapshot.options if storage_options is None else storage_options, commit_lock=lock)
    is_same = options == snapshot.options and options.commit_lock is dataset.commit_lock
    store = snapshot.store if is_same else open_store(dataset.uri, options)
    return TableTarget(uri=dataset.uri, store=store, options=options, base=snapshot.manifest)

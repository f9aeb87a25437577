"""One version of a dataset for reading: its manifest and the stores of its files.

A session is the caches of file metadata and indices, which versions and handles can share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import pyarrow.compute as pc
from pyroaring import BitMap

from lance_core.commit import deletion_vector, load_following, load_version_header, newest_versions
from lance_core.errors import CorruptFileError, InvalidInputError, ObjectNotFoundError, RetryableConflictError
from lance_core.file.reader import METADATA_CACHE_BYTES, MetadataCache
from lance_core.index.selection.candidates import Selection, select
from lance_core.index.selection.segments import INDEX_CACHE_BYTES, IndexCache, IndexReader
from lance_core.retry import CONFLICT_RETRIES, RETRY_TIMEOUT, retrying
from lance_core.store import ObjectStore, open_base
from lance_core.store.options import StorageOptions
from lance_core.table.deletion import DeletionVector
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import DELETIONS_PREFIX, INDICES_PREFIX, data_key
from lance_core.verbs.context.external_blobs import ExternalObjects

__all__ = ["Session", "Snapshot", "retrying_on_latest"]


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

    def at(self, manifest: Manifest) -> Snapshot:
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
        if file.base_id is None:
            return self.store, key
        base = self.manifest.base_path(file.base_id)
        return self._base_store(file.base_id), key if base.is_dataset_root else file.path

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
        key = file.key(fragment.id)
        if file.base_id is None:
            return self.store, key
        base = self.manifest.base_path(file.base_id)
        return self._base_store(file.base_id), key if base.is_dataset_root else key.removeprefix(DELETIONS_PREFIX)

    def index_folder(self, index: IndexMetadata) -> tuple[ObjectStore, str]:
        """Store of an index segment's files, and the prefix of their keys."""
        folder = f"{INDICES_PREFIX}{index.uuid}/"
        if index.base_id is None:
            return self.store, folder
        base = self.manifest.base_path(index.base_id)
        return self._base_store(index.base_id), folder if base.is_dataset_root else folder.removeprefix(INDICES_PREFIX)

    @property
    def indices(self) -> IndexReader:
        """The reader of the files of the indices."""
        return IndexReader(self.index_folder, self.index_cache)

    def select(self, expression: pc.Expression) -> Selection | None:
        """The rows that can match a filter according to the indices; None if the indices exclude no rows."""
        return select(expression, self.manifest, self.indices)

    @property
    def external_blobs(self) -> ExternalObjects:
        """The objects outside of the dataset that its blobs refer to."""
        if not self._external:
            self._external.append(ExternalObjects(self.store.root, self.manifest.base_paths, self.options))
        return self._external[0]

    def _base_store(self, base_id: int) -> ObjectStore:
        if base_id not in self._bases:
            self._bases[base_id] = open_base(self.manifest.base_path(base_id).path, self.store.root, self.options)
        return self._bases[base_id]


def retrying_on_latest(
    source: Snapshot,
    attempt: Callable[[Snapshot], _Result],
    *,
    conflict_retries: int = CONFLICT_RETRIES,
    retry_timeout: timedelta = RETRY_TIMEOUT,
) -> _Result:
    """Compute and commit a change on a version; after each conflict, repeat both on the latest version.

    Args:
        source: The version to begin with.
        attempt: Computes the change and commits it.
        conflict_retries: How many attempts may follow the first one.
        retry_timeout: Time after which no further attempt begins.

    Raises:
        RetryableConflictError: Each attempt ended in a conflict.
        EarlierAttemptCommittedError: An earlier attempt of the same write has committed meanwhile.
        InvalidInputError: A limit is negative.
    """
    return retrying(
        source,
        lambda base, _: attempt(base),
        lambda base, _: base.at(load_following(base.store, base.manifest)),
        conflict_retries=conflict_retries,
        retry_timeout=retry_timeout,
        exhausted=lambda number, error: RetryableConflictError(
            f"Too many concurrent writers. Attempted {number - 1} retries. Last conflict: {error}"
        ),
    )

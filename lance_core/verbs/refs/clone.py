"""Clone a version of a dataset to a new root: shallow (files are shared) or deep (files are copied)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Final, TypeAlias

from lance_core.commit.loop import commit
from lance_core.commit.versions import latest_version, reject_inside_dataset
from lance_core.errors import DatasetExistsError
from lance_core.store import ObjectStore, copy_object, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Clone
from lance_core.table.paths import INDICES_PREFIX, data_key
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.references import Resolved, TableRefs
from lance_core.verbs.refs.clones import protect_by_tags

COPIES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to be copied; it can be pickled, with the options of its stores.

    Attributes:
        source: The store that has the file.
        key: The key of the file.
        target: The store of the copy.
        target_key: The key of the copy.
    """

    source: ObjectStore
    key: str
    target: ObjectStore
    target_key: str

    def run(self) -> None:
        """Copy the file; within one storage, the storage copies it itself.

        Raises:
            StoreError: The copy failed, or the file is missing.
        """
        copy_object(self.source, self.key, self.target, self.target_key)


Copier: TypeAlias = Callable[[Sequence[FileCopy]], None]
"""Runs all copies, and raises if one fails."""


def shallow_clone(
    table: TableRefs, version: Resolved, target: str | PathLike[str], options: Mapping[str, str]
) -> Manifest:
    """Create a dataset that refers to the files of a version of another dataset; a tag keeps that version from cleanup.

    Raises:
        DatasetExistsError: There is a dataset at the target.
        VersionNotFoundError: There is no such version.
    """
    manifest, store = version.manifest(), open_store(target, options)
    _check_target(store)
    with protect_by_tags(table, version.branch, manifest, store):
        return _commit(version, manifest, store, is_shallow=True)


def deep_clone(
    version: Resolved, target: str | PathLike[str], options: Mapping[str, str], copier: Copier | None = None
) -> Manifest:
    """Create a dataset with copies of the files of a version.

    Args:
        version: The version.
        target: The new dataset.
        options: Options of its storage.
        copier: Runs the copies; by default threads of this process do.

    Raises:
        DatasetExistsError: There is a dataset at the target.
        VersionNotFoundError: There is no such version.
    """
    manifest = version.manifest()
    manifest.check_writable()
    store = open_store(target, options)
    _check_target(store)
    snapshot = Snapshot(version.store, manifest, version.store.options)
    (copier or _copy_in_parallel)(
        [FileCopy(origin, key, store, target_key) for origin, key, target_key in dict.fromkeys(_list_files(snapshot))]
    )
    return _commit(version, manifest, store, is_shallow=False)


def _check_target(store: ObjectStore) -> None:
    """Make sure that a clone can be created.

    Raises:
        DatasetExistsError: There is a dataset.
        InvalidInputError: The root is inside of another dataset.
    """
    if latest_version(store) is not None:
        raise DatasetExistsError(f"Dataset already exists: {store.root}; clone to another place, or drop it first")
    reject_inside_dataset(store)


def _copy_in_parallel(copies: Sequence[FileCopy]) -> None:
    with ThreadPool(COPIES_AT_ONCE) as pool:
        for _ in pool.map(FileCopy.run, copies):
            pass


def _commit(version: Resolved, manifest: Manifest, store: ObjectStore, *, is_shallow: bool) -> Manifest:
    operation = Clone(
        is_shallow=is_shallow, ref_version=manifest.version, ref_path=version.store.root, ref_name=version.branch
    )
    transaction = Transaction(read_version=manifest.version, operation=operation)
    return commit(store, transaction, source=manifest).manifest


def _list_files(snapshot: Snapshot) -> Iterator[tuple[ObjectStore, str, str]]:
    """Yield the store of each file of a version, its key, and its key in the copy."""
    for fragment in snapshot.manifest.fragments:
        for file in fragment.files:
            store, key = snapshot.data_file(file)
            yield store, key, data_key(file.path)
            # Sidecar files of blobs lie in a folder of the data file's name.
            folder = key.removesuffix(".lance") + "/"
            for meta in store.list(folder):
                yield store, meta.key, data_key(file.path.removesuffix(".lance") + "/" + meta.key.removeprefix(folder))
        if fragment.deletion_file is not None:
            store, key = snapshot.deletion_file(fragment)
            yield store, key, fragment.deletion_file.key(fragment.id)
    for index in snapshot.manifest.indices:
        store, prefix = snapshot.locate_index(index)
        for meta in store.list(prefix):
            yield store, meta.key, f"{INDICES_PREFIX}{index.uuid}/{meta.key.removeprefix(prefix)}"

"""Clones: datasets that begin as a copy of a version of another, with or without its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Final

from lance_core.commit import commit, latest_version
from lance_core.errors import DatasetExistsError
from lance_core.store import ObjectStore, copy_object, open_store
from lance_core.table.manifest import Manifest
from lance_core.table.operations import Clone
from lance_core.table.paths import INDICES_PREFIX, data_key
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool
from lance_core.verbs.version.references import Resolved
from lance_core.verbs.version.source import Source

__all__ = ["deep_clone", "shallow_clone"]

COPIES_AT_ONCE: Final = 8

_File = tuple[ObjectStore, str, str]


def shallow_clone(version: Resolved, target: str | PathLike[str], options: Mapping[str, str]) -> Manifest:
    """Create a dataset that refers to the files of a version of another one.

    The source does not know the clone: a cleanup of its old versions deletes files that the clone needs.

    Raises:
        DatasetExistsError: There is a dataset at the target.
        VersionNotFoundError: There is no such version.
    """
    return _commit(version, version.manifest(), open_store(target, options), is_shallow=True)


def deep_clone(version: Resolved, target: str | PathLike[str], options: Mapping[str, str]) -> Manifest:
    """Create a dataset with copies of the files of a version; within one storage the storage copies them.

    Raises:
        DatasetExistsError: There is a dataset at the target.
        VersionNotFoundError: There is no such version.
    """
    manifest = version.manifest()
    manifest.check_writable()
    store = open_store(target, options)
    if latest_version(store) is not None:
        raise DatasetExistsError(f"Dataset already exists: {store.root}")
    source = Source(version.store, manifest, version.store.options)
    with ThreadPool(COPIES_AT_ONCE) as pool:
        for _ in pool.map(lambda file: copy_object(file[0], file[1], store, file[2]), dict.fromkeys(_files(source))):
            pass
    return _commit(version, manifest, store, is_shallow=False)


def _commit(version: Resolved, manifest: Manifest, store: ObjectStore, *, is_shallow: bool) -> Manifest:
    operation = Clone(
        is_shallow=is_shallow,
        ref_version=manifest.version,
        ref_path=version.store.root,
        ref_name=version.branch,
    )
    transaction = Transaction(read_version=manifest.version, operation=operation)
    return commit(store, transaction, source=manifest).manifest


def _files(source: Source) -> Iterator[_File]:
    """Yield store, key, and key in the copy of all files of a version."""
    for fragment in source.manifest.fragments:
        for file in fragment.files:
            store, key = source.data_file(file)
            yield store, key, data_key(file.path)
            # Sidecar files of blobs lie in a folder of the data file's name.
            folder = key.removesuffix(".lance") + "/"
            for meta in store.list(folder):
                yield store, meta.key, data_key(file.path.removesuffix(".lance") + "/" + meta.key.removeprefix(folder))
        if fragment.deletion_file is not None:
            store, key = source.deletion_file(fragment)
            yield store, key, fragment.deletion_file.key(fragment.id)
    for index in source.manifest.indices:
        store, prefix = source.index_folder(index)
        for meta in store.list(prefix):
            yield store, meta.key, f"{INDICES_PREFIX}{index.uuid}/{meta.key.removeprefix(prefix)}"

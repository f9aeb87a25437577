"""The destination of a write: a URI, or a dataset with its version."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath

from lance_core.store import CommitLock, ObjectStore, StorageOptions, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.handle import Handle

__all__ = ["TableTarget", "destination"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """The destination of a write.

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


def destination(
    where: str | PathLike[str] | Handle,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None = None,
) -> TableTarget:
    """The destination that an argument of the public verbs names; nothing is read.

    Args:
        where: The dataset's root, or a dataset, whose version is the base.
        storage_options: Credentials and options of the storage; None for those of the dataset.
        commit_lock: The lock that is held around commits; None for that of the dataset.

    Raises:
        TypeError: The argument is neither a path nor a dataset, or the lock is no function.
    """
    if not isinstance(where, Handle | str | PathLike):
        raise TypeError(f"a dataset is given by str, Path or LanceDataset, not {type(where)}")
    if not isinstance(where, Handle) and fspath(where) == "memory://":
        where = f"memory://{uuid.uuid4()}"  # a place of its own, as in pylance
    if not isinstance(where, Handle):
        options = StorageOptions(storage_options, commit_lock=commit_lock)
        return TableTarget(uri=fspath(where), store=open_store(where, options), options=options)
    source, lock = where.source, commit_lock or where.commit_lock
    options = StorageOptions(source.options if storage_options is None else storage_options, commit_lock=lock)
    store = source.store if commit_lock is None else open_store(where.uri, options)
    return TableTarget(uri=where.uri, store=store, options=options, base=source.manifest)

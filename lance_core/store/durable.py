"""Makes objects durable, so that they survive a power loss, before another object refers to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final, ParamSpec

from lance_core.store.base import ObjectStore, ReadableBuffer
from lance_core.store.external import ExternallyCommittedStore
from lance_core.store.local import LocalStore
from lance_core.threads import SharedPool

__all__ = [
    "PendingWrites",
    "delete_durably",
    "make_durable",
    "naming_after",
    "put_durably",
    "replace_durably",
    "sync_names",
]

_Arguments = ParamSpec("_Arguments")

SYNCED_AT_A_TIME: Final = 8
"""Files that are synced in parallel: a file system writes them and their names to disk together."""

_pool = SharedPool(SYNCED_AT_A_TIME, "lance-sync")


class PendingWrites:
    """Writes that are made durable in the background, while the record that refers to them is computed."""

    def __init__(self) -> None:
        self._waiting: deque[Future[object]] = deque()

    def add(self, work: Callable[_Arguments, object], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        """Start a call that closes or syncs a file."""
        self._waiting.append(_pool.submit(work, *args, **kwargs))

    def add_all(self, works: Iterable[Callable[[], object]]) -> None:
        """Start several calls."""
        for work in works:
            self.add(work)

    def take(self, other: PendingWrites) -> None:
        """Take over the pending writes of another instance."""
        self._waiting += other._waiting
        other._waiting = deque()

    def wait(self, most: int = 0) -> None:
        """Wait until at most `most` writes are pending; if one fails, wait for all others as well.

        Raises:
            StoreError: The storage failed.
        """
        while len(self._waiting) > most:
            try:
                self._waiting[0].result()
            except BaseException:
                self.stop()  # waits for the failed write too: it may still run, if this thread was interrupted
                raise
            self._waiting.popleft()

    def stop(self) -> None:
        """Wait for all writes and ignore their errors: nothing will refer to them."""
        while self._waiting:
            self._waiting[0].exception()
            self._waiting.popleft()


def make_durable(store: ObjectStore, keys: Sequence[str], pending: PendingWrites | None = None) -> None:
    """Make sure that objects that `put` wrote survive a power loss; this takes time only on a disk.

    Args:
        store: The store of the objects.
        keys: Their keys.
        pending: The pending writes to add the work to; None to wait here.

    Raises:
        StoreError: The disk failed.
    """
    disk = _disk(store)
    if disk is None or not keys:
        return
    writes = PendingWrites() if pending is None else pending
    for key in keys:
        writes.add(disk.sync, key)
    writes.add(disk.sync_folders, keys)
    if pending is None:
        writes.wait()


def put_durably(store: ObjectStore, key: str, data: ReadableBuffer) -> None:
    """Write an object that survives a power loss once this returns.

    Raises:
        StoreError: The storage failed.
    """
    writer = store.open_writer(key)
    try:
        writer.write(data)
        for sync in writer.close_early():
            sync()
    except BaseException:
        writer.abort()
        raise


def replace_durably(store: ObjectStore, key: str, data: ReadableBuffer) -> None:
    """Replace an object that others refer to: after a power loss either the old one or the new one exists.

    When the call has returned, the new one exists.

    Raises:
        StoreError: The storage failed.
    """
    disk = _disk(store)
    if disk is None:
        store.put(key, data)
        return
    disk.put(key, data, durable=True)


def delete_durably(store: ObjectStore, key: str) -> None:
    """Remove an object so that no power loss restores it once the call has returned; a missing object is no error.

    Raises:
        StoreError: The storage failed.
    """
    store.delete(key)
    disk = _disk(store)
    if disk is not None:
        disk.sync_folders([key])


def naming_after(store: ObjectStore, ready: Callable[[], None]) -> ObjectStore:
    """Return a store whose `put_if_absent` calls `ready` before it names a file; without a disk, call it at once.

    Raises:
        StoreError: `ready` failed, here or in `put_if_absent`.
    """
    if isinstance(store, LocalStore):
        return store.naming_after(ready)
    ready()
    return store


def sync_names(store: ObjectStore, keys: Sequence[str]) -> None:
    """Make the names of objects durable that were closed with `ObjectWriter.close_unnamed`.

    Raises:
        StoreError: The disk failed.
    """
    disk = _disk(store)
    if disk is not None:
        disk.sync_folders(keys)


def _disk(store: ObjectStore) -> LocalStore | None:
    """The local store that holds a store's objects; None if they are not on a disk of this machine."""
    objects = store.objects if isinstance(store, ExternallyCommittedStore) else store
    return objects if isinstance(objects, LocalStore) else None

"""Objects that must all survive a power loss before something refers to them."""

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

SETTLED_AT_A_TIME: Final = 8
"""Files that are waited for side by side: a file system writes them and their names to disk together."""

_pool = SharedPool(SETTLED_AT_A_TIME, "lance-settle")


class PendingWrites:
    """What is on its way to storage in the background, while what will refer to it is worked out."""

    def __init__(self) -> None:
        self._waiting: deque[Future[object]] = deque()

    def add(self, work: Callable[_Arguments, object], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        """Begin to close or sync a file."""
        self._waiting.append(_pool.submit(work, *args, **kwargs))

    def add_all(self, works: Iterable[Callable[[], object]]) -> None:
        """Begin several."""
        for work in works:
            self.add(work)

    def take(self, other: PendingWrites) -> None:
        """Wait for what another waits for, in its place."""
        self._waiting += other._waiting
        other._waiting = deque()

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many are on their way; all that is left is waited for if one fails.

        Raises:
            StoreError: The storage failed.
        """
        while len(self._waiting) > most:
            try:
                self._waiting[0].result()
            except BaseException:
                self.stop()  # that one too, if it is this thread that was interrupted
                raise
            self._waiting.popleft()

    def stop(self) -> None:
        """Wait for all, whatever becomes of them: nothing will refer to them."""
        while self._waiting:
            self._waiting[0].exception()
            self._waiting.popleft()


def make_durable(store: ObjectStore, keys: Sequence[str], settling: PendingWrites | None = None) -> None:
    """Make sure that objects that `put` wrote survive a power loss; other storage than a disk always has them then.

    Args:
        store: Where they are.
        keys: The objects.
        settling: What waits for that; None to wait here.

    Raises:
        StoreError: The disk failed.
    """
    disk = _disk(store)
    if disk is None or not keys:
        return
    own = PendingWrites() if settling is None else settling
    for key in keys:
        own.add(disk.sync, key)
    own.add(disk.sync_folders, keys)
    if settling is None:
        own.wait()


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
    """Write an object over one that others refer to: after a power loss the old one is there, or the new one.

    Once this returns it is the new one.

    Raises:
        StoreError: The storage failed.
    """
    disk = _disk(store)
    if disk is None:
        store.put(key, data)
        return
    disk.put(key, data, durable=True)


def delete_durably(store: ObjectStore, key: str) -> None:
    """Remove an object that a power loss must not bring back once this returns; a missing one is fine.

    Raises:
        StoreError: The storage failed.
    """
    store.delete(key)
    disk = _disk(store)
    if disk is not None:
        disk.sync_folders([key])


def naming_after(store: ObjectStore, ready: Callable[[], None]) -> ObjectStore:
    """A store whose `put_if_absent` names nothing before `ready` has returned, which on a disk runs meanwhile.

    Raises:
        StoreError: From `ready`, here or by `put_if_absent`: what it waited for failed.
    """
    if isinstance(store, LocalStore):
        return store.naming_after(ready)
    ready()
    return store


def sync_names(store: ObjectStore, keys: Sequence[str]) -> None:
    """Make durable the names of objects whose writers did not (`ObjectWriter.close_unnamed`).

    Raises:
        StoreError: The disk failed.
    """
    disk = _disk(store)
    if disk is not None:
        disk.sync_folders(keys)


def _disk(store: ObjectStore) -> LocalStore | None:
    """The files of this machine where a store's objects are; None if they are elsewhere."""
    objects = store.objects if isinstance(store, ExternallyCommittedStore) else store
    return objects if isinstance(objects, LocalStore) else None

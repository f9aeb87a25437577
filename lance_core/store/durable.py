"""Makes objects durable, so that they survive a power loss, before another object refers to them.

Check before a commit that the files that were written for it exist: cleanup removes files that no version refers to.

Where the check costs no request, it covers each file. On object storage it skips the files that this process began to
write within the last hour: a cleanup keeps files for seven days unless its caller guarantees that nobody writes. A
commit that has not read the version which it names skips none: the table may have been dropped and made again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final, ParamSpec

from lance_core.errors import ObjectNotFoundError
from lance_core.store.base import ObjectStore, ReadableBuffer, has_object
from lance_core.store.external import ExternallyCommittedStore
from lance_core.store.local import LocalStore
from lance_core.threads import SharedPool, ThreadPool

RECENT_S: Final = 3600.0
"""Age in seconds up to which a file that this process has begun is assumed to exist."""

_REMEMBERED: Final = 10_000
"""The most files whose beginning is remembered."""

_HEADS_AT_A_TIME: Final = 16

_begun: OrderedDict[str, float] = OrderedDict()
_lock = threading.Lock()


def note_begun(key: str) -> None:
    """Remember that this process has begun a data file just now, or a worker process for it."""
    with _lock:
        _begun[key] = time.monotonic()
        if len(_begun) > _REMEMBERED:
            _begun.popitem(last=False)


def check_present(store: ObjectStore, keys: Iterable[str], *, trusts_recent: bool = True) -> None:
    """Check that objects exist before a version refers to them.

    Args:
        store: The dataset's store.
        keys: Keys of new data files.
        trusts_recent: Whether files that this process has just begun are assumed to exist on object storage.

    Raises:
        ObjectNotFoundError: An object does not exist.
    """
    keys = list(keys)
    if not store.put_is_a_request:
        missing = [key for key in keys if not has_object(store, key)]
    else:
        doubtful = [key for key in keys if not (trusts_recent and _is_recent(key))]
        if not doubtful:
            return
        with ThreadPool(min(_HEADS_AT_A_TIME, len(doubtful))) as pool:
            presence = list(pool.map(lambda key: has_object(store, key), doubtful))
        missing = [key for key, is_there in zip(doubtful, presence, strict=True) if not is_there]
    if missing:
        raise ObjectNotFoundError(
            f"{store.data_root}/{missing[0]}: this file was written for the commit, but does not exist "
            f"({len(missing)} of {len(keys)} files are missing). A cleanup removes files to which no version refers "
            "after seven days, or at once with delete_unverified=True; a discarded write removes its own. Write the "
            "files again, and commit the new ones"
        )


def _is_recent(key: str) -> bool:
    with _lock:
        began = _begun.get(key)
    return began is not None and time.monotonic() - began < RECENT_S


_Arguments = ParamSpec("_Arguments")

SYNCED_AT_A_TIME: Final = 8
"""Files that are synced in parallel: a file system writes them and their names to disk together."""

_pool = SharedPool(SYNCED_AT_A_TIME, "lance-sync")


class PendingWrites:
    """Writes that are made durable in the background, while the record that refers to them is computed.

    Threads that write files at once share one instance.
    """

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
                write = self._waiting.popleft()
            except IndexError:
                return  # another thread waits for the last ones
            try:
                write.result()
            except BaseException:
                self._waiting.appendleft(write)  # it may still run, if this thread was interrupted
                self.stop()
                raise

    def stop(self) -> None:
        """Wait for all writes and ignore their errors: nothing will refer to them."""
        for write in tuple(self._waiting):
            write.exception()
        self._waiting.clear()


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

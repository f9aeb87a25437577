"""Writes local files under a staging name, and gives each file its own name once it is complete."""

from __future__ import annotations

# This module needs descriptors and fsync.
# ruff: noqa: PTH104, PTH108, PTH112, PTH120, PTH102
import contextlib
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence

from lance_core.errors import ObjectNotFoundError, StoreError
from lance_core.store import kernel_copy
from lance_core.store.base import (
    DEFAULT_READ_BYTES,
    ObjectStore,
    ObjectWriter,
    ReadableBuffer,
    bytes_view,
    check_key,
)
from lance_core.store.kernel_copy import BLOCK_BYTES

__all__ = ["LocalWriter", "e_tag_of", "opened", "store_error", "sync_directory"]

_logger = logging.getLogger(__name__)

_SYNC_BYTES = 32 * 1024 * 1024
"""Bytes in the page cache at which a durable writer starts to write them to disk."""


class LocalWriter(ObjectWriter):
    """A staging file that becomes the object when closed.

    A durable writer flushes large files to disk while they are written, so that closing is fast.

    Args:
        path: The final path of the object.
        durable: Whether the bytes and the name must survive a power loss once `close` returns.
    """

    least_copy_bytes = 0
    copy_alignment = BLOCK_BYTES

    def __init__(self, path: str, *, durable: bool) -> None:
        self._path = path
        self._durable = durable
        self._size = 0
        self._synced = 0
        self._shares = True
        self._sync: threading.Thread | None = None
        self._sync_error: OSError | None = None
        # An interrupted writer aborts a file while a thread may still close it.
        self._ending = threading.RLock()
        self.staging = f"{path}#{secrets.randbits(63)}"
        self.e_tag = ""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                self._fd = os.open(self.staging, flags, 0o666)
            except FileNotFoundError:
                _make_directories(os.path.dirname(path))
                self._fd = os.open(self.staging, flags, 0o666)
        except OSError as error:
            raise store_error(path, error) from error
        except BaseException:  # an interruption can come after the file was created and before its descriptor is kept
            with contextlib.suppress(OSError):
                os.unlink(self.staging)
            raise

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes, without a copy in this process."""
        view = bytes_view(data)
        try:
            while view:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self.abort()
            raise store_error(self._path, error) from error
        self._written()

    def copy_range(
        self, source: ObjectStore, key: str, start: int, end: int, *, read_bytes: int = DEFAULT_READ_BYTES
    ) -> None:
        """Append a range of an object; if the object is a local file, the kernel copies the range."""
        if source.is_local:
            path = f"{source.data_root}/{check_key(key)}"
            with opened(path) as fd:
                if end > os.fstat(fd).st_size:
                    raise StoreError(f"{path}: bytes up to {end} wanted, the file has {os.fstat(fd).st_size}")
                try:
                    start = self._copy_from(fd, start, end)
                except OSError as error:
                    self.abort()
                    raise store_error(self._path, error) from error
        super().copy_range(source, key, start, end, read_bytes=read_bytes)

    def _copy_from(self, fd: int, start: int, end: int) -> int:
        """Copy a range of a file, and return the first position that the kernel did not copy."""
        first, last = start + -start % BLOCK_BYTES, end - end % BLOCK_BYTES
        if self._shares and first < last and (self._size - start) % BLOCK_BYTES == 0:
            if start < first:
                start = self._copy_in_steps(fd, start, first)
            if start == first:
                self._shares = kernel_copy.share(fd, first, self._fd, self._size, last - first)
                if self._shares:
                    self._size += last - first
                    start = last
        return self._copy_in_steps(fd, start, end)

    def _copy_in_steps(self, fd: int, start: int, end: int) -> int:
        """Copy a range of a file and flush it meanwhile; returns the first position that the kernel did not copy."""
        while start < end:
            step = min(end, start + _SYNC_BYTES)
            copied = kernel_copy.copy(fd, start, step, self._fd)
            self._size += copied - start
            self._written()
            start = copied
            if copied < step:
                break
        return start

    def _written(self) -> None:
        """Start a flush to disk once enough bytes were written since the last flush."""
        if self._durable and self._size - self._synced >= _SYNC_BYTES:
            self._start_sync()

    def _start_sync(self) -> None:
        """Flush to disk in the background; one such thread at a time."""
        if self._sync is None or not self._sync.is_alive():
            self._synced = self._size
            sync = threading.Thread(target=self._sync_now, name="lance-sync")
            try:
                sync.start()
            except RuntimeError:  # no thread can be started
                self._sync_now()
            else:
                self._sync = sync

    def _sync_now(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._sync_error = error  # the system reports the error once, and a later fsync would succeed

    def _end_sync(self) -> None:
        if self._sync is not None:
            self._sync.join()

    def flush(self) -> None:
        """Close the staging file; if the writer is durable, sync it before."""
        with self._ending:
            self._flush()

    def _flush(self) -> None:
        if self._fd < 0:
            return
        self._end_sync()
        try:
            if self._sync_error is not None:
                raise self._sync_error
            if self._durable:
                os.fsync(self._fd)
            self.e_tag = e_tag_of(os.fstat(self._fd))
        except OSError as error:
            raise store_error(self._path, error) from error
        finally:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> int:
        """Give the file its name and return its size."""
        return self._close(syncs_name=self._durable)

    def close_unnamed(self) -> int:
        """Give the file its name and return its size, without syncing the folder."""
        return self._close(syncs_name=False)

    def close_early(self) -> Sequence[Callable[[], object]]:
        """Give the file its name before it is on disk: the file system then writes the bytes and the name together."""
        if not self._durable:
            self.close()
            return ()
        with self._ending:
            try:
                os.rename(self.staging, self._path)
            except OSError as error:
                self.abort()
                raise store_error(self._path, error) from error
        return self.flush, self._sync_name

    def _sync_name(self) -> None:
        try:
            sync_directory(os.path.dirname(self._path))
        except OSError as error:
            raise store_error(self._path, error) from error

    def _close(self, *, syncs_name: bool) -> int:
        with self._ending:
            self._flush()
            try:
                os.rename(self.staging, self._path)
                if syncs_name:
                    sync_directory(os.path.dirname(self._path))
            except OSError as error:
                self.abort()
                raise store_error(self._path, error) from error
        return self._size

    def abort(self) -> None:
        """Remove the staging file; does nothing once the file has its name.

        A staging file that cannot be removed is left to cleanup; the result of the write does not depend on it.
        """
        with self._ending:
            self._abort()

    def _abort(self) -> None:
        self._end_sync()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            os.unlink(self.staging)
        except FileNotFoundError:
            return
        except OSError as error:
            _logger.warning("%s was left behind: %s", self.staging, error.strerror)


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """The descriptor of a file to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would block
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ObjectNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise store_error(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ObjectNotFoundError(f"{path}: is not a file")
        yield fd
    finally:
        os.close(fd)


def e_tag_of(status: os.stat_result) -> str:
    """An identifier of a file's state; replacing the file changes it."""
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def store_error(path: str, error: OSError) -> StoreError:
    """Convert an operating system's error to a StoreError with its number."""
    failure = StoreError(f"{path}: {error.strerror or error}")
    failure.errno = error.errno
    return failure


def _make_directories(path: str) -> None:
    """Create a directory and its parents, and sync them: a durable write may follow one that is not durable."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_directory(os.path.dirname(folder))


def sync_directory(path: str) -> None:
    """Write the names in a directory to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

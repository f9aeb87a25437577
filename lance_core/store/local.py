"""The store of local and mounted file systems.

Every write goes to a staging file beside its target, `<name>#<random>`, and is then renamed (put, open_writer) or
hard-linked (put_if_absent) to its name: a crash leaves a staging file, never half an object. Only files
that nothing refers to before they are on disk get their name earlier (`LocalWriter.close_early`). A link, unlike a
rename, fails if the name is taken, which makes it the atomic creation that commits need.

Symbolic links are followed only if they are part of a key or of the folder of a prefix: a listing does not descend into
links to folders, and nothing behind a link is deleted (`list_owned`).

Writes local files under a staging name, and gives each file its own name once it is complete.
"""

# This module needs descriptors, links and fsync; pathlib offers only some of them.
# ruff: noqa: PTH100, PTH102, PTH104, PTH106, PTH108, PTH112, PTH114, PTH116, PTH120

from __future__ import annotations

import contextlib
import copy
import ctypes
import errno
import itertools
import logging
import mmap
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, OutcomeUnknownError, StoreError
from lance_core.store import kernel_copy
from lance_core.store.base import (
    DEFAULT_READ_BYTES,
    ByteRange,
    BytesLike,
    ObjectMeta,
    ObjectStore,
    ObjectWriter,
    ReadableBuffer,
    RootedStore,
    SingleDeletes,
    bytes_view,
    check_key,
    check_prefix,
    count_read,
)
from lance_core.store.coalesce import MergedRange, merge_ranges, split_merged
from lance_core.store.kernel_copy import BLOCK_BYTES
from lance_core.store.options import StorageOptions

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
                self._shares = kernel_copy.clone_range(fd, first, self._fd, self._size, last - first)
                if self._shares:
                    self._size += last - first
                    start = last
        return self._copy_in_steps(fd, start, end)

    def _copy_in_steps(self, fd: int, start: int, end: int) -> int:
        """Copy a range of a file and flush it meanwhile; returns the first position that the kernel did not copy."""
        while start < end:
            step = min(end, start + _SYNC_BYTES)
            copied = kernel_copy.copy_range(fd, start, step, self._fd)
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
        except FileNotFoundError:
            return  # the folder was deleted with all its files
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


# Mapping this many bytes of a file costs less than copying them.
MAPPED_READ_BYTES = 1 << 20
MAX_GAP_BYTES = 4096
MAX_MERGED_BYTES = 16 << 20

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class LocalStore(RootedStore, SingleDeletes):
    """Files below a directory, which is created by the first write.

    Args:
        path: The directory. A relative path is made absolute; symbolic links are kept as they are.
        options: Options for other stores of the same dataset; a disk needs none.
    """

    is_local: Final = True
    put_is_a_request: Final = False

    def __init__(self, path: str, options: StorageOptions | None = None) -> None:
        super().__init__(os.path.abspath(path), options)
        self._ready: Callable[[], None] | None = None

    def naming_after(self, ready: Callable[[], None]) -> Self:
        """A copy whose `put_if_absent` calls `ready` after the bytes are written and before they get their name.

        So an object reaches the disk at the same time as the objects that it refers to.
        """
        store = copy.copy(self)
        store._ready = ready  # noqa: SLF001 - a copy of this one
        return store

    def path_of(self, key: str) -> str:
        """Return the path of the file that holds an object."""
        return f"{self.root}/{check_key(key)}"

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        with self._opened(key) as fd:
            data = self._read(key, fd, 0, os.fstat(fd).st_size)
        count_read(1, len(data))
        return data

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter file, and the file's size."""
        with self._opened(key) as fd:
            size = os.fstat(fd).st_size
            data = self._read(key, fd, max(0, size - length), size)
        count_read(1, len(data))
        return data, size

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one file."""
        merged = merge_ranges(ranges, max_gap=MAX_GAP_BYTES, max_size=MAX_MERGED_BYTES)
        with self._opened(key) as fd:
            size = os.fstat(fd).st_size
            for read in merged:
                if read.end > size:
                    raise StoreError(f"{self.path_of(key)}: bytes up to {read.end} wanted, the file has {size}")
            parts = self._read_all(key, fd, merged, size)
        count_read(len(parts), sum(map(len, parts)))
        return split_merged(ranges, merged, parts)

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole file with its size and time."""
        with self._opened(key) as fd:
            status = os.fstat(fd)
            data = self._read(key, fd, 0, status.st_size)
        count_read(1, len(data))
        return data, _meta(key, status)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of a file."""
        with self._errors(key):
            status = os.stat(self.path_of(key))
            if stat.S_ISDIR(status.st_mode):
                raise ObjectNotFoundError(f"{self.path_of(key)}: is a directory")
        return _meta(key, status)

    def put(self, key: str, data: ReadableBuffer, *, durable: bool = False) -> str:
        """Replace a file by renaming a staging file over it, which is synced first if it has to be durable."""
        with self.open_writer(key, durable=durable) as writer:
            writer.write(data)
        return writer.e_tag

    def sync(self, key: str) -> None:
        """Write the bytes of a file to disk."""
        with self._opened(key) as fd:
            os.fsync(fd)

    def sync_folders(self, keys: Sequence[str]) -> None:
        """Write the names of files to disk."""
        for folder in {os.path.dirname(self.path_of(key)) for key in keys}:
            try:
                sync_directory(folder)
            except FileNotFoundError:
                continue  # the folder was deleted with all its files
            except OSError as error:
                raise store_error(folder, error) from error

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str:
        """Create a file by linking a staging file to its name."""
        path = self.path_of(key)
        writer = self.open_writer(key, durable=durable)
        try:
            writer.write(data)
            writer.flush()
            if self._ready is not None:
                self._ready()
            with self._errors(key):
                _link(writer.staging, path)
            if durable:
                try:
                    sync_directory(os.path.dirname(path))
                except OSError as error:
                    raise OutcomeUnknownError(
                        f"{path}: was created, and may not be on disk: {error.strerror}"
                    ) from error
        finally:
            writer.abort()
        return writer.e_tag

    def open_writer(self, key: str, *, durable: bool = True) -> LocalWriter:
        """Start a staging file that `close` renames to its name."""
        return LocalWriter(self.path_of(key), durable=durable)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield files in ascending order of keys; staging files of running writes are among them."""
        folder = check_prefix(prefix).rpartition("/")[0]
        yield from itertools.islice(self._walk(folder, prefix, after=start_after or ""), limit)

    def list_owned(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield files, and links instead of their targets; nothing if the folder of the prefix is behind a link."""
        folder = check_prefix(prefix).rpartition("/")[0]
        parts = folder.split("/") if folder else []
        if any(os.path.islink(f"{self.root}/{'/'.join(parts[: end + 1])}") for end in range(len(parts))):
            return
        yield from self._walk(folder, prefix, owned=True)

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders at and below `folder`; links are not followed."""
        for path, _, _ in os.walk(self.path_of(folder) if folder else self.root, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or deleted already
                os.rmdir(path)

    def remove_link(self, folder: str) -> bool:
        """Remove a folder's name if it is a link."""
        path = self.path_of(folder) if folder else self.root
        if not os.path.islink(path):
            return False
        try:
            os.unlink(path)
        except OSError as error:
            raise store_error(path, error) from error
        return True

    def delete(self, key: str) -> None:
        """Remove a file; a missing one is fine. Directories stay."""
        path = self.path_of(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise store_error(path, error) from error

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy a file, replacing the target atomically."""
        size = self.head(source_key).size
        with self.open_writer(target_key) as writer:
            writer.copy_range(self, source_key, 0, size)

    def _read(self, key: str, fd: int, start: int, end: int) -> BytesLike:
        """Read a range of a file that had at least `end` bytes."""
        data = os.pread(fd, end - start, start)
        if len(data) == end - start:
            return data
        parts = [data]
        position = start + len(data)
        while position < end:  # a single call reads at most 2 GiB
            data = os.pread(fd, end - position, position)
            if not data:
                raise StoreError(f"{self.path_of(key)}: bytes up to {end} wanted, the file has {position}")
            parts.append(data)
            position += len(data)
        return b"".join(parts)

    def _read_all(self, key: str, fd: int, merged: Sequence[MergedRange], size: int) -> Sequence[BytesLike]:
        """Read some ranges: as copies if they are small in total, else as views of one mapping of the file."""
        if sum(read.end - read.start for read in merged) < MAPPED_READ_BYTES:
            return [self._read(key, fd, read.start, read.end) for read in merged]
        try:
            mapped = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
        except ValueError as error:  # the file has become shorter
            raise StoreError(f"{self.path_of(key)}: bytes up to {merged[-1].end} wanted: {error}") from error
        return [mapped[read.start : read.end] for read in merged]

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        with self._errors(key), opened(self.path_of(key)) as fd:
            yield fd

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if isinstance(error, ObjectNotFoundError):
                raise
            raise ObjectNotFoundError(f"{self.path_of(key)}: no such file") from error
        except FileExistsError as error:
            raise AlreadyExistsError(f"{self.path_of(key)}: exists already") from error
        except StoreError:
            raise
        except OSError as error:
            raise store_error(self.path_of(key), error) from error

    def _walk(self, folder: str, prefix: str, *, after: str = "", owned: bool = False) -> Iterator[ObjectMeta]:
        """Yield the files below a folder, those with keys after `after`.

        Links to folders are left out, or yielded as objects if `owned` is set.
        """
        path = f"{self.root}/{folder}" if folder else self.root
        try:
            with os.scandir(path) as entries:
                # A directory sorts as if its name ended with a slash, as in its keys.
                children = sorted([(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name, e) for e in entries])
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise store_error(path, error) from error
        for name, entry in children:
            key = f"{folder}/{name}" if folder else name
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key[:-1], prefix, after=after, owned=owned)
            elif key.startswith(prefix) and key > after:
                status = _read_status(entry, follow=not owned)
                if status is not None and not stat.S_ISDIR(status.st_mode):
                    yield _meta(key, status)


def _read_status(entry: os.DirEntry[str], *, follow: bool) -> os.stat_result | None:
    """The status of a directory entry; None if the entry was removed meanwhile, or is a broken link."""
    try:
        return entry.stat(follow_symlinks=follow)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise store_error(entry.path, error) from error


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key=key, size=status.st_size, modified=status.st_mtime, e_tag=e_tag_of(status))


def _link(source: str, target: str) -> None:
    """Give a file a second name; fails if the name is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_unless_exists(source, target)


def _rename_unless_exists(source: str, target: str) -> None:
    """Rename on a file system without links, with the kernel's own check that the name is free."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise StoreError(f"{target}: the file system has neither links nor exclusive renames, so commits are not safe")
    done = libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if done != 0:
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            raise StoreError(f"{target}: the file system has no exclusive renames, so commits are not safe")
        raise OSError(code, os.strerror(code), target)

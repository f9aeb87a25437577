"""The store of local and mounted file systems.

Every write goes to a staging file beside its target, `<name>#<random>`, and is then renamed (put, open_writer) or
hard-linked (put_if_absent) to its name: a crash leaves a staging file, never half an object. A link, other than a
rename, fails when the name is taken, which makes it the atomic creation that commits need.
"""

# Descriptors, links and fsync are the business of this module; pathlib offers half of them.
# ruff: noqa: PTH100, PTH102, PTH104, PTH106, PTH108, PTH112, PTH116, PTH120
import contextlib
import ctypes
import errno
import mmap
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, StoreError
from lance_core.store.base import ByteRange, BytesLike, ObjectMeta, ReadableBuffer, bytes_view, check_key
from lance_core.store.coalesce import MergedRange, merge_ranges, split_merged
from lance_core.store.options import StorageOptions

__all__ = ["LocalStore", "LocalWriter"]

# A page fault costs about as much as copying this much; larger reads are mapped instead of copied.
MAPPED_READ_BYTES = 1 << 20
MAX_GAP_BYTES = 4096
MAX_MERGED_BYTES = 16 << 20

_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class LocalStore:
    """Files below a directory, which is created by the first write.

    Args:
        path: The directory. A relative one is made absolute; symbolic links are kept as they are.
        options: Options for other places of the same dataset; a disk needs none.
    """

    def __init__(self, path: str, options: StorageOptions | None = None) -> None:
        self._path = os.path.abspath(path)
        self._options = options if options is not None else StorageOptions()

    @property
    def root(self) -> str:
        """Absolute path of the root directory."""
        return self._path

    @property
    def options(self) -> StorageOptions:
        """The options that it was opened with."""
        return self._options

    def __repr__(self) -> str:
        return f"LocalStore({self._path!r})"

    def path_of(self, key: str) -> str:
        """Return the path of the file that holds an object."""
        return f"{self._path}/{check_key(key)}"

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        with self._opened(key) as fd:
            return _read(fd, 0, os.fstat(fd).st_size)

    def get_range(self, key: str, start: int, end: int) -> BytesLike:
        """Return bytes `start` to `end`."""
        return self.get_ranges(key, [(start, end)])[0]

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter file, and the file's size."""
        with self._opened(key) as fd:
            size = os.fstat(fd).st_size
            start = max(0, size - length)
            return _read(fd, start, size), size

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one file."""
        merged = merge_ranges(ranges, max_gap=MAX_GAP_BYTES, max_size=MAX_MERGED_BYTES)
        with self._opened(key) as fd:
            size = os.fstat(fd).st_size
            for read in merged:
                if read.end > size:
                    raise StoreError(f"{self.path_of(key)}: bytes up to {read.end} wanted, the file has {size}")
            parts = _read_all(fd, merged, size)
        return split_merged(ranges, merged, parts)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of a file."""
        with self._errors(key):
            found = os.stat(self.path_of(key))
            if stat.S_ISDIR(found.st_mode):
                raise ObjectNotFoundError(f"{self.path_of(key)}: is a directory")
        return ObjectMeta(key=key, size=found.st_size, modified=found.st_mtime)

    def put(self, key: str, data: ReadableBuffer) -> None:
        """Replace a file by renaming a staged one over it."""
        with self.open_writer(key, durable=False) as writer:
            writer.write(data)

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> None:
        """Create a file by linking a staged one to its name."""
        path = self.path_of(key)
        writer = self.open_writer(key, durable=durable)
        try:
            writer.write(data)
            writer.flush()
            with self._errors(key):
                _link(writer.staging, path)
                if durable:
                    _sync_directory(os.path.dirname(path))
        finally:
            writer.abort()

    def open_writer(self, key: str, *, durable: bool = True) -> "LocalWriter":
        """Start a staged file that `close` renames to its name."""
        return LocalWriter(self.path_of(key), durable=durable)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield files in ascending order of keys; staging files of running writes are among them."""
        count = 0
        for found in self._walk(prefix.rpartition("/")[0], prefix):
            if limit is not None and count >= limit:
                return
            if start_after is None or found.key > start_after:
                count += 1
                yield found

    def delete(self, key: str) -> None:
        """Remove a file; a missing one is fine. Directories stay."""
        path = self.path_of(key)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _failed(path, error) from error

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy a file, replacing the target atomically."""
        writer = self.open_writer(target_key)
        try:
            with self._errors(source_key):
                shutil.copyfile(self.path_of(source_key), writer.staging)
            writer.close()
        finally:
            writer.abort()

    def remove_empty_directories(self, prefix: str) -> None:
        """Remove the directories at and below `prefix` that hold no file; others stay."""
        top = f"{self._path}/{prefix.strip('/')}"
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or gone already
                os.rmdir(folder)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        with self._errors(key):
            fd = os.open(self.path_of(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)

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
            raise _failed(self.path_of(key), error) from error

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectMeta]:
        path = f"{self._path}/{folder}" if folder else self._path
        try:
            with os.scandir(path) as entries:
                # A directory sorts as if its name ended with the slash that its keys have there.
                found = sorted((e.name + "/" if e.is_dir() else e.name, e) for e in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _failed(path, error) from error
        for name, entry in found:
            key = f"{folder}/{name}" if folder else name
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key[:-1], prefix)
            elif key.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # removed while the directory was read
                    status = entry.stat()
                    yield ObjectMeta(key=key, size=status.st_size, modified=status.st_mtime)


_SYNC_BYTES = 32 * 1024 * 1024
"""What a durable writer lets pile up in memory before it starts to bring it to the disk."""


class LocalWriter:
    """A staged file that becomes the object when closed.

    A durable writer brings large files to the disk while they are written, so that closing has little left to wait for.

    Args:
        path: Where the object shall be.
        durable: Whether the bytes and the name must survive a power loss once `close` returns.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self._path = path
        self._durable = durable
        self._size = 0
        self._synced = 0
        self._sync: threading.Thread | None = None
        self._sync_error: OSError | None = None
        self.staging = f"{path}#{secrets.randbits(63)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                self._fd = os.open(self.staging, flags, 0o666)
            except FileNotFoundError:
                _make_directories(os.path.dirname(path))
                self._fd = os.open(self.staging, flags, 0o666)
        except OSError as error:
            raise _failed(path, error) from error

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes, straight from the caller's memory."""
        view = bytes_view(data)
        try:
            while view:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError as error:
            self.abort()
            raise _failed(self._path, error) from error
        if self._durable and self._size - self._synced >= _SYNC_BYTES:
            self._start_sync()

    def _start_sync(self) -> None:
        """Bring what was written so far to the disk, beside what goes on here; one such thread at a time."""
        if self._sync is None or not self._sync.is_alive():
            self._synced = self._size
            self._sync = threading.Thread(target=self._sync_now, name="lance-sync")
            self._sync.start()

    def _sync_now(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._sync_error = error  # the system reports it once: a later fsync would succeed

    def _end_sync(self) -> None:
        if self._sync is not None:
            self._sync.join()

    def flush(self) -> None:
        """Close the staging file, on disk if the writer is durable."""
        self._end_sync()
        try:
            if self._sync_error is not None:
                raise self._sync_error
            if self._durable:
                os.fsync(self._fd)
        except OSError as error:
            raise _failed(self._path, error) from error
        finally:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> int:
        """Give the file its name and return its size."""
        if self._fd >= 0:
            self.flush()
        try:
            os.rename(self.staging, self._path)
            if self._durable:
                _sync_directory(os.path.dirname(self._path))
        except OSError as error:
            self.abort()
            raise _failed(self._path, error) from error
        return self._size

    def abort(self) -> None:
        """Remove the staging file; does nothing once it has its name."""
        self._end_sync()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.staging)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _failed(path: str, error: OSError) -> StoreError:
    """Make the store's error of an operating system's, with its number."""
    failure = StoreError(f"{path}: {error.strerror or error}")
    failure.errno = error.errno
    return failure


def _read(fd: int, start: int, end: int) -> BytesLike:
    """Read a range of a file that is known to reach to `end`."""
    data = os.pread(fd, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]
    position = start + len(data)
    while position < end:  # a single call reads at most 2 GiB
        data = os.pread(fd, end - position, position)
        if not data:
            raise StoreError(f"the file ends at byte {position}, {end} wanted")
        parts.append(data)
        position += len(data)
    return b"".join(parts)


def _read_all(fd: int, merged: Sequence[MergedRange], size: int) -> list[BytesLike]:
    """Read some ranges: small ones by copy, large ones as views of one mapping of the file."""
    if all(read.end - read.start < MAPPED_READ_BYTES for read in merged):
        return [_read(fd, read.start, read.end) for read in merged]
    mapped = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED))
    return [
        mapped[read.start : read.end] if read.end - read.start >= MAPPED_READ_BYTES else _read(fd, read.start, read.end)
        for read in merged
    ]


def _link(source: str, target: str) -> None:
    """Give a file a second name, failing if that is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_unless_exists(source, target)


def _rename_unless_exists(source: str, target: str) -> None:
    """Rename where the file system knows no links, with the kernel's own check."""
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise StoreError(f"{target}: the file system has neither links nor exclusive renames, so commits are not safe")
    done = libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    if done != 0:
        code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            raise StoreError(f"{target}: the file system has no exclusive renames, so commits are not safe")
        raise OSError(code, os.strerror(code), target)


def _make_directories(path: str) -> None:
    """Create a directory and its parents, on disk: a durable write below may follow one that need not be."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        _sync_directory(os.path.dirname(folder))


def _sync_directory(path: str) -> None:
    """Put the names in a directory on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""The store of local and mounted file systems.

Every write goes to a staging file beside its target, `<name>#<random>`, and is then renamed (put, open_writer) or
hard-linked (put_if_absent) to its name: a crash leaves a staging file, never half an object. Only files
that nothing refers to before they are on disk get their name earlier (`LocalWriter.close_early`). A link, unlike a
rename, fails if the name is taken, which makes it the atomic creation that commits need.

Symbolic links are followed only if they are part of a key or of the folder of a prefix: a listing does not descend into
links to folders, and nothing behind a link is deleted (`list_owned`).
"""

from __future__ import annotations

# This module needs descriptors, links and fsync; pathlib offers only some of them.
# ruff: noqa: PTH100, PTH106, PTH108, PTH114, PTH116, PTH120
import contextlib
import copy
import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, OutcomeUnknownError, StoreError
from lance_core.store.base import (
    ByteRange,
    BytesLike,
    ObjectMeta,
    ReadableBuffer,
    RootedStore,
    SingleDeletes,
    check_key,
    check_prefix,
    count_read,
)
from lance_core.store.coalesce import MergedRange, merge_ranges, split_merged
from lance_core.store.local_writer import LocalWriter, e_tag_of, opened, store_error, sync_directory
from lance_core.store.options import StorageOptions

__all__ = ["LocalStore", "LocalWriter"]

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
        return f"{self._root}/{check_key(key)}"

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
        count = 0
        for meta in self._walk(check_prefix(prefix).rpartition("/")[0], prefix):
            if limit is not None and count >= limit:
                return
            if start_after is None or meta.key > start_after:
                count += 1
                yield meta

    def list_owned(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield files, and links instead of their targets; nothing if the folder of the prefix is behind a link."""
        folder = check_prefix(prefix).rpartition("/")[0]
        parts = folder.split("/") if folder else []
        if any(os.path.islink(f"{self._root}/{'/'.join(parts[: end + 1])}") for end in range(len(parts))):
            return
        yield from self._walk(folder, prefix, owned=True)

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders at and below `folder`; links are not followed."""
        for path, _, _ in os.walk(self.path_of(folder) if folder else self._root, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or deleted already
                os.rmdir(path)

    def remove_link(self, folder: str) -> bool:
        """Remove a folder's name if it is a link."""
        path = self.path_of(folder) if folder else self._root
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

    def _walk(self, folder: str, prefix: str, *, owned: bool = False) -> Iterator[ObjectMeta]:
        """Yield the files below a folder; links to folders are left out, or yielded as objects if `owned` is set."""
        path = f"{self._root}/{folder}" if folder else self._root
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
                    yield from self._walk(key[:-1], prefix, owned=owned)
            elif key.startswith(prefix):
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

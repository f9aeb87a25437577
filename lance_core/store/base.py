"""The protocol of all stores: bytes by key below one root.

A store is rooted at a dataset root or at a base path. Keys are relative to it, `/`-separated and free of `.` and
`..` parts. The methods and their promises:

    get, get_range, get_tail, get_ranges, read, head, list     read
    list_owned         objects that may be deleted, none of them behind a symbolic link
    put                atomic replacement: a reader sees the old object or the new one
    put_if_absent      atomic creation: of many racing callers, one wins
    open_writer        a stream of bytes, and of ranges of other objects, which the storage itself copies if it can;
                       nothing is visible under the key before `close`
    delete, delete_many, copy, remove_link

Errors are those of `lance_core.errors`: ObjectNotFoundError for a missing key, AlreadyExistsError for a lost creation,
OutcomeUnknownError where a write may or may not have happened, StoreError for every other failure of the storage.

Counts the reads of all stores in this process, and the bytes that they returned.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from lance_core.errors import InvalidInputError, ObjectNotFoundError, StoreError
from lance_core.store.options import StorageOptions

_lock = threading.Lock()
_counts = [0, 0]


def count_read(num_calls: int, num_bytes: int) -> None:
    """Count reads."""
    with _lock:
        _counts[0] += num_calls
        _counts[1] += num_bytes


def iops_counter() -> int:
    """Number of reads since the process started: file system calls, or requests.

    Examples:
        >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
        >>> before = lance.iops_counter()
        >>> rows = lance.dataset("flights.lance").to_table()
        >>> lance.iops_counter() > before
        True
    """
    return _counts[0]


def bytes_read_counter() -> int:
    """Number of bytes read since the process started.

    Examples:
        >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
        >>> before = lance.bytes_read_counter()
        >>> rows = lance.dataset("flights.lance").to_table()
        >>> lance.bytes_read_counter() > before
        True
    """
    return _counts[1]


_logger = logging.getLogger(__name__)

DEFAULT_READ_BYTES: Final = 16 * 1024 * 1024
"""Bytes per read of an object that is copied through this process."""

ByteRange: TypeAlias = tuple[int, int]
"""Start and end of a range of bytes; the end is excluded."""

BytesLike: TypeAlias = bytes | memoryview
"""The result of reads; `np.frombuffer` and `pa.py_buffer` take it without a copy."""

ReadableBuffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any] | pa.Buffer
"""The argument of writes: any contiguous object with the buffer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An upload in parts that was neither completed nor aborted: no listing of objects shows its bytes.

    Attributes:
        key: The key of the object that it would become.
        upload_id: Its name at the storage.
        begun: When it was begun, in seconds since the epoch by the clock of the storage.
    """

    key: str
    upload_id: str
    begun: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMeta:
    """One object of a store.

    Attributes:
        key: Its key, relative to the root of the store that reported it.
        size: Size in bytes.
        modified: Time of the last change, seconds since the epoch.
        e_tag: The storage's identifier of this state of the object, which changes when the object is written again;
            None if the storage has none.
    """

    key: str
    size: int
    modified: float
    e_tag: str | None = None


class ObjectWriter(Protocol):
    """A stream into one object, which appears when the writer is closed.

    As a context manager it closes on success and aborts on an error. Writers derive from this class for that.

    Attributes:
        least_copy_bytes: The size of a range from which `copy_range` is faster than reading several ranges together.
        copy_alignment: The storage can share a range with its source if both begin at the same position modulo this.
    """

    least_copy_bytes: int = 1 << 20
    copy_alignment: int = 1

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes."""
        ...

    def copy_range(
        self, source: ObjectStore, key: str, start: int, end: int, *, read_bytes: int = DEFAULT_READ_BYTES
    ) -> None:
        """Append bytes `start` to `end` of an object.

        If both objects are in one storage that can copy ranges, it copies them; otherwise they are read and written.

        Args:
            source: The store that has the object.
            key: Its key there.
            start: First byte.
            end: Byte after the last.
            read_bytes: Bytes per read, if the storage does not copy.

        Raises:
            ObjectNotFoundError: The source has no such object.
            StoreError: The object is shorter, or it was changed while it was copied.
        """
        for low in range(start, end, read_bytes):
            self.write(source.get_range(key, low, min(low + read_bytes, end)))

    def close(self) -> int:
        """Make the object visible and return its size in bytes."""
        ...

    def close_unnamed(self) -> int:
        """Close the writer; on a disk the file's name becomes durable only when its folder is synced (`sync_names`)."""
        return self.close()

    def close_early(self) -> Sequence[Callable[[], object]]:
        """Make the object visible before it is durable; nothing may refer to the object until it is.

        Returns:
            Calls that make the object durable; all of them have to run, in any order or in parallel.
        """
        self.close()
        return ()

    def abort(self) -> None:
        """Drop what was written; does nothing after `close`."""
        ...

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; abort if the body raised, or if closing fails."""
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise


@runtime_checkable
class ObjectStore(Protocol):
    """Bytes by key below a root; the docstring of the module lists the promises of each method."""

    @property
    def root(self) -> str:
        """Canonical absolute URI of the root, without credentials; a plain path for local disks."""
        ...

    @property
    def data_root(self) -> str:
        """URI below which the objects are stored: the root without the query that selects a database of manifests."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the objects are files of this machine."""
        ...

    @property
    def put_is_a_request(self) -> bool:
        """Whether each call is a request to a server, so that parallel calls are faster than sequential ones."""
        ...

    @property
    def options(self) -> StorageOptions:
        """The options that the store was opened with; other stores of the same dataset are opened with them."""
        ...

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        ...

    def get_range(self, key: str, start: int, end: int) -> BytesLike:
        """Return bytes `start` to `end`; StoreError if the object is shorter."""
        ...

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes (or all of a shorter object) and the object's size."""
        ...

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object, in the given order; ranges that lie close together are read together."""
        ...

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size and time, in one request."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        ...

    def put(self, key: str, data: ReadableBuffer) -> str | None:
        """Write an object, replacing one that exists; returns its e-tag if the storage reports one."""
        ...

    def prepare_commits(self) -> None:
        """Prepare the first `put_if_absent`, so that it takes one request like all later ones.

        Raises:
            UnsupportedError: The storage has no conditional puts.
        """
        ...

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str | None:
        """Write an object unless one exists; returns its e-tag if the storage reports one.

        Args:
            key: The object's key.
            data: All its bytes.
            durable: Whether it must survive a power loss once the call returns. Object storage always does.

        Raises:
            AlreadyExistsError: An object exists under the key. After a lost response it can be the caller's own.
            OutcomeUnknownError: Whether the object was written, or will be, is unknown.
        """
        ...

    def open_writer(self, key: str, *, durable: bool = True) -> ObjectWriter:
        """Start an object that is written piece by piece; it replaces one that exists."""
        ...

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield the objects whose key starts with `prefix`, in ascending order of keys.

        Args:
            prefix: Start of the keys; empty for all.
            start_after: Leave out keys up to and including this one.
            limit: Most objects to yield, and to request from the storage.

        Raises:
            InvalidInputError: The prefix leads out of the root.
        """
        ...

    def list_owned(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield the objects with this prefix that may be deleted, in ascending order of keys.

        A symbolic link is listed as an object: deleting its key removes the link and keeps the target. Nothing below
        a folder that is reached through a link is listed.
        """
        ...

    def remove_empty_folders(self, folder: str) -> None:
        """Remove the empty folders at and below `folder` (empty for the root), in storage that has folders."""
        ...

    def remove_link(self, folder: str) -> bool:
        """Remove a folder that is a symbolic link, and keep the link's target; returns whether it was a link.

        Args:
            folder: The folder, without a slash at the end; empty for the root itself.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        ...

    @property
    def keys_per_delete(self) -> int:
        """The most keys that `delete_many` removes by one request; 1 where each key is a request of its own."""
        ...

    def delete_many(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Remove objects, of which some may be missing.

        Returns:
            The errors of the objects that could not be removed, by key; the others are removed.
        """
        ...

    def unfinished_uploads(self) -> Sequence[Upload]:
        """The uploads in parts below the root that were neither completed nor aborted.

        Raises:
            StoreError: The storage does not answer, or does not report this.
        """
        ...

    def abort_upload(self, upload: Upload) -> None:
        """Drop the parts of an upload; one that has ended is fine."""
        ...

    def keeps_removed_objects(self) -> bool:
        """Whether the storage still has objects below the root that were removed or replaced.

        Raises:
            StoreError: The storage rejects the request, or does not report this.
        """
        ...

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy an object within the store, replacing the target."""
        ...


class SingleDeletes:
    """`delete_many` for stores that remove one object at a time."""

    keys_per_delete: int = 1

    def delete(self, key: str) -> None:
        """Remove an object."""
        raise NotImplementedError

    def delete_many(self, keys: Sequence[str]) -> dict[str, StoreError]:
        """Remove objects one after the other; returns the errors by key."""
        return delete_each(self.delete, keys)


class UnreportedRemains:
    """The methods about remains, in stores whose library does not report them: nothing proves that there are none."""

    root: str

    def unfinished_uploads(self) -> Sequence[Upload]:
        """Raise an error: the library does not list uploads in parts."""
        raise StoreError(f"{self.root}: uploads in parts that were interrupted cannot be listed here")

    def keeps_removed_objects(self) -> bool:
        """Raise an error: the library does not list former versions of objects."""
        raise StoreError(f"{self.root}: removed objects that the storage keeps cannot be listed here")


class RootedStore:
    """What stores of one root have in common.

    Args:
        root: The root of the keys.
        options: The options of the store; None for the defaults.
    """

    def __init__(self, root: str, options: StorageOptions | None) -> None:
        self.root = self.data_root = root  # a canonical absolute URI; a plain path for local disks
        self._place = unescaped_root(root)
        self.options = options if options is not None else StorageOptions()

    def unfinished_uploads(self) -> Sequence[Upload]:
        """Return nothing: there are no uploads in parts."""
        return ()

    def abort_upload(self, upload: Upload) -> None:
        """Do nothing: there are no uploads in parts."""

    def keeps_removed_objects(self) -> bool:
        """Return False: what is removed is lost."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object."""
        raise NotImplementedError

    def get_range(self, key: str, start: int, end: int) -> BytesLike:
        """Return bytes `start` to `end`."""
        return self.get_ranges(key, [(start, end)])[0]

    def prepare_commits(self) -> None:
        """Do nothing: `put_if_absent` needs no preparation."""


class LinklessStore(RootedStore):
    """The methods for folders and symbolic links, in stores that have neither."""

    def list(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield the objects whose key starts with `prefix`."""
        raise NotImplementedError

    def list_owned(self, prefix: str) -> Iterator[ObjectMeta]:
        """Yield the objects with this prefix that may be deleted."""
        return self.list(prefix)

    def remove_empty_folders(self, folder: str) -> None:
        """Do nothing: there are no folders."""

    def remove_link(self, _folder: str) -> bool:
        """Return False: there are no links."""
        return False


def delete_each(delete: Callable[[str], None], keys: Sequence[str]) -> dict[str, StoreError]:
    """Remove objects one after the other, with the function for one object; returns the errors by key."""
    errors = {}
    for key in keys:
        try:
            delete(key)
        except StoreError as error:
            errors[key] = error
    return errors


def has_object(store: ObjectStore, key: str) -> bool:
    """Whether a store has an object."""
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True


def remove_leftovers(store: ObjectStore, keys: Iterable[str]) -> None:
    """Remove objects that a failed or finished write does not need; the log names what cannot be removed.

    Cleanup removes them later: the error that ended the write matters more, and a role without the right to delete can
    write all the same.
    """
    for key in keys:
        try:
            store.delete(key)
        except StoreError as error:
            _logger.info("%s/%s was left behind: %s", store.root, key, error)


def bytes_view(data: ReadableBuffer) -> memoryview:
    """Return the bytes of a contiguous buffer, without copying."""
    view = memoryview(data)  # type: ignore[arg-type]  # the stubs know no buffer protocol before Python 3.12
    return view.cast("B") if view.nbytes else memoryview(b"")


def escaped_path(path: str) -> str:
    """Return the path of objects as the canonical URI has it: only characters that a URI would misread are escaped."""
    return _MISREAD.sub(lambda match: f"%{ord(match[0]):02X}", path)


def unescaped_path(path: str) -> str:
    """Return the path of objects that the path of a URI names.

    Raises:
        InvalidInputError: The escapes are no UTF-8, or name a control character, which pylance rejects as well.
    """
    try:
        plain = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInputError(f"the escapes of a URI must be UTF-8; those of {path!r} are not") from None
    if _CONTROL.search(plain):
        raise InvalidInputError(f"a URI cannot name control characters: {path!r}")
    return plain


def unescaped_root(root: str) -> str:
    """Return the root of a store with the names that its objects have; the root of a local disk is a path already."""
    scheme, separator, path = root.partition("://")
    return f"{scheme}://{unescaped_path(path)}" if separator else root


_MISREAD: Final = re.compile(r"%(?=[0-9A-Fa-f]{2})|[?#]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """Return `key` if it names an object below the root.

    Raises:
        InvalidInputError: The key is empty or absolute, has an empty, `.` or `..` part, or has a NUL character.
    """
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in key:
        raise InvalidInputError(f"not a key of an object: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if the keys that start with it lie below the root.

    Raises:
        InvalidInputError: The prefix is absolute, or has an empty, `.` or `..` part before its last one.
    """
    if prefix:
        # The last part may be incomplete, as any characters can follow the prefix.
        folder, _, begin = prefix.rpartition("/")
        check_key(f"{folder}/{begin}x" if "/" in prefix else f"{begin}x")
        if begin == "..":
            raise InvalidInputError(f"not a prefix of keys: {prefix!r}")
    return prefix

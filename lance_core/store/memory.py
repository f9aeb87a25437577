"""The store of `memory://` URIs: objects in this process, for tests and small experiments.

All memory stores of a process share one space of keys, so a store of a dataset and a store of its branch have the same
objects. A child process starts with a copy and shares nothing.
"""

from __future__ import annotations

import io
import itertools
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Final

from lance_core.errors import AlreadyExistsError, ObjectNotFoundError, StoreError
from lance_core.store.base import (
    ByteRange,
    BytesLike,
    LinklessStore,
    ObjectMeta,
    ObjectWriter,
    ReadableBuffer,
    SingleDeletes,
    bytes_view,
    check_key,
    check_prefix,
    count_read,
    unescaped_root,
)
from lance_core.store.options import StorageOptions

_objects: dict[str, tuple[bytes, float, str]] = {}
_numbers = itertools.count()
_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()
_lock = threading.Lock()


class MemoryStore(SingleDeletes, LinklessStore):
    """Objects whose full name starts with the root.

    Args:
        root: The root, `memory://` and a path.
        options: Options for other stores of the same dataset; memory needs none.
    """

    is_local: Final = False
    put_is_a_request: Final = False

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        super().__init__(root.rstrip("/"), options)
        _stores.add(self)

    def get(self, key: str) -> BytesLike:
        """Return a whole object."""
        return self.read(key)[0]

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        """Return the last `length` bytes, or all of a shorter object, and the object's size."""
        data = self.get(key)
        return memoryview(data)[max(0, len(data) - length) :], len(data)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        """Return several ranges of one object."""
        data = memoryview(self._find_entry(key)[0])
        count_read(len(ranges), sum(end - start for start, end in ranges))
        for start, end in ranges:
            if not 0 <= start <= end <= len(data):
                raise StoreError(f"{self.root}/{key}: bytes {start} to {end} wanted, the object has {len(data)}")
        return [data[start:end] for start, end in ranges]

    def read(self, key: str) -> tuple[BytesLike, ObjectMeta]:
        """Return a whole object with its size and time."""
        data, modified, e_tag = self._find_entry(key)
        count_read(1, len(data))
        return data, ObjectMeta(key=key, size=len(data), modified=modified, e_tag=e_tag)

    def head(self, key: str) -> ObjectMeta:
        """Return size and time of an object."""
        data, modified, e_tag = self._find_entry(key)
        return ObjectMeta(key=key, size=len(data), modified=modified, e_tag=e_tag)

    def put(self, key: str, data: ReadableBuffer) -> str:
        """Write an object, replacing one that exists."""
        entry = _new_entry(data)
        _objects[self._full_name(key)] = entry
        return entry[2]

    def put_if_absent(self, key: str, data: ReadableBuffer, *, durable: bool = True) -> str:
        """Write an object unless one exists; nothing in memory is durable."""
        del durable
        name, entry = self._full_name(key), _new_entry(data)
        with _lock:
            if _objects.setdefault(name, entry) is not entry:
                raise AlreadyExistsError(f"{self.root}/{key}: exists already")
        return entry[2]

    def open_writer(self, key: str, *, durable: bool = True) -> MemoryWriter:
        """Start an object that `close` stores."""
        del durable
        check_key(key)
        return MemoryWriter(self, key)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[ObjectMeta]:
        """Yield objects in ascending order of keys."""
        length = len(self._place) + 1
        start = f"{self._place}/{check_prefix(prefix)}"
        names = sorted(name for name in list(_objects) if name.startswith(start))
        keys = [name[length:] for name in names if start_after is None or name[length:] > start_after]
        entries = ((key, _objects.get(f"{self._place}/{key}")) for key in keys)
        present = ((key, entry) for key, entry in entries if entry is not None)  # others may delete objects meanwhile
        for key, (data, modified, e_tag) in itertools.islice(present, limit):
            yield ObjectMeta(key=key, size=len(data), modified=modified, e_tag=e_tag)

    def forget_unused(self) -> None:
        """Remove all objects, unless another store of this root or of a root below it is in use."""
        below = f"{self._place}/"
        if any(other is not self and unescaped_root(f"{other.root}/").startswith(below) for other in list(_stores)):
            return
        for name in [name for name in list(_objects) if name.startswith(below)]:
            _objects.pop(name, None)

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is fine."""
        _objects.pop(self._full_name(key), None)

    def copy(self, source_key: str, target_key: str) -> None:
        """Copy an object, replacing the target."""
        self.put(target_key, bytes(self.get(source_key)))

    def _full_name(self, key: str) -> str:
        return f"{self._place}/{check_key(key)}"

    def _find_entry(self, key: str) -> tuple[bytes, float, str]:
        try:
            return _objects[self._full_name(key)]
        except KeyError:
            raise ObjectNotFoundError(f"{self.root}/{key}: no such object") from None


def _new_entry(data: ReadableBuffer) -> tuple[bytes, float, str]:
    return bytes(bytes_view(data)), time.time(), str(next(_numbers))


class MemoryWriter(ObjectWriter):
    """Bytes that become an object when closed."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._buffer: io.BytesIO | None = io.BytesIO()

    def write(self, data: ReadableBuffer) -> None:
        """Append bytes."""
        if self._buffer is None:
            raise StoreError(f"{self._key}: the writer is closed")
        self._buffer.write(bytes_view(data))

    def close(self) -> int:
        """Store the object and return its size."""
        if self._buffer is None:
            raise StoreError(f"{self._key}: the writer is closed")
        data = self._buffer.getvalue()
        self._buffer = None
        self._store.put(self._key, data)
        return len(data)

    def abort(self) -> None:
        """Drop the written bytes."""
        self._buffer = None

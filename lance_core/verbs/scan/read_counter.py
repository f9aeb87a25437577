"""Count the reads of a scan for `analyze_plan`, by stores that wrap the stores of a version."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from lance_core.store import ByteRange, BytesLike, ObjectMeta, ObjectStore
from lance_core.verbs.context.handle import Snapshot


class ReadCounter:
    """The reads so far, of all threads.

    Attributes:
        num_calls: Calls of a store; one call can read several ranges of an object.
        num_ranges: Ranges that were requested; a store may read adjacent ranges together.
        num_bytes: Bytes that were requested.
        objects: Root and key of each object that was read.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.num_ranges = 0
        self.num_bytes = 0
        self.objects: set[tuple[str, str]] = set()
        self._lock = Lock()

    def add(self, root: str, key: str, sizes: Sequence[int]) -> None:
        """Count one call."""
        with self._lock:
            self.num_calls += 1
            self.num_ranges += len(sizes)
            self.num_bytes += sum(sizes)
            self.objects.add((root, key))

    def facts(self) -> list[str]:
        """The counts, each as a string."""
        return [
            f"reads={self.num_calls}",
            f"ranges={self.num_ranges}",
            f"bytes read={self.num_bytes}",
            f"objects={len(self.objects)}",
        ]

    def metrics(self, output_rows: int, rows_scanned: int) -> str:
        """The counts, under the names of pylance's plans."""
        counts = {
            "output_rows": output_rows,
            "rows_scanned": rows_scanned,
            "bytes_read": self.num_bytes,
            "iops": self.num_calls,
            "requests": self.num_ranges,
        }
        return f"metrics=[{', '.join(f'{name}={value}' for name, value in counts.items())}]"


def counted(snapshot: Snapshot, counter: ReadCounter) -> Snapshot:
    """A version whose stores count reads."""
    return snapshot.with_stores(lambda store: _CountedStore(store, counter))


class _CountedStore:
    """A store that counts reads, and forwards all calls to the store that it wraps."""

    def __init__(self, store: ObjectStore, counter: ReadCounter) -> None:
        self._store = store
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> BytesLike:
        data = self._store.get(key)
        self._counter.add(self._store.root, key, [len(data)])
        return data

    def get_range(self, key: str, start: int, end: int) -> BytesLike:
        data = self._store.get_range(key, start, end)
        self._counter.add(self._store.root, key, [len(data)])
        return data

    def get_tail(self, key: str, length: int) -> tuple[BytesLike, int]:
        data, size = self._store.get_tail(key, length)
        self._counter.add(self._store.root, key, [len(data)])
        return data, size

    def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[BytesLike]:
        payloads = self._store.get_ranges(key, ranges)
        self._counter.add(self._store.root, key, [len(data) for data in payloads])
        return payloads

    def head(self, key: str) -> ObjectMeta:
        meta = self._store.head(key)
        self._counter.add(self._store.root, key, [])
        return meta

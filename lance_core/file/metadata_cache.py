"""A cache of the metadata of data files, whose content never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lance_core.file.metadata import FileMetadata

__all__ = ["METADATA_CACHE_BYTES", "MetadataCache"]

METADATA_CACHE_BYTES: Final = 64 * 1024 * 1024


class _CacheKey(NamedTuple):
    root: str
    key: str
    size: int


@dataclass(slots=True)
class MetadataCache:
    """Metadata of files by store, key and size. Several threads may use it; a pickled cache is empty.

    Attributes:
        max_bytes: Approximate limit of the cached bytes; the least recently used metadata is evicted.
        num_bytes: Cached bytes, approximately.
    """

    max_bytes: int = METADATA_CACHE_BYTES
    num_bytes: int = 0
    _metadata: OrderedDict[_CacheKey, FileMetadata] = field(default_factory=OrderedDict)
    _sizes: dict[_CacheKey, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[type[MetadataCache], tuple[int]]:
        """Pickle an empty cache."""
        return MetadataCache, (self.max_bytes,)

    def get(self, root: str, key: str, size: int) -> FileMetadata | None:
        """The cached metadata of a file; None if it is not cached."""
        name = _CacheKey(root, key, size)
        with self._lock:
            metadata = self._metadata.get(name)
            if metadata is not None:
                self._metadata.move_to_end(name)
            return metadata

    def put(self, root: str, key: str, metadata: FileMetadata) -> None:
        """Cache the metadata of a file, unless it is larger than the whole cache."""
        name = _CacheKey(root, key, metadata.size_bytes)
        size = _estimate_size(metadata)
        with self._lock:
            if name in self._metadata or size > self.max_bytes:
                return
            self._metadata[name] = metadata
            self._add(name, size)

    def grew(self, root: str, key: str, size: int, num_bytes: int) -> None:
        """Record that the cached metadata of a file has grown by about `num_bytes`."""
        name = _CacheKey(root, key, size)
        with self._lock:
            if name in self._metadata:
                self._add(name, num_bytes)

    def _add(self, name: _CacheKey, num_bytes: int) -> None:
        self._sizes[name] = self._sizes.get(name, 0) + num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            evicted, _ = self._metadata.popitem(last=False)
            self.num_bytes -= self._sizes.pop(evicted)


def _estimate_size(metadata: FileMetadata) -> int:
    """The approximate memory size: the bytes of the column descriptions, and the records."""
    start, end = metadata.metadata_range
    return 1024 + (end - start) + 512 * len(metadata.schema.fields)

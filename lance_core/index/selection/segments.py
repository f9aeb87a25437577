"""Finds and reads the usable segments of indices, with the fragments that each segment is trusted for.

A segment is trusted only for the live fragments in its own bitmap. A segment that cannot be read, is of an unknown
version, or contradicts the table is ignored with one warning; the fragments that it covers are then read.
"""

from __future__ import annotations

import threading
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa
from pyroaring import BitMap

from lance_core.errors import CorruptFileError, LanceError
from lance_core.index.kinds.registry import KINDS, Content
from lance_core.schema import Field, arrow_type_of
from lance_core.store import ObjectStore
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.reuse import without_moved

Folder: TypeAlias = Callable[[IndexMetadata], tuple[ObjectStore, str]]
"""(index) -> the store of its files, and the prefix of their keys."""

_Result = TypeVar("_Result")

INDEX_CACHE_BYTES: Final = 256 * 1024 * 1024


@dataclass(slots=True)
class IndexCache:
    """A cache of segments, which are immutable. Several threads may use it.

    Attributes:
        warned: Segments with a warning.
        distrusted: Segments that were found to be wrong.
        answers: The latest answers, by test.
        max_bytes: Limit of the cached bytes, approximately.
        num_bytes: Cached bytes, approximately.
    """

    warned: set[uuid.UUID] = field(default_factory=set)
    distrusted: set[uuid.UUID] = field(default_factory=set)
    answers: dict[object, object] = field(default_factory=dict)
    max_bytes: int = INDEX_CACHE_BYTES
    num_bytes: int = 0
    _contents: OrderedDict[uuid.UUID, Content] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[type[IndexCache], tuple[()]]:
        """Pickle an empty cache."""
        return IndexCache, ()

    def get(self, key: uuid.UUID) -> Content | None:
        """The cached content of a segment."""
        with self._lock:
            content = self._contents.get(key)
            if content is not None:
                self._contents.move_to_end(key)
            return content

    def put(self, key: uuid.UUID, content: Content) -> None:
        """Cache a segment, and evict the least recently used ones."""
        with self._lock:
            if key in self._contents:
                return
            self._contents[key] = content
            self.num_bytes += content.nbytes
            while self.num_bytes > self.max_bytes and len(self._contents) > 1:
                _, evicted = self._contents.popitem(last=False)
                self.num_bytes -= evicted.nbytes

    def warn(self, index: IndexMetadata, reason: str) -> None:
        """Warn once that a segment is ignored."""
        with self._lock:
            if index.uuid in self.warned:
                return
            self.warned.add(index.uuid)
        message = f"index {index.name!r} (segment {index.uuid}) is ignored, and rows are read instead: {reason}"
        warnings.warn(message, stacklevel=2)

    def ignore_wrong_segment(self, index: IndexMetadata, reason: str) -> None:
        """Warn once that a segment is wrong, and ignore it from now on."""
        self.warn(index, reason)
        with self._lock:
            self.distrusted.add(index.uuid)
            self.answers = {}


@dataclass(frozen=True, slots=True)
class Segment:
    """A usable segment.

    Attributes:
        index: Its record.
        covered: The fragments for which it is trusted.
    """

    index: IndexMetadata
    covered: BitMap


@dataclass(frozen=True, slots=True)
class IndexReader:
    """Reads segments.

    Attributes:
        folder: The location of their files.
        cache: The cache of segments.
    """

    folder: Folder
    cache: IndexCache = field(default_factory=IndexCache)

    def read(self, index: IndexMetadata, kind: pa.DataType) -> Content:
        """Read a segment.

        Args:
            index: Its record.
            kind: Type of the field.

        Raises:
            LanceError: The segment cannot be read, or indexes values of another type.
        """
        content = self.cache.get(index.uuid)
        if content is None:
            store, prefix = self.folder(index)
            content = KINDS[index.kind].read(store, prefix, index, kind)
            self.cache.put(index.uuid, content)
        if not content.fits(kind):
            raise CorruptFileError(f"it does not index values of type {kind}")
        return content

    def try_read(self, index: IndexMetadata, kind: pa.DataType) -> Content | None:
        """Read a segment; None, with a warning, if it cannot be read or is known to be wrong."""
        return self.try_use(index, kind, lambda content: content)

    def try_use(self, index: IndexMetadata, kind: pa.DataType, use: Callable[[Content], _Result]) -> _Result | None:
        """Read a segment, and what a function reads of its entries; None, with a warning, if that cannot be read."""
        if index.uuid in self.cache.distrusted:
            return None
        try:
            return use(self.read(index, kind))
        except (LanceError, pa.ArrowException, OverflowError) as error:
            self.cache.warn(index, str(error))
            return None


def find_usable_segments(manifest: Manifest, node: Field, cache: IndexCache | None = None) -> Iterator[list[Segment]]:
    """The indices on a field, as their segments, in the order of the manifest.

    Args:
        manifest: The version.
        node: The field.
        cache: The cache that warns of segments of unknown versions.
    """
    groups: dict[tuple[str, str], list[Segment]] = {}
    for index in manifest.indices:
        if index.is_system or index.fields != (node.id,) or index.kind not in KINDS:
            continue
        if not KINDS[index.kind].accepts(arrow_type_of(node)):
            continue  # pylance builds indices on further types
        known_versions = KINDS[index.kind].versions
        if (index.index_version or 0) not in known_versions:
            if cache is not None:
                cache.warn(index, f"its version {index.index_version} is not known")
            continue
        covered = without_moved(manifest.indices, index)
        if covered:
            groups.setdefault((index.name, index.kind), []).append(Segment(index, covered))
    yield from groups.values()


def names_of(segments: Sequence[Segment]) -> str:
    """The name and the kind of the index that segments belong to, in the form that plans show."""
    first = segments[0].index
    return f"{first.name} ({first.kind})"

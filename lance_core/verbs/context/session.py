"""Sessions: caches of file metadata and indices, which handles can share."""

from __future__ import annotations

from lance_core.errors import InvalidInputError
from lance_core.file.reader import METADATA_CACHE_BYTES, MetadataCache
from lance_core.index.selection.segments import INDEX_CACHE_BYTES, IndexCache

__all__ = ["Session"]


class Session:
    """Caches that handles can share: metadata of data files, and contents of indices. A pickled session is empty.

    Args:
        index_cache_size_bytes: About how many bytes of indices are kept; None for 256 MiB.
        metadata_cache_size_bytes: About how many bytes of metadata are kept; None for 64 MiB.

    Raises:
        InvalidInputError: A size is not an integer, or is negative.
    """

    def __init__(self, index_cache_size_bytes: int | None = None, metadata_cache_size_bytes: int | None = None) -> None:
        sizes = {
            "index_cache_size_bytes": INDEX_CACHE_BYTES if index_cache_size_bytes is None else index_cache_size_bytes,
            "metadata_cache_size_bytes": (
                METADATA_CACHE_BYTES if metadata_cache_size_bytes is None else metadata_cache_size_bytes
            ),
        }
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidInputError(f"{name} must be a number of bytes from 0, not {size!r}")
        self.indices = IndexCache(max_bytes=sizes["index_cache_size_bytes"])
        self.files = MetadataCache(sizes["metadata_cache_size_bytes"])

    def __reduce__(self) -> tuple[type[Session], tuple[int, int]]:
        """Pickle the sizes of the caches without their contents."""
        return Session, (self.indices.max_bytes, self.files.max_bytes)

    def __repr__(self) -> str:
        """Show how much is kept."""
        index, metadata = self.index_cache_size_bytes(), self.files.num_bytes
        return f"Session(index_cache_size_bytes={index}, metadata_cache_size_bytes={metadata})"

    def size_bytes(self) -> int:
        """About how many bytes are kept."""
        return self.indices.num_bytes + self.files.num_bytes

    def index_cache_size_bytes(self) -> int:
        """About how many bytes of indices are kept."""
        return self.indices.num_bytes

    def is_same_as(self, other: Session) -> bool:
        """Whether two sessions share their caches."""
        return self is other

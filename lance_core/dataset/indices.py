"""Verbs for indices, which other tools build and read. lance_core keeps their records true, and can drop them."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from lance_core.commit import commit
from lance_core.errors import NotFoundError, UnsupportedError
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction
from lance_core.verbs.inspect.indices import (
    IndexDescription,
    IndexInformation,
    IndexStatistics,
    describe_indices,
    index_statistics,
)
from lance_core.verbs.version.handle import Handle

__all__ = ["IndexingVerbs"]


class IndexingVerbs(Handle):
    """What a dataset offers to see and drop indices. None can be created for now."""

    @property
    def has_index(self) -> bool:
        """Whether there is an index."""
        return bool(self._manifest.indices)

    def describe_indices(self) -> list[IndexDescription]:
        """All indices, by name; that of deferred compactions, `__lance_frag_reuse`, is one of them."""
        return describe_indices(self.source)

    def list_indices(self) -> list[IndexInformation]:
        """All segments of all indices; `describe_indices` is the newer name."""
        warnings.warn(
            "The 'list_indices' method is deprecated. Use describe_indices() instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        return [
            {
                "name": found.name,
                "type": found.index_type,
                "uuid": segment.uuid,
                "fields": found.field_names,
                "version": segment.dataset_version_at_last_update,
                "fragment_ids": segment.fragment_ids,
                "base_id": segment.base_id,
            }
            for found in self.describe_indices()
            for segment in found.segments
        ]

    def drop_index(self, name: str) -> None:
        """Drop an index, in a new version; its files go when old versions are cleaned up.

        Raises:
            NotFoundError: There is no index of that name.
        """
        gone = tuple(index for index in self._manifest.indices if index.name == name)
        if not gone:
            raise NotFoundError(f"Lance index not found: name={name}")
        transaction = Transaction(read_version=self.version, operation=CreateIndex(removed_indices=gone))
        self._manifest = commit(self._store, transaction, base=self._manifest).manifest

    def create_index(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered yet."""
        raise UnsupportedError("create_index is not offered: indices are kept, not built")

    def create_scalar_index(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered yet."""
        raise UnsupportedError("create_scalar_index is not offered: indices are kept, not built")

    def create_index_uncommitted(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered yet."""
        raise UnsupportedError("create_index_uncommitted is not offered: indices are kept, not built")

    def prewarm_index(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered: indices are not read."""
        raise UnsupportedError("prewarm_index is not offered: indices are kept, not read")

    def index_statistics(self, index_name: str) -> IndexStatistics:
        """The older name of `stats.index_stats`.

        Raises:
            NotFoundError: There is no index of that name.
            UnsupportedError: It belongs to the write-ahead log.
        """
        warnings.warn(
            "LanceDataset.index_statistics() is deprecated, use LanceDataset.stats.index_stats() instead",
            DeprecationWarning,
            stacklevel=2,
        )
        return index_statistics(self.source, index_name)

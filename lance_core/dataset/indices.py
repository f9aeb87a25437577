"""Verbs for indices: create, list, prewarm and drop them."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from lance_core.commit import commit
from lance_core.errors import NotFoundError, UnsupportedError
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction
from lance_core.verbs.indices.create import IndexConfig, create_scalar_index
from lance_core.verbs.indices.prewarm import prewarm
from lance_core.verbs.inspect.indices import (
    IndexDescription,
    IndexInformation,
    IndexStatistics,
    describe_indices,
    index_statistics,
)
from lance_core.verbs.version.handle import Handle
from lance_core.verbs.version.unsupported import refuse

__all__ = ["IndexingVerbs"]


class IndexingVerbs(Handle):
    """Methods for indices."""

    @property
    def has_index(self) -> bool:
        """Whether there is an index."""
        return bool(self._manifest.indices)

    def describe_indices(self) -> list[IndexDescription]:
        """All indices, by name; among them `__lance_frag_reuse`, which deferred compactions make."""
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
        """Drop an index, in a new version; its files are deleted when old versions are cleaned up.

        Raises:
            NotFoundError: There is no index of that name.
        """
        gone = tuple(index for index in self._manifest.indices if index.name == name)
        if not gone:
            raise NotFoundError(f"Lance index not found: name={name}")
        transaction = Transaction(read_version=self.version, operation=CreateIndex(removed_indices=gone))
        self._manifest = commit(self._store, transaction, base=self._manifest).manifest

    def create_index(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered: indices for vectors are kept, not built."""
        raise UnsupportedError("create_index is not offered; create_scalar_index builds scalar indices")

    def create_scalar_index(
        self,
        column: str | Sequence[str],
        index_type: str | IndexConfig | Any,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        **arguments: Any,
    ) -> None:
        """Build an index on a column, in a new version; scans, counts, deletes and updates use it where it helps.

        Args:
            column: The column, or the dotted path to a field of a struct.
            index_type: "ZONEMAP", the smallest and largest value of each run of rows: the kind for columns by which
                rows lie together, such as days. "BITMAP", the rows of each value. "BTREE", all rows in order of their
                values. "BLOOMFILTER", a filter of the values of each run of rows. "LABEL_LIST", the rows of each
                element of lists. Or an `IndexConfig`, of pylance's too, with parameters.
            name: Its name; `<column>_idx` by default.
            replace: Whether an index of that name on that column is replaced.
            train: False makes an empty index, which `optimize.optimize_indices` fills.
            **arguments: Parameters of the kind, by name. ZONEMAP: `rows_per_zone`, 8192 by default. BTREE: `zone_size`,
                rows of a page, 4096. BLOOMFILTER: `number_of_items`, rows of a run, 8192; `probability` of a false
                hit, 0.00057.

        Raises:
            SchemaError: There is no such column, or the kind does not fit it.
            InvalidInputError: There is no such kind or parameter, or the name is in use.
            UnsupportedError: Indices of that kind are not built here.
            RetryableConflictError: Somebody made an index of that name, or moved the rows, meanwhile.
        """
        self._manifest = create_scalar_index(
            self.source, column, index_type, name, replace=replace, train=train, arguments=arguments
        )

    def create_index_uncommitted(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered yet."""
        raise UnsupportedError("create_index_uncommitted is not offered; create_scalar_index builds and commits")

    def prewarm_index(
        self, name: str, *, with_position: bool = False, index_segments: Iterable[str | uuid.UUID] | None = None
    ) -> None:
        """Read an index into the cache of this handle.

        Args:
            name: Its name.
            with_position: Not offered: it is for full-text indices.
            index_segments: Only these segments.

        Raises:
            NotFoundError: There is no such index, or segment of it.
            UnsupportedError: Indices of its kind are not read.
            CorruptFileError: It cannot be read.
        """
        refuse("prewarm_index", {"with_position": with_position or None})
        prewarm(self.source, name, index_segments)

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

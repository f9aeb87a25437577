"""Methods of `LanceDataset` for indices: create, list, prewarm and drop them."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Self

from lance_core.arguments import reject
from lance_core.commit.loop import commit
from lance_core.errors import ArgumentTypeError, IndexNotFoundError, InvalidInputError, UnsupportedError
from lance_core.table.index import IndexMetadata
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.indices.create import IndexConfig, create_scalar_index
from lance_core.verbs.indices.prewarm import prewarm
from lance_core.verbs.indices.segments import build_segment, commit_segments, merge_segments
from lance_core.verbs.inspect.indices import (
    IndexDescription,
    IndexInformation,
    IndexStatistics,
    describe_indices,
    index_statistics,
)
from lance_core.verbs.pylance_types.indices import Index


class IndexVerbs(Handle):
    """Create, list, prewarm and drop indices; each change is a new version, to which the handle moves."""

    @property
    def has_index(self) -> bool:
        """Whether the dataset has an index."""
        return bool(self._manifest.indices)

    @property
    def index_kinds(self) -> dict[str, set[str]]:
        """The kinds of indices on a single column, such as "BTree", by name of the column. Not in pylance."""
        names = {field.id: field.name for field in self._manifest.schema.fields}
        kinds: dict[str, set[str]] = {}
        for index in self._manifest.indices:
            if len(index.fields) == 1 and index.fields[0] in names:
                kinds.setdefault(names[index.fields[0]], set()).add(index.kind)
        return kinds

    def describe_indices(self) -> list[IndexDescription]:
        """All indices, by name; among them `__lance_frag_reuse`, which deferred compactions make.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> [(index.name, index.num_rows_indexed) for index in flights.describe_indices()]
            [('delay_idx', 2)]
        """
        return describe_indices(self.snapshot)

    def list_indices(self) -> list[IndexInformation]:
        """All segments of all indices; `describe_indices` is the newer name.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> [(index["name"], index["type"], index["fields"]) for index in flights.list_indices()]
            [('delay_idx', 'BTree', ['delay'])]
        """
        warnings.warn(
            "The 'list_indices' method is deprecated. Use describe_indices() instead.", DeprecationWarning, stacklevel=2
        )
        return [
            {
                "name": index.name,
                "type": index.index_type,
                "uuid": segment.uuid,
                "fields": index.field_names,
                "version": segment.dataset_version_at_last_update,
                "fragment_ids": segment.fragment_ids,
                "base_id": segment.base_id,
            }
            for index in self.describe_indices()
            for segment in index.segments
        ]

    def drop_index(self, name: str) -> None:
        """Drop an index, in a new version; its files are deleted when old versions are cleaned up.

        Raises:
            NotFoundError: There is no index of that name.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> flights.drop_index("delay_idx")
            >>> flights.list_indices()
            []
        """
        removed = tuple(index for index in self._manifest.indices if index.name == name)
        if not removed:
            raise IndexNotFoundError(f"Lance index not found: name={name}; list_indices() lists those of the table")
        transaction = Transaction(read_version=self.version, operation=CreateIndex(removed_indices=removed))
        self._manifest = commit(self._store, transaction, base=self._manifest).manifest

    def create_index(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered: this library keeps vector indices of a table, and does not build them."""
        raise UnsupportedError("create_index is not offered; create_scalar_index builds scalar indices")

    def create_scalar_index(
        self,
        column: str | Sequence[str],
        index_type: str | IndexConfig | Any,
        name: str | None = None,
        *,
        replace: bool | None = True,
        train: bool | None = True,
        **arguments: Any,
    ) -> None:
        """Build an index on a column, in a new version; scans, counts, deletes and updates use it where it helps.

        Args:
            column: The column, or the dotted path to a field of a struct.
            index_type: "ZONEMAP", the smallest and largest value of each run of rows: the kind for columns by which
                rows lie together, such as days. "BITMAP", the rows of each value. "BTREE", all rows in order of their
                values. "BLOOMFILTER", a filter of the values of each run of rows. "LABEL_LIST", the rows of each
                element of lists. Or an `IndexConfig` of this library or of pylance, with parameters.
            name: Its name; `<column>_idx` by default.
            replace: Whether an index of that name on that column is replaced.
            train: False makes an empty index, which `optimize.optimize_indices` fills.
            **arguments: Parameters of the kind, by name. ZONEMAP: `rows_per_zone`, 8192 by default. BTREE: `zone_size`,
                rows of a page, 4096. BLOOMFILTER: `number_of_items`, rows of a run, 8192; `probability` of a false
                hit, 0.00057.

        Raises:
            SchemaError: The dataset has no such column, or the kind does not fit it.
            InvalidInputError: The kind or the parameter does not exist, or the name is in use.
            UnsupportedError: Indices of that kind are not built here.
            RetryableConflictError: Another writer made an index of that name, or moved the rows, meanwhile.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> [index["name"] for index in flights.list_indices()]
            ['delay_idx']
        """
        self._manifest = create_scalar_index(
            self.snapshot,
            column,
            index_type,
            name,
            replace=replace is not False,
            train=train is not False,
            arguments=arguments,
        )

    def create_index_uncommitted(
        self,
        column: str | Sequence[str],
        index_type: str | IndexConfig | Any,
        name: str | None = None,
        *,
        replace: bool = False,
        fragment_ids: Iterable[int] | None = None,
        index_uuid: str | None = None,
        **arguments: Any,
    ) -> Index:
        """Build an uncommitted segment of an index over some fragments: the part of one worker.

        Args:
            column: As in `create_scalar_index`.
            index_type: As in `create_scalar_index`.
            name: As in `create_scalar_index`.
            replace: Whether there may be an index of that name already.
            fragment_ids: The fragments.
            index_uuid: UUID of the segment; a new one by default.
            **arguments: Parameters of the kind, by name.

        Returns:
            The segment, for `merge_existing_index_segments` or `commit_existing_index_segments`. If neither happens,
            cleanup deletes its files.

        Raises:
            SchemaError: The dataset has no such column, or the kind does not fit it.
            InvalidInputError: No fragments are named, or there is no such fragment, kind or parameter, or the name is
                in use.
            UnsupportedError: Indices of that kind are not built here.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> segment = table.create_index_uncommitted("id", "BTREE", "id_idx", fragment_ids=[0])
            >>> segment.name, segment.fragment_ids
            ('id_idx', {0})
        """
        if fragment_ids is None:
            raise InvalidInputError("create_index_uncommitted requires fragment_ids for distributed index build")
        try:
            key = None if index_uuid is None else uuid.UUID(index_uuid)
        except ValueError as error:
            raise InvalidInputError(f"index_uuid {index_uuid!r} is not a UUID") from error
        segment = build_segment(
            self.snapshot,
            column,
            index_type,
            name,
            fragment_ids=fragment_ids,
            key=key,
            may_exist=replace,
            arguments=arguments,
        )
        return Index.from_record(segment)

    def merge_existing_index_segments(self, segments: Iterable[Index]) -> Index:
        """Merge uncommitted segments of an index into one segment, which is not committed either.

        Args:
            segments: Results of `create_index_uncommitted`, of one kind and column; no two cover the same fragment.

        Raises:
            InvalidInputError: No segment is given, or the segments do not belong together.
            UnsupportedError: Indices of their kind are not built here.
            CorruptFileError: A segment cannot be read.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> segment = table.create_index_uncommitted("id", "BTREE", "id_idx", fragment_ids=[0])
            >>> merged = table.merge_existing_index_segments([segment])
            >>> merged.fragment_ids
            {0}
        """
        return Index.from_record(merge_segments(self.snapshot, _to_records(segments)))

    def commit_existing_index_segments(
        self, index_name: str, column: str | Sequence[str], segments: Iterable[Index]
    ) -> Self:
        """Commit segments as one index, in a new version; they replace its segments over the same fragments.

        Args:
            index_name: Name of the index.
            column: The indexed column.
            segments: Results of `create_index_uncommitted` or `merge_existing_index_segments`.

        Returns:
            This dataset, at the new version.

        Raises:
            SchemaError: The dataset has no such column.
            InvalidInputError: The segments do not belong together, or a segment of the index would lose a part of its
                fragments.
            RetryableConflictError: The indexed rows have moved since the segments were built.
            IncompatibleConflictError: The table was dropped and made again since the segments were built.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> segment = table.create_index_uncommitted("id", "BTREE", "id_idx", fragment_ids=[0])
            >>> table = table.commit_existing_index_segments("id_idx", "id", [segment])
            >>> [index["name"] for index in table.list_indices()]
            ['id_idx']
        """
        self._manifest = commit_segments(self.snapshot, index_name, column, _to_records(segments))
        return self

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
            InvalidInputError: A segment is not given by a UUID.
            UnsupportedError: Indices of its kind are not read.
            CorruptFileError: The index cannot be read.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> flights.prewarm_index("delay_idx")
        """
        reject("prewarm_index", {"with_position": with_position or None})
        prewarm(self.snapshot, name, index_segments)

    def index_statistics(self, index_name: str) -> IndexStatistics:
        """The older name of `stats.index_stats`.

        Raises:
            NotFoundError: There is no index of that name.
            UnsupportedError: The index belongs to the write-ahead log.

        Examples:
            >>> flights = lance.write_dataset({"carrier": ["UA", "AA"], "delay": [11, 4]}, "flights.lance")
            >>> flights.create_scalar_index("delay", "BTREE")
            >>> flights.index_statistics("delay_idx")["num_indexed_rows"]
            2
        """
        warnings.warn(
            "LanceDataset.index_statistics() is deprecated, use LanceDataset.stats.index_stats() instead",
            DeprecationWarning,
            stacklevel=2,
        )
        return index_statistics(self.snapshot, index_name)


def _to_records(segments: Iterable[Index]) -> list[IndexMetadata]:
    """The records of segments.

    Raises:
        ArgumentTypeError: A segment is none of this library.
    """
    listed = list(segments)
    for segment in listed:
        if not isinstance(segment, Index):
            raise ArgumentTypeError(
                f"segments must be results of this library's create_index_uncommitted, not {segment!r:.80}"
            )
    return [segment.to_record() for segment in listed]

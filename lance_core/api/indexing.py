"""Verbs for indices, which other tools build and read. lance_core keeps their records true, and can drop them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypedDict

from lance_core.api.handle import Handle
from lance_core.api.scan import live_count
from lance_core.commit import commit
from lance_core.errors import NotFoundError, UnsupportedError
from lance_core.schema import Schema, quote_path
from lance_core.table.index import IndexMetadata
from lance_core.table.operations import CreateIndex
from lance_core.table.transaction import Transaction

__all__ = ["IndexDescription", "IndexInformation", "IndexSegmentDescription", "IndexingVerbs"]


class IndexInformation(TypedDict):
    """A segment of an index."""

    name: str
    type: str
    uuid: str
    fields: list[str]
    version: int
    fragment_ids: set[int]
    base_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSegmentDescription:
    """A segment of an index.

    Attributes:
        uuid: Names its folder below `_indices/`.
        dataset_version_at_last_update: Version that it was built on.
        fragment_ids: Live fragments that it covers.
        index_version: Version of the index's own format.
        created_at: When it was made.
        size_bytes: Size of its files, if recorded.
        base_id: Base path that it lies in; None for the dataset itself.
        covering_fields: Ids of fields that it stores besides.
    """

    uuid: str
    dataset_version_at_last_update: int
    fragment_ids: set[int]
    index_version: int
    created_at: datetime | None
    size_bytes: int | None
    base_id: int | None
    covering_fields: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDescription:
    """An index.

    Attributes:
        name: Its name.
        index_type: Its kind.
        type_url: Type of the details in its record.
        fields: Ids of the indexed fields.
        field_names: Their dotted paths.
        num_rows_indexed: Rows of the fragments that it covers.
        segments: Its segments.
        total_size_bytes: Size of all its files, if recorded.
    """

    name: str
    index_type: str
    type_url: str
    fields: list[int]
    field_names: list[str]
    num_rows_indexed: int
    segments: list[IndexSegmentDescription]
    total_size_bytes: int | None


class IndexingVerbs(Handle):
    """What a dataset offers to see and drop indices. None can be created for now."""

    @property
    def has_index(self) -> bool:
        """Whether there is an index."""
        return any(not index.is_system for index in self._manifest.indices)

    def describe_indices(self) -> list[IndexDescription]:
        """All indices, by name."""
        groups: dict[str, list[IndexMetadata]] = {}
        for index in self._manifest.indices:
            if not index.is_system:
                groups.setdefault(index.name, []).append(index)
        return [self._describe(group) for _, group in sorted(groups.items())]

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

    def index_statistics(self, *_: Any, **__: Any) -> NoReturn:
        """Not offered: indices are not read."""
        raise UnsupportedError("index_statistics is not offered: indices are kept, not read")

    def _describe(self, group: Sequence[IndexMetadata]) -> IndexDescription:
        first = group[0]
        live = set(self._manifest.fragments.ids)
        segments = [_segment(index, live) for index in group]
        covered = set().union(*(segment.fragment_ids for segment in segments))
        source = self.source
        sizes = [segment.size_bytes for segment in segments if segment.size_bytes is not None]
        return IndexDescription(
            name=first.name,
            index_type=_kind(first.details_type_url),
            type_url=first.details_type_url,
            fields=list(first.fields),
            field_names=[_path(self._manifest.schema, i) for i in first.fields],
            num_rows_indexed=sum(live_count(source, f) for f in self._manifest.fragments if f.id in covered),
            segments=segments,
            total_size_bytes=sum(sizes) if len(sizes) == len(segments) else None,
        )


def _segment(index: IndexMetadata, live: set[int]) -> IndexSegmentDescription:
    created = index.created_at_ms
    return IndexSegmentDescription(
        uuid=str(index.uuid),
        dataset_version_at_last_update=index.dataset_version,
        fragment_ids=set(index.covered_fragments() or ()) & live,
        index_version=index.index_version or 0,
        created_at=None if created is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=created),
        size_bytes=sum(file.size_bytes for file in index.files) if index.files else None,
        base_id=index.base_id,
        covering_fields=list(index.covering_fields),
    )


def _kind(type_url: str) -> str:
    """The kind of an index, from the type of its details: `/lance.table.BTreeIndexDetails` is a BTree."""
    return type_url.rpartition(".")[2].removesuffix("IndexDetails") or "Unknown"


def _path(schema: Schema, field_id: int) -> str:
    parents = {node.id: (node, parent) for node, parent in schema.walk()}
    parts: list[str] = []
    while field_id in parents:
        node, field_id = parents[field_id]
        parts.append(node.name)
    return quote_path(parts[::-1])

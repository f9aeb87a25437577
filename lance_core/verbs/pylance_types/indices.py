"""Public records of index segments and their files, in the shape of pylance's classes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyroaring import BitMap

from lance_core.table import index as records


@dataclass
class IndexFile:
    """A file of an index segment.

    Attributes:
        path: Path relative to the segment's folder.
        size_bytes: Size of the file.
    """

    path: str
    size_bytes: int


@dataclass
class Index:
    """One segment of an index.

    Attributes:
        uuid: Id of the segment, and name of its folder below `_indices/`.
        name: Name of the index.
        fields: Ids of the indexed fields.
        dataset_version: Version that it was built on.
        fragment_ids: Fragments that it covers.
        index_version: Version of the index's own format.
        created_at: When it was created.
        base_id: Base path that it lies in; None for the dataset itself.
        files: Its files, if recorded.
        index_details: Type and serialized value of the details, which depend on the kind of index.
        covering_fields: Ids of further fields whose values it stores.
    """

    uuid: str
    name: str
    fields: list[int]
    dataset_version: int
    fragment_ids: set[int]
    index_version: int
    created_at: datetime | None = None
    base_id: int | None = None
    files: list[IndexFile] | None = None
    index_details: tuple[str, bytes] | None = None
    covering_fields: list[int] = field(default_factory=list)

    def to_record(self) -> records.IndexMetadata:
        """The record of the table layer."""
        url, details = self.index_details or ("", b"")
        return records.IndexMetadata(
            uuid=uuid.UUID(self.uuid),
            name=self.name,
            fields=tuple(self.fields),
            dataset_version=self.dataset_version,
            fragment_bitmap=BitMap(sorted(self.fragment_ids)).serialize(),
            details_type_url=url,
            details=details,
            index_version=self.index_version,
            created_at_ms=None if self.created_at is None else round(self.created_at.timestamp() * 1000),
            base_id=self.base_id,
            files=tuple(records.IndexFile(path=file.path, size_bytes=file.size_bytes) for file in self.files or ()),
            covering_fields=tuple(self.covering_fields),
        )

    @classmethod
    def from_record(cls, record: records.IndexMetadata) -> Index:
        """The inverse of `to_record`."""
        created = record.created_at_ms
        return cls(
            uuid=str(record.uuid),
            name=record.name,
            fields=list(record.fields),
            dataset_version=record.dataset_version,
            fragment_ids=set(record.covered_fragments() or ()),
            index_version=record.index_version or 0,
            created_at=None if created is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=created),
            base_id=record.base_id,
            files=[IndexFile(path=file.path, size_bytes=file.size_bytes) for file in record.files] or None,
            index_details=(record.details_type_url, record.details) if record.details_type_url else None,
            covering_fields=list(record.covering_fields),
        )

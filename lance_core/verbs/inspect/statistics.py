"""Statistics of a dataset, its fields and its indices, from metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from lance_core.arguments import checked_methods
from lance_core.file.reader import DataFileReader
from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.inspect.indices import IndexStatistics, index_statistics
from lance_core.verbs.scan.read_fragment import with_all_row_counts

SMALL_FILE_ROWS = 1024


class DatasetStats(TypedDict):
    """Counters of a dataset."""

    num_deleted_rows: int
    num_fragments: int
    num_small_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """Storage of one field.

    Attributes:
        id: Field id.
        bytes_on_disk: Bytes of its pages as they are stored, compressed or not.
    """

    id: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStatistics:
    """Storage of all fields.

    Attributes:
        fields: One per field, parents before children.
    """

    fields: list[FieldStatistics]


@checked_methods
class LanceStats:
    """Statistics of one version.

    Args:
        snapshot: The version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def dataset_stats(self, max_rows_per_group: int = SMALL_FILE_ROWS) -> DatasetStats:
        """Deleted rows, fragments, and fragments of fewer rows than `max_rows_per_group`."""
        fragments = with_all_row_counts(self._snapshot)
        return {
            "num_deleted_rows": fragments.totals()[0],
            "num_fragments": len(fragments),
            "num_small_files": int((fragments.sizes()[1] < max_rows_per_group).sum()),
        }

    def data_stats(self) -> DataStatistics:
        """Bytes of each field; the metadata of every data file is read."""
        sizes = {node.id: 0 for node, _ in self._snapshot.manifest.schema.walk()}
        for fragment in self._snapshot.manifest.fragments:
            for field_id, size in field_sizes(self._snapshot, fragment).by_field.items():
                if field_id in sizes:
                    sizes[field_id] += size
        return DataStatistics(fields=[FieldStatistics(id=i, bytes_on_disk=size) for i, size in sizes.items()])

    def index_stats(self, index_name: str) -> IndexStatistics:
        """Statistics of an index: its kind, and the fragments and rows that it covers and misses.

        `indices` and `segments` come from its own files, for kinds that are read; pylance has them for all.

        Raises:
            NotFoundError: There is no index of that name.
            UnsupportedError: The index belongs to the write-ahead log.
        """
        return index_statistics(self._snapshot, index_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSizes:
    """Bytes of the fields of one fragment.

    Attributes:
        by_field: Bytes of the pages of each field, by its id; payloads of blobs are not in pages.
        total: Bytes of its data files, without the pages of columns that later files replaced.
    """

    by_field: Mapping[int, int]
    total: int


def field_sizes(snapshot: Snapshot, fragment: Fragment) -> FieldSizes:
    """Bytes of the fields of a fragment; the metadata of its data files is read."""
    by_field: dict[int, int] = {}
    total = 0
    for file in fragment.files:
        store, key = snapshot.data_file(file)
        metadata = DataFileReader.open(store, key, size=file.file_size_bytes or None).metadata
        total += metadata.size_bytes
        for field_id, column in zip(file.fields, file.column_indices, strict=False):
            if not 0 <= column < len(metadata.columns):
                continue
            size = sum(sum(page.buffer_sizes) for page in metadata.columns[column].messages)
            if field_id == TOMBSTONE:
                total -= size
            else:
                by_field[field_id] = by_field.get(field_id, 0) + size
    return FieldSizes(by_field=by_field, total=total)

"""What can be told about a dataset without reading its rows: statistics, its files, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit import list_versions, load_manifest
from lance_core.errors import CorruptFileError, VersionNotFoundError
from lance_core.file.reader import DataFileReader
from lance_core.file.version import FileVersion
from lance_core.store import ObjectStore
from lance_core.table.fragment import DataFile, Fragment
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest import Manifest
from lance_core.table.paths import transaction_key
from lance_core.table.rowids import row_record_problems
from lance_core.verbs.inspect.indices import IndexStatistics, index_statistics
from lance_core.verbs.version.source import Source

__all__ = [
    "DataStatistics",
    "DatasetStats",
    "FieldStatistics",
    "LanceStats",
    "all_files",
    "check_columns",
    "tracked_files",
    "validate",
    "validate_fragment",
]

SMALL_FILE_ROWS = 1024


class DatasetStats(TypedDict):
    """Counters of a dataset."""

    num_deleted_rows: int
    num_fragments: int
    num_small_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """What a field takes.

    Attributes:
        id: Field id.
        bytes_on_disk: Bytes of its pages, compressed as they are.
    """

    id: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStatistics:
    """What the fields take.

    Attributes:
        fields: One per field, parents before children.
    """

    fields: list[FieldStatistics]


class LanceStats:
    """Statistics of one version.

    Args:
        source: The version.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def dataset_stats(self, max_rows_per_group: int = SMALL_FILE_ROWS) -> DatasetStats:
        """Deleted rows, fragments, and fragments of fewer rows than `max_rows_per_group`."""
        messages = list(self._source.manifest.fragments.messages())
        return {
            "num_deleted_rows": sum(message.deletion_file.num_deleted_rows for message in messages),
            "num_fragments": len(messages),
            "num_small_files": sum(message.physical_rows < max_rows_per_group for message in messages),
        }

    def data_stats(self) -> DataStatistics:
        """Bytes of each field; the metadata of every data file is read."""
        sizes = {node.id: 0 for node, _ in self._source.manifest.schema.walk()}
        for fragment in self._source.manifest.fragments:
            for file in fragment.files:
                store, key = self._source.data_file(file)
                columns = DataFileReader.open(store, key, size=file.file_size_bytes or None).metadata.columns
                for field_id, column in zip(file.fields, file.column_indices, strict=False):
                    if field_id in sizes and 0 <= column < len(columns):
                        pages = columns[column].messages
                        sizes[field_id] += sum(sum(page.buffer_sizes) for page in pages)
        return DataStatistics(fields=[FieldStatistics(id=i, bytes_on_disk=size) for i, size in sizes.items()])

    def index_stats(self, index_name: str) -> IndexStatistics:
        """What is known of an index: its kind, how many fragments and rows it covers and misses.

        `indices` and `segments` come from its own files, for kinds that are read; pylance has them for all.

        Raises:
            NotFoundError: There is no index of that name.
            UnsupportedError: It belongs to the write-ahead log.
        """
        return index_statistics(self._source, index_name)


def validate(source: Source) -> None:
    """Check that a version is sound: ids, files, row counts and deletions fit together.

    Raises:
        CorruptFileError: They do not; the error names the first thing that is wrong.
    """
    manifest = source.manifest
    field_ids = [node.id for node, _ in manifest.schema.walk()]
    if len(set(field_ids)) < len(field_ids):
        raise CorruptFileError(f"Duplicate field id in schema: {sorted(field_ids)}")
    ids = list(manifest.fragments.ids)
    if ids != sorted(set(ids)):
        raise CorruptFileError(f"Fragment ids are not unique and ascending: {ids[:20]}")
    if manifest.max_fragment_id is not None and ids and ids[-1] > manifest.max_fragment_id:
        raise CorruptFileError(f"Fragment id {ids[-1]} is above the highest that is recorded")
    uuids = [index.uuid for index in manifest.indices]
    if len(set(uuids)) < len(uuids):
        raise CorruptFileError("Duplicate index id")
    _validate_coverage(manifest.indices, BitMap(ids))
    for fragment in manifest.fragments:
        validate_fragment(source, fragment)


def _validate_coverage(indices: Sequence[IndexMetadata], live: BitMap) -> None:
    """Check that no live fragment is covered by two segments of an index."""
    covered: dict[str, BitMap] = {}
    for index in indices:
        own = (index.covered_fragments() or BitMap()) & live
        others = covered.get(index.name, BitMap())
        if own & others:
            raise CorruptFileError(f"index {index.name!r} has several segments over fragments {list(own & others)}")
        covered[index.name] = others | own


def validate_fragment(source: Source, fragment: Fragment) -> None:
    """Check that the files, row counts and deletions of a fragment fit together.

    Raises:
        CorruptFileError: They do not.
    """
    taken: set[int] = set()
    rows = None
    for file in fragment.files:
        live = [i for i in file.fields if i >= 0]
        if taken.intersection(live):
            raise CorruptFileError(f"Fragment {fragment.id}: field {min(taken & set(live))} lies in two files")
        if len(set(live)) < len(live):
            raise CorruptFileError(f"data file {file.path}: a field id stands in it twice, of {live[:20]}")
        taken.update(live)
        store, key = source.data_file(file)
        reader = DataFileReader.open(store, key, size=file.file_size_bytes or None)
        reader.check()
        check_columns(file, reader)
        if rows is not None and reader.num_rows != rows:
            raise CorruptFileError(f"Fragment {fragment.id}: its data files have {rows} and {reader.num_rows} rows")
        rows = reader.num_rows
    for message in row_record_problems(fragment):
        raise CorruptFileError(f"Fragment {fragment.id}: {message}")
    if rows is not None and fragment.physical_rows not in (0, rows):
        raise CorruptFileError(f"Fragment {fragment.id}: {fragment.physical_rows} rows are recorded, {rows} are there")
    deletions = source.deletions(fragment)
    if deletions is None:
        return
    recorded = fragment.num_deleted_rows
    if recorded and recorded != len(deletions):
        raise CorruptFileError(f"Fragment {fragment.id}: {recorded} deletions are recorded, {len(deletions)} are there")
    if rows is not None and deletions.bitmap.max() >= rows:
        raise CorruptFileError(f"Fragment {fragment.id}: deletion vector contains an offset that is out of range")


def check_columns(file: DataFile, reader: DataFileReader) -> None:
    """Check that the columns that a manifest names are in the file.

    Raises:
        CorruptFileError: One is not, or they are misnamed.
    """
    pairs = file.columns()
    if reader.version is FileVersion.V0_1:
        return
    count = len(reader.metadata.columns)
    for field_id, index in pairs:
        if index >= count:
            raise CorruptFileError(f"data file {file.path}: field {field_id} is said to be column {index} of {count}")


TRACKED_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int64(), nullable=False),
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("type", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    ]
)

ALL_SCHEMA = pa.schema(
    [
        pa.field("base_uri", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


def tracked_files(
    source: Source, min_version: int | None, progress: Callable[[int, int | None], object] | None
) -> pa.RecordBatchReader:
    """All files that versions refer to: a batch per version, newest first.

    Args:
        source: A version of the dataset.
        min_version: Leave out older versions.
        progress: Called after each version with how many were looked at, and of how many.
    """
    versions = [number for number in list_versions(source.store) if min_version is None or number >= min_version]

    def batches() -> Iterator[pa.RecordBatch]:
        for done, number in enumerate(reversed(versions), start=1):
            try:
                manifest = load_manifest(source.store, number)
            except VersionNotFoundError:
                continue  # cleaned up meanwhile
            yield _tracked(Source(source.store, manifest, source.options))
            if progress is not None:
                progress(done, len(versions))

    return pa.RecordBatchReader.from_batches(TRACKED_SCHEMA, batches())


def all_files(store: ObjectStore) -> pa.RecordBatchReader:
    """All files below the dataset's root, with size and time."""
    found = list(store.list(""))
    columns = [
        pa.array([store.root] * len(found), pa.string()).dictionary_encode(),
        pa.array([meta.key for meta in found], pa.string()),
        pa.array([meta.size for meta in found], pa.int64()),
        pa.array([round(meta.modified * 1_000_000) for meta in found], pa.timestamp("us", "UTC")),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=ALL_SCHEMA)
    return pa.RecordBatchReader.from_batches(ALL_SCHEMA, [batch])


def _tracked(source: Source) -> pa.RecordBatch:
    rows = list(_files(source, source.manifest))
    kinds = pa.array([kind for _, _, kind in rows], pa.string()).dictionary_encode().cast(TRACKED_SCHEMA.field(3).type)
    columns = [
        pa.array([source.manifest.version] * len(rows), pa.int64()),
        pa.array([base for base, _, _ in rows], pa.string()).dictionary_encode(),
        pa.array([path for _, path, _ in rows], pa.string()),
        kinds,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACKED_SCHEMA)


def _files(source: Source, manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yield root, key and kind of the files that a version refers to."""
    own = source.store.root
    if manifest.location is not None:
        yield own, manifest.location.key, "manifest"
    if manifest.transaction_file:
        yield own, transaction_key(manifest.transaction_file), "transaction file"
    for fragment in manifest.fragments:
        for file in fragment.files:
            store, key = source.data_file(file)
            yield store.root, key, "data file"
        if fragment.deletion_file is not None:
            store, key = source.deletion_file(fragment)
            yield store.root, key, "deletion file"
    for index in manifest.indices:
        store, folder = source.index_folder(index)
        names = [file.path for file in index.files]
        keys = [folder + name for name in names] if names else [meta.key for meta in store.list(folder)]
        for key in keys:
            yield store.root, key, "index file"

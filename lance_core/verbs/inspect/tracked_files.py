"""List the files that versions refer to, and all files below the root of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from lance_core.commit.versions import existing_versions, find_manifest
from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import transaction_key
from lance_core.verbs.context.handle import Snapshot

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
    snapshot: Snapshot, min_version: int | None, progress: Callable[[int, int | None], object] | None
) -> pa.RecordBatchReader:
    """All files that versions refer to: a batch per version, newest first.

    Args:
        snapshot: A version of the dataset.
        min_version: Leave out older versions.
        progress: Called after each version with the number of versions done and their total.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
    """
    versions = [number for number in existing_versions(snapshot.store) if min_version is None or number >= min_version]

    def batches() -> Iterator[pa.RecordBatch]:
        for done, number in enumerate(reversed(versions), start=1):
            manifest = find_manifest(snapshot.store, number)
            if manifest is None:
                continue  # cleaned up meanwhile
            yield _build_batch(snapshot.with_manifest(manifest))
            if progress is not None:
                progress(done, len(versions))

    return pa.RecordBatchReader.from_batches(TRACKED_SCHEMA, batches())


def all_files(store: ObjectStore) -> pa.RecordBatchReader:
    """All files below the dataset's root, with size and time.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
    """
    files = list(store.list(""))
    if not files:
        existing_versions(store)  # raises if the dataset was dropped
    columns = [
        pa.array([store.root] * len(files), pa.string()).dictionary_encode(),
        pa.array([meta.key for meta in files], pa.string()),
        pa.array([meta.size for meta in files], pa.int64()),
        pa.array([round(meta.modified * 1_000_000) for meta in files], pa.timestamp("us", "UTC")),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=ALL_SCHEMA)
    return pa.RecordBatchReader.from_batches(ALL_SCHEMA, [batch])


def _build_batch(snapshot: Snapshot) -> pa.RecordBatch:
    rows = list(_find_files(snapshot, snapshot.manifest))
    kinds = pa.array([kind for _, _, kind in rows], pa.string()).dictionary_encode().cast(TRACKED_SCHEMA.field(3).type)
    columns = [
        pa.array([snapshot.manifest.version] * len(rows), pa.int64()),
        pa.array([base for base, _, _ in rows], pa.string()).dictionary_encode(),
        pa.array([path for _, path, _ in rows], pa.string()),
        kinds,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACKED_SCHEMA)


def _find_files(snapshot: Snapshot, manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yield root, key and kind of the files that a version refers to."""
    root = snapshot.store.root
    if manifest.location is not None:
        yield root, manifest.location.key, "manifest"
    if manifest.transaction_file:
        yield root, transaction_key(manifest.transaction_file), "transaction file"
    for fragment in manifest.fragments:
        for file in fragment.files:
            store, key = snapshot.data_file(file)
            yield store.root, key, "data file"
        if fragment.deletion_file is not None:
            store, key = snapshot.deletion_file(fragment)
            yield store.root, key, "deletion file"
    for index in manifest.indices:
        store, folder = snapshot.locate_index(index)
        names = [file.path for file in index.files]
        keys = [folder + name for name in names] if names else [meta.key for meta in store.list(folder)]
        for key in keys:
            yield store.root, key, "index file"

"""`write_dataset`: rows into files, then one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import pyarrow as pa

from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.errors import DatasetExistsError, InvalidInputError
from lance_core.store import CommitLock, canonical_uri
from lance_core.table.manifest import Manifest
from lance_core.verbs.files.fragment_writer import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, ReaderLike, to_batches
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.version.bases import DatasetBasePath
from lance_core.verbs.version.destination import Destination, opened_destination
from lance_core.verbs.version.handle import Handle
from lance_core.verbs.version.unsupported import refuse
from lance_core.verbs.write.commit_fragments import commit_fragments
from lance_core.verbs.write.write_fragments import check_mode, data_version, targets_of, write_rows

__all__ = ["write_dataset"]


def write_dataset(
    data_obj: ReaderLike,
    uri: str | PathLike[str] | Handle,
    schema: pa.Schema | None = None,
    mode: str = "create",
    *,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_rows_per_group: int | None = None,  # noqa: ARG001 - see below
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    commit_lock: CommitLock | None = None,
    progress: FragmentWriteProgress | None = None,
    storage_options: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    enable_v2_manifest_paths: bool = True,
    enable_stable_row_ids: bool = False,
    auto_cleanup_options: Mapping[str, int] | None = None,
    commit_message: str | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
    **others: Any,
) -> LanceDataset:
    """Write rows to a dataset, in one version.

    Args:
        data_obj: A table, batch, reader, frame, dataset, or an iterable of batches with `schema`.
        uri: The dataset's root, or a dataset, whose version the write is then based on.
        schema: Schema of the rows; needed only for an iterable of batches.
        mode: "create", "append" or "overwrite"; the latter two create a dataset that does not exist.
        max_rows_per_file: Rows after which a new fragment is begun.
        max_rows_per_group: Rows of a group in 0.1 files; groups are not tuned here, so that it changes no result.
        max_bytes_per_file: Bytes after which a new fragment is begun, counted between batches.
        commit_lock: Given the version that is about to be committed, a context to put its manifest in; the dataset
            that is returned keeps it. None for that of the dataset given.
        progress: Told when a file is begun and when it is complete.
        storage_options: Where and who, under object_store's names.
        data_storage_version: Version of the files; None for the default, or the dataset's own.
        use_legacy_format: The older spelling of that.
        enable_v2_manifest_paths: False gives a dataset that is created the old names of manifests.
        enable_stable_row_ids: Give rows ids that survive compaction; for a dataset that is created.
        auto_cleanup_options: "interval" in versions and "older_than_seconds", kept in the configuration of a dataset
            that is created; pylance's writers act on it.
        commit_message: A text for the history.
        transaction_properties: Texts for the history, by key.
        initial_bases: Base paths of a dataset that is created.
        target_bases: Base paths, by name or URI, that files go to in turns; the dataset's URI stands for itself.
        target_all_bases: All base paths; with True the dataset itself comes first.
        **others: Arguments of pylance's that are not offered; None is ignored, as it means their default.

    Returns:
        The dataset at the version that was written.

    Raises:
        DatasetExistsError: `mode` is "create" and there is a dataset.
        SchemaError: The rows do not fit the dataset, or cannot be stored; nothing was written.
    """
    place, grown = _destination(uri, storage_options, commit_lock, mode, others)
    found, fragments = write_rows(
        place,
        to_batches(data_obj, schema),
        data_storage_version=data_version(data_storage_version, use_legacy_format, place.base),
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
        dataset_schema=None if grown is None else grown.schema,
        targets=targets_of(place, initial_bases or (), target_bases, target_all_bases),
        progress=progress,
    )
    return commit_fragments(
        _dataset(place) if place.base is not None else place.uri,
        fragments,
        found,
        mode=mode,
        read_version=0 if place.base is None else place.base.version,
        commit_message=commit_message,
        transaction_properties=transaction_properties,
        storage_options=place.options,
        data_storage_version=None if grown else data_version(data_storage_version, use_legacy_format, place.base),
        enable_stable_row_ids=enable_stable_row_ids,
        table_config=_auto_cleanup(auto_cleanup_options if place.base is None else None),
        initial_bases=initial_bases or (),
        enable_v2_manifest_paths=enable_v2_manifest_paths,
    ).dataset


def _destination(
    uri: str | PathLike[str] | Handle,
    storage_options: Mapping[str, str] | None,
    commit_lock: CommitLock | None,
    mode: str,
    others: Mapping[str, Any],
) -> tuple[Destination, Manifest | None]:
    """Where to write, and what is appended to, if the mode allows it and all arguments are offered."""
    refuse("write_dataset", others)
    check_mode(mode)
    place = opened_destination(uri, storage_options, commit_lock)
    if place.base is not None and mode == "create":
        raise DatasetExistsError(f"Dataset already exists: {canonical_uri(place.uri)}")
    return place, place.base if mode == "append" else None


def _dataset(place: Destination) -> LanceDataset:
    """The dataset at the version that the write is based on, so that it need not be read again."""
    return LanceDataset(place.uri, storage_options=place.options, manifest=place.base)


def _auto_cleanup(options: Mapping[str, int] | None) -> dict[str, str]:
    if options is None:
        return {}
    unknown = set(options) - {"interval", "older_than_seconds"}
    if unknown:
        raise InvalidInputError(f"auto_cleanup_options: unknown keys {sorted(unknown)}")
    names = {"interval": ("interval", ""), "older_than_seconds": ("older_than", "s")}
    return {f"lance.auto_cleanup.{names[key][0]}": f"{value}{names[key][1]}" for key, value in options.items()}

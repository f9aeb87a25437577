"""`LanceDataset`, a handle on one version of a dataset with all verbs as methods, and `dataset`, which opens it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any

from lance_core.arguments import checked, checked_methods, reject
from lance_core.commit import load_manifest
from lance_core.dataset.arrow_interface import ArrowInterface
from lance_core.dataset.changes import ChangeVerbs
from lance_core.dataset.columns import ColumnVerbs
from lance_core.dataset.commits import CommitVerbs
from lance_core.dataset.configuration import ConfigurationVerbs
from lance_core.dataset.history import HistoryVerbs, Timestamp
from lance_core.dataset.indices import IndexVerbs
from lance_core.dataset.inspection import InspectionVerbs
from lance_core.dataset.maintenance import MaintenanceVerbs
from lance_core.dataset.reading import ReadingVerbs
from lance_core.dataset.refs import RefVerbs
from lance_core.dataset.rows import RowVerbs
from lance_core.errors import InvalidInputError, VersionNotFoundError
from lance_core.store import CommitLock, StorageOptions, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.references import Reference
from lance_core.verbs.context.snapshot import Session

__all__ = ["LanceDataset", "dataset"]


@checked_methods
class LanceDataset(
    ReadingVerbs,
    HistoryVerbs,
    ChangeVerbs,
    RowVerbs,
    ColumnVerbs,
    RefVerbs,
    ConfigurationVerbs,
    IndexVerbs,
    InspectionVerbs,
    CommitVerbs,
    MaintenanceVerbs,
    ArrowInterface,
):
    """A handle on one version of a dataset.

    Reads always see that version; `checkout_latest` moves the handle, and so do the methods that change the dataset. A
    handle can be pickled. Engines that scan Arrow datasets accept a handle as a `pyarrow.dataset.Dataset` (`isinstance`
    is true), and push columns and filters down.
    """


@checked
def dataset(
    uri: str | PathLike[str],
    version: Reference = None,
    asof: Timestamp | None = None,
    *,
    commit_lock: CommitLock | None = None,
    index_cache_size: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    default_scan_options: Mapping[str, Any] | None = None,
    metadata_cache_size_bytes: int | None = None,
    index_cache_size_bytes: int | None = None,
    read_params: Mapping[str, Any] | None = None,
    session: Session | None = None,
    **unsupported: Any,
) -> LanceDataset:
    """Open a dataset.

    Args:
        uri: The dataset's root: a path, or a URI such as `s3://bucket/path`.
        version: A version number, a tag, or (branch, number); None for the latest version.
        asof: The latest version at or before this time; not together with `version`.
        commit_lock: A function from the version that is about to be committed to a context manager, which is held while
            the manifest is put, for stores on which pylance's writers need a lock. This handle and handles derived
            from it hold it for each commit.
        index_cache_size: The older spelling of `index_cache_size_bytes`, in entries of 20 MiB.
        storage_options: Credentials and options of the storage, under object_store's names.
        default_scan_options: Arguments of `scanner` for scans that do not set them; with `with_row_id` or
            `with_row_address` the `schema` of the handle has that column too.
        metadata_cache_size_bytes: About how many bytes of the metadata of files the handle keeps; None for 64 MiB.
        index_cache_size_bytes: About how many bytes of indices the handle keeps; None for 256 MiB.
        read_params: `cache_repetition_index` and `validate_on_decode`, both accepted without effect: the repetition
            index is read with its page, and pages are always checked.
        session: The `session()` of another handle, whose caches this handle shares; the sizes are then those of the
            session.
        **unsupported: Arguments of pylance that are not offered; None is ignored, as it means pylance's default.

    Raises:
        DatasetNotFoundError: There is no dataset.
        VersionNotFoundError: The version or tag does not exist, or all versions are later than `asof`.
        InvalidInputError: Both `version` and `asof` are given, or a key of `read_params` is not known.
        UnsupportedError: An argument is not offered.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> lance.dataset("t.lance").count_rows()
        4
        >>> lance.dataset("t.lance", version=1).count_rows()
        3
    """
    reject("dataset", unsupported)
    _check_read_params(read_params)
    if index_cache_size is not None:
        warnings.warn(
            "The 'index_cache_size' parameter is deprecated. Use 'index_cache_size_bytes' instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        if index_cache_size_bytes is None:
            index_cache_size_bytes = index_cache_size * 20 * 1024 * 1024
    shared_session = session if session is not None else Session(index_cache_size_bytes, metadata_cache_size_bytes)
    if version is not None and asof is not None:
        raise InvalidInputError("version and asof cannot be given together")
    manifest = _load_numbered(uri, storage_options, version)
    opened = LanceDataset(
        uri,
        storage_options=storage_options,
        commit_lock=commit_lock,
        manifest=manifest,
        session=shared_session,
        default_scan_options=default_scan_options,
    )
    if manifest is not None:
        return opened
    if asof is not None:
        return opened.checkout_version(opened.version_as_of(asof))
    return opened if version is None else opened.checkout_version(version)


def _check_read_params(params: Mapping[str, Any] | None) -> None:
    unknown = sorted(set(params or ()) - {"cache_repetition_index", "validate_on_decode"})
    if unknown:
        raise InvalidInputError(
            f"read_params: {', '.join(unknown)} is not known; there are cache_repetition_index and validate_on_decode"
        )


def _load_numbered(
    uri: str | PathLike[str], storage_options: Mapping[str, str] | None, version: Reference
) -> Manifest | None:
    """The manifest of a version by its number, without reading the latest version; None if it does not exist."""
    if not isinstance(version, int) or isinstance(version, bool):
        return None
    try:
        return load_manifest(open_store(uri, StorageOptions(storage_options)), version)
    except VersionNotFoundError:
        return None

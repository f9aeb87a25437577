"""`LanceDataset`, a handle on one version of a dataset with all verbs as methods, and `dataset`, which opens it.

A handle is a `pyarrow.dataset.Dataset` too, so that engines such as DuckDB push columns and filters down to scans.

    pyarrow.dataset or duckdb imported already  ->  handles are of a subclass of LanceDataset and of Arrow's Dataset
    neither                                     ->  handles are plain; isinstance(handle, Dataset) holds by __class__

Arrow's module of datasets imports pandas, which takes half a second, so that it is not imported here. An engine that
checks for Arrow's class has imported the module itself, usually before a table is opened. A plain handle that DuckDB
sees later is read as a stream of all columns, with the same rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, ClassVar, NoReturn

from lance_core.arguments import checked, checked_methods, reject
from lance_core.commit import load_manifest
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
from lance_core.errors import InvalidInputError, UnsupportedError, VersionNotFoundError
from lance_core.store import CommitLock, StorageOptions, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.references import Reference
from lance_core.verbs.context.snapshot import Session

__all__ = ["ArrowInterface", "LanceDataset", "dataset"]


_ENGINES = ("pyarrow.dataset", "duckdb")
"""Modules that look for Arrow's class."""

_classes: dict[Any, Any] = {}
"""By class of handles, its subclass that also derives from Arrow's class."""


def _make_arrow_class(handle_class: Any) -> Any:
    """A subclass of a class of handles and of Arrow's datasets, under the name of the first."""
    if handle_class not in _classes:
        import pyarrow.dataset  # noqa: PLC0415 - it imports pandas

        names = {
            "plain_class": handle_class,
            "__module__": handle_class.__module__,
            "__doc__": handle_class.__doc__,
            "__qualname__": handle_class.__qualname__,
        }
        _classes[handle_class] = type(handle_class.__name__, (handle_class, pyarrow.dataset.Dataset), names)
    return _classes[handle_class]


class ArrowInterface:
    """What Arrow's datasets offer beyond pylance's methods; part of `LanceDataset`."""

    plain_class: ClassVar[type | None] = None
    """Of a class that derives from Arrow's class, the class of handles that does not; pickles name that class."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Any:
        """Make a handle; its class also derives from Arrow's class if an engine may check for that."""
        has_engine = any(name in sys.modules for name in _ENGINES)
        arrow_class: Any = _make_arrow_class(cls) if has_engine and cls.plain_class is None else cls
        return super(ArrowInterface, arrow_class).__new__(arrow_class)

    @property  # type: ignore[misc]  # it is only read
    def __class__(self) -> Any:
        """The class of the handle: a subclass of Arrow's `Dataset` as soon as `pyarrow.dataset` is imported."""
        handle_class: Any = type(self)
        shown = handle_class.plain_class is None and "pyarrow.dataset" in sys.modules
        return _make_arrow_class(handle_class) if shown else handle_class

    @property
    def partition_expression(self) -> NoReturn:
        """The expression that all rows meet, as Arrow has it for partitions: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        raise _not_offered("partition_expression", "a Lance table is not partitioned by folders")

    def filter(self, expression: Any) -> NoReturn:
        """A view of the rows that meet an Arrow expression: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del expression
        raise _not_offered("filter", "use scanner(filter=...), or to_arrow_dataset().filter(...)")

    def replace_schema(self, schema: Any) -> NoReturn:
        """A view with another schema: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del schema
        raise _not_offered("replace_schema", "use alter_columns, or replace_schema_metadata")

    def sort_by(self, sorting: Any, **options: Any) -> NoReturn:
        """The sorted rows: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del sorting, options
        raise _not_offered("sort_by", "use scanner(order_by=...)")

    def join(self, right_dataset: Any, keys: Any, **options: Any) -> NoReturn:
        """The rows joined to those of another dataset by keys: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, keys, options
        raise _not_offered("join", "use to_table().join(...), or DuckDB over the dataset")

    def join_asof(self, right_dataset: Any, on: Any, by: Any, tolerance: Any, **options: Any) -> NoReturn:
        """The rows joined to the nearest rows of another dataset: not offered, as in pylance.

        Raises:
            UnsupportedError: The method is not offered.
        """
        del right_dataset, on, by, tolerance, options
        raise _not_offered("join_asof", "use to_table().join_asof(...), or DuckDB over the dataset")


def _not_offered(name: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"LanceDataset.{name} is not offered: {remedy}")


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

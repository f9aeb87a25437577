"""`LanceDataset`, a handle on one version of a dataset with all verbs as methods, and the functions that return one.

`dataset` opens a dataset, `write_dataset` writes one.

A handle is a `pyarrow.dataset.Dataset` too, so that engines such as DuckDB push columns and filters down to scans.

    pyarrow.dataset or duckdb imported already  ->  handles are of a subclass of LanceDataset and of Arrow's Dataset
    neither                                     ->  handles are plain; isinstance(handle, Dataset) holds by __class__

Arrow's module of datasets imports pandas, which takes half a second, so that it is not imported here. An engine that
checks for Arrow's class has imported the module itself, usually before a table is opened. A plain handle that DuckDB
sees later is read as a stream of all columns, with the same rows.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from lance_core.arguments import checked, checked_methods, reject
from lance_core.commit.attempts import AttemptProperties
from lance_core.commit.versions import find_manifest, make_already_exists_error
from lance_core.dataset.columns import ColumnVerbs
from lance_core.dataset.commits import CommitVerbs
from lance_core.dataset.computing import ComputeVerbs
from lance_core.dataset.configuration import ConfigurationVerbs
from lance_core.dataset.history import HistoryVerbs, Timestamp
from lance_core.dataset.indices import IndexVerbs
from lance_core.dataset.inspection import InspectionVerbs
from lance_core.dataset.maintenance import MaintenanceVerbs
from lance_core.dataset.reading import ReadingVerbs
from lance_core.dataset.refs import RefVerbs
from lance_core.dataset.rows import RowVerbs
from lance_core.errors import DatasetNotFoundError, InvalidInputError, UnsupportedError
from lance_core.store import CommitLock, Namespace, StorageOptions, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.context.handle import Handle, Session, TableTarget, resolve_target
from lance_core.verbs.context.references import Reference
from lance_core.verbs.files.fragment_writer import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, ReaderLike
from lance_core.verbs.files.progress import FragmentWriteProgress
from lance_core.verbs.inspect.listing import check_listed
from lance_core.verbs.write.commit_fragments import Write
from lance_core.verbs.write.write_version import WriteOptions, check_rows, write_version

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
    RowVerbs,
    ColumnVerbs,
    ComputeVerbs,
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
    uri: str | PathLike[str] | None = None,
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
    namespace_client: Any = None,
    table_id: Sequence[str] | None = None,
    **unsupported: Any,
) -> LanceDataset:
    """Open a dataset.

    Args:
        uri: The dataset's root: a path, or a URI such as `s3://bucket/path`; None with `table_id`.
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
        namespace_client: The namespace that gives the location and storage options of `table_id`: a client, such as
            `lance_namespace.connect` returns, or properties such as `{"impl": "rest", "uri": "https://..."}`.
        table_id: The parts of the table's id, such as `["shop", "orders"]`.
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
    if uri is None or table_id is not None or namespace_client is not None:
        uri, storage_options = _locate(uri, namespace_client, table_id, storage_options)
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


def _locate(
    uri: object,
    source: Any,
    table_id: Sequence[str] | None,
    storage_options: Mapping[str, str] | None,
    *,
    declares: bool = False,
) -> tuple[str, dict[str, str]]:
    """The location and the storage options of a table of a namespace.

    Raises:
        InvalidInputError: The namespace or the id is missing, or there is a URI as well.
    """
    if uri is not None or source is None or not table_id or isinstance(table_id, str):
        raise InvalidInputError(
            "a dataset is named by its uri alone, or by namespace_client and table_id, which is a list such as "
            "['shop', 'orders']"
        )
    namespace = Namespace(source)
    location, options = namespace.declare(table_id) if declares else namespace.describe(table_id)
    return location, {**(storage_options or {}), **options}


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
    return find_manifest(open_store(uri, StorageOptions(storage_options)), version)


@checked
def write_dataset(
    data_obj: ReaderLike,
    uri: str | PathLike[str] | Handle | None = None,
    schema: pa.Schema | None = None,
    mode: str | None = "create",
    *,
    max_rows_per_file: int | None = MAX_ROWS_PER_FILE,
    max_rows_per_group: int | None = None,
    max_bytes_per_file: int | None = MAX_BYTES_PER_FILE,
    commit_lock: CommitLock | None = None,
    progress: FragmentWriteProgress | None = None,
    storage_options: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
    use_legacy_format: bool | None = None,
    enable_v2_manifest_paths: bool | None = True,
    enable_stable_row_ids: bool = False,
    auto_cleanup_options: Mapping[str, int] | None = None,
    commit_message: str | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    initial_bases: Sequence[DatasetBasePath] | None = None,
    target_bases: Sequence[str] | None = None,
    target_all_bases: bool | None = None,
    allow_external_blob_outside_bases: bool = False,
    namespace_client: Any = None,
    table_id: Sequence[str] | None = None,
    **unsupported: Any,
) -> LanceDataset:
    """Write rows to a dataset, in one version.

    Args:
        data_obj: A table, batch, reader, frame, dataset, or an iterable of batches with `schema`.
        uri: The dataset's root, or a dataset, whose version the write is then based on; None with `table_id`.
        schema: Schema of the rows; needed only for an iterable of batches.
        mode: "create", "append" or "overwrite"; the latter two create a dataset that does not exist.
        max_rows_per_file: Rows after which a new fragment is begun; None for the default.
        max_rows_per_group: Accepted for compatibility with pylance, without effect.
        max_bytes_per_file: Bytes after which a new fragment is begun, counted between batches; None for the default.
        commit_lock: A function from the version that is about to be committed to a context manager, which is held while
            the manifest is put; the returned dataset keeps it. None for the lock of the given dataset.
        progress: Called when a file begins and when it is complete.
        storage_options: Credentials and options of the storage, under object_store's names.
        data_storage_version: Version of the files; None for the default, or the dataset's own.
        use_legacy_format: The older spelling of `data_storage_version`.
        enable_v2_manifest_paths: False gives a dataset that is created the old names of manifests.
        enable_stable_row_ids: Give rows ids that survive compaction; for a dataset that is created.
        auto_cleanup_options: "interval" in versions, by default 20, and "older_than_seconds", by default 14 days, kept
            in the configuration of a dataset that is created; commits of this library and of pylance act on it.
        commit_message: A string for the history.
        transaction_properties: Strings for the history, by key. With those of `lance_dagster.pipes.commit_properties`
            the write may be attempted several times: it replaces the rows of earlier attempts.
        initial_bases: Base paths of a dataset that is created.
        target_bases: Base paths, by name or URI, to which files are written round-robin; the dataset's URI stands for
            its root.
        target_all_bases: Write files to all base paths, round-robin: True with the dataset's root first, False without
            it.
        allow_external_blob_outside_bases: Whether URIs of blobs may lie outside of the base paths that are not
            datasets.
        namespace_client: The namespace that gives the location and storage options of `table_id`, as in `dataset`.
        table_id: The parts of the table's id; a missing one is declared after the first batch was checked.
        **unsupported: Arguments of pylance that are not offered; None is ignored, as it means pylance's default.

    Returns:
        The dataset at the version that was written.

    Raises:
        DatasetExistsError: `mode` is "create" and there is a dataset; or `table_id` is the id of a namespace.
        DatasetNotFoundError: The table was removed from its namespace during the write.
        SchemaError: The rows do not fit the dataset, or cannot be stored; nothing was written.

    Examples:
        >>> flights = pa.table({"carrier": ["UA", "AA"], "delay": [11, 4]})
        >>> lance.write_dataset(flights, "flights.lance", commit_message="first load").version
        1
        >>> lance.write_dataset(flights, "flights.lance", mode="append").count_rows()
        4
    """
    options = WriteOptions.of(mode, locals())
    reject("write_dataset", unsupported)
    if isinstance(transaction_properties, AttemptProperties):
        _check_attempt(options)
    if uri is None or table_id is not None or namespace_client is not None:
        try:
            uri, storage_options = _locate(uri, namespace_client, table_id, storage_options)
        except DatasetNotFoundError:  # what is wrong with the rows is raised before the table is declared
            nowhere = resolve_target(os.curdir, storage_options, commit_lock)
            data_obj, schema = check_rows(data_obj, schema, nowhere, options)
            uri, storage_options = _locate(uri, namespace_client, table_id, storage_options, declares=True)
    target = resolve_target(uri, storage_options, commit_lock)
    if isinstance(transaction_properties, AttemptProperties):
        target, options = _with_attempt(target, options)
    new_target = write_version(data_obj, schema, target, options)
    if table_id is not None:
        check_listed(new_target.uri, table_id, namespace=namespace_client)
    return LanceDataset(new_target.uri, storage_options=new_target.options, manifest=new_target.base)


def _check_attempt(options: WriteOptions) -> None:
    """Check the options of a write that may be attempted several times.

    Raises:
        InvalidInputError: An option is not offered for such a write.
    """
    chosen = {
        "auto_cleanup_options": options.table_config or None,
        "target_bases": options.files.target_bases,
        "target_all_bases": options.files.target_all_bases,
    }
    unusual = [name for name, value in chosen.items() if value is not None]
    if unusual:
        raise InvalidInputError(f"{', '.join(unusual)}: not offered for a write that may be attempted several times")


def _with_attempt(target: TableTarget, options: WriteOptions) -> tuple[TableTarget, WriteOptions]:
    """The target and options of a write that replaces the rows of earlier attempts, found by their properties.

    Raises:
        DatasetExistsError: `mode` is "create", and the dataset has other versions than those of earlier attempts.
    """
    try:
        existing = LanceDataset(target.uri, storage_options=target.options)
    except DatasetNotFoundError:
        existing = None
    commit, write = options.commit.as_attempt(existing, options.write.mode), options.write
    attempt = commit.write_attempt
    assert attempt is not None, "the properties belong to an attempt"
    if existing is not None:
        target = resolve_target(existing, target.options)
        if write.mode == "create":
            if not attempt.earlier or existing.version != max(attempt.earlier):
                raise make_already_exists_error(target.uri)
            attempt, write = replace(attempt, conflict_policy="exclusive"), Write(mode="overwrite")
    return target, replace(options, write=write, commit=replace(commit, write_attempt=attempt))

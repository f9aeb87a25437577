"""Write a version: prepare the write, write its rows into files, and commit once.

prepare      find the version that the write is based on, the targets and the file version
write_rows   write rows into new fragments, which must fit the schema of the base
commit       see `commit_fragments`
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from typing import Any, Final, Self, TypedDict

import pyarrow as pa

from lance_core.commit.records import Commit, committed_or_raise
from lance_core.commit.versions import (
    load_latest,
    make_already_exists_error,
    raise_if_dropped,
    reject_inside_dataset,
    reload_latest,
)
from lance_core.errors import ArgumentTypeError, InvalidInputError, LanceError, ObjectNotFoundError, StoreError
from lance_core.file import FileVersion
from lance_core.file.write_plan import one_by_one
from lance_core.schema import Schema
from lance_core.store import PendingWrites, canonical_uri
from lance_core.store.memory import MemoryStore
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.verbs.context.bases import WriteTarget, write_targets
from lance_core.verbs.context.handle import TableTarget
from lance_core.verbs.context.uncommitted_files import remove_files
from lance_core.verbs.files.conform import external_prefixes
from lance_core.verbs.files.fragment_writer import FileOptions, ReaderLike, open_input_rows
from lance_core.verbs.write.commit_fragments import CommitRequest, Write, commit_request

_logger = logging.getLogger(__name__)

WRITE_MODES: Final = ("create", "append", "overwrite")


OPTION_NAMES: Final = frozenset(option.name for option in fields(FileOptions)) | {
    "auto_cleanup_options",
    "commit_message",
    "transaction_properties",
    "use_legacy_format",
}
"""The arguments of `write_dataset` that are options of a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What is written, how its files are made, and how it is committed.

    Attributes:
        write: What is written.
        files: How files are made.
        commit: How it is committed.
        table_config: Configuration of a table that is created.
    """

    write: Write
    files: FileOptions
    commit: Commit
    table_config: Mapping[str, str]

    @classmethod
    def of(cls, mode: str | None, arguments: Mapping[str, Any]) -> Self:
        """The options from the arguments of `write_dataset`; other entries are ignored.

        Raises:
            InvalidInputError: The mode is unknown.
        """
        mode = "create" if mode is None else mode.lower()  # None as in pylance
        if mode not in WRITE_MODES:
            raise InvalidInputError(f'mode must be "create", "append" or "overwrite", not {mode!r}')
        return cls(
            write=Write(mode=mode),
            files=FileOptions.of(arguments),
            commit=Commit.of(arguments),
            table_config=auto_cleanup_keys(arguments.get("auto_cleanup_options")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A write that was checked and can begin.

    Attributes:
        target: The dataset; its base is the latest version if the caller named no version.
        options: How rows are written.
        version: Version of the new files.
        targets: The targets to which files are written, round-robin.
    """

    target: TableTarget
    options: WriteOptions
    version: FileVersion
    targets: Sequence[WriteTarget]

    @property
    def base_version(self) -> int:
        """Number of the version that the write is based on; 0 if there is no dataset."""
        return 0 if self.target.base is None else self.target.base.version

    @property
    def first_field_id(self) -> int:
        """Id of the first field, if the rows define the columns."""
        return 0 if self.target.base is None else self.target.base.first_new_field_id

    @property
    def appended_to(self) -> Manifest | None:
        """The version whose columns the rows must fit; None if the rows define the columns."""
        return self.target.base if self.options.write.mode == "append" else None

    @property
    def _external_places(self) -> Sequence[str]:
        """Prefixes of the URIs that external blobs may have."""
        if self.options.files.allow_external_blob_outside_bases:
            return ("",)
        base_paths = self.target.base.base_paths if self.target.base is not None else ()
        return external_prefixes([*base_paths, *self.options.files.base_records])

    def write_rows(
        self,
        data: ReaderLike,
        schema: pa.Schema | None,
        dataset_schema: bytes | Schema | None = None,
        pending: PendingWrites | None = None,
    ) -> tuple[pa.Schema, tuple[Fragment, ...]]:
        """Write rows into new fragments; their files are deleted if that fails.

        Args:
            data: The rows.
            schema: Their schema; needed only for an iterable of batches.
            dataset_schema: The schema that the rows must fit; None for that of `appended_to`.
            pending: Waits for the files later; None makes them durable before this returns.

        Returns:
            The schema of the rows, and the fragments.
        """
        if dataset_schema is None and self.appended_to is not None:
            dataset_schema = self.appended_to.schema
        row_schema, batches = open_input_rows(data, schema)
        with replace(self.options.files, data_storage_version=self.version.value).writer(
            self.target.uri,
            row_schema,
            storage_options=self.target.options,
            dataset_schema=dataset_schema,
            targets=self.targets,
            first_field_id=self.first_field_id,
            external_places=self._external_places,
        ) as writer:
            for batch in one_by_one(batches):
                writer.write(batch)
                del batch  # frees its memory before the next batch is made
            return row_schema, writer.finish_records(pending)

    def discard(self, fragments: Sequence[Fragment]) -> None:
        """Delete the files of fragments that were written and will not be committed."""
        targets = {target.base_id: target for target in self.targets}
        for file in (file for fragment in fragments for file in fragment.files):
            target = targets[file.base_id]
            try:
                remove_files([(target.store, target.prefix + file.path)])
            except StoreError as error:
                # The error that led here matters more; cleanup removes the file.
                _logger.warning("%s/%s%s was left behind: %s", target.store.root, target.prefix, file.path, error)


def _check_there(target: TableTarget) -> None:
    """Check that the dataset still exists before files are written for it, if that costs no request.

    Raises:
        DatasetNotFoundError: The dataset was dropped.
        IncompatibleConflictError: The dataset was dropped and created again.
    """
    base = target.base
    if base is None or base.location is None or target.store.put_is_a_request:
        return
    try:
        target.store.head(base.location.key)
    except ObjectNotFoundError:
        reload_latest(target.store, base)  # raises no error if only the version was cleaned up


def prepare(target: TableTarget, options: WriteOptions) -> PreparedWrite:
    """Look up the version that a write is based on, and check that the write can begin.

    Raises:
        InvalidInputError: A base path is not known, or `initial_bases` are given for a dataset
            that exists.
        UnsupportedError: The version that the write is based on has feature flags that are not known.
    """
    files = options.files
    _check_there(target)
    if target.base is None:
        target = replace(target, base=load_latest(target.store))
    if target.base is not None:
        target.base.check_writable()
    else:
        reject_inside_dataset(target.store)
    if target.base is not None and files.initial_bases:
        mode = options.write.mode.capitalize()
        raise InvalidInputError(
            f"Cannot register new bases in {mode} mode: initial_bases can be given only when a dataset is created"
        )
    targets = [WriteTarget(store=target.store)]
    if files.target_bases is not None or files.target_all_bases is not None:
        bases = target.base.base_paths if target.base is not None else files.base_records
        targets = write_targets(
            target.store,
            bases,
            target_bases=files.target_bases,
            target_all_bases=files.target_all_bases,
            options=target.options,
        )
    return PreparedWrite(target=target, options=options, version=_file_version(target.base, files), targets=targets)


def _file_version(base: Manifest | None, files: FileOptions) -> FileVersion:
    """The version of new files: the requested version, else that of the dataset, else the default."""
    version = files.data_storage_version
    if version is None and base is not None:
        version = base.data_storage_version
    return FileVersion.from_string(version)


def check_rows(
    data: ReaderLike, schema: pa.Schema | None, target: TableTarget, options: WriteOptions
) -> tuple[Iterable[pa.RecordBatch | pa.Table], pa.Schema]:
    """Check the rows of a new table, as far as that needs no place for it.

    Args:
        data: The rows.
        schema: Their schema; needed only for an iterable of batches.
        target: Any target, of which nothing is read or written.
        options: How rows are written.

    Returns:
        The rows, which are to be written in place of `data`, as a stream is read up to its first batch; and their
        schema.

    Raises:
        InvalidInputError: An option or the rows cannot be written.
    """
    files = options.files
    bases = files.base_records
    if files.target_bases is not None or files.target_all_bases is not None:
        write_targets(
            target.store,
            bases,
            target_bases=files.target_bases,
            target_all_bases=files.target_all_bases,
            options=target.options,
        )
    row_schema, batches = open_input_rows(data, schema)
    writer, rows = files.writer(target.uri, row_schema), iter(batches)
    first = list(islice(rows, 1))
    for batch in first:
        writer.write(batch.slice(0, 0))
    return chain(first, rows), row_schema


def write_version(
    data: ReaderLike, schema: pa.Schema | None, target: TableTarget, options: WriteOptions
) -> TableTarget:
    """Write rows to a dataset, in one version; see `lance_core.write_dataset`.

    Args:
        data: The rows.
        schema: Their schema; needed only for an iterable of batches.
        target: The dataset; the write is based on `target.base`, or on the latest version if that is None.
        options: How rows are written.

    Returns:
        The target, whose base is the new version.

    Raises:
        DatasetExistsError: The mode is "create" and there is a dataset.
        SchemaError: The rows do not fit the dataset, or cannot be stored; nothing was written.
    """
    mode = options.write.mode
    if mode == "create" and isinstance(target.store, MemoryStore):
        target.store.forget_unused()  # as in pylance, a dataset in memory exists as long as an object refers to it
    prepared = prepare(target, options)
    target, is_new = prepared.target, prepared.target.base is None
    if not is_new and mode == "create":
        raise make_already_exists_error(canonical_uri(target.uri))
    pending = PendingWrites()
    try:
        row_schema, fragments = prepared.write_rows(data, schema, pending=pending)
    except LanceError as error:
        if target.base is not None:
            raise_if_dropped(target.store, target.base, error)
        raise
    request = CommitRequest(
        fragments=fragments,
        schema=row_schema,
        write=options.write,
        commit=options.commit,
        read_version=prepared.base_version,
        table_config=options.table_config if is_new else {},
        # An append keeps the file version of its dataset.
        files=replace(options.files, data_storage_version=None if prepared.appended_to else prepared.version.value),
        first_field_id=prepared.first_field_id,
    )

    def discard() -> None:
        pending.stop()
        prepared.discard(fragments)

    done = committed_or_raise(commit_request(target, request, pending), discard)
    return replace(target, base=done.manifest)


_MOST_SECONDS: Final = 315_576_000_000  # ten thousand years


class AutoCleanupConfig(TypedDict):
    """When commits remove old versions.

    Attributes:
        interval: The number of versions from one cleanup to the next.
        older_than_seconds: Versions older than this are removed.
    """

    interval: int
    older_than_seconds: int


def auto_cleanup_keys(options: Mapping[str, object] | None) -> dict[str, str]:
    """The entries of a table's configuration for automatic cleanup; a key that is missing has pylance's default.

    Raises:
        InvalidInputError: A key is unknown, or a value is negative or too large.
        ArgumentTypeError: A value is not an integer.
    """
    if options is None:
        return {}
    unknown = set(options) - {"interval", "older_than_seconds"}
    if unknown:
        raise InvalidInputError(
            f"auto_cleanup_options has the unknown keys {sorted(unknown)}; it can have interval and older_than_seconds"
        )
    interval, age = (_cleanup_number(key, options.get(key)) for key in ("interval", "older_than_seconds"))
    return {
        "lance.auto_cleanup.interval": f"{20 if interval is None else interval}",
        "lance.auto_cleanup.older_than": "14days" if age is None else f"{age}s",
    }


def _cleanup_number(key: str, value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise ArgumentTypeError(f"auto_cleanup_options: {key} must be an integer, not {type(value).__name__}")
    if value is not None and not 0 <= value <= _MOST_SECONDS:
        raise InvalidInputError(f"auto_cleanup_options: {key} must be from 0 to {_MOST_SECONDS}, not {value}")
    return None if value is None else int(value)

"""One write of a DataFrame, from its preparation to its commit; its tasks can run in any process.

    prepare_write   in the caller      reads the table's version and schema, and checks the write
    WriteJob.task   for the executors  is a picklable function for each partition
    WriteJob.finish once, afterwards   makes one commit from the reports of all partitions
    WriteJob.clean  at the end         deletes files that no version uses, as far as that is known

Only the commit changes the table. A failure before it leaves the table unchanged.
If the outcome of a commit is not known, its files are kept, as a version may use them.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, Final

import pyarrow as pa

import lance_core
from lance_core import CommitResult, FragmentMetadata, LanceDataset, Slices, WriteResult
from lance_core.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    IncompatibleConflictError,
    InvalidInputError,
    RetryableConflictError,
    UnsupportedError,
    VersionNotFoundError,
)
from pyspark_lance.engine.partitions import PartitionFunction
from pyspark_lance.keys.collations import PLAIN_SLICES, check_columns
from pyspark_lance.types.column_names import match_names
from pyspark_lance.writing.committed_batches import batch_of
from pyspark_lance.writing.options import WriteArguments, set_overwrite_mode
from pyspark_lance.writing.orphan_files import cleaning_up, committed_fragments, delete_orphan_files
from pyspark_lance.writing.replace_where import CONFLICT_RETRIES, replace_rows, row_rules
from pyspark_lance.writing.row_checks import all_hashes, slices_of
from pyspark_lance.writing.schema_plan import ADD_FIRST, WritePlan, plan_write
from pyspark_lance.writing.task import TaskReport, WriteReport, WriteTask
from pyspark_lance.writing.update_commit import find_rows_where

_SORTED_OPEN: Final = 8
"""Writers that a task keeps open where the rows of a slice follow each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """A write that was checked; it can be pickled.

    Attributes:
        writing: The task that writes the rows of a partition; names of its files begin with the id of the write.
        plan: The schemas of the write.
        options: The caller's options.
        base_version: Version of the table that the write is based on; 0 if the table does not exist.
        base_identity: Identity of that version, which detects a table that was dropped and made again; None if the
            table does not exist.
    """

    writing: WriteTask
    plan: WritePlan
    options: WriteArguments
    base_version: int
    base_identity: str | None

    def task(self) -> PartitionFunction:
        """The function to run on each partition."""
        return self.writing

    def finish(self, messages: Iterable[bytes]) -> WriteResult | None:
        """Commit what the tasks report, and delete the files that the commit does not use.

        Args:
            messages: The reports of the partitions; an empty partition may have none.

        Returns:
            The result; None if there were no rows and `empty_output` is "skip".

        Raises:
            InvalidInputError: A task found data that cannot be written, or there were no rows and `empty_output` is
                "error".
            CommitConflictError: A concurrent commit conflicts with the write.
            OutcomeUnknownError: The storage did not report whether the commit took effect.
        """
        with cleaning_up(partial(self.clean, ())):
            reports = [TaskReport.from_bytes(message) for message in messages]
            fragments = [fragment for report in reports for fragment in report.fragments]
            if not fragments and self.options.empty_output == "error":
                raise InvalidInputError("there is no row to write, and empty_output is 'error'")
            committed = (
                None if not fragments and self.options.empty_output == "skip" else self._commit(fragments, reports)
            )
        if committed is None:
            self.clean(())
            return None
        self.clean(committed_fragments(committed, fragments))
        return self._result(committed, reports)

    def clean(self, keep: Iterable[FragmentMetadata], *, failed: bool = False) -> None:
        """Delete the files of this write that belong to none of some fragments; see `delete_orphan_files`."""
        delete_orphan_files(self.writing.uri, self.writing.job, keep, self.options.storage_options, failed=failed)

    def _result(self, committed: CommitResult, reports: Sequence[Any]) -> WriteResult:
        rows: Counter[int] = Counter()
        for report in reports:
            rows.update(report.slice_rows)
        slices = self.options.slices
        return WriteResult.of(
            committed,
            [fragment for report in reports for fragment in report.fragments],
            sum(report.rows for report in reports),
            _partition_rows(reports) if slices is None else slices.counted(rows),
        )

    def _commit(self, fragments: list[FragmentMetadata], reports: Sequence[Any]) -> CommitResult:
        options = self.options
        mode, slices = options.mode, options.slices
        if options.replace_where is not None or options.merge_on is not None:
            if not self.base_version:
                return self._create(fragments, reports)
            assert options.merge_on is None, "KeyMergeJob merges into an existing table"
            base, where = self.base(), options.replace_where or ""
            replaced_rows = lance_core.describe_replaced_rows(base.parse_filter(where, assume_utc=options.assume_utc))
            properties = {**(options.commit.properties or {}), **replaced_rows}
            options = replace(options, commit=replace(options.commit, properties=properties))
            retries = min(CONFLICT_RETRIES, options.commit.max_retries)
            return replace_rows(
                base, fragments, options, lambda latest: find_rows_where(latest, where), conflict_retries=retries
            )
        if options.is_dynamic:
            tables = [report.values for report in reports if report.values is not None]
            slices = slices_of(tables, options.partition_by or ())
            mode = "append" if slices is None else "replace"
        return self._commit_fragments(fragments, "create" if mode == "error" else mode, slices)

    def _create(self, fragments: list[FragmentMetadata], reports: Sequence[WriteReport]) -> CommitResult:
        """Create the table for a write that replaces some rows.

        Raises:
            RetryableConflictError: Another writer has created the table, so that the rows to replace must be found
                again.
        """
        if self.options.merge_on is not None:
            all_hashes((report.keys for report in reports), self.options.merge_on)
        try:
            return self._commit_fragments(fragments, "create", None)
        except DatasetExistsError as error:
            raise RetryableConflictError(
                f"{self.writing.uri} was created by another writer during this write; do the write again"
            ) from error

    def _commit_fragments(self, fragments: list[FragmentMetadata], mode: str, slices: Slices | None) -> CommitResult:
        options = self.options
        stream_batch = options.commit.stream_batch or batch_of(options.commit.properties)
        return lance_core.commit_fragments(
            self.writing.uri,
            fragments,
            self.plan.stored,
            mode=mode,
            slices=slices if mode == "replace" or options.require_empty else None,
            require_empty=options.require_empty,
            read_version=self.base_version,
            identity=self.base_identity,
            commit=replace(options.commit, stream_batch=stream_batch),
            files=options.files,
            storage_options=options.storage_options,
            table_config=options.table_config,
            add_columns=options.schema_mode == "add_columns" or bool(self.plan.grown_columns),
        )

    def base(self) -> LanceDataset:
        """The version that the write is based on.

        Raises:
            IncompatibleConflictError: The version was deleted, or belongs to a table that was made again.
        """
        base = open_version(self.writing.uri, self.base_version, self.options.storage_options, self.base_identity)
        assert base is not None, "the version has an identity"
        return base


def _partition_rows(reports: Iterable[WriteReport]) -> dict[str, int]:
    """Rows written by name of the partition, such as `day=2013-01-01`."""
    rows_by_partition: Counter[str] = Counter()
    for report in reports:
        for position, row in enumerate([] if report.values is None else report.values.to_pylist()):
            rows_by_partition[",".join(f"{key}={value}" for key, value in row.items())] += report.slice_rows.get(
                position, 0
            )
    return dict(rows_by_partition)


def open_version(
    uri: str | PathLike[str],
    version: int | None,
    storage_options: Mapping[str, str] | None,
    identity: str | None = None,
) -> LanceDataset | None:
    """A version of a table; None if there is no table.

    Args:
        uri: The table.
        version: The version; None for the latest, 0 if there was no table.
        storage_options: Options of the storage.
        identity: `LanceDataset.identity` of that version, if the caller has read it.

    Raises:
        IncompatibleConflictError: The version with this identity was deleted, or is of a table that was made again.
        VersionNotFoundError: The table has no such version, and no identity was given.
    """
    if identity is not None and not version:
        raise InvalidInputError("identity identifies the version read_version: give read_version as well")
    if version == 0:
        return None
    try:
        base = lance_core.dataset(uri, version, storage_options=storage_options)
    except (DatasetNotFoundError, VersionNotFoundError) as error:
        if identity is not None:
            raise IncompatibleConflictError(
                f"{uri} no longer has version {version}, which was read: the table was dropped, or the version was"
                " cleaned up; do the write again"
            ) from error
        if isinstance(error, VersionNotFoundError):
            raise
        return None
    if identity not in (None, base.identity):
        raise IncompatibleConflictError(
            f"{uri} was dropped and made again since version {version} was read; do the write again"
        )
    return base


def find_earlier_write(uri: str | PathLike[str], options: WriteArguments) -> tuple[WriteResult | None, WriteArguments]:
    """Look for an earlier write with the same `idempotency_key`.

    The table's own state is read first, which records the key even if the version was cleaned up. Then the history is
    searched, newest version first, down to `idempotency_since` or to its beginning. With `read_version` the caller
    asserts that it has searched up to that version.

    Returns:
        The result of the earlier write, or None; and the options for the write, based on the version up to which the
        history was searched, so that the commit searches the versions after it.
    """
    key = options.commit.idempotency_key
    if key is None or options.read_version is not None:
        return None, options
    latest = open_version(uri, None, options.storage_options)
    if latest is None:
        return None, replace(options, read_version=0)
    earlier_commit = latest.find_idempotent_commit(*key, newer_than=options.idempotency_since)
    if earlier_commit is None:
        return None, replace(options, read_version=latest.version)
    version, transaction = earlier_commit
    dataset = latest.checkout_version(version)
    return WriteResult.of_transaction(dataset, transaction, deduplicated=True), options


def prepare_write(source: pa.Schema, uri: str | PathLike[str], options: WriteArguments) -> WriteJob:
    """Read the version and the schema of the table, and make sure that the write is possible.

    Args:
        source: Arrow schema of the batches that Spark hands over.
        uri: The table.
        options: How to write.

    Raises:
        DatasetExistsError: The mode is to create the table, and it exists.
        IncompatibleConflictError: The table is not the one that the caller has read.
        SchemaError: The schemas do not fit; the message names the column.
        UnsupportedError: The rows to replace depend on a column that has a collation.
    """
    uri = lance_core.canonical_uri(uri)  # tasks may have another working directory
    base = open_version(uri, options.read_version, options.storage_options, options.identity)
    options = set_overwrite_mode(options, base)
    if base is not None and options.mode in ("create", "error"):
        raise DatasetExistsError(f"there is already a table at {uri}; mode 'append' or 'overwrite' writes to it")
    if base is not None and options.files.enable_stable_row_ids and not base.has_stable_row_ids:
        raise InvalidInputError(
            f"enable_stable_row_ids: {uri} was created without stable row ids. Leave the option out, or give them to "
            "the table first: LanceDataset.migrate_to_stable_row_ids"
        )
    plan = plan_write(
        source,
        None if base is None else base.schema,
        mode=options.mode,
        schema_mode=options.schema_mode,
        vector_columns=options.vector_columns,
        slices=options.slices,
        case_sensitive=options.case_sensitive,
        has_schema_mode=options.merge_on is None,
        sets_types=options.sets_types,
    )
    options = _respell_options(options, plan.stored.names)
    lacking = plan.new_columns + plan.grown_columns
    if base is not None and lacking and options.keeps_rows and options.mode == "overwrite":
        raise UnsupportedError(f"{uri} lacks columns, or fields of them: {lacking}; {ADD_FIRST}")
    adds = base is not None and options.keeps_rows
    if options.slices is not None:
        check_columns("slices", map(plan.stored.field, options.slices.columns), PLAIN_SLICES)
    if base is not None and adds:
        options = replace(options, files=replace(options.files, data_storage_version=_version_to_add(base, options)))
    writing = WriteTask(
        uri=uri,
        job=uuid.uuid4().hex,
        stored=plan.stored,
        slices=options.slices,
        allow_out_of_partition=options.out_of_partition == "allow",
        rules=row_rules(options, plan.stored) if options.has_rules else None,
        max_open=_SORTED_OPEN if options.cluster else None,
        files=options.files,
        storage_options=options.storage_options,
        dataset_schema=_schema_to_add(base, plan) if base is not None and adds else None,
        external_places=() if base is None else base.external_places,
    )
    version, identity = (0, None) if base is None else (base.version, base.identity)
    return WriteJob(writing=writing, plan=plan, options=options, base_version=version, base_identity=identity)


def _respell_options(options: WriteArguments, columns: list[str]) -> WriteArguments:
    """The options with names of columns as the table spells them; unknown names stay as they are."""

    def spelled(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        spellings = match_names(names or (), columns, exact=options.case_sensitive)
        return None if names is None else tuple(spellings.get(name, name) for name in names)

    return replace(options, partition_by=spelled(options.partition_by), merge_on=spelled(options.merge_on))


def _schema_to_add(base: LanceDataset, plan: WritePlan) -> bytes:
    """The table's schema with its field ids, as it will be once the commit has added the new columns."""
    new = [plan.stored.field(name) for name in (*plan.grown_columns, *plan.new_columns)]
    return base.lance_schema_with(new) if new else base.lance_schema_bytes


def _version_to_add(base: LanceDataset, options: WriteArguments) -> str:
    """The file version of fragments that are added to a table: the table's."""
    file_version = options.files.data_storage_version
    if file_version is not None and file_version != base.data_storage_version:
        raise InvalidInputError(
            f"data_storage_version {file_version!r}: the table has {base.data_storage_version!r}; leave it out, or "
            "write to a new table"
        )
    return base.data_storage_version

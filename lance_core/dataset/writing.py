"""Commit what was prepared before: the fragments of other processes (`commit_fragments`), or a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import Any, Self

import pyarrow as pa

from lance_core.arguments import checked
from lance_core.commit.loop import commit as commit_record
from lance_core.commit.records import Commit, Committed, committed_or_raise
from lance_core.dataset.lance_dataset import LanceDataset
from lance_core.file import FileVersion
from lance_core.table.transaction import FIRST_ADDED_KEY
from lance_core.verbs.context.handle import Handle, TableTarget, resolve_target
from lance_core.verbs.files.fragment_writer import FileOptions
from lance_core.verbs.files.slices import Slices
from lance_core.verbs.pylance_types.fragments import FragmentMetadata
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.write.commit_fragments import CommitRequest, Write, commit_request
from lance_core.verbs.write.commit_operation import check_against_base
from lance_core.verbs.write.commit_outcome import commit_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The result of a commit: its operation, counters, and the versions that it replaced.

    Attributes:
        operation: Name of the operation; "Unknown" if an earlier commit was adopted whose version was cleaned up.
        transaction_uuid: Id of the transaction; empty if its version was cleaned up.
        read_version: Version that the change was based on; 0 for a new dataset, or if its version was cleaned up.
        rows_added: Rows in the new fragments; None if an earlier commit was adopted whose version was cleaned up.
        rows_deleted: Rows that were removed; None if an earlier commit was adopted, or the transaction does not say.
        fragments_added: Number of new fragments; None as for `rows_added`.
        fragments_removed: Number of fragments that were removed; None if an earlier commit was adopted.
        attempts: How often a manifest was put; 0 if an earlier commit was adopted.
        deduplicated: Whether an earlier commit was adopted: it carries the `idempotency_key` property, or is that of an
            earlier attempt of the same write.
        replaced_versions: Versions that earlier attempts of the same write had committed, and that this commit
            replaced.
        overruled_versions: Versions in which other writes had meanwhile filled the same rows, and that this commit
            replaced (`WriteAttempt.conflict_policy`).
        dataset: The dataset at the committed version.
    """

    operation: str = "Unknown"
    transaction_uuid: str = ""
    read_version: int = 0
    rows_added: int | None = None
    rows_deleted: int | None = None
    fragments_added: int | None = None
    fragments_removed: int | None = None
    attempts: int = 0
    deduplicated: bool = False
    replaced_versions: tuple[int, ...] = ()
    overruled_versions: tuple[int, ...] = ()
    dataset: LanceDataset

    @property
    def version(self) -> int:
        """Number of the version that was committed."""
        return self.dataset.version


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult(CommitResult):
    """The result of a write: its commit, and the files that were written for it.

    Attributes:
        rows_written: Rows in the files of this write. This and the other counters here are 0 if an earlier commit was
            adopted.
        bytes_written: Bytes of these files.
        files: Number of these files.
        slice_rows: Rows written by name of the slice; empty without slices.
        rows_inserted: Rows with a new key; None unless rows were merged or updated.
        rows_updated: Rows with new values; None unless rows were merged or updated.
    """

    rows_written: int = 0
    bytes_written: int = 0
    files: int = 0
    slice_rows: Mapping[str, int] = field(default_factory=dict)
    rows_inserted: int | None = None
    rows_updated: int | None = None

    @classmethod
    def of(
        cls,
        committed: CommitResult,
        fragments: Sequence[FragmentMetadata],
        rows: int,
        slice_rows: Mapping[str, int],
        **counts: Any,
    ) -> Self:
        """The result of a write of fragments.

        Args:
            committed: The result of the commit.
            fragments: The fragments that were written for it.
            rows: Rows of the fragments.
            slice_rows: Rows by name of the slice.
            **counts: Fields that the caller knows, in place of those of the commit.
        """
        facts = {attribute.name: getattr(committed, attribute.name) for attribute in fields(CommitResult)}
        if committed.deduplicated:
            return cls(**facts)
        return cls(
            **{**facts, **counts},
            rows_written=rows,
            bytes_written=sum(fragment.num_bytes for fragment in fragments),
            files=sum(len(fragment.files) for fragment in fragments),
            slice_rows=slice_rows,
        )

    @classmethod
    def of_transaction(cls, dataset: LanceDataset, transaction: Transaction | None, **facts: Any) -> Self:
        """The result of a commit that another verb made, derived from its transaction.

        Args:
            dataset: The dataset at the version that was committed.
            transaction: The committed transaction; None if its version was cleaned up.
            **facts: Fields that the caller knows, in place of those of the transaction.

        Returns:
            The result. Bytes and files are those of new fragments; files of new columns are not counted.
        """
        if transaction is None:
            return cls(dataset=dataset, **facts)
        operation = transaction.operation
        new = list(getattr(operation, "new_fragments", ()) or getattr(operation, "fragments", ()))
        if isinstance(operation, LanceOperation.Merge):  # it names the fragments of the whole table
            first = (transaction.transaction_properties or {}).get(FIRST_ADDED_KEY)
            new = [] if first is None else [fragment for fragment in new if fragment.id >= int(first)]
        rows = sum(fragment.physical_rows for fragment in new)
        adopted = facts.get("deduplicated", False)
        derived_facts = {
            "operation": operation.name,
            "transaction_uuid": transaction.uuid,
            "read_version": transaction.read_version,
            "rows_added": rows,
            "rows_deleted": None,
            "fragments_added": len(new),
            "fragments_removed": None if adopted else len(getattr(operation, "removed_fragment_ids", ())),
            "attempts": 0 if adopted else 1,
            "deduplicated": False,
            "rows_written": 0 if adopted else rows,
            "bytes_written": 0 if adopted else sum(fragment.num_bytes for fragment in new),
            "files": 0 if adopted else sum(len(fragment.files) for fragment in new),
        }
        return cls(dataset=dataset, **{**derived_facts, **facts})


@checked
def commit_fragments(
    uri: str | PathLike[str] | Handle,
    fragments: Sequence[FragmentMetadata],
    schema: pa.Schema,
    *,
    mode: str = "append",
    slices: Slices | None = None,
    read_version: int | None = None,
    identity: str | None = None,
    commit: Commit | None = None,
    files: FileOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    table_config: Mapping[str, str] | None = None,
    add_columns: bool = False,
    require_empty: bool = False,
) -> CommitResult:
    """Make fragments part of a dataset.

    Args:
        uri: The dataset's root, or a dataset, whose version is not read again.
        fragments: The results of `FragmentWriter.finish` or `write_fragments`; all must have the same schema.
        schema: The Arrow schema that the fragments were written with.
        mode: "create", "append", "overwrite" or "replace".
        slices: For "replace": the slices whose rows are replaced. For `require_empty`: the slices that must be empty.
        read_version: Version that the data was computed from; commits since then are checked for conflicts. None: the
            latest now, or that of the dataset given. 0: there was no dataset yet.
        identity: `LanceDataset.identity` of `read_version` when it was read, if `uri` is not a dataset; it detects a
            table that was dropped and made again since, which has versions of the same numbers.
        commit: How it is committed: message, properties, and how the commit is recognized if it is made again. If a
            commit after `read_version` has the `idempotency_key`, or the table has a proof of an older one, that commit
            is adopted. Rows that earlier attempts of `write_attempt` committed are replaced.
        files: The version of the files, stable row ids, base paths and names of manifests of a dataset that is created.
        storage_options: Credentials and options of the storage, under object_store's names; None for those of the
            dataset given.
        table_config: Table configuration to set, unless it has these values already. It is part of the same commit if
            that creates or overwrites the dataset; otherwise a version before it sets the configuration, as
            transactions of appends and replacements cannot hold configuration.
        add_columns: Add the columns that the dataset lacks, in the same version; they are null in its rows. A column
            of the type null gets the type that it has in `schema`. The fragments must be written with the schema of
            `LanceDataset.lance_schema_with`.
        require_empty: With "append" or "replace": the slices must have no rows other than those of earlier attempts,
            also in versions that other writers commit meanwhile.

    Raises:
        DatasetExistsError: `mode` is "create" and there is a dataset, or there are rows and `require_empty` is set.
        RetryableConflictError: A concurrent commit changed the same rows or columns as this commit; do the write again.
        IncompatibleConflictError: A concurrent commit rules this one out, or the dataset was dropped and made again
            since it was read.
        SupersededError: A later attempt of the same write has committed.
        EarlierAttemptError: The rows that an earlier attempt appended cannot be identified any more.
        SchemaError: The fragments do not fit the dataset.
        ObjectNotFoundError: A file of the fragments was deleted, such as by a cleanup; nothing was committed. On object
            storage, files that this process wrote within the last hour are not checked.

    Examples:
        >>> rows = pa.table({"id": [1, 2, 3]})
        >>> fragments = lance.write_fragments(rows, "t.lance")
        >>> lance.commit_fragments("t.lance", fragments, rows.schema, mode="create").dataset.version
        1
    """
    files = files or FileOptions()
    if files.data_storage_version is not None:
        files = replace(files, data_storage_version=FileVersion.from_string(files.data_storage_version).value)
    request = CommitRequest(
        fragments=tuple(fragment.to_record() for fragment in fragments),
        schema=schema,
        write=Write(mode=mode, slices=slices, add_columns=add_columns, require_empty=require_empty),
        commit=commit or Commit(),
        files=files,
        read_version=read_version,
        identity=identity,
        table_config=table_config,
    )
    target = resolve_target(uri, storage_options)
    return _make_result(target, committed_or_raise(commit_request(target, request)))


def _make_result(target: TableTarget, done: Committed) -> CommitResult:
    """The result of a commit, with the dataset at the version that was committed."""
    dataset = LanceDataset(target.uri, storage_options=target.options, manifest=done.manifest)
    return CommitResult(dataset=dataset, **commit_facts(done))


@checked
def commit_transaction(dataset: LanceDataset, transaction: Transaction, commit: Commit | None = None) -> CommitResult:
    """Commit a transaction that was computed from a version, unless it was committed already. Not in pylance.

    Args:
        dataset: The dataset at that version, which does not move.
        transaction: The change.
        commit: How it is committed; its message and properties are added to those of the transaction. If a commit after
            the dataset's version has the `idempotency_key`, or the table has a proof of an older one, that commit is
            adopted; the result has its version, or the latest one if it was cleaned up.

    Raises:
        CommitConflictError: Another writer's commit rules this one out.
        SupersededError: A later attempt of the same write has committed.
        EarlierAttemptCommittedError: An earlier attempt has committed that `write_attempt` does not name.
        InvalidInputError: The version that the operation makes could not be read, or would have other rows.
        SchemaError: New rows have values that the dictionary of a table of version 0.1 lacks.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> append = lance.write_fragments(pa.table({"id": [4]}), "t.lance", return_transaction=True)
        >>> once = lance.Commit(idempotency_key=("batch", "2026-01-01"))
        >>> lance.commit_transaction(table, append, once).deduplicated
        False
        >>> lance.commit_transaction(table, append, once).deduplicated
        True
        >>> lance.dataset("t.lance").count_rows()
        4
    """
    record = transaction.to_record()
    options = commit or Commit()
    target = resolve_target(dataset, None)
    check_against_base(target.store, record.operation, target.base, record.read_version)
    done = commit_record(
        target.store,
        replace(record, properties={**record.properties, **options.texts, **options.identity}),
        base=target.base,
        options=options,
        affected_rows=transaction.affected_rows,
    )
    return _make_result(target, done)

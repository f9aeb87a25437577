"""Methods of `LanceDataset` that commit changes prepared elsewhere, such as by other processes, or drop a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import Any, Final, Self, TypedDict

import pyarrow as pa

from lance_core.arguments import reject
from lance_core.commit.records import Committed
from lance_core.commit.versions import load_latest
from lance_core.errors import InvalidInputError, LanceError, SchemaError
from lance_core.store import CommitLock, ObjectStore, open_store
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.paths import TableFormat
from lance_core.verbs.context.drop import drop
from lance_core.verbs.context.handle import Handle, TableTarget, resolve_target
from lance_core.verbs.files.conform import check_column_name
from lance_core.verbs.inspect.listing import MANIFEST_TABLE
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.refs.clones import reject_clones, release_tags
from lance_core.verbs.write.commit_operation import commit_merged, commit_operation, commit_options

COMMIT_TIMEOUT: Final = timedelta(minutes=30)


class BulkCommitResult(TypedDict):
    """The result of `commit_batch`."""

    dataset: Any
    merged: Transaction


class CommitVerbs(Handle):
    """Methods for writers that work in several processes."""

    @classmethod
    def commit(
        cls,
        base_uri: str | PathLike[str] | Handle,
        operation: LanceOperation.BaseOperation | Transaction,
        read_version: int | None = None,
        commit_lock: CommitLock | None = None,
        storage_options: Mapping[str, str] | None = None,
        enable_v2_manifest_paths: bool | None = None,
        detached: bool | None = False,
        max_retries: int = 20,
        *,
        commit_message: str | None = None,
        enable_stable_row_ids: bool | None = None,
        commit_timeout: timedelta | None = COMMIT_TIMEOUT,
        **unsupported: Any,
    ) -> Self:
        """Commit a change that was prepared elsewhere, such as fragments to append, as a new version.

        No file is read: the caller makes sure that the fragments fit the columns.

        Args:
            base_uri: The dataset's root, or a dataset.
            operation: The change, or a transaction with the change in it.
            read_version: Version that the change is based on; optional for Overwrite and Restore.
            commit_lock: A function from the version that is about to be committed to a context manager, which is held
                while the manifest is put, for stores on which pylance's writers need a lock. It is entered once per
                attempt, and the returned dataset keeps it. None for the lock of the given dataset.
            storage_options: Credentials and options of the storage, under object_store's names.
            enable_v2_manifest_paths: False gives a new dataset the old names of manifests.
            detached: Commit outside of the history: the version is found only by its number.
            max_retries: Attempts of the commit, at least one, each rebased on versions of others. With 0 an Overwrite
                must follow its read version directly.
            commit_message: A string for the history; for a transaction, put it among its properties.
            enable_stable_row_ids: Give rows ids that survive compaction; only for a new dataset.
            commit_timeout: Time after which no further attempt starts; None for no limit.
            **unsupported: Arguments of pylance that are not offered.

        Returns:
            The dataset at the new version; a dataset that was passed in does not move.

        Raises:
            CommitConflictError: Another writer's commit rules this one out; `.retryable` says whether doing the
                change again on the latest version can help.
            SchemaError: A column has a name that `write_dataset` would reject.
            ArgumentTypeError: `operation` is neither an operation nor a transaction.
            InvalidInputError: The operation needs a read version, `commit_message` is given with a transaction, or
                the timeout is not positive.
            UnsupportedError: An argument of pylance is not offered.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> fragments = lance.write_fragments(pa.table({"id": [4]}), "t.lance")
            >>> append = lance.LanceOperation.Append(fragments)
            >>> lance.LanceDataset.commit("t.lance", append, read_version=1).version
            2
        """
        reject("commit", unsupported)
        if isinstance(operation, Transaction) and commit_message is not None:
            raise InvalidInputError("commit_message: set it among the properties of the transaction instead")
        target = resolve_target(base_uri, storage_options, commit_lock)
        _check_names(target, operation)
        done = commit_operation(
            target.store,
            operation,
            base=target.base,
            read_version=read_version,
            options=commit_options(
                max_retries=max_retries, commit_timeout=commit_timeout, detached=detached, message=commit_message
            ),
            table_format=TableFormat.of(None, enable_stable_row_ids, enable_v2_manifest_paths),
        )
        return cls(target.uri, storage_options=target.options, manifest=done.manifest)

    @classmethod
    def commit_batch(
        cls,
        dest: str | PathLike[str] | Handle,
        transactions: Sequence[Transaction],
        commit_lock: CommitLock | None = None,
        storage_options: Mapping[str, str] | None = None,
        enable_v2_manifest_paths: bool | None = None,
        detached: bool | None = False,
        max_retries: int = 20,
        commit_timeout: timedelta | None = COMMIT_TIMEOUT,
        **unsupported: Any,
    ) -> BulkCommitResult:
        """Commit several appends as one version, with those arguments of `commit` that it shares.

        The properties of the transactions are not kept.

        Returns:
            "dataset": the dataset at the new version; "merged": the committed transaction.

        Raises:
            InvalidInputError: No transaction is given, or the timeout is not positive.
            UnsupportedError: A transaction is not an append, or an argument of pylance is not offered.
            CommitConflictError: Another writer's commit rules this one out.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> append = lance.write_fragments(pa.table({"id": [4]}), "t.lance", return_transaction=True)
            >>> lance.LanceDataset.commit_batch("t.lance", [append])["dataset"].count_rows()
            4
        """
        reject("commit_batch", unsupported)
        target = resolve_target(dest, storage_options, commit_lock)
        done: Committed = commit_merged(
            target.store,
            transactions,
            base=target.base,
            options=commit_options(max_retries=max_retries, commit_timeout=commit_timeout, detached=detached),
            table_format=TableFormat.of(None, None, enable_v2_manifest_paths),
        )
        opened = cls(target.uri, storage_options=target.options, manifest=done.manifest)
        assert done.transaction is not None, "no earlier commit is looked for"
        return {"dataset": opened, "merged": Transaction.from_record(done.transaction)}

    @staticmethod
    def drop(
        base_uri: str | PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        ignore_not_found: bool | None = None,
    ) -> None:
        """Delete a dataset with everything below its root, other files included. Folders of a local disk stay.

        If the dataset is a shallow clone, the tags that keep files for it in other datasets are deleted. A dataset with
        shallow clones is not dropped before they are (`clones.list`), or are given up (`clones.release`); clones that
        pylance made are not known.

        A symbolic link is removed and its target stays; if the root is one, nothing else is done.

        Copies that moves to base paths have made go as well (`MaintenancePolicy.move_to`). Other files in base paths
        stay, and so do copies of a table whose folder was moved or copied: the log names them.

        Rows of the dataset and its branches in an external manifest store are deleted last. An interrupted drop can be
        repeated, but does not delete the tags any more if the manifests were deleted: `clones.release` on the source
        does. A drop also removes the rows that remain when somebody else has deleted the files.

        Args:
            base_uri: The dataset's root.
            storage_options: Credentials and options of the storage, under object_store's names.
            ignore_not_found: Whether a missing dataset is not an error.

        Raises:
            DatasetNotFoundError: The URI is not a dataset's root.
            InvalidInputError: A shallow clone needs files of the dataset, or the root is that of a branch, which
                `branches.discard` removes; or it is the manifest table of a directory namespace.
            CorruptFileError: The record of a move cannot be read.
            StoreError: A file cannot be removed.

        Examples:
            >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
            >>> lance.LanceDataset.drop("t.lance")
            >>> lance.list_tables(".")
            []
        """
        from lance_core.maintenance.cleanup.copies import remove_copies  # noqa: PLC0415 - loaded on use, as it is large

        store = open_store(base_uri, storage_options)
        reject_clones(store)
        latest = _load_latest_or_none(store)
        if store.root.rstrip("/").endswith(f"/{MANIFEST_TABLE}"):
            raise InvalidInputError(
                f"{store.root} names the tables of its folder, which would lose their ids: drop these, or remove "
                "one from it by lance_core.catalog.deregister; to give up all ids, remove its files by another program"
            )
        drop(store, remove_copies, ignore_not_found=bool(ignore_not_found))
        if latest is not None:
            release_tags(store, latest)


def _load_latest_or_none(store: ObjectStore) -> Manifest | None:
    """The latest version of a dataset that is about to be dropped; None if it cannot be read."""
    try:
        return load_latest(store)
    except (LanceError, OSError):
        return None


def _check_names(target: TableTarget, change: LanceOperation.BaseOperation | Transaction) -> None:
    """Make sure that a committed schema adds no column with a name that other tools cannot read.

    Raises:
        SchemaError: The schema adds such a column; columns that the dataset has already are accepted.
    """
    operation = change.operation if isinstance(change, Transaction) else change
    if isinstance(operation, LanceOperation.Overwrite):
        schema = operation.new_schema
    elif isinstance(operation, LanceOperation.Project | LanceOperation.Merge):
        schema = operation.schema
    else:
        return
    names = schema.names if isinstance(schema, pa.Schema) else schema.record.names
    for name in names:
        try:
            check_column_name(name)
        except SchemaError:
            latest = target.base or load_latest(target.store)
            if latest is None or name not in latest.schema.names:
                raise

"""Commit an operation or a transaction that was prepared elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from lance_core.commit.loop import commit
from lance_core.commit.records import Commit, Committed
from lance_core.commit.versions import find_manifest, load_latest, reload_latest
from lance_core.errors import ArgumentTypeError, InvalidInputError, UnsupportedError
from lance_core.schema import LanceSchema, schema_from_arrow
from lance_core.store import ObjectStore
from lance_core.table import transaction as records
from lance_core.table.fragment import DataFile, data_files, own_data_keys
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Append, DataReplacement, Merge, Operation, Overwrite, Rewrite, Update
from lance_core.table.paths import TableFormat
from lance_core.verbs.files.conform import check_dictionaries
from lance_core.verbs.pylance_types.conversion import to_record
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.write.operation_checks import check_operation


def commit_options(
    *, max_retries: int, commit_timeout: timedelta | None, detached: bool | None, message: str | None = None
) -> Commit:
    """The options of a commit from the arguments of the public functions.

    Raises:
        InvalidInputError: The timeout is not positive.
    """
    if commit_timeout is not None and commit_timeout <= timedelta(0):
        raise InvalidInputError("commit_timeout must be positive; None for no limit")
    return Commit(
        message=message,
        max_retries=max_retries,
        timeout_s=math.inf if commit_timeout is None else commit_timeout.total_seconds(),
        detached=bool(detached),
    )


def commit_operation(
    store: ObjectStore,
    operation: LanceOperation.BaseOperation | Transaction,
    *,
    base: Manifest | None,
    read_version: int | None,
    options: Commit,
    table_format: TableFormat,
) -> Committed:
    """Commit an operation or a transaction.

    Args:
        store: The dataset's store.
        operation: The change.
        base: A version that was read before; None if no version was read.
        read_version: Version that an operation is based on; None for the latest if the operation allows it.
        options: How to commit; a transaction has properties of its own.
        table_format: The format of a dataset that is created.

    Raises:
        ArgumentTypeError: `operation` is neither an operation nor a transaction.
        InvalidInputError: The operation needs a read version, and none is given; or the version that it makes could
            not be read.
        CommitConflictError: Another writer's commit conflicts with this one.
        ObjectNotFoundError: A new data file does not exist, such as after a cleanup.
    """
    affected_rows = None
    if isinstance(operation, Transaction):
        record, affected_rows = operation.to_record(), operation.affected_rows
    elif isinstance(operation, LanceOperation.BaseOperation):
        if isinstance(operation, LanceOperation.Overwrite) and isinstance(operation.new_schema, pa.Schema):
            operation = replace(operation, new_schema=LanceSchema(schema_from_arrow(operation.new_schema)))
        if read_version is None:
            if not isinstance(operation, LanceOperation.Overwrite | LanceOperation.Restore):
                raise InvalidInputError("read_version is required for all operations except Overwrite and Restore")
            base = load_latest(store) if base is None else reload_latest(store, base)
            read_version = base.version if base is not None else 0
        record = records.Transaction(
            read_version=read_version, operation=to_record(operation), properties=options.texts
        )
    else:
        raise ArgumentTypeError(
            f"operation must be a LanceOperation.BaseOperation or Transaction, got {type(operation)}"
        )
    check_against_base(store, record.operation, base, record.read_version)
    return commit(
        store,
        record,
        base=base,
        options=options,
        affected_rows=affected_rows,
        new_files=_new_files(store, record.operation, base, record.read_version),
        table_format=table_format,
    )


def commit_merged(
    store: ObjectStore,
    transactions: Sequence[Transaction],
    *,
    base: Manifest | None,
    options: Commit,
    table_format: TableFormat,
) -> Committed:
    """Commit several Append transactions as one, with the arguments of `commit_operation`.

    Raises:
        InvalidInputError: No transaction is given, or readers could not read a fragment.
        UnsupportedError: A transaction is not an append.
        CommitConflictError: Another writer's commit conflicts with this one.
        ObjectNotFoundError: A new data file does not exist.
    """
    if not transactions:
        raise InvalidInputError("commit_batch needs at least one transaction")
    for transaction in transactions:
        if not isinstance(transaction.operation, LanceOperation.Append):
            raise UnsupportedError(f"commit_batch supports only Append, not {transaction.operation.name}")
    fragments = [
        fragment.to_record()
        for transaction in transactions
        if isinstance(transaction.operation, LanceOperation.Append)
        for fragment in transaction.operation.fragments
    ]
    read_version = min(transaction.read_version for transaction in transactions)
    merged = Append(fragments=tuple(fragments))
    check_against_base(store, merged, base, read_version)
    record = records.Transaction(read_version=read_version, operation=merged)
    files = _new_files(store, record.operation, base, record.read_version)
    return commit(store, record, base=base, options=options, new_files=files, table_format=table_format)


def check_against_base(store: ObjectStore, operation: Operation, base: Manifest | None, read_version: int) -> None:
    """Check an operation, and the dictionaries of its new rows, against the version that it is based on.

    Raises:
        InvalidInputError: The version that the operation makes could not be read, or would have other rows.
        SchemaError: New rows have values that the dictionary of a table of version 0.1 lacks.
    """
    manifest = _read_manifest(store, base, read_version)
    check_operation(operation, manifest)
    if manifest is not None and isinstance(operation, Append | Update):
        new = operation.fragments if isinstance(operation, Append) else operation.new_fragments
        check_dictionaries(manifest.schema, new, store)


def _read_manifest(store: ObjectStore, base: Manifest | None, read_version: int) -> Manifest | None:
    """The version that an operation is based on; None if it does not exist, about which the commit decides."""
    if base is not None and base.version == read_version:
        return base
    return find_manifest(store, read_version) if read_version else None


def _new_files(store: ObjectStore, operation: Operation, base: Manifest | None, read_version: int) -> Iterable[str]:
    """The keys of the data files that an operation adds."""
    files = list(_files_of(operation))
    manifest = _read_manifest(store, base, read_version) if files else None
    keys = dict.fromkeys(own_data_keys(files))
    if manifest is not None and not isinstance(operation, Append | Overwrite):
        for key in own_data_keys(data_files(manifest.fragments)):
            keys.pop(key, None)
    return keys


def _files_of(operation: Operation) -> Iterable[DataFile]:
    """The data files of the fragments of an operation."""
    match operation:
        case Append() | Overwrite() | Merge():
            return data_files(operation.fragments)
        case Update():
            return data_files((*operation.updated_fragments, *operation.new_fragments))
        case Rewrite():
            return data_files(fragment for group in operation.groups for fragment in group.new_fragments)
        case DataReplacement():
            return (file for _, file in operation.replacements)
        case _:
            return ()

"""Transactions: the changes of commits, recorded beside manifests so that concurrent writers can detect conflicts.

`_transactions/{read_version}-{uuid}.txn` is the bare `Transaction` message, without framing. The manifest's transaction
section has the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import DecodeError

from lance_core._proto import transaction_pb2
from lance_core.errors import CorruptFileError, InvalidInputError, SchemaError, UnsupportedError
from lance_core.table import flags
from lance_core.table.field_ids import check_field_ids
from lance_core.table.fragment import data_file_version, data_files, fields_with_columns
from lance_core.table.manifest.manifest import WRITER, Manifest, WriterVersion
from lance_core.table.operations import OPERATIONS, ApplyContext, Operation, UnknownOperation
from lance_core.table.partial_message import partial_message

COMMIT_MESSAGE_KEY = "__lance_commit_message"
"""Property that holds the commit message."""

FIRST_ADDED_KEY = "lance.first_added_fragment"
"""Property of a Merge that also adds rows: the id of the first new fragment; all later ids are new as well."""

PROMOTION_KEY = "lance.promotion"
"""Property of the promotion of a branch: its uuid and its version; at most one version of the parent has the value."""

REVERTS_KEY = "lance.takes_back"
"""Property with the versions that this commit undoes; it adds no row that did not exist before them."""


_TransactionWithoutOperation = partial_message(
    transaction_pb2.Transaction.DESCRIPTOR,
    dict.fromkeys(("read_version", "uuid", "tag", "transaction_properties")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The change of one commit, as the format records it; `pylance_types.Transaction` is the public form.

    Attributes:
        read_version: The version that the change is based on; 0 for a new dataset.
        operation: The change.
        uuid: Identifies the transaction; a rebase keeps it, and a writer recognizes its own version by it.
        properties: Strings that describe the change.
        tag: A string for the manifest; empty in practice.
    """

    read_version: int
    operation: Operation
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""

    @property
    def transaction_properties(self) -> Mapping[str, str]:
        """The properties, under the name that they have in pylance."""
        return self.properties

    @property
    def file_name(self) -> str:
        """Name of the transaction file below `_transactions/`."""
        return f"{self.read_version}-{self.uuid}.txn"

    def to_bytes(self) -> bytes:
        """Return the serialized message.

        Raises:
            UnsupportedError: The operation is of a kind that is not written.
        """
        body: dict[str, Any] = {self.operation.wire_name: self.operation.to_protobuf()}
        message = transaction_pb2.Transaction(
            read_version=self.read_version,
            uuid=self.uuid,
            tag=self.tag,
            transaction_properties=dict(self.properties),
            **body,
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Transaction:
        """Read a serialized message.

        An operation that is unknown or cannot be parsed becomes an `UnknownOperation`, so that histories stay readable.

        Raises:
            CorruptFileError: The bytes are not a transaction.
        """
        try:
            message = transaction_pb2.Transaction.FromString(bytes(data))
            operation = _read_operation(message)
        except DecodeError:
            message, operation = _read_envelope(bytes(data)), UnknownOperation(described="that cannot be parsed")
        return cls(
            read_version=message.read_version,
            uuid=message.uuid,
            tag=message.tag,
            properties=dict(message.transaction_properties),
            operation=operation,
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext, timestamp_ns: int) -> Manifest:
        """Return the next manifest: the latest one with the transaction applied.

        Args:
            manifest: The latest manifest; None if there is no dataset yet.
            context: Further inputs of the operation.
            timestamp_ns: Time of the commit, nanoseconds since the epoch.

        Raises:
            InvalidInputError: The operation does not fit the manifest.
            DatasetNotFoundError: The operation needs a dataset, and none exists.
            UnsupportedError: The manifest, or the source of a restore or clone, has unknown flags.
        """
        for base in (manifest, context.source):
            if base is not None:
                base.check_writable()
        result = self.operation.apply(manifest, context)
        highest = result.fragments.highest_id
        if result.max_fragment_id is not None:
            highest = max(highest, result.max_fragment_id)
        field_ids = result.max_allocated_field_id
        result = replace(
            result,
            version=context.version,
            timestamp_ns=timestamp_ns,
            tag=self.tag,
            max_fragment_id=highest if highest >= 0 else None,
            max_allocated_field_id=None if field_ids is None else max(field_ids, result.schema.max_field_id),
            transaction_file=self.file_name,
            writer_version=_writer_version(manifest, result),
            transaction_bytes=None,
            location=None,
        )
        if manifest is not None and manifest.max_allocated_field_id is not None:
            check_field_ids(manifest, manifest.max_allocated_field_id, result, self.operation)
        if context.proof is not None:
            result = context.proof.add_to(result, manifest)
        return _check_and_set_flags(result)


def _writer_version(base: Manifest | None, result: Manifest) -> WriterVersion | None:
    """The writer version of a new manifest: this library's, unless fragments of an early Lance remain.

    Early versions recorded wrong row counts and index bitmaps. Their writer version marks records to repair, and
    stays until a commit has repaired them.
    """
    if base is None or not len(base.fragments) or not len(result.fragments):
        return WRITER
    replaced = len(result.fragments.fresh) == len(result.fragments)
    return base.writer_version if base.is_early and not replaced else WRITER


def _read_envelope(data: bytes) -> transaction_pb2.Transaction:
    """Read a transaction without its operation.

    Raises:
        CorruptFileError: The bytes are not a protobuf message.
    """
    try:
        message = _TransactionWithoutOperation.FromString(data)
        message.DiscardUnknownFields()
        return transaction_pb2.Transaction.FromString(message.SerializeToString())
    except DecodeError as error:
        raise CorruptFileError("not a transaction") from error


def _read_operation(message: transaction_pb2.Transaction) -> Operation:
    kind = message.WhichOneof("operation")
    operation_class = OPERATIONS.get(kind or "")
    if kind is None or operation_class is None:
        return UnknownOperation(described=kind or "of a newer library")
    try:
        return operation_class.from_protobuf(getattr(message, kind))
    except (UnsupportedError, CorruptFileError, SchemaError, ValueError) as error:
        # The message belongs to another version of the format: none of its content can be trusted.
        return UnknownOperation(described=f"{operation_class.name} ({error})")


def _check_and_set_flags(manifest: Manifest) -> Manifest:
    """Compute the feature flags, and reject fragments that contradict them or have wrong columns."""
    has_column = fields_with_columns(manifest.schema)
    for file in data_files(manifest.fragments.fresh):
        file.check_columns(has_column)
    shared_flags = (manifest.reader_flags | manifest.writer_flags) & (flags.COVERING_INDICES | flags.MIXED_DATA_FILES)
    if manifest.fragments.has_deletions:
        shared_flags |= flags.DELETION_FILES
    if manifest.uses_stable_row_ids:
        shared_flags |= flags.STABLE_ROW_IDS
        if any(fragment.row_ids is None for fragment in manifest.fragments.fresh):
            raise InvalidInputError("All fragments must have row ids in a dataset with stable row ids")
    if manifest.base_paths:
        shared_flags |= flags.BASE_PATHS
    if any(index.covering_fields for index in manifest.indices):
        shared_flags |= flags.COVERING_INDICES
    if _mixes_file_versions(manifest):
        shared_flags |= flags.MIXED_DATA_FILES
    writer = shared_flags
    if manifest.config:
        writer |= flags.CONFIG
    if manifest.max_allocated_field_id is not None:
        writer |= flags.NO_FIELD_ID_REUSE
    return replace(manifest, reader_flags=shared_flags, writer_flags=writer)


def _mixes_file_versions(manifest: Manifest) -> bool:
    """Whether new data files have another version than the dataset.

    Raises:
        InvalidInputError: The dataset or a new data file has version 0.1, and the other a later one: no reader can mix
            these.
    """
    numbers = {(file.file_major_version, file.file_minor_version) for file in data_files(manifest.fragments.fresh)}
    other_versions = {data_file_version(*pair) for pair in numbers} - {manifest.data_storage_version}
    if other_versions and "0.1" in (*other_versions, manifest.data_storage_version):
        raise InvalidInputError(
            f"data files of version {min(other_versions)} cannot be added to a dataset of version "
            f"{manifest.data_storage_version}: write them with the version of the dataset"
        )
    return bool(other_versions)

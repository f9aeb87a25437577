"""UpdateMemWalState: progress of merging a write-ahead log; read in histories, never written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from google.protobuf.unknown_fields import UnknownFieldSet

from lance_core._proto import transaction_pb2
from lance_core.errors import UnsupportedError
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext
from lance_core.table.operations.update import CompactedSsTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemWalState:
    """Record that levels of write-ahead logs were merged into the dataset.

    Attributes:
        compacted_sstables: The levels.
    """

    compacted_sstables: tuple[CompactedSsTable, ...]

    name: ClassVar[str] = "UpdateMemWalState"
    wire_name: ClassVar[str] = "update_mem_wal_state"

    def to_protobuf(self) -> transaction_pb2.Transaction.UpdateMemWalState:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.UpdateMemWalState(
            compacted_sstables=[table.to_protobuf() for table in self.compacted_sstables]
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.UpdateMemWalState) -> UpdateMemWalState:
        """Build the record from its protobuf message.

        Raises:
            UnsupportedError: The message is of 2025, when it had other fields.
        """
        if len(UnknownFieldSet(message)):
            raise UnsupportedError("a write-ahead log in the form of 2025 is not supported")
        return cls(compacted_sstables=tuple(CompactedSsTable.from_protobuf(t) for t in message.compacted_sstables))

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> NoReturn:
        """Reject applying the operation: its state is kept in an index that this library does not write.

        Raises:
            UnsupportedError: The operation cannot be applied.
        """
        del manifest, context
        raise UnsupportedError("UpdateMemWalState: write-ahead logs are not written")

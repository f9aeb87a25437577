"""Restore: make an earlier version the latest again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.table.idempotency import inherited
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, next_fragment_id, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Go back to an earlier version.

    Attributes:
        version: The version to go back to.
    """

    version: int

    name: ClassVar[str] = "Restore"
    wire_name: ClassVar[str] = "restore"

    def to_protobuf(self) -> transaction_pb2.Transaction.Restore:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Restore(version=self.version)

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Restore) -> Restore:
        """Build the record from its protobuf message."""
        return cls(version=message.version)

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Return the restored version's content; ids that were assigned since are not assigned again.

        Proofs are kept: repeating a write that was committed does not add its rows again.
        """
        base = the_manifest(manifest, self.name)
        source = context.source
        if source is None or source.version != self.version:
            raise InvalidInputError(f"Restore needs the manifest of version {self.version}")
        if base.max_allocated_field_id is not None and source.max_allocated_field_id is None:
            raise InvalidInputError(
                f"Cannot restore version {self.version}: after it, the dataset began never to reuse a field id"
            )
        highest = max(next_fragment_id(base), next_fragment_id(source)) - 1
        return replace(
            source,
            max_fragment_id=highest if highest >= 0 else None,
            next_row_id=max(base.next_row_id, source.next_row_id),
            config=inherited(source.config, base.config, self.version),
            base_paths=base.base_paths,
            branch=base.branch,
            max_allocated_field_id=base.max_allocated_field_id,
        )

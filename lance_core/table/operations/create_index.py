"""CreateIndex: add, replace and drop the records of indices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """Change the list of indices.

    Attributes:
        new_indices: Segments to add.
        removed_indices: Segments to drop, identified by UUID.
    """

    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()

    name: ClassVar[str] = "CreateIndex"
    wire_name: ClassVar[str] = "create_index"

    def to_protobuf(self) -> transaction_pb2.Transaction.CreateIndex:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.CreateIndex(
            new_indices=[index.to_protobuf() for index in self.new_indices],
            removed_indices=[index.to_protobuf() for index in self.removed_indices],
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.CreateIndex) -> CreateIndex:
        """Build the record from its protobuf message."""
        return cls(
            new_indices=tuple(IndexMetadata.from_protobuf(index) for index in message.new_indices),
            removed_indices=tuple(IndexMetadata.from_protobuf(index) for index in message.removed_indices),
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Drop the removed segments and add the new ones."""
        del context
        base = the_manifest(manifest, self.name)
        field_ids = {node.id for node, _ in base.schema.walk()}
        for index in self.new_indices:
            if not index.is_system and not field_ids.issuperset(index.fields):
                raise InvalidInputError(f"index {index.name!r} is on a field that the dataset does not have")
        dropped = {index.uuid for index in (*self.removed_indices, *self.new_indices)}
        other_indices = tuple(index for index in base.indices if index.uuid not in dropped)
        return replace(base, indices=(*other_indices, *self.new_indices))

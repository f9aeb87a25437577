"""Project: change the schema without touching data: drop, rename or reorder columns, change nullability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.schema import Schema, schema_from_protobuf, schema_to_protobuf
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, retained_indices, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Replace the fields by others that all exist in the data files; schema metadata stays.

    Attributes:
        schema: The new schema; its field ids are existing ones.
        preserves_nullability: Whether no column became non-nullable, so that concurrent appends stay valid.
    """

    schema: Schema
    preserves_nullability: bool = False

    name: ClassVar[str] = "Project"
    wire_name: ClassVar[str] = "project"

    def to_protobuf(self) -> transaction_pb2.Transaction.Project:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Project(
            schema=schema_to_protobuf(self.schema), preserves_nullability=self.preserves_nullability
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Project) -> Project:
        """Build the record from its protobuf message."""
        return cls(schema=schema_from_protobuf(message.schema, {}), preserves_nullability=message.preserves_nullability)

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Set the schema and drop the data files that hold none of its fields."""
        del context
        base = the_manifest(manifest, self.name)
        live = {node.id for node, _ in self.schema.walk()}
        updated: dict[int, Fragment] = {}
        for position, message in enumerate(base.fragments.messages()):
            if any(live.isdisjoint(file.fields) for file in message.files):
                updated[message.id] = base.fragments[position].without_dead_files(live)
        result = replace(
            base,
            schema=replace(self.schema, metadata=base.schema.metadata),
            fragments=base.fragments.changed(updated=updated) if updated else base.fragments,
        )
        return replace(result, indices=retained_indices(result))

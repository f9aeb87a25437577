"""ReserveFragments: reserve fragment ids for a Rewrite that follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, next_fragment_id, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFragments:
    """Reserve the next fragment ids; the last reserved one is the new manifest's `max_fragment_id`.

    Attributes:
        num_fragments: The number of ids.
    """

    num_fragments: int

    name: ClassVar[str] = "ReserveFragments"
    wire_name: ClassVar[str] = "reserve_fragments"

    def to_protobuf(self) -> transaction_pb2.Transaction.ReserveFragments:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.ReserveFragments(num_fragments=self.num_fragments)

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.ReserveFragments) -> ReserveFragments:
        """Build the record from its protobuf message."""
        return cls(num_fragments=message.num_fragments)

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Raise the highest id. A dataset that has had no fragment skips id 0, which means no id in a transaction."""
        del context
        base = the_manifest(manifest, self.name)
        return replace(base, max_fragment_id=max(0, next_fragment_id(base) - 1) + self.num_fragments)

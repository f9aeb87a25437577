"""Append: add fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, add_fragments, check_new_fragments, the_manifest

__all__ = ["Append"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Add fragments to the dataset; an empty list makes a version without change.

    Attributes:
        fragments: The new fragments, with id 0.
    """

    fragments: tuple[Fragment, ...] = ()

    name: ClassVar[str] = "Append"
    wire_name: ClassVar[str] = "append"

    def to_protobuf(self) -> transaction_pb2.Transaction.Append:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Append(fragments=[fragment.to_protobuf() for fragment in self.fragments])

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Append) -> Append:
        """Build the record from its protobuf message."""
        return cls(fragments=tuple(Fragment.from_protobuf(fragment) for fragment in message.fragments))

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Number the new fragments and put them after the others."""
        base = the_manifest(manifest, self.name)
        check_new_fragments(base, self.fragments)
        added, next_row_id = add_fragments(base, self.fragments, context)
        return replace(base, fragments=base.fragments.changed(added=added), next_row_id=next_row_id)

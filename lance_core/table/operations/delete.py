"""Delete: remove rows, by deletion files or as whole fragments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, check_same_fragments, retained_indices, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete rows.

    Attributes:
        updated_fragments: Fragments that got a new deletion file.
        deleted_fragment_ids: Fragments whose rows were all deleted.
        predicate: The condition, as a string for people.
    """

    updated_fragments: tuple[Fragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""

    name: ClassVar[str] = "Delete"
    wire_name: ClassVar[str] = "delete"

    def to_protobuf(self) -> transaction_pb2.Transaction.Delete:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.Delete(
            updated_fragments=[fragment.to_protobuf() for fragment in self.updated_fragments],
            deleted_fragment_ids=self.deleted_fragment_ids,
            predicate=self.predicate,
        )

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Delete) -> Delete:
        """Build the record from its protobuf message."""
        return cls(
            updated_fragments=tuple(Fragment.from_protobuf(fragment) for fragment in message.updated_fragments),
            deleted_fragment_ids=tuple(message.deleted_fragment_ids),
            predicate=message.predicate,
        )

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Drop the deleted fragments, and give the updated ones their new deletion files."""
        del context
        base = the_manifest(manifest, self.name)
        check_same_fragments(base, self.updated_fragments, self.name)
        fragments = base.fragments.changed(
            removed=frozenset(self.deleted_fragment_ids),
            updated={
                fragment.id: replace(now, deletion_file=fragment.deletion_file)
                for fragment in self.updated_fragments
                if (now := base.fragments.get(fragment.id)) is not None
            },
        )
        result = replace(base, fragments=fragments)
        return replace(result, indices=retained_indices(result))

"""UpdateBases: add base paths, in which files of the dataset may be stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError
from lance_core.table.fragment import BasePath
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import ApplyContext, the_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBases:
    """Add base paths.

    Attributes:
        new_bases: The base paths; id 0 stands for the next free id.
    """

    new_bases: tuple[BasePath, ...]

    name: ClassVar[str] = "UpdateBases"
    wire_name: ClassVar[str] = "update_bases"

    def to_protobuf(self) -> transaction_pb2.Transaction.UpdateBases:
        """Return the message of the wire."""
        return transaction_pb2.Transaction.UpdateBases(new_bases=[base.to_protobuf() for base in self.new_bases])

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.UpdateBases) -> UpdateBases:
        """Build the record from its protobuf message."""
        return cls(new_bases=tuple(BasePath.from_protobuf(base) for base in message.new_bases))

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Add the base paths; names, paths and ids must be new."""
        del context
        base = the_manifest(manifest, self.name)
        base_paths = list(base.base_paths)
        for new in self.new_bases:
            if any((new.name is not None and old.name == new.name) or old.path == new.path for old in base_paths):
                raise InvalidInputError(f"Conflict detected: base path {new.path!r} or its name {new.name!r} exists")
            if new.id and any(old.id == new.id for old in base_paths):
                raise InvalidInputError(f"Conflict detected: base path id {new.id} exists")
            base_paths.append(new if new.id else replace(new, id=max((old.id for old in base_paths), default=0) + 1))
        return replace(base, base_paths=tuple(base_paths))

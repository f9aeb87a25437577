"""Rewrite: put the same rows into other fragments; compaction commits this operation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from pyroaring import BitMap

from lance_core._proto import transaction_pb2
from lance_core.errors import InvalidInputError, UnsupportedError
from lance_core.table.fragment import Fragment, WireRecord, wire_values
from lance_core.table.index import IndexFile, IndexMetadata, with_bitmap
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import (
    ApplyContext,
    check_same_fragments,
    next_fragment_id,
    number_fragments,
    the_manifest,
)
from lance_core.table.reuse import Move, trimmed, with_moves


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteGroup(WireRecord):
    """Some fragments, and their replacements, which hold the same rows.

    Attributes:
        old_fragments: The fragments as they were read.
        new_fragments: The new fragments, with reserved ids, or id 0 for ids that the commit assigns.
    """

    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]

    message = transaction_pb2.Transaction.Rewrite.RewriteGroup

    @property
    def is_in_place(self) -> bool:
        """Whether a fragment only gets copies of its files, so that its id and the addresses of its rows stay."""
        if (len(self.old_fragments), len(self.new_fragments)) != (1, 1):
            return False
        old, new = self.old_fragments[0], self.new_fragments[0]
        if len(old.files) != len(new.files):
            return False
        pairs = zip(old.files, new.files, strict=True)
        return old == replace(new, files=tuple(replace(b, path=a.path, base_id=a.base_id) for a, b in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenIndex(WireRecord):
    """An index that was rewritten because it refers to row addresses.

    Attributes:
        old_id: UUID of the replaced index.
        new_id: UUID of the new index.
        details_type_url: Type of the new details; empty to keep the old ones.
        details: New serialized details.
        index_version: New version of the index's format; 0 to keep the old one.
        files: New files; empty to keep the old ones.
    """

    old_id: uuid.UUID
    new_id: uuid.UUID
    details_type_url: str = ""
    details: bytes = b""
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()

    message = transaction_pb2.Transaction.Rewrite.RewrittenIndex
    renamed: ClassVar[Mapping[str, str]] = {"index_version": "new_index_version", "files": "new_index_files"}

    def to_protobuf(self) -> transaction_pb2.Transaction.Rewrite.RewrittenIndex:
        """Return the message of the wire."""
        message: transaction_pb2.Transaction.Rewrite.RewrittenIndex = WireRecord.to_protobuf(self)
        if self.details_type_url:
            message.new_index_details.type_url = self.details_type_url
            message.new_index_details.value = self.details
        return message

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Rewrite.RewrittenIndex) -> RewrittenIndex:
        """Build the record from its protobuf message.

        Raises:
            UnsupportedError: The index has no UUIDs.
        """
        if len(message.old_id.uuid) != 16 or len(message.new_id.uuid) != 16:
            raise UnsupportedError("a Rewrite with a rewritten index that has no UUIDs is not supported")
        details = message.new_index_details
        return cls(**wire_values(cls, message), details_type_url=details.type_url, details=details.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(WireRecord):
    """Replace groups of fragments by others with the same rows.

    An index that covers old fragments and is not rewritten keeps its bitmap, and does not cover the new fragments. With
    stable row ids an index by row id covers the new fragments as well.

    Attributes:
        groups: The replaced fragments with their replacements.
        rewritten_indices: Indices that were rewritten with the fragments.
        moved_rows: For each group the old addresses of its rows, as serialized 64-bit roaring bitmaps for the fragment
            reuse index; empty to keep that index. They are not part of the message of the wire.
    """

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    moved_rows: tuple[bytes, ...] = field(default=(), compare=False)

    name: ClassVar[str] = "Rewrite"
    wire_name: ClassVar[str] = "rewrite"
    message = transaction_pb2.Transaction.Rewrite

    @property
    def old_fragment_ids(self) -> frozenset[int]:
        """Ids of all fragments that are replaced."""
        return frozenset(fragment.id for group in self.groups for fragment in group.old_fragments)

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Rewrite) -> Rewrite:
        """Read the message of the wire; the fields of 2023 become one group."""
        values = wire_values(cls, message)
        if message.old_fragments:
            values["groups"] += (RewriteGroup.from_protobuf(message),)
        return cls(**values)

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Replace the old fragments by the new ones."""
        base = the_manifest(manifest, self.name)
        missing = [i for i in sorted(self.old_fragment_ids) if base.fragments.get(i) is None]
        if missing:
            raise InvalidInputError(f"Rewrite: the dataset has no fragment {missing[0]} to replace")
        check_same_fragments(base, (old for group in self.groups for old in group.old_fragments), self.name)
        new = [fragment for group in self.groups if not group.is_in_place for fragment in group.new_fragments]
        numbered = iter(number_fragments(new, next_fragment_id(base)))
        groups = [
            group
            if group.is_in_place
            else replace(group, new_fragments=tuple(islice(numbered, len(group.new_fragments))))
            for group in self.groups
        ]
        added = [fragment for group in groups for fragment in group.new_fragments]
        return replace(
            base,
            fragments=base.fragments.changed(removed=self.old_fragment_ids, added=added),
            indices=self._new_indices(base, groups),
        )

    def _new_indices(self, base: Manifest, groups: Sequence[RewriteGroup]) -> tuple[IndexMetadata, ...]:
        rewritten = {index.old_id: index for index in self.rewritten_indices}
        unknown = rewritten.keys() - {index.uuid for index in base.indices}
        if unknown:
            raise InvalidInputError(f"Rewrite: the dataset has no index {min(unknown)}")
        result = []
        for index in base.indices:
            new = rewritten.get(index.uuid)
            if new is not None:
                result.append(_replace_index(_move_index(index, groups), new))
            elif base.uses_stable_row_ids and index.holds_row_ids and not index.is_system:
                result.append(_move_index(index, groups))
            else:
                result.append(index)
        if not self.moved_rows:
            return tuple(result)
        moves = [
            Move(row_addrs=rows, old_fragments=group.old_fragments, new_fragments=group.new_fragments)
            for rows, group in zip(self.moved_rows, groups, strict=True)
        ]
        return with_moves(trimmed(result), moves, base.version)


def _replace_index(index: IndexMetadata, new: RewrittenIndex) -> IndexMetadata:
    details = (new.details_type_url, new.details) if new.details_type_url else (index.details_type_url, index.details)
    return replace(
        index,
        uuid=new.new_id,
        details_type_url=details[0],
        details=details[1],
        index_version=new.index_version or index.index_version,
        files=new.files or index.files,
    )


def _move_index(index: IndexMetadata, groups: Sequence[RewriteGroup]) -> IndexMetadata:
    """The index after its rows moved: its bitmap has the new fragments of each group that it covered as a whole.

    Old fragments leave the bitmap, unless the group is covered and had deleted rows: pylance filters entries of deleted
    rows only if a fragment of the bitmap is missing, or has deletions. Without the filter such an entry would refer to
    another row.
    """

    def change(covered: BitMap) -> BitMap:
        result = BitMap(covered)
        for group in groups:
            old = BitMap(fragment.id for fragment in group.old_fragments)
            if not old & covered:
                continue
            if not old <= covered:
                result -= old  # rows of the new fragments are not in the index
                continue
            if not any(fragment.deletion_file is not None for fragment in group.old_fragments):
                result -= old
            result |= BitMap(fragment.id for fragment in group.new_fragments)
        return result

    return with_bitmap(index, change)

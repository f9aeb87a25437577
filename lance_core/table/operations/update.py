"""Update: replace rows or column values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Final

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet
from pyroaring import BitMap

from lance_core._proto import transaction_pb2
from lance_core.errors import UnsupportedError
from lance_core.table.fragment import Fragment, WireRecord, wire_values
from lance_core.table.index import IndexMetadata, with_bitmap
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import (
    ApplyContext,
    check_new_fragments,
    check_not_empty_files,
    check_same_fragments,
    next_fragment_id,
    number_fragments,
    retained_indices,
    the_manifest,
)
from lance_core.table.reuse import without_fragments
from lance_core.table.rowids import (
    U64Array,
    assign_row_ids,
    decode_row_ids,
    find_created_versions,
    hold_rows,
    with_last_updated,
    with_versions,
)

MAX_EXACT_KEYS: Final = 100_000
"""The most keys that a commit lists; one that inserted more may have inserted any key."""

_BLOOM_BYTES: Final = 1 << 15
_BLOOM_ITEMS: Final = 8192
_BLOOM_PROBABILITY: Final = 0.00057


class UpdateMode(IntEnum):
    """How an update changed rows; the values are the wire's."""

    REWRITE_ROWS = 0
    REWRITE_COLUMNS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedSsTable(WireRecord):
    """A level of a write-ahead log that was merged into the dataset.

    Attributes:
        shard_id: The log's shard.
        generation: The level's number.
    """

    shard_id: uuid.UUID
    generation: int

    message = transaction_pb2.Transaction.CompactedSsTable

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.CompactedSsTable) -> CompactedSsTable:
        """Build the record from its protobuf message.

        Raises:
            UnsupportedError: The message is of 2025, when its field numbers had another meaning.
        """
        if len(message.shard_id.uuid) != 16 or len(UnknownFieldSet(message)):
            raise UnsupportedError("a write-ahead log in the form of 2025 is not supported")
        return cls(**wire_values(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExistenceFilter(WireRecord):
    """The keys that an update inserted.

    Attributes:
        field_ids: Fields of the key.
        key_hashes: Hashes of the keys, if they are listed exactly.
        bloom: Serialized Bloom filter, if the keys are not listed exactly.
    """

    field_ids: tuple[int, ...]
    key_hashes: frozenset[int] | None = None
    bloom: bytes | None = None

    message = transaction_pb2.Transaction.KeyExistenceFilter

    @classmethod
    def for_any_key(cls, field_ids: Sequence[int]) -> KeyExistenceFilter:
        """Return the filter that contains any key: a Bloom filter with all bits set."""
        bloom = transaction_pb2.Transaction.KeyExistenceFilter.BloomFilter(
            bitmap=b"\xff" * _BLOOM_BYTES,
            num_bits=8 * _BLOOM_BYTES,
            number_of_items=_BLOOM_ITEMS,
            probability=_BLOOM_PROBABILITY,
        )
        return cls(field_ids=tuple(field_ids), bloom=bloom.SerializeToString())

    @property
    def is_empty(self) -> bool:
        """Whether no key was inserted."""
        return self.key_hashes is not None and not self.key_hashes

    def may_intersect(self, other: KeyExistenceFilter) -> bool:
        """Whether both may have inserted the same key; the content of Bloom filters is not compared."""
        if self.field_ids != other.field_ids or self.key_hashes is None or other.key_hashes is None:
            return True
        return not self.key_hashes.isdisjoint(other.key_hashes)

    def to_protobuf(self) -> transaction_pb2.Transaction.KeyExistenceFilter:
        """Return the message of the wire; for more than `MAX_EXACT_KEYS` keys it is a filter that contains any key."""
        message = transaction_pb2.Transaction.KeyExistenceFilter(field_ids=self.field_ids)
        if self.key_hashes is not None and len(self.key_hashes) > MAX_EXACT_KEYS:
            return self.for_any_key(self.field_ids).to_protobuf()
        if self.key_hashes is not None:
            message.exact.key_hashes.extend(sorted(self.key_hashes))
        elif self.bloom is not None:
            message.bloom.ParseFromString(self.bloom)
        return message

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.KeyExistenceFilter) -> KeyExistenceFilter:
        """Build the record from its protobuf message."""
        kind = message.WhichOneof("data")
        return cls(
            field_ids=tuple(message.field_ids),
            key_hashes=frozenset(message.exact.key_hashes) if kind == "exact" else None,
            bloom=message.bloom.SerializeToString() if kind == "bloom" else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Update(WireRecord):
    """Remove, change and add fragments.

    Attributes:
        removed_fragment_ids: Fragments whose rows were all deleted or moved.
        updated_fragments: Fragments with a new deletion file or new column files.
        new_fragments: New rows and moved ones; id 0.
        fields_modified: Fields whose values changed in `updated_fragments`.
        fields_for_preserving_frag_bitmap: Fields whose values changed in moved rows.
        update_mode: How rows were changed.
        inserted_rows: Inserted keys, by which concurrent inserts of the same key are detected.
        compacted_sstables: Merged levels of a write-ahead log.
        updated_fragment_fields: Changed fields by fragment id.
        updated_fragment_offset_bitmaps: Offsets of the rows whose values changed, as a serialized roaring bitmap by
            fragment id.
    """

    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    fields_for_preserving_frag_bitmap: tuple[int, ...] = ()
    update_mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_rows: KeyExistenceFilter | None = None
    compacted_sstables: tuple[CompactedSsTable, ...] = ()
    updated_fragment_fields: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    updated_fragment_offset_bitmaps: Mapping[int, bytes] = field(default_factory=dict)

    name: ClassVar[str] = "Update"
    wire_name: ClassVar[str] = "update"
    message = transaction_pb2.Transaction.Update

    @property
    def _touched(self) -> tuple[int, ...]:
        """Ids of the fragments that are removed or changed."""
        return (*self.removed_fragment_ids, *(fragment.id for fragment in self.updated_fragments))

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.Update) -> Update:
        """Build the record from its protobuf message.

        Raises:
            UnsupportedError: The mode is unknown.
        """
        if message.update_mode not in list(map(int, UpdateMode)):
            raise UnsupportedError(f"update mode {message.update_mode} is not supported")
        return cls(**wire_values(cls, message) | {"update_mode": UpdateMode(message.update_mode)})

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Remove, replace and add fragments; update indices and row versions accordingly."""
        base = the_manifest(manifest, self.name)
        if self.compacted_sstables:
            raise UnsupportedError("Update with compacted_sstables: write-ahead logs are not written")
        check_not_empty_files(self.updated_fragments)
        if not self.fields_modified:  # if values changed, all columns can have new files
            check_same_fragments(base, self.updated_fragments, self.name)
        check_new_fragments(base, self.new_fragments)
        added = number_fragments(self.new_fragments, next_fragment_id(base))
        live = {node.id for node, _ in base.schema.walk()}
        updated = [fragment.without_dead_files(live) for fragment in self.updated_fragments]
        next_row_id = base.next_row_id
        moved_ids: list[int] = []
        if base.uses_stable_row_ids:
            own_ids = {f.id: decode_row_ids(f.row_ids) for f in added if f.row_ids is not None}
            moved_ids = self._find_moved(base, added, own_ids)
            # Rows of another branch have ids of their own, which are in use from now on.
            next_row_id = max([next_row_id, *(int(ids.max()) + 1 for ids in own_ids.values() if len(ids))])
            added, next_row_id = assign_row_ids(added, next_row_id)
            added = self._record_creation(base, added, context.version)
            updated = [self._record_change(fragment, context.version) for fragment in updated]
        result = replace(
            base,
            fragments=base.fragments.changed(
                removed=frozenset(self.removed_fragment_ids),
                updated={fragment.id: fragment for fragment in updated},
                added=added,
            ),
            next_row_id=next_row_id,
            indices=self._new_indices(base, moved_ids),
        )
        return replace(result, indices=retained_indices(result))

    def _find_moved(self, base: Manifest, added: Sequence[Fragment], own_ids: Mapping[int, U64Array]) -> list[int]:
        """The new fragments with nothing but rows of the fragments that this update removes or changes.

        Other rows with ids come back from an earlier version: an index that was built since has no entry of them.
        """
        full = [f.id for f in added if f.id in own_ids and len(own_ids[f.id]) == f.physical_rows]
        if not base.indices:
            return full
        origins = [origin for i in self._touched if (origin := base.fragments.get(i)) is not None]
        return [i for i in full if hold_rows(origins, own_ids[i])]

    def _record_creation(self, base: Manifest, added: Sequence[Fragment], version: int) -> list[Fragment]:
        """Record the versions in which the rows of new fragments were created; moved rows keep theirs."""
        origins = [origin for i in self._touched if (origin := base.fragments.get(i)) is not None]
        unknown = [f for f in added if f.row_ids is not None and f.created_at_versions is None]
        if not unknown:
            return list(added)
        ids = [decode_row_ids(fragment.row_ids) for fragment in unknown if fragment.row_ids is not None]
        created = find_created_versions(np.concatenate(ids), origins, version)  # one look-up for all fragments
        ends = np.cumsum([len(each) for each in ids])
        versioned_by_id = {
            f.id: with_versions(f, version, c) for f, c in zip(unknown, np.split(created, ends[:-1]), strict=True)
        }
        return [versioned_by_id.get(fragment.id, fragment) for fragment in added]

    def _record_change(self, fragment: Fragment, version: int) -> Fragment:
        """Record this version as the last change of rows whose columns were rewritten."""
        offsets = self.updated_fragment_offset_bitmaps.get(fragment.id)
        if offsets is None or fragment.last_updated_at_versions is None:
            return fragment
        return with_last_updated(fragment, BitMap.deserialize(offsets), version)

    def _new_indices(self, base: Manifest, moved_ids: Sequence[int]) -> tuple[IndexMetadata, ...]:
        modified = base.schema.with_ancestors(self.fields_modified)
        indices = without_fragments(base.indices, modified, (f.id for f in self.updated_fragments))
        if not moved_ids or self.update_mode is not UpdateMode.REWRITE_ROWS:
            return indices
        changed = set(self.fields_for_preserving_frag_bitmap)
        origins = BitMap(self._touched)
        # An index by row id still refers to moved rows, unless their indexed values changed.
        return tuple(
            with_bitmap(index, lambda covered: covered | BitMap(moved_ids) if origins <= covered else covered)
            if index.holds_row_ids and not index.is_system and changed.isdisjoint(index.fields)
            else index
            for index in indices
        )

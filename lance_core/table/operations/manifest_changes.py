"""Operations that change only the manifest: their files, if any, were written before.

Delete               remove rows, by deletion files or as whole fragments
CreateIndex          add, replace and drop the records of indices
Project              change the schema: drop, rename or reorder columns, change nullability
ReserveFragments     reserve fragment ids for a Rewrite that follows
Restore              make an earlier version the latest again
UpdateBases          add base paths, in which files of the dataset may be stored
Clone                create a dataset or a branch as a copy of a version of another
UpdateMemWalState    progress of merging a write-ahead log; read in histories, never written
UnknownOperation     an operation that this library does not know: it occurs in histories, and conflicts with every
                     operation
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

from google.protobuf.unknown_fields import UnknownFieldSet

from lance_core._proto import transaction_pb2
from lance_core.errors import DatasetExistsError, InvalidInputError, UnsupportedError
from lance_core.schema import Schema
from lance_core.schema.field import is_blob_v2
from lance_core.table.fragment import BasePath, Fragment, WireRecord, wire_values
from lance_core.table.fragment_list import FragmentList
from lance_core.table.idempotency import inherited
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations.base import (
    ApplyContext,
    check_same_fragments,
    next_fragment_id,
    retained_indices,
    the_manifest,
)
from lance_core.table.operations.update import CompactedSsTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(WireRecord):
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
    message = transaction_pb2.Transaction.Delete

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Drop the deleted fragments, and give the updated ones their new deletion files."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex(WireRecord):
    """Change the list of indices.

    Attributes:
        new_indices: Segments to add.
        removed_indices: Segments to drop, identified by UUID.
    """

    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()

    name: ClassVar[str] = "CreateIndex"
    wire_name: ClassVar[str] = "create_index"
    message = transaction_pb2.Transaction.CreateIndex

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Drop the removed segments and add the new ones."""
        base = the_manifest(manifest, self.name)
        field_ids = {node.id for node, _ in base.schema.walk()}
        for index in self.new_indices:
            if not index.is_system and not field_ids.issuperset(index.fields):
                raise InvalidInputError(f"index {index.name!r} is on a field that the dataset does not have")
        dropped = {index.uuid for index in (*self.removed_indices, *self.new_indices)}
        other_indices = tuple(index for index in base.indices if index.uuid not in dropped)
        return replace(base, indices=(*other_indices, *self.new_indices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(WireRecord):
    """Replace the fields by others that all exist in the data files; schema metadata stays.

    Attributes:
        schema: The new schema; its field ids are existing ones.
        preserves_nullability: Whether no column became non-nullable, so that concurrent appends stay valid.
    """

    schema: Schema
    preserves_nullability: bool = False

    name: ClassVar[str] = "Project"
    wire_name: ClassVar[str] = "project"
    message = transaction_pb2.Transaction.Project

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Set the schema and drop the data files that hold none of its fields."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFragments(WireRecord):
    """Reserve the next fragment ids; the last reserved one is the new manifest's `max_fragment_id`.

    Attributes:
        num_fragments: The number of ids.
    """

    num_fragments: int

    name: ClassVar[str] = "ReserveFragments"
    wire_name: ClassVar[str] = "reserve_fragments"
    message = transaction_pb2.Transaction.ReserveFragments

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Raise the highest id. A dataset that has had no fragment skips id 0, which means no id in a transaction."""
        base = the_manifest(manifest, self.name)
        return replace(base, max_fragment_id=max(0, next_fragment_id(base) - 1) + self.num_fragments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(WireRecord):
    """Go back to an earlier version.

    Attributes:
        version: The version to go back to.
    """

    version: int

    name: ClassVar[str] = "Restore"
    wire_name: ClassVar[str] = "restore"
    message = transaction_pb2.Transaction.Restore

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBases(WireRecord):
    """Add base paths.

    Attributes:
        new_bases: The base paths; id 0 stands for the next free id.
    """

    new_bases: tuple[BasePath, ...]

    name: ClassVar[str] = "UpdateBases"
    wire_name: ClassVar[str] = "update_bases"
    message = transaction_pb2.Transaction.UpdateBases

    def apply(self, manifest: Manifest | None, _context: ApplyContext) -> Manifest:
        """Add the base paths; names, paths and ids must be new."""
        base = the_manifest(manifest, self.name)
        base_paths = list(base.base_paths)
        for new in self.new_bases:
            if any((new.name is not None and old.name == new.name) or old.path == new.path for old in base_paths):
                raise InvalidInputError(f"Conflict detected: base path {new.path!r} or its name {new.name!r} exists")
            if new.id and any(old.id == new.id for old in base_paths):
                raise InvalidInputError(f"Conflict detected: base path id {new.id} exists")
            base_paths.append(new if new.id else replace(new, id=max((old.id for old in base_paths), default=0) + 1))
        return replace(base, base_paths=tuple(base_paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone(WireRecord):
    """Copy a version of another dataset; the copy has the source's version number.

    Attributes:
        is_shallow: True if a base path refers to the files of the source; False if the files were copied.
        ref_version: Version of the source.
        ref_path: Root of the source.
        ref_name: Branch of the source; None for main.
        branch_name: Name of the new branch; None for a dataset.
    """

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None

    name: ClassVar[str] = "Clone"
    wire_name: ClassVar[str] = "clone"
    message = transaction_pb2.Transaction.Clone

    def apply(self, manifest: Manifest | None, context: ApplyContext) -> Manifest:
        """Copy the source's manifest, with references to all its files."""
        if manifest is not None:
            raise DatasetExistsError("Dataset already exists: Clone must be its first operation")
        source = context.source
        if source is None or source.version != self.ref_version:
            raise InvalidInputError(f"Clone needs the manifest of version {self.ref_version} of the source")
        if not self.is_shallow:
            return replace(_change_bases(source, lambda _: None), base_paths=_blob_bases(source), branch=None)
        base_id = max((base.id for base in source.base_paths), default=-1) + 1
        base = BasePath(id=base_id, path=self.ref_path, name=self.ref_name, is_dataset_root=True)
        return replace(
            _change_bases(source, lambda file_base: base_id if file_base is None else file_base),
            base_paths=(*source.base_paths, base),
            branch=self.branch_name,
        )


def _blob_bases(source: Manifest) -> tuple[BasePath, ...]:
    """The base paths of external blobs: a copy of a dataset still refers to these objects."""
    if not any(is_blob_v2(field) for field, _ in source.schema.walk()):
        return ()
    return tuple(base for base in source.base_paths if not base.is_dataset_root)


def _change_bases(source: Manifest, change: Callable[[int | None], int | None]) -> Manifest:
    def moved(fragment: Fragment) -> Fragment:
        deletion = fragment.deletion_file
        return replace(
            fragment,
            files=tuple(replace(file, base_id=change(file.base_id)) for file in fragment.files),
            deletion_file=None if deletion is None else replace(deletion, base_id=change(deletion.base_id)),
        )

    return replace(
        source,
        fragments=FragmentList.of(moved(fragment) for fragment in source.fragments),
        indices=tuple(replace(index, base_id=change(index.base_id)) for index in source.indices),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemWalState(WireRecord):
    """Record that levels of write-ahead logs were merged into the dataset.

    Attributes:
        compacted_sstables: The levels.
    """

    compacted_sstables: tuple[CompactedSsTable, ...]

    name: ClassVar[str] = "UpdateMemWalState"
    wire_name: ClassVar[str] = "update_mem_wal_state"
    message = transaction_pb2.Transaction.UpdateMemWalState

    @classmethod
    def from_protobuf(cls, message: transaction_pb2.Transaction.UpdateMemWalState) -> UpdateMemWalState:
        """Build the record from its protobuf message.

        Raises:
            UnsupportedError: The message is of 2025, when it had other fields.
        """
        if len(UnknownFieldSet(message)):
            raise UnsupportedError("a write-ahead log in the form of 2025 is not supported")
        return cls(**wire_values(cls, message))

    def apply(self, _manifest: Manifest | None, _context: ApplyContext) -> NoReturn:
        """Reject applying the operation: its state is kept in an index that this library does not write.

        Raises:
            UnsupportedError: The operation cannot be applied.
        """
        raise UnsupportedError("UpdateMemWalState: write-ahead logs are not written")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownOperation:
    """An operation of a newer library, or one with parts that this library does not read.

    Attributes:
        described: A description for error messages.
    """

    described: str

    name: ClassVar[str] = "Unknown"
    wire_name: ClassVar[str] = ""

    def to_protobuf(self) -> NoReturn:
        """Reject writing an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        raise UnsupportedError(f"operation {self.described} cannot be written")

    @classmethod
    def from_protobuf(cls, message: object) -> NoReturn:
        """Reject reading an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        raise UnsupportedError(f"operation {type(message).__name__} cannot be read")

    def apply(self, _manifest: Manifest | None, _context: ApplyContext) -> NoReturn:
        """Reject applying an operation that is not known.

        Raises:
            UnsupportedError: The operation is not known.
        """
        raise UnsupportedError(f"operation {self.described} cannot be applied")

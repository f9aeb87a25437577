"""Adapts a transaction to versions that were committed since its read version.

    Delete, Update   deletion vectors of fragments that others also deleted from are merged, and the transaction is
                     recorded as made from the latest version
    CreateIndex      fragments whose indexed values changed meanwhile are taken out of the new indices
    Overwrite        columns get new ids in a dataset that never reuses a field id

Every other operation stays as it is, with its original read version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyroaring import BitMap

from lance_core.commit.conflict import AffectedRows, affected_fragments
from lance_core.commit.versions import load_manifest
from lance_core.errors import CorruptFileError, LanceError, RetryableConflictError, VersionNotFoundError
from lance_core.store import BytesLike, ObjectStore, open_base, remove_leftovers
from lance_core.table.deletion import DeletionFile, DeletionFileType, DeletionVector, new_deletion_file_id
from lance_core.table.field_ids import with_new_ids
from lance_core.table.fragment import Fragment
from lance_core.table.index import without_fragments, without_replaced
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import CreateIndex, Delete, Merge, Overwrite, Update
from lance_core.table.paths import DELETIONS_PREFIX
from lance_core.table.transaction import Transaction, is_early

__all__ = ["Prepare", "Rebased", "deletion_vector", "load_deletion_vector", "rebase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A transaction that fits the latest version.

    Attributes:
        transaction: The transaction; its uuid and properties are the original's.
        written: Keys of files that the rebase wrote; garbage if the commit fails.
    """

    transaction: Transaction
    written: tuple[str, ...] = ()


Prepare: TypeAlias = Callable[[Transaction, Manifest], Rebased]
"""Completes a transaction with facts of the version that it will follow, such as fragment ids."""


def rebase(
    store: ObjectStore,
    transaction: Transaction,
    latest: Manifest,
    committed: Sequence[Transaction],
    affected_rows: AffectedRows,
) -> Rebased:
    """Adapt a transaction to the latest version, after all verdicts on it were compatible or rebasable.

    Args:
        store: The dataset's store; merged deletion files are written to it.
        transaction: The pending transaction as it was made.
        latest: The latest manifest.
        committed: The transactions since its read version.
        affected_rows: The rows that the transaction removes.

    Raises:
        RetryableConflictError: Another transaction changed the same rows.
        InvalidInputError: The data files of an Overwrite have unknown or ambiguous field ids.
    """
    operation = transaction.operation
    if isinstance(operation, Overwrite):
        return Rebased(transaction=replace(transaction, operation=with_new_ids(operation, latest)))
    if not committed:
        return Rebased(transaction=transaction)
    if isinstance(operation, CreateIndex):
        return Rebased(
            transaction=replace(transaction, operation=_without_changed(store, transaction, latest, committed))
        )
    if not isinstance(operation, Delete | Update):
        return Rebased(transaction=transaction)
    affected_by_others = frozenset[int]().union(*(affected_fragments(other.operation) for other in committed))
    changed, written = _with_merged_deletions(store, operation, latest, affected_by_others, affected_rows)
    return Rebased(transaction=replace(transaction, operation=changed, read_version=latest.version), written=written)


def _with_merged_deletions(
    store: ObjectStore,
    operation: Delete | Update,
    latest: Manifest,
    affected_by_others: AbstractSet[int],
    affected_rows: AffectedRows,
) -> tuple[Delete | Update, tuple[str, ...]]:
    """The operation with its deletions merged into the latest fragments, and the keys of the files written for that."""
    updated, emptied, written = [], [], []
    try:
        for fragment in operation.updated_fragments:
            current = latest.fragments.get(fragment.id) if fragment.id in affected_by_others else None
            if current is not None:
                fragment, key = _merged(store, fragment, current, latest, affected_rows[fragment.id])  # noqa: PLW2901 - the loop's own record, changed
                written.append(key)
                if fragment.num_rows == 0:
                    emptied.append(fragment.id)
            updated.append(fragment)
    except LanceError:
        remove_leftovers(store, written)
        raise
    if isinstance(operation, Delete):
        removed = (*operation.deleted_fragment_ids, *emptied)
        return replace(operation, updated_fragments=tuple(updated), deleted_fragment_ids=removed), tuple(written)
    removed = (*operation.removed_fragment_ids, *emptied)
    return replace(operation, updated_fragments=tuple(updated), removed_fragment_ids=removed), tuple(written)


def load_deletion_vector(store: ObjectStore, manifest: Manifest, fragment: Fragment) -> DeletionVector:
    """Read which rows of a fragment are deleted; the vector is empty if there is no deletion file."""
    deletion_file = fragment.deletion_file
    if deletion_file is None:
        return DeletionVector()
    key = deletion_file.key(fragment.id)
    if deletion_file.base_id is not None:
        base = manifest.base_path(deletion_file.base_id)
        store = open_base(base.path, store.root, store.options)
        key = key if base.is_dataset_root else key.removeprefix(DELETIONS_PREFIX)
    try:
        return deletion_vector(store.get(key), fragment, manifest)
    except CorruptFileError as error:
        raise CorruptFileError(f"{store.root}/{key}: {error}") from error


def deletion_vector(data: BytesLike, fragment: Fragment, manifest: Manifest) -> DeletionVector:
    """Read the deletion file of a fragment that has one, and check it against the manifest.

    Raises:
        CorruptFileError: The bytes are not a deletion file, or do not fit the fragment.
    """
    deletion_file = fragment.deletion_file
    assert deletion_file is not None
    if is_early(manifest.writer_version):  # early writers recorded wrong counts
        return DeletionVector.from_bytes(data, deletion_file.file_type)
    return DeletionVector.from_bytes(
        data, deletion_file.file_type, num_rows=fragment.physical_rows, num_deleted=deletion_file.num_deleted_rows
    )


def _merged(
    store: ObjectStore, fragment: Fragment, current: Fragment, latest: Manifest, affected: BitMap
) -> tuple[Fragment, str]:
    """Delete the affected rows from the latest fragment; returns the fragment and the key of its new deletion file."""
    deleted = load_deletion_vector(store, latest, current)
    both = deleted.bitmap & affected
    if both:
        raise RetryableConflictError(
            f"Retryable commit conflict for version {latest.version} of {store.root}: both modified rows of fragment "
            f"{fragment.id} at offsets {list(both[:5])}"
        )
    # A merged vector is written as a bitmap at any size, which distinguishes it from a new vector.
    union = deleted | affected
    data, file_type = union.to_bytes(DeletionFileType.BITMAP)
    file = DeletionFile(
        file_type=file_type, read_version=latest.version, id=new_deletion_file_id(), num_deleted_rows=len(union)
    )
    store.put(file.key(fragment.id), data)
    return replace(fragment, deletion_file=file), file.key(fragment.id)


def _without_changed(
    store: ObjectStore, transaction: Transaction, latest: Manifest, committed: Sequence[Transaction]
) -> CreateIndex:
    """The CreateIndex without coverage of fragments whose indexed values changed since the read version.

    Raises:
        RetryableConflictError: A Merge was committed, and the read version, which shows what the Merge replaced, was
            cleaned up.
    """
    operation = transaction.operation
    assert isinstance(operation, CreateIndex)
    indices = operation.new_indices
    for other in committed:
        update = other.operation
        if isinstance(update, Update) and update.fields_modified:
            changed = (fragment.id for fragment in update.updated_fragments)
            indices = without_fragments(indices, set(update.fields_modified), changed)
    if indices and any(isinstance(other.operation, Merge) for other in committed):
        try:
            read = load_manifest(store, transaction.read_version)
        except VersionNotFoundError as error:
            raise RetryableConflictError(
                f"{store.root}: index {indices[0].name!r} was built from version {transaction.read_version}, which was"
                " cleaned up, and columns were written since; build the index again"
            ) from error
        indices = without_replaced(indices, read.fragments, latest.fragments)
    return replace(operation, new_indices=indices)

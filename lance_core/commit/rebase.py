"""Adapts a transaction to versions that were committed since its read version, or rejects its files.

    Delete, Update   deletion vectors of fragments that others also deleted from are merged, and the transaction is
                     recorded as made from the latest version
    CreateIndex      fragments whose indexed values changed meanwhile are taken out of the new indices
    Overwrite        columns get new ids in a dataset that never reuses a field id

Every other operation stays as it is, with its original read version.

New data files whose columns have been replaced since they were written are rejected. Data files refer to columns by
field id. A column that gets another type gets a new id, and so does a column that is
dropped and added again: files that were written before, and are committed after that, have values that nobody reads. If
no data file has the id of a dropped column any more, the next column gets that id and would show the old values. A
column that was only dropped is no conflict, because the rows could have been committed before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyroaring import BitMap

from lance_core.commit.conflict import AffectedRows, affected_fragments
from lance_core.commit.versions import find_manifest, load_manifest
from lance_core.errors import CorruptFileError, LanceError, RetryableConflictError, VersionNotFoundError
from lance_core.file import DataFileReader
from lance_core.schema import UNASSIGNED, Field, Schema, quote_path
from lance_core.store import BytesLike, ObjectStore, open_base, remove_leftovers
from lance_core.table.deletion import DeletionFileType, DeletionVector
from lance_core.table.field_ids import with_new_ids
from lance_core.table.fragment import TOMBSTONE, DataFile, Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Project,
    Update,
)
from lance_core.table.paths import DATA_PREFIX, DELETIONS_PREFIX, data_key
from lance_core.table.reuse import without_fragments, without_replaced
from lance_core.table.transaction import Transaction


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
    if manifest.is_early:  # early writers recorded wrong counts
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
    file, data = union.to_file(latest.version, DeletionFileType.BITMAP)
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
        match other.operation:
            case Update(fields_modified=fields, updated_fragments=updated):
                changed = [fragment.id for fragment in updated]
            case DataReplacement(fields=fields, replacements=replacements):
                changed = [fragment_id for fragment_id, _ in replacements]
            case _:
                continue
        indices = without_fragments(indices, latest.schema.with_ancestors(fields), changed)
    if indices and any(isinstance(other.operation, Merge) for other in committed):
        try:
            read = load_manifest(store, transaction.read_version)
        except VersionNotFoundError as error:
            raise RetryableConflictError(
                f"{store.root}: index {indices[0].name!r} was built from version {transaction.read_version}, which was"
                " cleaned up, and columns were written since; build the index again"
            ) from error
        indices = without_replaced(indices, read.fragments, latest.fragments, latest.schema)
    return replace(operation, new_indices=indices)


_Path: TypeAlias = tuple[Field, ...]
"""A field with the fields above it, the top one first."""


def reject_replaced_columns(
    store: ObjectStore,
    transaction: Transaction,
    latest: Manifest,
    base: Manifest | None,
    committed: Mapping[int, Transaction],
) -> None:
    """Reject new data files with values of a column that has another field id now, or whose id another column has.

    Args:
        store: The dataset's store.
        transaction: The transaction as it was made.
        latest: The version that it would follow.
        base: A version that was read before.
        committed: The transactions since its read version, by version.

    Raises:
        RetryableConflictError: The column of such a file was replaced.
        ObjectNotFoundError: Such a file does not exist.
    """
    operation = transaction.operation
    changes = [committed[version].operation for version in sorted(committed)]
    schemas = [
        (change.schema, isinstance(change, Merge))
        for change in changes
        if isinstance(change, Merge | Project | Overwrite)
    ]
    schema = operation.schema if isinstance(operation, Merge) else latest.schema
    live = _find_field_ids(schema)
    unbroken = live.intersection(*(_find_field_ids(schema) for schema, _ in schemas))
    fragments = _new_fragments(operation, latest)
    files = [(f, file) for f in fragments for file in f.files if not unbroken >= {*file.fields}]
    if not files:
        return
    history = _ColumnHistory.of(store, transaction.read_version, (base, latest), schemas)
    live_paths = [*_paths(schema.fields)]
    names = {_names(path) for path in live_paths}
    for fragment, file in files:
        lost = set(file.fields) - unbroken - (live - history.dropped)
        # A fragment of an earlier version has values of a replaced column beside those of its successor.
        present = {i for each in fragment.files for i in each.fields}
        present_paths = [path for path in live_paths if path[-1].id in present]
        missing = names - {_names(path[:depth]) for path in present_paths for depth in range(1, len(path) + 1)}
        paths_by_id = history.paths
        if not paths_by_id.keys() >= lost:
            paths_by_id = {**_paths_by_id((_schema_of(store, latest, file),)), **paths_by_id}
        for field_id in sorted(lost):
            paths = paths_by_id.get(field_id, ())
            if field_id in live | history.replaced or any(_has_successor(path, live, missing) for path in paths):
                name = _names(paths[0 if field_id in live else -1]) if paths else ()
                column = repr(quote_path(name)) if paths else f"field id {field_id}"
                raise RetryableConflictError(
                    f"Retryable commit conflict: {store.root}: data file {file.path} has values of column {column}, "
                    "which got another type or was dropped and added again after the file was written, so that its "
                    "values would be lost or those of another column; write the rows again"
                )


_NO_FIELD: Final = frozenset((UNASSIGNED, TOMBSTONE))


def _find_field_ids(schema: Schema) -> frozenset[int]:
    """The field ids that data files may have, including those that stand for no field."""
    return _NO_FIELD.union(field.id for field, _ in schema.walk())


def _new_fragments(operation: Operation, latest: Manifest) -> Iterable[Fragment]:
    match operation:
        case Append():
            return operation.fragments
        case Update():
            return operation.new_fragments
        case Merge():
            latest_ids = set(latest.fragments.ids)
            return [fragment for fragment in operation.fragments if fragment.id not in latest_ids]
        case _:
            return ()


class _ColumnHistory:
    """What the versions since the read version show of their columns.

    Attributes:
        paths: Each field by its id, as each version has it.
        replaced: Ids of fields that a Merge, which only adds or replaces columns, has taken away.
        dropped: Ids of fields that any version has taken away, or that one may have taken away, as the read version was
            cleaned up.
    """

    __slots__ = ("dropped", "paths", "replaced")

    def __init__(self, schemas: Sequence[tuple[Schema | None, bool]]) -> None:
        self.paths = _paths_by_id(schema for schema, _ in schemas if schema is not None)
        self.replaced, self.dropped = set[int](), set[int]()
        for (before, _), (after, merged) in itertools.pairwise(schemas):
            assert after is not None
            lost = (self.paths if before is None else before.by_id()).keys() - after.by_id().keys()
            self.dropped |= lost
            self.replaced |= lost if before is not None and merged else set()

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        read_version: int,
        manifests: Iterable[Manifest | None],
        schemas: Sequence[tuple[Schema, bool]],
    ) -> _ColumnHistory:
        """Read the version before the first change of columns, if it is not one of some manifests."""
        if not schemas:
            return cls([])
        read_manifest = next(
            (manifest for manifest in manifests if manifest is not None and manifest.version == read_version), None
        )
        first = read_manifest or find_manifest(store, read_version)
        # If that version was cleaned up, the files have the names of their columns, too.
        return cls([(None if first is None else first.schema, False), *schemas])


def _has_successor(path: _Path, live: AbstractSet[int], names: AbstractSet[tuple[str, ...]]) -> bool:
    """Whether a field of a path has another id now."""
    return any(field.id not in live and _names(path[: depth + 1]) in names for depth, field in enumerate(path))


def _schema_of(store: ObjectStore, manifest: Manifest, file: DataFile) -> Schema:
    key = data_key(file.path)
    if file.base_id is not None:
        base = manifest.base_path(file.base_id)
        store = open_base(base.path, store.root, store.options)
        key = key if base.is_dataset_root else key.removeprefix(DATA_PREFIX)
    return DataFileReader.open(store, key, size=file.file_size_bytes or None).schema


def _paths_by_id(schemas: Iterable[Schema]) -> dict[int, list[_Path]]:
    paths_by_id: dict[int, list[_Path]] = {}
    for schema in schemas:
        for path in _paths(schema.fields):
            paths_by_id.setdefault(path[-1].id, []).append(path)
    return paths_by_id


def _paths(fields: Iterable[Field], above: _Path = ()) -> Iterator[_Path]:
    for field in fields:
        path = (*above, field)
        yield path
        yield from _paths(field.children, path)


def _names(path: _Path) -> tuple[str, ...]:
    return tuple(field.name for field in path)

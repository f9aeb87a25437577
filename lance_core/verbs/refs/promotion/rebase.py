"""Rebase a promotion on commits of the parent: find the rows and columns of the branch in the parent's new fragments.

    version   operation    rows to remove
    fork                   fragment 2: all        fragment 3: 5 7
    fork+1    Append       the same
    fork+2    Rewrite      2 3 -> 9: a Rewrite keeps the order of its group's live rows, so a row's offset in 9 is its
                           rank among them
    latest                 fragment 9: 0 .. 41 46 48

Commits that added columns, or wrote other columns in place, are followed as well; the columns that the branch wrote are
fitted to the latest version (`updated_columns`). Any other commit since the fork that changed the branch's rows is a
conflict.

Rows that the parent got since the fork must have other keys than the rows of the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lance_core.commit.conflict import AffectedRows, Verdict, affected_fragments, judge
from lance_core.errors import ObjectNotFoundError, RetryableConflictError
from lance_core.row_addresses import offsets_of
from lance_core.schema import Schema
from lance_core.table.filled_slices import overlapping_slices
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import (
    Append,
    Delete,
    KeyExistenceFilter,
    Merge,
    Operation,
    Project,
    Rewrite,
    Update,
    UpdateMode,
)
from lance_core.table.operations.rewrite import RewriteGroup
from lance_core.table.rowids import decode_row_ids
from lance_core.table.transaction import Transaction
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.refs.changes import Branch, BranchChanges
from lance_core.verbs.refs.promotion.added_columns import AddedColumns
from lance_core.verbs.refs.promotion.updated_columns import fit_updated_columns
from lance_core.verbs.rows.removal import RowsByFragment, live_rows, remove_rows
from lance_core.verbs.rows.rewritten_rows import rewritten_rows
from lance_core.verbs.rows.source_rows import key_hashes
from lance_core.verbs.scan.read_fragment import live_offsets

_SHOWN: Final = 5
_SLICES_SHOWN: Final = 10


def rebase_by_commits(
    branch: Branch,
    changes: BranchChanges,
    columns: AddedColumns,
    transaction: Transaction,
    latest: Manifest,
    commits: Mapping[int, Transaction],
    files: UncommittedFiles,
) -> tuple[Transaction, AffectedRows]:
    """Rebase the transaction of a promotion from the fork version to the parent's latest version, commit by commit.

    Args:
        branch: The branch.
        changes: Its changes.
        columns: The columns that the branch added.
        transaction: The promotion as a change of the fork version.
        latest: The parent's latest version.
        commits: All commits of the parent since the fork, by version.
        files: Collects the files that are written.

    Raises:
        RetryableConflictError: A commit changed the same rows or columns, or whether it did is unknown.
    """
    operation = transaction.operation
    assert isinstance(operation, Update)
    columns.check_names(latest)
    _check_same_columns(branch, operation, latest, commits)
    followed = _FollowedChanges.of(branch, changes, columns, transaction)
    for version, other in commits.items():
        followed.follow(version, other)
    fitted = fit_updated_columns(branch, changes, operation, columns.fields, latest, files)
    snapshot = branch.parent.with_manifest(latest)
    fragments = ((latest.fragments.get(i), offsets) for i, offsets in sorted(followed.rows.items()))
    rows = [(fragment, offsets) for fragment, offsets in fragments if fragment is not None]
    deleted = [fragment.id for fragment, offsets in rows if snapshot.deleted_rows(fragment) & offsets]
    if deleted:
        raise RetryableConflictError(f"rows of fragments {deleted[:_SHOWN]}, which the branch removed, were deleted")
    if operation.inserted_rows is not None and not followed.compares_lists_of_keys(commits.values()):
        check_new_keys(branch, changes, operation.inserted_rows, NewRows.of(branch, snapshot, followed.rows))
    removal = remove_rows(snapshot, rows, files)
    updated = {fragment.id: fragment for fragment in removal.updated_fragments}
    for number in sorted(fitted.files.keys() - set(removal.removed_fragment_ids)):
        fragment = updated.get(number, latest.fragments.get(number))
        assert fragment is not None
        updated[number] = fitted.put_into(fragment)
    changed = replace(
        operation,
        removed_fragment_ids=removal.removed_fragment_ids,
        updated_fragments=tuple(updated.values()),
        updated_fragment_fields={i: field_ids for i, field_ids in fitted.fields.items() if i in updated},
        updated_fragment_offset_bitmaps={i: bitmap for i, bitmap in fitted.rows.items() if i in updated},
    )
    return replace(transaction, operation=changed, read_version=latest.version), removal.affected_rows


def _check_same_columns(
    branch: Branch, operation: Update, latest: Manifest, commits: Mapping[int, Transaction]
) -> None:
    """Check that no column that the branch has values for was dropped, and its field id given to another one."""
    stored_ids = frozenset[int]().union(*map(_list_stored_fields, operation.new_fragments))
    ids = stored_ids & branch.parent.manifest.schema.by_id().keys() & latest.schema.by_id().keys()
    for version, other in commits.items():
        if isinstance(other.operation, Merge | Project) and not ids <= other.operation.schema.by_id().keys():
            raise RetryableConflictError(
                f"version {version} ({other.operation.name}) dropped a column that the branch has values for, and "
                "another column has its field id now"
            )


@dataclass(slots=True, kw_only=True)
class _FollowedChanges:
    """The rows and columns that a branch changed, followed from the fork version through the commits of its parent.

    Attributes:
        branch: The branch.
        transaction: The promotion as a change of the fork version.
        rows: The rows to remove, by fragment of the version reached.
        fields: The fields that the branch wrote, by fragment of the version reached.
        added: The fields of columns that the branch added; no commit of the parent has values for them.
        fragments: The fragments of `rows` and `fields`, as the version reached has them.
    """

    branch: Branch
    transaction: Transaction
    rows: RowsByFragment
    fields: dict[int, frozenset[int]]
    added: frozenset[int]
    fragments: dict[int, Fragment]

    @classmethod
    def of(
        cls, branch: Branch, changes: BranchChanges, columns: AddedColumns, transaction: Transaction
    ) -> _FollowedChanges:
        """The changes as they are at the fork version."""
        operation = transaction.operation
        assert isinstance(operation, Update)
        rows = {i: offsets for i, offsets in changes.rows_taken(branch).items() if offsets}
        rows |= {fragment.id: live_offsets(branch.parent, fragment) for fragment in changes.removed}
        fields = {i: frozenset(ids) for i, ids in operation.updated_fragment_fields.items() if ids}
        parent_fragments = {fragment.id: fragment for fragment in branch.parent.manifest.fragments}
        added = frozenset(node.id for node, _ in Schema(fields=columns.fields).walk())
        fragments = {i: parent_fragments[i] for i in {*rows, *fields}}
        return cls(branch=branch, transaction=transaction, rows=rows, fields=fields, added=added, fragments=fragments)

    def follow(self, version: int, other: Transaction) -> None:
        """Follow the changes through the commit of the next version.

        Raises:
            RetryableConflictError: The version changed the same rows or columns, or whether it did is unknown.
        """
        operation, both = other.operation, sorted(overlapping_slices(self.transaction.properties, other.properties))
        if both:
            raise RetryableConflictError(
                f"version {version} filled {', '.join(map(repr, both[:_SLICES_SHOWN]))} as well"
            )
        if isinstance(operation, Rewrite):
            for group in operation.groups:
                self._follow_group(group, version)
        elif isinstance(operation, Merge):
            self._follow_merge(operation, version)
        else:
            left = {*self.rows, *self.fields} - self._find_fragments_without_conflict(operation)
            pending = replace(self._operation, removed_fragment_ids=tuple(sorted(left)), updated_fragments=())
            if not self.compares_lists_of_keys([other]):
                pending = replace(pending, inserted_rows=None)
            judged = judge(replace(self.transaction, operation=pending), other)
            if judged is not Verdict.COMPATIBLE:
                raise _conflict_error(
                    version, operation.name, self._name_fragments(affected_fragments(operation) & left)
                )
            if isinstance(operation, Update | Delete):
                self._note(operation.updated_fragments)

    def compares_lists_of_keys(self, commits: Iterable[Transaction]) -> bool:
        """Whether the branch and some commits list the keys of the rows that they inserted; else the keys are read."""
        mine = self._operation.inserted_rows
        is_listed = mine is None or mine.key_hashes is not None
        return is_listed and all(lists_new_keys(other.operation) for other in commits)

    @property
    def _operation(self) -> Update:
        assert isinstance(self.transaction.operation, Update)
        return self.transaction.operation

    def _note(self, fragments: Iterable[Fragment]) -> None:
        self.fragments |= {fragment.id: fragment for fragment in fragments if fragment.id in self.fragments}

    def _moves_rows(self) -> bool:
        """Whether the branch moved rows into fragments that it wrote; without stable row ids, whether it may have."""
        born_from = self.branch.parent.manifest.next_row_id
        new = self._operation.new_fragments
        if not self.branch.parent.manifest.uses_stable_row_ids:
            return bool(new)
        return any(
            fragment.row_ids and (decode_row_ids(fragment.row_ids, fragment.physical_rows) < born_from).any()
            for fragment in new
        )

    def _name_fragments(self, numbers: Iterable[int]) -> str:
        ids = sorted(numbers)
        return f"fragments {ids[:_SHOWN]}, which the branch changed" if ids else "rows, columns or keys of the branch"

    def _find_fragments_without_conflict(self, operation: Operation) -> set[int]:
        """Fragments in which a commit changed other columns, or deleted rows beside those that the branch removed.

        If the branch wrote only added columns, their values are dropped with rows that the commit deleted, and rows
        that it moved are found by their stable ids. Whether the commit deleted rows that the branch removed is seen
        where these rows are now.
        """
        numbers = affected_fragments(operation)
        if isinstance(operation, Update) and operation.update_mode is UpdateMode.REWRITE_COLUMNS:
            modified = set(operation.fields_modified)
            marks = operation.updated_fragment_offset_bitmaps
            return {
                i
                for i in numbers
                if modified
                and modified.isdisjoint(self.fields.get(i, ()))
                and (i not in self.rows or (i in marks and not BitMap.deserialize(marks[i]) & self.rows[i]))
            }
        if not isinstance(operation, Update | Delete):
            return set()
        remaining = {fragment.id: fragment.files for fragment in operation.updated_fragments}
        thinned = {
            i for i in numbers - self.fields.keys() if i in self.rows and remaining.get(i) == self.fragments[i].files
        }
        if isinstance(operation, Update) and not self.branch.parent.manifest.uses_stable_row_ids:
            return thinned
        return thinned | {i for i in numbers if i not in self.rows and self.fields.get(i, frozenset()) <= self.added}

    def _follow_group(self, group: RewriteGroup, version: int) -> None:
        """Map rows of a group's old fragments to rows of the new ones."""
        numbers = {fragment.id for fragment in group.old_fragments}
        fields = frozenset[int]().union(*(self.fields.pop(i, frozenset()) for i in numbers))
        if fields:
            self.fields |= {fragment.id: fields for fragment in group.new_fragments}
        if numbers & self.rows.keys() and not group.is_in_place:
            _follow(self.branch.parent, group, self.rows, version)
        if numbers & self.fragments.keys():
            self.fragments |= {fragment.id: fragment for fragment in group.new_fragments}

    def _follow_merge(self, operation: Merge, version: int) -> None:
        """Check that a Merge added columns, and did not change the rows and columns that the branch changed."""
        fork = self.branch.parent.manifest.schema
        types = {node.id: node.logical_type for node, _ in operation.schema.walk()}
        if any(types.get(node.id) != node.logical_type for node, _ in fork.walk()):
            raise RetryableConflictError(f"version {version} (Merge) changed or dropped columns")
        strict = [
            field.name for field in operation.schema.fields if not field.nullable and field.name not in fork.names
        ]
        if self._operation.new_fragments and strict:
            raise RetryableConflictError(f"version {version} (Merge) added columns {strict}, which cannot be null")
        now = {fragment.id: fragment for fragment in operation.fragments if fragment.id in self.fragments}
        fork_ids = frozenset(node.id for node, _ in fork.walk())
        for number in {*self.rows, *self.fields}:
            before, after = self.fragments[number], now.get(number)
            mine = fork_ids if number in self.rows else fork_ids & self.fields[number]
            if (
                after is None
                or after.physical_rows != before.physical_rows
                or after.deletion_file != before.deletion_file
                or _locate_fields(before, mine) != _locate_fields(after, mine)
            ):
                raise _conflict_error(version, Merge.name, self._name_fragments([number]))
            if (
                number in self.rows
                and _list_stored_fields(after) - _list_stored_fields(before) - fork_ids
                and self._moves_rows()
            ):
                raise RetryableConflictError(
                    f"version {version} (Merge) set columns of rows of fragment {number}, which the branch moved away"
                )
        self._note(now.values())


def _list_stored_fields(fragment: Fragment) -> frozenset[int]:
    """The fields that files of a fragment hold."""
    return frozenset(number for file in fragment.files for number, _ in file.columns())


def _locate_fields(fragment: Fragment, fields: frozenset[int]) -> set[tuple[int, str, int | None, int]]:
    """The place of each field's values: field, file, base path and column of the file."""
    return {
        (number, file.path, file.base_id, column)
        for file in fragment.files
        for number, column in file.columns()
        if number in fields
    }


def _follow(snapshot: Snapshot, group: RewriteGroup, rows: RowsByFragment, version: int) -> None:
    """Map rows of a group's old fragments to rows of the new ones."""
    try:
        live = [live_offsets(snapshot, fragment) for fragment in group.old_fragments]
    except ObjectNotFoundError as error:  # removed by the cleanup of another library
        raise RetryableConflictError(f"which rows version {version} moved is not known: {error}") from error
    removed_rows = [rows.pop(fragment.id, BitMap()) for fragment in group.old_fragments]
    if any(not removed <= alive for removed, alive in zip(removed_rows, live, strict=True)):
        raise _conflict_error(version, Rewrite.name, "rows that the branch removed")
    moved = rewritten_rows(live, removed_rows, [fragment.physical_rows for fragment in group.new_fragments])
    if moved is None:
        raise _conflict_error(version, Rewrite.name, "fragments that had lost rows")
    rows |= {fragment.id: offsets for fragment, offsets in zip(group.new_fragments, moved, strict=True) if offsets}


def _conflict_error(version: int, name: str, what: str) -> RetryableConflictError:
    return RetryableConflictError(f"version {version} ({name}) changed {what}")


_SPARK_TYPE: Final = "spark.type"
_COLLATE: Final = b" collate "


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """Live rows of the latest version in fragments that the fork version lacks, without those that the branch replaces.

    Attributes:
        snapshot: The latest version.
        fragments: The fragments.
        removed_rows: The rows that the branch replaces.
    """

    snapshot: Snapshot
    fragments: Sequence[Fragment]
    removed_rows: RowsByFragment

    @classmethod
    def of(cls, branch: Branch, latest: Snapshot, removed_rows: RowsByFragment) -> NewRows:
        """The new rows of the parent's latest version."""
        old = {fragment.id for fragment in branch.parent.manifest.fragments}
        fragments = [fragment for fragment in latest.manifest.fragments if fragment.id not in old]
        return cls(snapshot=latest, fragments=fragments, removed_rows=removed_rows)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows, with some of their columns."""
        for fragment in self.fragments:
            hidden = self.removed_rows.get(fragment.id, BitMap())
            if len(hidden) == fragment.num_rows:
                continue
            for batch, offsets in live_rows(self.snapshot, fragment, names):
                left = ~np.isin(np.asarray(offsets), offsets_of(hidden))
                yield batch if left.all() else batch.filter(pa.array(left))


def lists_new_keys(operation: Operation) -> bool:
    """Whether a commit inserted no rows, or lists the keys of those that it inserted."""
    if isinstance(operation, Update):
        keys = operation.inserted_rows
        return not operation.new_fragments or (keys is not None and keys.key_hashes is not None)
    return not isinstance(operation, Append | Merge)


def check_new_keys(branch: Branch, changes: BranchChanges, inserted: KeyExistenceFilter, new: NewRows) -> None:
    """Check that no new row has a key that the branch inserted; the keys are read where no list is recorded.

    Raises:
        RetryableConflictError: A new row has a key that the branch inserted, or whether it has is unknown.
    """
    if inserted.is_empty or not new.fragments:
        return
    columns = _find_key_columns(new.snapshot, inserted)
    mine = _hash_rows(inserted) if inserted.key_hashes is not None else _read(branch, changes, inserted)
    for batch in new.batches(columns):
        if np.isin(key_hashes(batch, columns), mine).any():
            raise RetryableConflictError("a key that the branch inserted has been inserted since the fork")


def _find_key_columns(snapshot: Snapshot, inserted: KeyExistenceFilter) -> list[str]:
    """The columns of the key, if equal keys have equal values there."""
    by_id = {field.id: field for field in snapshot.manifest.schema.fields}
    fields = [by_id[number] for number in inserted.field_ids if number in by_id]
    has_collation = any(_COLLATE in field.metadata.get(_SPARK_TYPE, b"") for field in fields)
    if len(fields) < len(inserted.field_ids) or has_collation:
        raise RetryableConflictError("it is not known whether the same keys were inserted since the fork")
    return [field.name for field in fields]


def _hash_rows(inserted: KeyExistenceFilter) -> npt.NDArray[np.uint64]:
    assert inserted.key_hashes is not None
    return np.fromiter(inserted.key_hashes, np.uint64, len(inserted.key_hashes))


def _read(branch: Branch, changes: BranchChanges, inserted: KeyExistenceFilter) -> npt.NDArray[np.uint64]:
    """The keys of all rows that the branch wrote: rows that it moved replace others of the same keys."""
    columns = _find_key_columns(branch.head, inserted)
    written = (live_rows(branch.head, fragment, columns) for fragment in changes.added)
    hashes = [key_hashes(batch.drop_null(), columns) for batches in written for batch, _ in batches]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]))

"""Verdicts on races: can a transaction follow one that was committed since its read version?

The table below has a row for each operation that is pending and a column for each that was committed. A cell is a
verdict, or a function that gives the verdict where it depends on the content of both transactions. The verdicts are

    compatible     carry on
    rebasable      carry on, after the transaction was adapted (`commit.rebase`)
    retryable      the whole operation must be done again on the latest version
    incompatible   the operation makes no sense any more

A transaction can name the slices of the table that it fills (`table.filled_slices`). If slices of both transactions
overlap, a compatible or rebasable verdict becomes retryable: both may have written rows where there were none, and
their fragments do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, TypeAlias

from pyroaring import BitMap

from lance_core.table.filled_slices import overlapping_slices
from lance_core.table.operations import (
    OPERATIONS,
    Append,
    CreateIndex,
    DataReplacement,
    Delete,
    Merge,
    Operation,
    Overwrite,
    Project,
    Restore,
    Rewrite,
    UnknownOperation,
    Update,
    UpdateBases,
    UpdateConfig,
    UpdateMap,
    UpdateMemWalState,
    UpdateMode,
)
from lance_core.table.transaction import Transaction

AffectedRows: TypeAlias = Mapping[int, BitMap]
"""The rows that a Delete or Update removes, as offsets by fragment id."""


class Verdict(Enum):
    """The verdict on a pending transaction and a committed one; the docstring of the module explains the values."""

    COMPATIBLE = "compatible"
    REBASABLE = "rebasable"
    RETRYABLE = "retryable"
    INCOMPATIBLE = "incompatible"


Rule: TypeAlias = Callable[[Any, Any, AffectedRows], Verdict]

_OK, _REBASE, _RETRY, _NEVER = Verdict.COMPATIBLE, Verdict.REBASABLE, Verdict.RETRYABLE, Verdict.INCOMPATIBLE


def judge(pending: Transaction, committed: Transaction, affected_rows: AffectedRows | None = None) -> Verdict:
    """Return whether a pending transaction can follow a transaction that was committed since its read version.

    Args:
        pending: The transaction to be committed.
        committed: A transaction that is in the history already.
        affected_rows: The rows that the pending Delete or Update removes. For a fragment without them, a change by both
            transactions is retryable.
    """
    cell = VERDICTS[type(pending.operation)][type(committed.operation)]
    verdict = cell if isinstance(cell, Verdict) else cell(pending.operation, committed.operation, affected_rows or {})
    if verdict in (_OK, _REBASE) and overlapping_slices(pending.properties, committed.properties):
        return _RETRY
    return verdict


def affected_fragments(operation: Operation) -> frozenset[int]:
    """Return the ids of the existing fragments that an operation changes, replaces or removes."""
    match operation:
        case Delete():
            return frozenset((*operation.deleted_fragment_ids, *(f.id for f in operation.updated_fragments)))
        case Update():
            return frozenset((*operation.removed_fragment_ids, *(f.id for f in operation.updated_fragments)))
        case Rewrite():
            return operation.old_fragment_ids
        case DataReplacement():
            return frozenset(fragment_id for fragment_id, _ in operation.replacements)
        case _:
            return frozenset()


def _retry_if(condition: object) -> Verdict:
    return _RETRY if condition else _OK


def _never_if(condition: object) -> Verdict:
    return _NEVER if condition else _OK


def _removed(operation: Delete | Update) -> frozenset[int]:
    if isinstance(operation, Delete):
        return frozenset(operation.deleted_fragment_ids)
    return frozenset(operation.removed_fragment_ids)


def _same_fragments(pending: Operation, committed: Operation, _: AffectedRows) -> Verdict:
    """Retry if both operations change, replace or remove the same fragment."""
    return _retry_if(affected_fragments(pending) & affected_fragments(committed))


def _rows(pending: Delete | Update, committed: Delete | Update, affected: AffectedRows) -> Verdict:
    """Merge the deletion vectors of shared fragments if removed rows are known and data files equal; else retry."""
    if isinstance(pending, Update) and isinstance(committed, Update) and _inserted_same(pending, committed):
        return _RETRY
    shared = affected_fragments(pending) & affected_fragments(committed)
    if not shared:
        return _OK
    if isinstance(pending, Update) and pending.update_mode is UpdateMode.REWRITE_COLUMNS:
        return _RETRY
    pending_fragments = {f.id: f for f in pending.updated_fragments}
    committed_fragments = {f.id: f for f in committed.updated_fragments}
    removed = _removed(pending) | _removed(committed)
    for i in shared:
        if i in removed or i not in affected or pending_fragments[i].files != committed_fragments[i].files:
            return _RETRY
    return _REBASE


def _inserted_same(pending: Update, committed: Update) -> bool:
    if pending.inserted_rows is None or pending.inserted_rows.is_empty:
        return False
    return committed.inserted_rows is None or pending.inserted_rows.may_intersect(committed.inserted_rows)


def _update_append(pending: Update, _: Append, __: AffectedRows) -> Verdict:
    return _retry_if(pending.inserted_rows is not None and not pending.inserted_rows.is_empty)


def _nullability_committed(_: Operation, committed: Merge | Project, __: AffectedRows) -> Verdict:
    return _retry_if(not committed.preserves_nullability)


def _nullability_pending(pending: Project, _: Operation, __: AffectedRows) -> Verdict:
    return _retry_if(not pending.preserves_nullability)


def _dropped(project: Project, fields: Collection[int]) -> bool:
    """Whether a projection dropped one of some fields."""
    return not {node.id for node, _ in project.schema.walk()}.issuperset(fields)


def _update_project(pending: Update, committed: Project, _: AffectedRows) -> Verdict:
    return _retry_if(not committed.preserves_nullability or _dropped(committed, pending.fields_modified))


def _index_project(pending: CreateIndex, committed: Project, _: AffectedRows) -> Verdict:
    return _retry_if(any(_dropped(committed, index.fields) for index in pending.new_indices))


def _replacement_project(pending: DataReplacement, committed: Project, _: AffectedRows) -> Verdict:
    if not committed.preserves_nullability:
        return _RETRY
    return _never_if(_dropped(committed, pending.fields))


def _overwrite_overwrite(pending: Overwrite, committed: Overwrite, _: AffectedRows) -> Verdict:
    return _NEVER if pending.config_upserts.keys() & committed.config_upserts.keys() else _RETRY


def _config_keys(change: UpdateMap | None) -> set[str]:
    return set(change.entries) if change is not None else set()


def _config_clash(left: UpdateMap | None, right: UpdateMap | None) -> bool:
    """Whether two changes of one map touch the same key."""
    if left is None or right is None:
        return False
    return left.replace or right.replace or bool(_config_keys(left) & _config_keys(right))


def _overwrite_config(pending: Overwrite, committed: UpdateConfig, _: AffectedRows) -> Verdict:
    return _never_if(pending.config_upserts.keys() & _config_keys(committed.config))


def _config_overwrite(pending: UpdateConfig, committed: Overwrite, _: AffectedRows) -> Verdict:
    return _never_if(pending.changes_schema or committed.config_upserts.keys() & _config_keys(pending.config))


def _config_config(pending: UpdateConfig, committed: UpdateConfig, _: AffectedRows) -> Verdict:
    return _never_if(
        _config_clash(pending.config, committed.config)
        or _config_clash(pending.table_metadata, committed.table_metadata)
        or (pending.schema_metadata is not None and committed.schema_metadata is not None)
        or pending.field_metadata.keys() & committed.field_metadata.keys()
    )


def _config_merge(pending: UpdateConfig, _: Operation, __: AffectedRows) -> Verdict:
    return _retry_if(pending.changes_schema)


def _config_project(pending: UpdateConfig, committed: Project, _: AffectedRows) -> Verdict:
    return _never_if(_dropped(committed, pending.field_metadata))


def _config_restore(pending: UpdateConfig, _: Restore, __: AffectedRows) -> Verdict:
    return _never_if(pending.changes_schema)


def _merge_config(_: Merge, committed: UpdateConfig, __: AffectedRows) -> Verdict:
    return _retry_if(committed.changes_schema)


def _project_config(_: Project, committed: UpdateConfig, __: AffectedRows) -> Verdict:
    # The schema in the projection has the field metadata of its read version.
    return _retry_if(committed.field_metadata)


def _restore_config(_: Restore, committed: UpdateConfig, __: AffectedRows) -> Verdict:
    return _never_if(committed.changes_schema)


def _index_index(pending: CreateIndex, committed: CreateIndex, _: AffectedRows) -> Verdict:
    theirs_new = {index.name for index in committed.new_indices}
    theirs_removed = {index.name for index in committed.removed_indices}
    touched = {index.uuid for index in (*committed.new_indices, *committed.removed_indices)}
    mine_removed = {index.name for index in pending.removed_indices}
    return _retry_if(
        any(index.name in theirs_new | theirs_removed for index in pending.new_indices)
        or mine_removed & theirs_new
        or any(index.uuid in touched for index in pending.removed_indices)
    )


def _covers(operation: CreateIndex, fragment_ids: Collection[int]) -> bool:
    """Whether a new index covers one of some fragments, or has no bitmap and may cover them."""
    covered = [index.covered_fragments() for index in operation.new_indices]
    return any(bitmap is None or bool(bitmap & BitMap(fragment_ids)) for bitmap in covered)


def _index_rewrite(pending: CreateIndex, committed: Rewrite, _: AffectedRows) -> Verdict:
    return _retry_if(_covers(pending, committed.old_fragment_ids))


def _rewrite_index(pending: Rewrite, committed: CreateIndex, _: AffectedRows) -> Verdict:
    return _retry_if(_covers(committed, pending.old_fragment_ids))


def _index_update(pending: CreateIndex, committed: Update, _: AffectedRows) -> Verdict:
    return _REBASE if pending.new_indices and committed.fields_modified else _OK


def _indexed(index: CreateIndex) -> set[int]:
    return {f for new in index.new_indices for f in (*new.fields, *new.covering_fields)}


def _index_replacement(pending: CreateIndex, committed: DataReplacement, _: AffectedRows) -> Verdict:
    return _retry_if(_indexed(pending) & committed.fields)


def _replacement_index(pending: DataReplacement, committed: CreateIndex, _: AffectedRows) -> Verdict:
    return _retry_if(_indexed(committed) & pending.fields)


def _replacement_delete(pending: DataReplacement, committed: Delete, _: AffectedRows) -> Verdict:
    return _never_if(affected_fragments(pending) & _removed(committed))


def _replacement_update(pending: DataReplacement, committed: Update, _: AffectedRows) -> Verdict:
    shared = affected_fragments(pending) & affected_fragments(committed)
    if shared & _removed(committed):
        return _NEVER
    moved = committed.update_mode is UpdateMode.REWRITE_ROWS and committed.new_fragments
    return _retry_if(shared and (moved or pending.fields & set(committed.fields_modified)))


def _replacement_replacement(pending: DataReplacement, committed: DataReplacement, _: AffectedRows) -> Verdict:
    same = affected_fragments(pending) & affected_fragments(committed)
    return _retry_if(same and pending.fields & committed.fields)


def _wal(pending: Update | UpdateMemWalState, committed: Update | UpdateMemWalState, _: AffectedRows) -> Verdict:
    """Reject a level that is not newer than a merged one: levels of a shard's log must be merged in order."""
    mine = {table.shard_id: table.generation for table in pending.compacted_sstables}
    verdict = _OK
    for table in committed.compacted_sstables:
        if table.shard_id in mine:
            verdict = _NEVER if table.generation >= mine[table.shard_id] else _RETRY
            if verdict is _NEVER:
                return verdict
    return verdict


def _bases(pending: UpdateBases, committed: UpdateBases, _: AffectedRows) -> Verdict:
    return _never_if(
        any(
            (new.id and new.id == old.id) or (new.name is not None and new.name == old.name) or new.path == old.path
            for new in pending.new_bases
            for old in committed.new_bases
        )
    )


_LEGEND: dict[str, Verdict | Rule] = {
    ".": _OK,
    "R": _RETRY,
    "X": _NEVER,
    "frags": _same_fragments,
    "rows": _rows,
    "keys": _update_append,
    "nul": _nullability_committed,
    "mynul": _nullability_pending,
    "u/prj": _update_project,
    "i/prj": _index_project,
    "d/prj": _replacement_project,
    "o/o": _overwrite_overwrite,
    "o/cfg": _overwrite_config,
    "c/o": _config_overwrite,
    "c/c": _config_config,
    "c/mrg": _config_merge,
    "c/prj": _config_project,
    "c/rst": _config_restore,
    "m/cfg": _merge_config,
    "p/cfg": _project_config,
    "r/cfg": _restore_config,
    "i/i": _index_index,
    "i/rew": _index_rewrite,
    "rew/i": _rewrite_index,
    "i/upd": _index_update,
    "i/dr": _index_replacement,
    "dr/i": _replacement_index,
    "dr/d": _replacement_delete,
    "dr/u": _replacement_update,
    "dr/dr": _replacement_replacement,
    "wal": _wal,
    "bases": _bases,
}

# Rows: pending. Columns: committed, in the order of `OPERATIONS`. An unknown operation is never pending.
_TABLE = """
committed:        App   Del   Ovw   CIdx  Rew   Mrg   Rst   RsF   Upd   Prj   Cfg   DRep  MWal  Cln   Bas   Unknown
Append            .     .     X     .     .     nul   X     .     .     nul   .     .     X     .     .     X
Delete            .     rows  X     .     frags R     X     .     rows  .     .     frags X     .     .     X
Overwrite         .     .     o/o   .     .     .     .     .     .     .     o/cfg .     X     .     .     X
CreateIndex       .     .     X     i/i   i/rew .     X     .     i/upd i/prj .     i/dr  X     .     .     X
Rewrite           .     frags X     rew/i frags R     X     .     frags .     .     frags .     .     .     X
Merge             R     R     X     .     R     R     X     .     R     X     m/cfg R     .     .     .     X
Restore           .     .     .     .     .     .     .     .     .     .     r/cfg .     X     .     .     X
ReserveFragments  .     .     X     .     .     .     X     .     .     .     .     .     .     .     .     X
Update            keys  rows  X     .     frags R     X     .     rows  u/prj .     frags wal   .     .     X
Project           mynul .     X     .     .     R     X     .     mynul R     p/cfg mynul X     .     .     X
UpdateConfig      .     .     c/o   .     .     c/mrg c/rst .     .     c/prj c/c   .     .     .     .     X
DataReplacement   .     dr/d  X     dr/i  frags R     X     .     dr/u  d/prj .     dr/dr X     .     .     X
UpdateMemWalState X     X     X     .     .     X     X     .     wal   X     .     X     wal   X     .     X
Clone             X     X     X     X     X     X     X     X     X     X     X     X     X     X     X     X
UpdateBases       .     .     .     .     .     .     .     .     .     .     .     .     .     .     bases X
"""


def _parsed(table: str) -> dict[type[Operation], dict[type[Operation], Verdict | Rule]]:
    columns: tuple[type[Operation], ...] = (*OPERATIONS.values(), UnknownOperation)
    by_name = {operation.name: operation for operation in columns}
    result = {}
    for line in table.strip().splitlines()[1:]:
        name, *cells = line.split()
        result[by_name[name]] = dict(zip(columns, (_LEGEND[cell] for cell in cells), strict=True))
    return result


VERDICTS = _parsed(_TABLE)
"""The verdicts by type of the pending operation, then by type of the committed operation."""

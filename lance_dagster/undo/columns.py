"""Undo a run that set columns of rows, if later commits only set other columns, or added or deleted rows.

    fragment before       after the run         now                      after the undo
    a.lance: id, label    a.lance: id           a.lance: id              a.lance: id, label
                          b.lance: label        b.lance: label
                                                c.lance: vector          c.lance: vector

The data files of the columns are replaced by those that held the columns before; no value is read or written. A column
that the run added, and that no other fragment has, is dropped. Rows that were deleted since stay deleted. If they may
have been moved instead, with their values, the undo is rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from pyroaring import BitMap

import lance_core
from lance_core import FragmentMetadata
from lance_core.errors import VersionNotFoundError
from lance_core.fragment import DataFile
from lance_core.lance import LanceSchema
from lance_dagster.lineage.history import TableVersion
from lance_dagster.properties import COLUMNS

SYSTEM: Final = "__lance_"
"""Prefix of the names of system indices, which do not index rows."""

_TOMBSTONE: Final = -2
_OPERATIONS: Final = ("Update", "Merge")

Files = Mapping[tuple[int | None, str], DataFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsBack:
    """The undo of columns that a run has set.

    Attributes:
        operation: The operation to commit; None if the undo would not be exact.
        how: A description of the operation, or the reason for which there is none.
        indices_lost: The indices that cover no row after it.
    """

    operation: lance_core.LanceOperation.BaseOperation | None = None
    how: str
    indices_lost: tuple[str, ...] = ()


def sets_columns(versions: Sequence[TableVersion]) -> bool:
    """Whether all versions of a run only set columns of existing rows."""
    return all(COLUMNS in version.properties and version.operation in _OPERATIONS for version in versions)


def plan_columns_undo(
    before: lance_core.LanceDataset,
    after: lance_core.LanceDataset,
    now: lance_core.LanceDataset,
    versions: Sequence[int],
) -> ColumnsBack | None:
    """Plan to set the columns back; None if the versions changed more than columns.

    Args:
        before: The version before the run's first one.
        after: The run's last version.
        now: The newest version.
        versions: The run's versions.
    """
    old, new, current = (_fragments(dataset) for dataset in (before, after, now))
    changed = [key for key in new if old.get(key) != new[key]]
    if old.keys() != new.keys() or any(old[key].deletion_file != new[key].deletion_file for key in changed):
        return None
    ids = sorted({field_id for key in changed for field_id in _written(old[key], new[key])})
    names = ", ".join(_names(after, ids))
    old_ids = [field_id for field_id in ids if _definitions(before, [field_id])]
    added = [field_id for field_id in ids if field_id not in old_ids]
    if _definitions(now, ids) != _definitions(after, ids) or _definitions(now, old_ids) != _definitions(
        before, old_ids
    ):
        return ColumnsBack(how=f"the columns {names} have changed")
    moved = [key for key in changed if key not in current or _holding(current[key], ids) != _holding(new[key], ids)]
    if moved:
        return ColumnsBack(how=f"fragments {moved} with its rows, or their columns {names}, were changed since")
    holed = [key for key in changed if current[key].deletion_file != new[key].deletion_file]
    mover = _find_row_move(now, after.version, holed) if holed else None
    if mover is not None:
        return ColumnsBack(how=f"version {mover} may have moved rows of fragments {holed}, with their columns {names}")
    goes = bool(added) and not any(_holding(fragment, added) for key, fragment in current.items() if key not in changed)
    schema = now.lance_schema.record
    rest = LanceSchema(replace(schema, fields=tuple(field for field in schema.fields if field.id not in added)))
    dropped = f"the columns {', '.join(_names(after, added))}, which it added, are dropped"
    if goes and not old_ids:
        operation = lance_core.LanceOperation.Project(rest, preserves_nullability=True)
        return ColumnsBack(operation=operation, how=dropped)
    restored = {key: _with_files(current[key], old[key], ids) for key in changed}
    rows = _rows_set(after, changed, versions) if now.has_stable_row_ids else None
    how = f"the columns {', '.join(_names(after, old_ids if goes else ids))} of {len(changed)} fragments are restored"
    lost = find_emptied_indices(now, current.keys() - set(changed), old_ids if goes else ids)
    how += describe_emptied_indices(lost)
    if goes:
        fragments = [restored.get(key, fragment) for key, fragment in current.items()]
        merge = lance_core.LanceOperation.Merge(
            fragments, rest, preserves_nullability=True, updated_fragment_offsets=rows
        )
        return ColumnsBack(operation=merge, how=f"{how}; {dropped}", indices_lost=lost)
    return ColumnsBack(
        operation=lance_core.LanceOperation.Update(
            updated_fragments=list(restored.values()),
            fields_modified=sorted(now.lance_schema.record.with_ancestors(ids)),
            update_mode="rewrite_columns",
            updated_fragment_offsets=rows,
        ),
        how=how,
        indices_lost=lost,
    )


def find_emptied_indices(
    dataset: lance_core.LanceDataset, left: Collection[int], ids: Sequence[int] | None = None
) -> tuple[str, ...]:
    """The indices on some fields, or on any, that cover rows, but none of the given fragments."""
    return tuple(
        index.name
        for index in (dataset.describe_indices() if dataset.has_index else ())
        if index.num_rows_indexed and all(segment.fragment_ids.isdisjoint(left) for segment in index.segments)
        if not index.name.startswith(SYSTEM) and (ids is None or not set(ids).isdisjoint(index.fields))
    )


def describe_emptied_indices(names: Sequence[str]) -> str:
    """What an undo does to indices that cover no row after it, and the remedy, for its description."""
    if not names:
        return ""
    return f", so that indices {', '.join(names)} cover no row: build them again, by maintenance or pylance"


def _fragments(dataset: lance_core.LanceDataset) -> dict[int, FragmentMetadata]:
    return {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}


def _files(fragment: FragmentMetadata) -> Files:
    return {(file.base_id, str(file.path)): file for file in fragment.files}


def _written(old: FragmentMetadata, new: FragmentMetadata) -> set[int]:
    """The ids of the fields in the files that a fragment got."""
    old_files = _files(old)
    return {
        field_id
        for key, file in _files(new).items()
        if key not in old_files
        for field_id in file.fields
        if field_id >= 0
    }


def _holding(fragment: FragmentMetadata, ids: Sequence[int]) -> dict[tuple[int | None, str], list[int]]:
    """The files that hold some of the given fields, with the ids of these fields."""
    fields_by_file = {
        key: [field_id for field_id in file.fields if field_id in ids] for key, file in _files(fragment).items()
    }
    return {key: field_ids for key, field_ids in fields_by_file.items() if field_ids}


def _with_files(fragment: FragmentMetadata, old: FragmentMetadata, ids: Sequence[int]) -> FragmentMetadata:
    """A fragment in which the given fields are in the files of an older state of the fragment."""
    files = {
        key: replace(file, fields=[_TOMBSTONE if field_id in ids else field_id for field_id in file.fields])
        for key, file in _files(fragment).items()
    }
    for key, file in _files(old).items():
        if not any(field_id in ids for field_id in file.fields):
            continue
        current_fields = files[key].fields if key in files else [_TOMBSTONE] * len(file.fields)
        fields = [
            field_id if field_id in ids else other for field_id, other in zip(file.fields, current_fields, strict=True)
        ]
        files[key] = replace(file, fields=fields)
    live = [file for file in files.values() if any(field_id >= 0 for field_id in file.fields)]
    return replace(fragment, files=live)


def _find_row_move(now: lance_core.LanceDataset, after: int, fragments: Sequence[int]) -> int | None:
    """The first version after `after` that may have moved rows out of fragments; None if there is none."""
    for version in range(after + 1, now.version + 1):
        try:
            transaction = now.read_transaction(version)
        except VersionNotFoundError:
            return version
        if transaction is None:
            return version
        operation = transaction.operation
        if not isinstance(operation, lance_core.LanceOperation.Update) or not operation.new_fragments:
            continue
        if any(fragment.id in fragments for fragment in operation.updated_fragments):
            return version
    return None


def _names(dataset: lance_core.LanceDataset, ids: Sequence[int]) -> list[str]:
    return [repr(field.name()) for field in dataset.lance_schema.fields() if _has(field, ids)]


def _has(field: Any, ids: Sequence[int]) -> bool:
    return field.id() in ids or any(_has(child, ids) for child in field.children())


def _definitions(dataset: lance_core.LanceDataset, ids: Sequence[int]) -> dict[int, str]:
    """The types of the columns with the given fields, by field id."""
    return {field.id(): str(field.to_arrow().type) for field in dataset.lance_schema.fields() if _has(field, ids)}


def _rows_set(after: lance_core.LanceDataset, fragments: Iterable[int], versions: Sequence[int]) -> dict[int, bytes]:
    """The rows that versions have set, and that the undo changes: serialized bitmaps by fragment."""
    bitmaps = {}
    for fragment in after.get_fragments():
        if fragment.fragment_id not in fragments:
            continue
        table = fragment.to_table(columns=["_rowaddr", "_row_last_updated_at_version"], with_row_address=True)
        rows = np.isin(table.column("_row_last_updated_at_version").to_numpy(), versions)
        offsets = table.column("_rowaddr").to_numpy()[rows] & np.uint64(0xFFFFFFFF)
        bitmaps[fragment.fragment_id] = BitMap(offsets.astype(np.uint32)).serialize()
    return bitmaps

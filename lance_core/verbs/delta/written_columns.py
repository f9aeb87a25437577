"""Find the updated rows for which some columns were written, as opposed to other columns of the same rows.

A row is identified by its stable row id. Its values in the columns are unchanged

    if it is at the same offset of the same fragment, and the columns are in the same files, which never change
    or if that is true in each version in between that did more than move rows

All other rows count as written. If a version in between was cleaned up, only the first condition is checked. The
updates that versions record are not used, as other libraries write files of columns without recording them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lance_core.errors import VersionNotFoundError
from lance_core.row_addresses import find_positions
from lance_core.schema import Schema
from lance_core.table.fragment import Fragment
from lance_core.table.operations import Operation
from lance_core.table.paths import origin_of
from lance_core.table.rowids import U64Array
from lance_core.verbs.context.handle import Snapshot
from lance_core.verbs.delta.row_differences import RowDifferences, row_side, stable_ids, with_updates

Steps = Iterable[tuple[Operation, Snapshot | None, Snapshot]]
"""The versions in between that did more than move rows, each after its operation and the one before it."""


def only_written(
    differences: RowDifferences, begin: Snapshot, end: Snapshot, columns: Schema, steps: Callable[[], Steps] | None
) -> RowDifferences:
    """Leave out updated rows that have the values of the earlier version in some columns.

    Args:
        differences: The differences between the versions, of a table with stable row ids.
        begin: The earlier version.
        end: The later version.
        columns: Columns of the later version.
        steps: Returns the versions in between, which are needed if the two versions alone do not decide for all
            rows; None if there are none.
    """
    fields = frozenset(node.id for node, _ in columns.walk())
    if not differences.updated:
        return differences
    differences = with_updates(differences, _find_written_ids(begin, end, fields))
    if not differences.updated or steps is None:
        return differences
    unwritten = differences.updates[0]
    try:
        for _, before, after in steps():
            if before is not None:
                unwritten = np.setdiff1d(unwritten, _find_written_ids(before, after, fields))
            if not len(unwritten):
                return differences
    except VersionNotFoundError:
        return differences
    return with_updates(differences, np.setdiff1d(differences.updates[0], unwritten))


def _find_written_ids(before: Snapshot, after: Snapshot, fields: frozenset[int]) -> U64Array:
    """The ids of rows whose place, or whose files with values of some fields, differ between two versions."""
    gained = fields & after.manifest.schema.by_id().keys() - before.manifest.schema.by_id().keys()
    # A column that was dropped and restored is in the same fragments as before.
    old = row_side(before, None if gained else after, stable_ids)
    new = row_side(after, None if gained else before, stable_ids)
    shared = np.unique(new.addresses >> np.uint64(32)).tolist()
    same_files = np.array([*_with_same_files(before, after, fields, shared)], np.uint64)
    partners = find_positions(old.ids, new.ids)
    old_addresses = old.addresses[partners] if len(old.ids) else np.zeros(len(new.ids), np.uint64)
    same = (partners >= 0) & (new.addresses == old_addresses) & np.isin(new.addresses >> np.uint64(32), same_files)
    return np.concatenate([new.ids[~same], old.ids[find_positions(new.ids, old.ids) < 0]])


def _with_same_files(
    before: Snapshot, after: Snapshot, fields: frozenset[int], fragment_ids: Iterable[int]
) -> Iterator[int]:
    """Yield the ids of fragments that both versions have with some fields in the same places."""
    types = (
        {node.id: node.logical_type for node, _ in snapshot.manifest.schema.walk()} for snapshot in (before, after)
    )
    old_types, new_types = types
    if any(old_types.get(number, new_types[number]) != new_types[number] for number in fields & new_types.keys()):
        return
    for fragment_id in fragment_ids:
        old, new = (snapshot.manifest.fragments.get(fragment_id) for snapshot in (before, after))
        if old is None or new is None:
            continue
        if _field_places(old, fields & old_types.keys()) == _field_places(new, fields & new_types.keys()):
            yield fragment_id


def _field_places(fragment: Fragment, fields: frozenset[int]) -> set[tuple[int, str, int]]:
    """Where the values of fields lie: field, file, wherever it was moved, and column of the file."""
    return {
        (number, origin_of(file.path), file.column_indices[at] if at < len(file.column_indices) else -1)
        for file in fragment.files
        for at, number in enumerate(file.fields)
        if number in fields
    }

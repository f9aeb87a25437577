"""The number of rows that a version added and removed, from its fragments and those of the version before it.

`history` calls it for the events of writes; operations that only move rows are not passed to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import lance_core


def row_changes(
    handle: lance_core.LanceDataset, before: lance_core.LanceDataset | None, operation: str | None
) -> tuple[int | None, int | None]:
    """Count the rows added and removed; None for both if the version before does not exist any more.

    Version 1 added all its rows.

    Args:
        handle: The table at the version.
        before: The table at the next older version that exists; None if there is none.
        operation: The operation that made the version; not one that only moves rows, such as Rewrite, which would count
            them as removed and added.
    """
    if before is None:
        return (handle.count_rows(), 0) if handle.version == 1 else (None, None)
    if before.version != handle.version - 1:
        return None, None
    new, old = live_rows(handle), live_rows(before)
    same = _same_fragments(handle, before, operation)
    added = sum(max(rows - (old[fragment] if fragment in same else 0), 0) for fragment, rows in new.items())
    removed = sum(max(rows - (new[fragment] if fragment in same else 0), 0) for fragment, rows in old.items())
    return added, removed


def _same_fragments(
    handle: lance_core.LanceDataset, before: lance_core.LanceDataset, operation: str | None
) -> set[int]:
    """The ids of fragments that both versions have: an overwrite reuses ids, and a restore may go back across one."""
    if operation == "Overwrite":
        return set()
    files = {fragment.fragment_id: _paths(fragment) for fragment in before.get_fragments()}
    paths_after = {
        fragment.fragment_id: _paths(fragment) for fragment in handle.get_fragments() if fragment.fragment_id in files
    }
    return {number for number, paths in paths_after.items() if operation != "Restore" or paths & files[number]}


def _paths(fragment: lance_core.LanceFragment) -> set[str]:
    return {file.path for file in fragment.metadata.files}


def live_rows(handle: lance_core.LanceDataset) -> dict[int, int]:
    """The number of rows of each fragment, by its id."""
    num_rows = {}
    for fragment in handle.get_fragments():
        deletion = fragment.metadata.deletion_file
        deleted = 0 if deletion is None else deletion.num_deleted_rows or 0
        num_rows[fragment.fragment_id] = fragment.metadata.physical_rows - deleted
    return num_rows

"""Make the Update that a promotion commits: the changes of a branch as changes of its parent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from pyroaring import BitMap

from lance_core.table.fragment import TOMBSTONE, Fragment
from lance_core.table.operations import KeyExistenceFilter, Update, UpdateMode
from lance_core.table.rowids import decode_row_ids, decode_versions, encode_row_ids
from lance_core.verbs.refs.changes import Branch, BranchChanges


def build_promotion_update(branch: Branch, changes: BranchChanges, inserted: KeyExistenceFilter | None) -> Update:
    """Express a branch's changes as an Update of the fork version.

    New fragments have the branch's row ids, but no fragment ids and deletion files, which the commit adds.

    Args:
        branch: The branch.
        changes: What it changed.
        inserted: The keys that it inserted.
    """
    fields = {
        before.id: tuple(sorted(_find_changed_fields(branch, before, after))) for before, after in changes.updated
    }
    modified = sorted({field for changed in fields.values() for field in changed})
    only_columns = bool(modified) and not (changes.added or changes.removed or changes.rows_removed)
    moved = any(fragment.row_ids is not None for fragment in changes.added)
    schema = branch.parent.manifest.schema
    return Update(
        removed_fragment_ids=tuple(fragment.id for fragment in changes.removed),
        updated_fragments=tuple(_update_fragment(branch, before, after) for before, after in changes.updated),
        new_fragments=tuple(_renumber_fragment(branch, fragment) for fragment in changes.added),
        fields_modified=tuple(sorted(schema.with_ancestors(modified))),
        # It is not recorded which columns of moved rows changed, so no index by row id may keep covering these rows.
        fields_for_preserving_frag_bitmap=tuple(node.id for node, _ in schema.walk()) if moved else (),
        update_mode=UpdateMode.REWRITE_COLUMNS if only_columns else UpdateMode.REWRITE_ROWS,
        inserted_rows=inserted,
        updated_fragment_fields={i: changed for i, changed in fields.items() if changed},
        updated_fragment_offset_bitmaps=dict(_find_changed_offsets(branch, changes)),
    )


def _update_fragment(branch: Branch, before: Fragment, after: Fragment) -> Fragment:
    """A changed fragment as the parent will have it; its row ids and versions are the parent's own."""
    return replace(
        branch.as_parents(after),
        row_ids=before.row_ids,
        last_updated_at_versions=before.last_updated_at_versions,
        created_at_versions=before.created_at_versions,
    )


def _renumber_fragment(branch: Branch, fragment: Fragment) -> Fragment:
    return replace(
        branch.as_parents(fragment), id=0, deletion_file=None, last_updated_at_versions=None, created_at_versions=None
    )


def _find_changed_fields(branch: Branch, before: Fragment, after: Fragment) -> Iterator[int]:
    """Yield the fields that are in other files than before."""
    places = _locate_files(branch.as_seen(before))
    for field, place in _locate_files(after).items():
        if places.get(field) != place:
            yield field


def _locate_files(fragment: Fragment) -> dict[int, tuple[str, int | None, int]]:
    return {
        field: (file.path, file.base_id, column)
        for file in fragment.files
        for field, column in file.columns()
        if field != TOMBSTONE
    }


def _find_changed_offsets(branch: Branch, changes: BranchChanges) -> Iterator[tuple[int, bytes]]:
    """Yield, by fragment, the rows whose recorded version is after the fork, where values changed in place."""
    for before, after in changes.updated:
        if after.last_updated_at_versions is None or not any(_find_changed_fields(branch, before, after)):
            continue
        versions = decode_versions(after.last_updated_at_versions, after.physical_rows)
        stamped = np.flatnonzero(versions > branch.fork_version)
        yield before.id, BitMap(stamped.astype(np.uint32)).serialize()


def assign_row_ids(fragments: list[Fragment], born_from: int, next_row_id: int) -> list[Fragment]:
    """Give rows that were created on the branch the next free row ids; other rows keep their ids.

    Args:
        fragments: New fragments, with the row ids of the branch.
        born_from: The lowest row id that the branch assigned.
        next_row_id: The lowest row id that the parent has not assigned.
    """
    all_ids = [decode_row_ids(fragment.row_ids, fragment.physical_rows) for fragment in fragments if fragment.row_ids]
    everyone = np.concatenate(all_ids) if all_ids else np.zeros(0, np.uint64)
    born = np.sort(everyone[everyone >= np.uint64(born_from)])  # much faster than np.unique where most is in order
    born = born[np.diff(born, prepend=born[:1] - np.uint64(1)) != 0]
    result = []
    for fragment in fragments:
        if fragment.row_ids:
            ids = decode_row_ids(fragment.row_ids, fragment.physical_rows).copy()
            new = ids >= np.uint64(born_from)
            ids[new] = np.searchsorted(born, ids[new]).astype(np.uint64) + np.uint64(next_row_id)
            fragment = replace(fragment, row_ids=encode_row_ids(ids))  # noqa: PLW2901 - the loop's own record, changed
        result.append(fragment)
    return result

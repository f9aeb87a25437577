"""Writes that add columns: they commit a Merge, which changes the schema and the rows in one version."""

from __future__ import annotations

from collections.abc import Sequence

from lance_core.schema import Schema
from lance_core.store import make_durable
from lance_core.table.fragment import Fragment
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import Merge
from lance_core.table.operations.base import next_fragment_id, number_fragments
from lance_core.verbs.columns.add import lacking_fields, with_null_columns
from lance_core.verbs.context.snapshot import Snapshot
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_core.verbs.rows.removal import Removal, with_deletions
from lance_core.verbs.write.request import CommitRequest

__all__ = ["adds_columns", "merge_with_added_columns", "schema_with_added_columns"]


def schema_with_added_columns(request: CommitRequest, base: Manifest) -> Schema:
    """The dataset's schema, with the new columns of the request if it adds columns and is not an overwrite."""
    new = lacking_fields(base.schema, request.schema) if request.write.add_columns else []
    return base.schema if not new or request.write.mode == "overwrite" else with_null_columns(base, new)


def adds_columns(request: CommitRequest, base: Manifest) -> bool:
    """Whether an append or replacement adds columns, so that fragments and schema change in one version."""
    return request.write.mode in ("append", "replace") and schema_with_added_columns(request, base) is not base.schema


def merge_with_added_columns(
    request: CommitRequest,
    fragments: Sequence[Fragment],
    source: Snapshot,
    files: UncommittedFiles,
    removal: Removal,
) -> Merge:
    """The Merge that adds columns and fragments, and deletes rows, in one version.

    Only a Merge changes both schema and fragments. It keeps every fragment, even if all of its rows are deleted.

    Args:
        request: The write.
        fragments: The new fragments.
        source: The version that the Merge follows.
        files: Collects the new deletion files.
        removal: The rows to delete.
    """
    base, removed = source.manifest, frozenset(removal.removed_fragment_ids)
    emptied = [
        with_deletions(source, fragment, removal.affected_rows[fragment.id], files)
        for fragment in base.fragments
        if fragment.id in removed
    ]
    make_durable(
        source.store,
        [fragment.deletion_file.key(fragment.id) for fragment in emptied if fragment.deletion_file is not None],
    )
    changed = {fragment.id: fragment for fragment in (*removal.updated_fragments, *emptied)}
    new = number_fragments(fragments, next_fragment_id(base))
    base_fragments = tuple(changed.get(fragment.id, fragment) for fragment in base.fragments)
    return Merge(
        fragments=(*base_fragments, *new), schema=schema_with_added_columns(request, base), preserves_nullability=True
    )

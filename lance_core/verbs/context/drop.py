"""Delete a dataset with all its branches."""

from __future__ import annotations

from collections.abc import Iterable

from lance_core.commit import locate_latest
from lance_core.errors import DatasetNotFoundError
from lance_core.store import ObjectStore, manifest_table
from lance_core.table.paths import REFS_PREFIX, VERSIONS_PREFIX, branch_of_manifest_key, branch_of_ref_key
from lance_core.table.refs import MAIN, is_branch_name
from lance_core.verbs.context.branch_roots import store_of_branch

__all__ = ["drop"]


def drop(store: ObjectStore, *, ignore_not_found: bool) -> None:
    """Delete all files below a root, manifests last, so that an interrupted run can be repeated.

    Links are removed, the root among them; their targets are left alone.
    """
    table = manifest_table(store)
    if locate_latest(store) is None and (table is None or table.latest() is None):
        if ignore_not_found and next(store.list_owned(""), None) is None:
            return
        raise DatasetNotFoundError(f"{store.root} is not the root of a dataset")
    keys = [] if store.remove_link("") else [meta.key for meta in store.list_owned("")]
    # References outlive the branches, so that the next drop knows them, and the manifests outlive all other files.
    kept = (REFS_PREFIX, VERSIONS_PREFIX)
    _delete(store, (key for key in keys if not f"{key}/".startswith(kept)))
    if table is not None:
        _clear_branches(store, keys)
    for prefix in kept:
        _delete(store, (key for key in keys if f"{key}/".startswith(prefix)))
    if table is not None:
        table.clear()
    store.remove_empty_folders("")


def _delete(store: ObjectStore, keys: Iterable[str]) -> None:
    for key in keys:
        store.delete(key)


def _clear_branches(store: ObjectStore, keys: Iterable[str]) -> None:
    """Clear the rows of the branches that have a reference or manifests among the keys."""
    for branch in sorted({branch_of_ref_key(key) or branch_of_manifest_key(key) or MAIN for key in keys}):
        if is_branch_name(branch):
            table = manifest_table(store_of_branch(store, branch))
            if table is not None:
                table.clear()

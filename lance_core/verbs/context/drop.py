"""Delete a dataset with all its branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lance_core.commit.versions import enclosing_datasets, load_latest, locate_latest
from lance_core.errors import CorruptFileError, DatasetNotFoundError, InvalidInputError
from lance_core.store import ObjectStore, find_manifest_table
from lance_core.table.paths import (
    REFS_PREFIX,
    TREE_PREFIX,
    VERSIONS_PREFIX,
    branch_of_manifest_key,
    branch_of_ref_key,
    branch_ref_key,
)
from lance_core.table.refs import MAIN, is_branch_name
from lance_core.verbs.context.references import store_of_branch


def drop(store: ObjectStore, remove_copies: Callable[[ObjectStore], None], *, ignore_not_found: bool) -> None:
    """Delete all files below a root, manifests last, so that an interrupted call can be repeated.

    Symbolic links are removed, but their targets are kept. The root may be a link, too.

    Args:
        store: The store of the root.
        remove_copies: Removes, before all else, files outside of the root that files below it name.
        ignore_not_found: Whether nothing is done if there are no files below the root.

    Raises:
        DatasetNotFoundError: The root has no dataset.
        InvalidInputError: The root is that of a branch.
    """
    table = find_manifest_table(store)
    if locate_latest(store) is None and (table is None or table.latest() is None):
        if ignore_not_found and next(store.list_owned(""), None) is None:
            return
        raise DatasetNotFoundError(f"{store.root} is not the root of a dataset")
    _reject_branch(store)
    keys = []
    if not store.remove_link(""):
        remove_copies(store)
        keys = [meta.key for meta in store.list_owned("")]
    # References are deleted after the branches, so that a repeated call finds the branches; manifests are deleted last.
    last_prefixes = (REFS_PREFIX, VERSIONS_PREFIX)
    _delete(store, (key for key in keys if not f"{key}/".startswith(last_prefixes)))
    if table is not None:
        _clear_branches(store, keys)
    for prefix in last_prefixes:
        _delete(store, (key for key in keys if f"{key}/".startswith(prefix)))
    if table is not None:
        table.clear()
    store.remove_empty_folders("")


def _reject_branch(store: ObjectStore) -> None:
    """Make sure that a root is not that of a branch, whose tags, clones and child branches would break.

    Raises:
        InvalidInputError: The root is that of a branch.
    """
    for root, path in enclosing_datasets(store):
        branch = path.removeprefix(TREE_PREFIX)
        if branch == path:
            continue
        try:
            latest = load_latest(store)
            is_branch = latest is not None and latest.branch == branch
        except CorruptFileError:
            is_branch = False
        if is_branch or next(root.list(branch_ref_key(branch), limit=1), None) is not None:
            raise InvalidInputError(
                f"{store.root} is the branch {branch!r} of the dataset {root.root}, and a branch is removed by "
                f"lance.dataset({root.root!r}).branches.discard({branch!r}). Nothing was done"
            )


def _delete(store: ObjectStore, keys: Iterable[str]) -> None:
    for key in keys:
        store.delete(key)


def _clear_branches(store: ObjectStore, keys: Iterable[str]) -> None:
    """Clear the rows of the branches that have a reference or manifests among the keys."""
    for branch in sorted({branch_of_ref_key(key) or branch_of_manifest_key(key) or MAIN for key in keys}):
        if is_branch_name(branch):
            table = find_manifest_table(store_of_branch(store, branch))
            if table is not None:
                table.clear()

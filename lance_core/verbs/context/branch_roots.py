"""The roots of branches, `tree/<branch>` below the root of the dataset, and the dataset that a branch belongs to."""

from __future__ import annotations

from lance_core.store import ObjectStore, join_uri, open_store, uri_above
from lance_core.table.paths import branch_root


def store_of_branch(root: ObjectStore, branch: str | None) -> ObjectStore:
    """The store of a branch.

    Args:
        root: The store of the dataset.
        branch: The branch; None for main.
    """
    return root if branch is None else open_store(join_uri(root.root, branch_root(branch)), root.options)


def dataset_uri(uri: str, branch: str | None) -> str:
    """The root of the dataset that a branch belongs to.

    Args:
        uri: The root of the branch. If it does not lie below `tree/`, it is a dataset of its own.
        branch: The branch; None for main.
    """
    above = None if branch is None else uri_above(uri, branch_root(branch))
    return uri if above is None else above


def dataset_store(store: ObjectStore, branch: str | None) -> ObjectStore:
    """The store of the dataset that a branch belongs to, with the arguments of `dataset_uri`."""
    root = dataset_uri(store.root, branch)
    return store if root == store.root else open_store(root, store.options)

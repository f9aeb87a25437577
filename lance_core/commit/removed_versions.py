"""Stores the transactions of versions that a cleanup removes while a branch from before them is open.

    _transactions/removed/<version>     the `Transaction` message

A promotion judges the branch by every commit since its fork, as a commit does. It needs the transactions for that, not
the manifests or data files: a manifest without its files would be a version that both libraries list and neither can
read. pylance neither lists nor removes files of this folder.
"""

from __future__ import annotations

from dataclasses import replace

from lance_core.errors import ObjectNotFoundError
from lance_core.store import ObjectStore, replace_durably
from lance_core.table.operations import Delete
from lance_core.table.paths import TRANSACTIONS_PREFIX
from lance_core.table.transaction import Transaction

_FOLDER = f"{TRANSACTIONS_PREFIX}removed/"


def removed_key(version: int) -> str:
    """Return the key of the transaction of a removed version."""
    return f"{_FOLDER}{version}"


def list_removed_versions(store: ObjectStore) -> set[int]:
    """Return the removed versions whose transactions are stored."""
    names = (meta.key.removeprefix(_FOLDER) for meta in store.list(_FOLDER))
    return {int(name) for name in names if name.isascii() and name.isdecimal()}


def load_removed_transaction(store: ObjectStore, version: int) -> Transaction | None:
    """Read the transaction of a removed version; None if none is stored."""
    try:
        return Transaction.from_bytes(store.get(removed_key(version)))
    except ObjectNotFoundError:
        return None


def store_removed_transaction(store: ObjectStore, version: int, transaction: Transaction) -> None:
    """Store the transaction of a version that is about to be removed, without the text of a Delete's predicate."""
    operation = transaction.operation
    if isinstance(operation, Delete):  # for people only, and it may hold values that are to be forgotten
        operation = replace(operation, predicate="")
    replace_durably(store, removed_key(version), replace(transaction, operation=operation).to_bytes())

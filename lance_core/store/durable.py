"""Objects that are put one by one and must all survive a power loss before something refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lance_core.store.base import ObjectStore
from lance_core.store.local import LocalStore
from lance_core.threads import ThreadPool

__all__ = ["make_durable"]

SYNCED_AT_A_TIME: Final = 8
"""Files that are waited for side by side: a file system writes their names to disk together."""


def make_durable(store: ObjectStore, keys: Sequence[str]) -> None:
    """Wait until objects that `put` wrote survive a power loss; other storage than a disk always has them then.

    Raises:
        StoreError: The disk failed.
    """
    if not isinstance(store, LocalStore) or not keys:
        return
    if len(keys) == 1:
        store.sync(keys[0])
    else:
        with ThreadPool(min(SYNCED_AT_A_TIME, len(keys)), thread_name_prefix="lance-sync") as pool:
            for done in [pool.submit(store.sync, key) for key in keys]:
                done.result()
    store.sync_folders(keys)

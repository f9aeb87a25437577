"""Check before a commit that the files that were written for it exist: cleanup removes files that no version refers to.

Where the check costs no request, it covers each file. On object storage it skips the files that this process began to
write within the last hour: a cleanup keeps files for seven days unless its caller guarantees that nobody writes.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from lance_core.errors import ObjectNotFoundError
from lance_core.store.base import ObjectStore
from lance_core.threads import ThreadPool

__all__ = ["check_present", "note_begun"]

RECENT_S: Final = 3600.0
"""Age in seconds up to which a file that this process has begun is assumed to exist."""

_REMEMBERED: Final = 10_000
"""The most files whose beginning is remembered."""

_HEADS_AT_A_TIME: Final = 16

_begun: OrderedDict[str, float] = OrderedDict()
_lock = threading.Lock()


def note_begun(key: str) -> None:
    """Remember that this process has begun a data file just now, or a worker process for it."""
    with _lock:
        _begun[key] = time.monotonic()
        if len(_begun) > _REMEMBERED:
            _begun.popitem(last=False)


def check_present(store: ObjectStore, keys: Iterable[str]) -> None:
    """Check that objects exist before a version refers to them.

    Args:
        store: The dataset's store.
        keys: Keys of new data files.

    Raises:
        ObjectNotFoundError: An object does not exist.
    """
    keys = list(keys)
    if not store.put_is_a_request:
        missing = [key for key in keys if not _is_there(store, key)]
    else:
        doubtful = [key for key in keys if not _is_recent(key)]
        if not doubtful:
            return
        with ThreadPool(min(_HEADS_AT_A_TIME, len(doubtful))) as pool:
            presence = list(pool.map(lambda key: _is_there(store, key), doubtful))
        missing = [key for key, is_there in zip(doubtful, presence, strict=True) if not is_there]
    if missing:
        raise ObjectNotFoundError(
            f"{store.data_root}/{missing[0]}: this file was written for the commit, but does not exist "
            f"({len(missing)} of {len(keys)} files are missing). A cleanup removes files to which no version refers "
            "after seven days, or at once with delete_unverified=True; a discarded write removes its own. Write the "
            "files again, and commit the new ones"
        )


def _is_recent(key: str) -> bool:
    with _lock:
        began = _begun.get(key)
    return began is not None and time.monotonic() - began < RECENT_S


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFoundError:
        return False
    return True

"""Check before a commit that the files of its fragments exist: cleanup removes files that no version refers to.

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
from lance_core.store import ObjectStore
from lance_core.table.fragment import Fragment
from lance_core.table.paths import data_key
from lance_core.threads import ThreadPool

__all__ = ["check_present", "note_begun"]

RECENT_S: Final = 3600.0
"""Age in seconds up to which a file that this process has begun is assumed to exist."""

_REMEMBERED: Final = 10_000
"""The most files whose beginning is remembered."""

_HEADS_AT_A_TIME: Final = 16

_begun: OrderedDict[str, float] = OrderedDict()
_lock = threading.Lock()


def note_begun(name: str) -> None:
    """Remember that this process has begun a data file just now."""
    with _lock:
        _begun[name] = time.monotonic()
        if len(_begun) > _REMEMBERED:
            _begun.popitem(last=False)


def check_present(store: ObjectStore, fragments: Iterable[Fragment]) -> None:
    """Check that the data files of fragments exist before a version refers to them.

    Args:
        store: The dataset's store; files in other base paths are not checked.
        fragments: The new fragments.

    Raises:
        ObjectNotFoundError: A file does not exist.
    """
    names = [file.path for fragment in fragments for file in fragment.files if file.base_id is None]
    if not store.put_is_a_request:
        missing = [name for name in names if not _is_there(store, name)]
    else:
        doubtful = [name for name in names if not _is_recent(name)]
        if not doubtful:
            return
        with ThreadPool(min(_HEADS_AT_A_TIME, len(doubtful))) as pool:
            found = list(pool.map(lambda name: _is_there(store, name), doubtful))
        missing = [name for name, is_there in zip(doubtful, found, strict=True) if not is_there]
    if missing:
        raise ObjectNotFoundError(
            f"{store.data_root}/{data_key(missing[0])}: a fragment that is to be committed refers to this file, which "
            f"does not exist ({len(missing)} of {len(names)} files are missing). A cleanup removes files to which no "
            "version refers after seven days, or at once with delete_unverified=True; a discarded write removes its "
            "own. Write the fragments again, and commit the new ones"
        )


def _is_recent(name: str) -> bool:
    with _lock:
        began = _begun.get(name)
    return began is not None and time.monotonic() - began < RECENT_S


def _is_there(store: ObjectStore, name: str) -> bool:
    try:
        store.head(data_key(name))
    except ObjectNotFoundError:
        return False
    return True

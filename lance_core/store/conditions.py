"""Finds out, once per process and place, whether a server honors the condition of `put_if_absent`.

A server that ignores the condition would lose concurrent commits silently: puts of a scratch object show it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from lance_core.errors import AlreadyExistsError, UnsupportedError
from lance_core.store.base import ObjectStore, remove_leftovers

_proven: set[tuple[str, str]] = set()
_proof_lock = threading.Lock()


def prove_conditional_puts(
    store: ObjectStore, place: tuple[str, str], put_if_absent: Callable[[str, bytes], object]
) -> None:
    """Make sure that a second object is not created under a key.

    Args:
        store: The store.
        place: Endpoint and bucket, which are tested once.
        put_if_absent: Creates an object by a conditional put, given its key and bytes.

    Raises:
        UnsupportedError: The server ignores the condition.
    """
    if place in _proven:
        return
    with _proof_lock:
        if place in _proven:
            return
        key = f"_transactions/.conditional-put-{uuid.uuid4().hex}"
        try:
            for body in (b"1", b"2", b"3"):
                put_if_absent(key, body)
        # The second one; the first one, sent again as its answer was lost; or the third one after a cleanup.
        except AlreadyExistsError:
            _proven.add(place)
        else:
            raise UnsupportedError(
                f"{store.root}: the server ignores the condition of a put, so that concurrent commits would be lost; "
                "commit through a database, by the storage option manifest_store"
            )
        finally:
            remove_leftovers(store, [key])

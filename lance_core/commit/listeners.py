"""Who is told when this process has committed a version.

The commit loop knows nothing of the packages above it; those with something to do after commits register it here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from lance_core.store import ObjectStore
from lance_core.table.manifest import Manifest

__all__ = ["Listener", "on_commit", "tell"]

_logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[ObjectStore, Manifest], None]
"""Is called with the dataset's store and the version that was made. It must not raise: the commit has succeeded."""

_listeners: list[Listener] = []


def on_commit(listener: Listener) -> None:
    """Have a listener called after each commit of this process."""
    if listener not in _listeners:
        _listeners.append(listener)


def tell(store: ObjectStore, manifest: Manifest) -> None:
    """Call the listeners, in the order in which they registered.

    What one raises is logged: the version is committed, and who made it must not take it for failed.
    """
    for listener in _listeners:
        try:
            listener(store, manifest)
        except Exception:
            _logger.exception("version %d of %s is committed; what was to follow failed", manifest.version, store.root)

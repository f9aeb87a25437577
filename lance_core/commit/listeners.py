"""Listeners: functions that are called after each commit of this process.

The commit loop must not import the packages above it; these register here what they do after commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest

__all__ = ["Listener", "notify", "on_commit"]

_logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[ObjectStore, Manifest], None]
"""Is called with the dataset's store and the version that was made. It must not raise: the commit has succeeded."""

_listeners: list[Listener] = []


def on_commit(listener: Listener) -> None:
    """Register a listener, which is called after each commit of this process."""
    if listener not in _listeners:
        _listeners.append(listener)


def notify(store: ObjectStore, manifest: Manifest) -> None:
    """Call the listeners, in the order in which they registered.

    An error that one raises is logged: the version is committed, and must not look failed to the committer.
    """
    for listener in _listeners:
        try:
            listener(store, manifest)
        except Exception:
            _logger.exception("version %d of %s is committed; what was to follow failed", manifest.version, store.root)

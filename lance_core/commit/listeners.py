"""Listeners: functions that this process calls after each of its commits, such as automatic cleanup.

The commit loop must not import the packages above it. They register a listener here instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from lance_core.store import ObjectStore
from lance_core.table.manifest.manifest import Manifest

__all__ = ["LISTENERS", "Listener", "on_commit"]

Listener: TypeAlias = Callable[[ObjectStore, Manifest], None]
"""A function of the dataset's store and the committed version. It must not raise: the commit has succeeded."""

LISTENERS: Final[list[Listener]] = []


def on_commit(listener: Listener) -> None:
    """Register a listener, which is called after each commit of this process."""
    if listener not in LISTENERS:
        LISTENERS.append(listener)

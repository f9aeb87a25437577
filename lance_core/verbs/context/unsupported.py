"""Arguments of pylance's that are not offered: rejected by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lance_core.errors import UnsupportedError

__all__ = ["reject"]


def reject(verb: str, arguments: Mapping[str, Any]) -> None:
    """Reject arguments that are not offered; None means the default and passes.

    Raises:
        UnsupportedError: An argument has a value.
    """
    given = sorted(name for name, value in arguments.items() if value is not None)
    if given:
        raise UnsupportedError(f"{verb}: not offered: {', '.join(given)}")

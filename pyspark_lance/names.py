"""Names of columns as Spark takes them."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """A name as Spark takes it for that of a column, whatever is in it."""
    return f"`{name.replace('`', '``')}`"

"""The public module of indices, as pylance's `lance.indices`: `IndexConfig`."""

from lance_core.verbs.indices.create import IndexConfig

__all__ = ["IndexConfig"]

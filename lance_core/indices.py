"""Public names of indices, under pylance's names: `lance.indices`."""

from lance_core.verbs.indices.create import IndexConfig

__all__ = ["IndexConfig"]

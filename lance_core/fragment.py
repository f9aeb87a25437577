"""The public module of fragments, as pylance's `lance.fragment`: `LanceFragment`, records, and `write_fragments`."""

from lance_core.dataset.fragment import LanceFragment
from lance_core.verbs.pylance_types.fragments import DataFile, DeletionFile, FragmentMetadata
from lance_core.verbs.write.write_fragments import write_fragments

__all__ = ["DataFile", "DeletionFile", "FragmentMetadata", "LanceFragment", "write_fragments"]

"""Public names of fragments, under pylance's names: `lance.fragment`."""

from lance_core.dataset.fragment import LanceFragment
from lance_core.verbs.pylance_types.fragments import DataFile, DeletionFile, FragmentMetadata
from lance_core.verbs.write.write_fragments import write_fragments

__all__ = ["DataFile", "DeletionFile", "FragmentMetadata", "LanceFragment", "write_fragments"]

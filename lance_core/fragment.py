"""Front door of fragments, under pylance's names: `lance.fragment`."""

from lance_core.api.fragment import LanceFragment
from lance_core.api.metadata import DataFile, DeletionFile, FragmentMetadata
from lance_core.api.write_fragments import write_fragments

__all__ = ["DataFile", "DeletionFile", "FragmentMetadata", "LanceFragment", "write_fragments"]

"""Records of the table format and their bytes; no I/O."""

from lance_core.table.deletion import DeletionFile, DeletionFileType, DeletionVector, new_deletion_file_id
from lance_core.table.fragment import BasePath, DataFile, Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.index import IndexFile, IndexMetadata
from lance_core.table.manifest.manifest import Manifest, ManifestLocation, WriterVersion
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.transaction import COMMIT_MESSAGE_KEY, Transaction

__all__ = [
    "COMMIT_MESSAGE_KEY",
    "BasePath",
    "BranchRef",
    "DataFile",
    "DeletionFile",
    "DeletionFileType",
    "DeletionVector",
    "Fragment",
    "FragmentList",
    "IndexFile",
    "IndexMetadata",
    "Manifest",
    "ManifestLocation",
    "TagRef",
    "Transaction",
    "WriterVersion",
    "new_deletion_file_id",
]

"""Front door of datasets, under pylance's names: `lance.dataset`, as a module.

The name `lance_core.dataset` itself is the function that opens a dataset.
"""

from typing import Final

from lance_core.api.branches import Branches
from lance_core.api.changing import DeleteResult, UpdateResult
from lance_core.api.committing import BulkCommitResult
from lance_core.api.dataset import LanceDataset
from lance_core.api.index_records import Index, IndexFile
from lance_core.api.inspection import DatasetStats, DataStatistics, FieldStatistics, LanceStats
from lance_core.api.merge_insert import MergeInsertBuilder
from lance_core.api.operations import LanceOperation
from lance_core.api.ordering import ColumnOrdering
from lance_core.api.refs import Tags
from lance_core.api.scan import LanceScanner
from lance_core.api.transactions import Transaction
from lance_core.api.write_dataset import write_dataset
from lance_core.table.transaction import COMMIT_MESSAGE_KEY

__all__ = [
    "LANCE_COMMIT_MESSAGE_KEY",
    "Branches",
    "BulkCommitResult",
    "ColumnOrdering",
    "DataStatistics",
    "DatasetStats",
    "DeleteResult",
    "FieldStatistics",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceOperation",
    "LanceScanner",
    "LanceStats",
    "MergeInsertBuilder",
    "Tags",
    "Transaction",
    "UpdateResult",
    "write_dataset",
]

LANCE_COMMIT_MESSAGE_KEY: Final = COMMIT_MESSAGE_KEY
"""The transaction property that holds the message of a commit."""

"""Public names of the module `lance.dataset`, as pylance has it.

The name `lance_core.dataset` itself is the function that opens a dataset.
"""

from typing import Final

from lance_core.dataset.commits import BulkCommitResult
from lance_core.dataset.lance_dataset import LanceDataset, write_dataset
from lance_core.dataset.rows import DeleteResult, UpdateResult
from lance_core.table.refs import check_branch_name as check_branch_name
from lance_core.table.transaction import COMMIT_MESSAGE_KEY
from lance_core.verbs.delta.dataset_delta import DatasetDelta
from lance_core.verbs.inspect.statistics import DatasetStats, DataStatistics, FieldStatistics, LanceStats
from lance_core.verbs.pylance_types.indices import Index, IndexFile
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.refs.branches import Branches
from lance_core.verbs.refs.tags import Tags
from lance_core.verbs.rows.merge_insert import MergeInsertBuilder
from lance_core.verbs.scan.options import ColumnOrdering
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.write.write_version import AutoCleanupConfig

__all__ = [
    "LANCE_COMMIT_MESSAGE_KEY",
    "AutoCleanupConfig",
    "Branches",
    "BulkCommitResult",
    "ColumnOrdering",
    "DataStatistics",
    "DatasetDelta",
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

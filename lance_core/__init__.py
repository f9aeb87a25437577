"""Lance tables in Python: a second implementation of the format, which shares live tables with pylance 14.

import lance_core as lance

lance.write_dataset(table, "flights.lance")
lance.dataset("flights.lance").to_table(columns=["carrier", "delay"])
"""

try:
    __import__("pyarrow")  # first, so that the error names a remedy
except ImportError as _error:
    if "NumPy" not in str(_error):
        raise
    raise ImportError(  # pyspark[sql] 3.5 demands such a NumPy, and pyarrow's metadata does not name the one it needs
        f"{_error}: pip install 'pyarrow<26', or 'numpy>=2' with pyspark in place of pyspark[sql]", name="pyarrow"
    ) from None

from lance_core import dataset as _dataset_module  # noqa: F401 - imported first, so that the function of that name replaces the module below
from lance_core import debug as debug
from lance_core import file as file
from lance_core import fragment as fragment
from lance_core import progress as progress
from lance_core import sampler as sampler
from lance_core import udf as udf
from lance_core.blob import Blob, BlobColumn, blob_array, blob_field
from lance_core.commit.attempts import AttemptProperties, ConflictPolicy, WriteAttempt
from lance_core.commit.records import Commit
from lance_core.dataset.fragment import LanceFragment
from lance_core.dataset.lance_dataset import LanceDataset, dataset, write_dataset
from lance_core.dataset.writing import CommitResult, WriteResult, commit_fragments, commit_transaction
from lance_core.retry import retrying
from lance_core.schema import check_names, json_to_schema, schema_to_json
from lance_core.store import bytes_read_counter, canonical_uri, iops_counter
from lance_core.table.manifest.manifest import WRITER
from lance_core.table.operations import MAX_EXACT_KEYS
from lance_core.table.watermarks import Watermark, WatermarkMove
from lance_core.verbs.columns.batch_udf import BatchUDF, batch_udf
from lance_core.verbs.columns.compute.computation import computed_schema
from lance_core.verbs.columns.compute.estimates import DueRows
from lance_core.verbs.columns.compute.records import ComputeProgress, ComputeResult
from lance_core.verbs.columns.compute.run import ComputedTask
from lance_core.verbs.columns.compute.tasks import ComputePlan, ComputeTask
from lance_core.verbs.columns.write_columns.commit import ColumnsResult
from lance_core.verbs.columns.write_columns.tasks import ColumnPlan, ColumnTask, WrittenColumns
from lance_core.verbs.context.bases import DatasetBasePath
from lance_core.verbs.context.handle import Session
from lance_core.verbs.context.uncommitted_files import delete_uncommitted_files
from lance_core.verbs.delta.change_task import ChangeTask
from lance_core.verbs.delta.dataset_delta import ChangePlan, DatasetDelta
from lance_core.verbs.expressions.arrow import matching
from lance_core.verbs.files.fragment_writer import FileOptions, FragmentWriter
from lance_core.verbs.files.slice_writer import SliceWriter
from lance_core.verbs.files.slices import Between, Equals, Slice, Slices, describe_replaced_rows
from lance_core.verbs.inspect.statistics import DataStatistics, FieldStatistics
from lance_core.verbs.inspect.tables import list_tables
from lance_core.verbs.pylance_types.fragments import DataFile, DeletionFile, FragmentMetadata
from lance_core.verbs.pylance_types.indices import Index, IndexFile
from lance_core.verbs.pylance_types.operations import LanceOperation
from lance_core.verbs.pylance_types.transactions import Transaction
from lance_core.verbs.refs.clone import FileCopy
from lance_core.verbs.rows.merge_insert import MergeInsertBuilder
from lance_core.verbs.rows.source_rows import key_filter, key_hashes
from lance_core.verbs.scan.scanner import LanceScanner
from lance_core.verbs.scan.take_blobs import BlobFile
from lance_core.verbs.write.write_fragments import write_fragments

__version__ = WRITER.version

__all__ = [
    "MAX_EXACT_KEYS",
    "AttemptProperties",
    "BatchUDF",
    "Between",
    "Blob",
    "BlobColumn",
    "BlobFile",
    "ChangePlan",
    "ChangeTask",
    "ColumnPlan",
    "ColumnTask",
    "ColumnsResult",
    "Commit",
    "CommitResult",
    "ComputePlan",
    "ComputeProgress",
    "ComputeResult",
    "ComputeTask",
    "ComputedTask",
    "ConflictPolicy",
    "DataFile",
    "DataStatistics",
    "DatasetBasePath",
    "DatasetDelta",
    "DeletionFile",
    "DueRows",
    "Equals",
    "FieldStatistics",
    "FileCopy",
    "FileOptions",
    "FragmentMetadata",
    "FragmentWriter",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceFragment",
    "LanceOperation",
    "LanceScanner",
    "MergeInsertBuilder",
    "Session",
    "Slice",
    "SliceWriter",
    "Slices",
    "Transaction",
    "Watermark",
    "WatermarkMove",
    "WriteAttempt",
    "WriteResult",
    "WrittenColumns",
    "batch_udf",
    "blob_array",
    "blob_field",
    "bytes_read_counter",
    "canonical_uri",
    "check_names",
    "commit_fragments",
    "commit_transaction",
    "computed_schema",
    "dataset",
    "delete_uncommitted_files",
    "describe_replaced_rows",
    "iops_counter",
    "json_to_schema",
    "key_filter",
    "key_hashes",
    "list_tables",
    "matching",
    "retrying",
    "schema_to_json",
    "write_dataset",
    "write_fragments",
]

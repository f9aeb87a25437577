"""Lance tables from Spark: functions to write and read them, and the data source `lance`.

    pyspark_lance.write(df, uri, mode="append")            -> WriteResult: version, rows, bytes, files
    pyspark_lance.read(spark, uri, columns=["id"])         -> DataFrame, lazy, of one version
    pyspark_lance.read_changes(spark, uri, begin_version=7)-> DataFrame, lazy, of what changed since
    pyspark_lance.merge(df, uri, on="id")                  -> ChangeResult: version, rows inserted, updated, deleted
    pyspark_lance.write_columns(df, uri, on="id")          -> ColumnsResult: version, rows, columns, bytes
    pyspark_lance.compute_columns(spark, uri, function, inputs=["text"], ...)
                                                           -> ComputeResult: rows due, computed, failed, calls
    pyspark_lance.update(uri, {"x": "x + 1"}, "id < 5")    pyspark_lance.delete(uri, "id < 5")
    pyspark_lance.sql(spark, "MERGE INTO lake.nyc.t ...")  -> DataFrame; names by pyspark_lance.register_catalog
    pyspark_lance.LanceTable.forName(spark, "lake.nyc.t")  -> update, delete and merge with Delta's names
    pyspark_lance.convert(folder, uri)                     -> ConvertResult: from Parquet, Delta, Iceberg
    pyspark_lance.compact(spark, uri)                      -> CompactionReport: metrics, failed tasks
    pyspark_lance.create_scalar_index(spark, uri, "day", "ZONEMAP")     pyspark_lance.deep_clone(spark, uri, target)
    df.write.format("lance").mode("append").save(uri)
    spark.read.format("lance").load(uri)

Spark finds the data source by itself: it imports every installed module called `pyspark_*` that has a
`DefaultSource`. Importing this package is therefore cheap and needs no pyspark: each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark_lance.lazy import load_name
from pyspark_lance.releases import FEATURES, LOWEST, missing_release

if TYPE_CHECKING:
    from lance_core import WriteResult as WriteResult
    from lance_core import __version__ as __version__
    from pyspark_lance.catalog.reads import on_read as on_read
    from pyspark_lance.catalog.registry import register_catalog as register_catalog
    from pyspark_lance.changing.clauses import parse_merge_clauses as parse_merge_clauses
    from pyspark_lance.changing.job import ChangeResult as ChangeResult
    from pyspark_lance.changing.key_clauses import inserted_rows as inserted_rows
    from pyspark_lance.changing.verbs import delete as delete
    from pyspark_lance.changing.verbs import merge as merge
    from pyspark_lance.changing.verbs import update as update
    from pyspark_lance.changing.write_columns import write_columns as write_columns
    from pyspark_lance.conversion.convert import ConvertResult as ConvertResult
    from pyspark_lance.conversion.convert import convert as convert
    from pyspark_lance.conversion.convert import to_parquet as to_parquet
    from pyspark_lance.datasource.source import DefaultSource as DefaultSource
    from pyspark_lance.datasource.source import register as register
    from pyspark_lance.distributed.cloning import deep_clone as deep_clone
    from pyspark_lance.distributed.compaction import CompactionFailure as CompactionFailure
    from pyspark_lance.distributed.compaction import CompactionReport as CompactionReport
    from pyspark_lance.distributed.compaction import compact as compact
    from pyspark_lance.distributed.compaction import execute_tasks as execute_tasks
    from pyspark_lance.distributed.compaction import executor_rewriter as executor_rewriter
    from pyspark_lance.distributed.computing import compute_columns as compute_columns
    from pyspark_lance.distributed.computing import executor_of_calls as executor_of_calls
    from pyspark_lance.distributed.indices import create_scalar_index as create_scalar_index
    from pyspark_lance.distributed.search_indices import executor_index_builder as executor_index_builder
    from pyspark_lance.lance_table import LanceMergeBuilder as LanceMergeBuilder
    from pyspark_lance.lance_table import LanceTable as LanceTable
    from pyspark_lance.reading.change_feed import read_changes as read_changes
    from pyspark_lance.reading.read import read as read
    from pyspark_lance.session import ensure_java as ensure_java
    from pyspark_lance.session import ensure_python as ensure_python
    from pyspark_lance.session import local_session as local_session
    from pyspark_lance.statements.run import sql as sql
    from pyspark_lance.writing.option_values import EmptyOutput as EmptyOutput
    from pyspark_lance.writing.option_values import OutOfPartition as OutOfPartition
    from pyspark_lance.writing.option_values import SchemaMode as SchemaMode
    from pyspark_lance.writing.write import write as write

_MODULES: Final = {
    "lance_core": "WriteResult __version__",
    ".catalog.reads": "on_read",
    ".catalog.registry": "register_catalog",
    ".changing.clauses": "parse_merge_clauses",
    ".changing.job": "ChangeResult",
    ".changing.key_clauses": "inserted_rows",
    ".changing.verbs": "delete merge update",
    ".changing.write_columns": "write_columns",
    ".conversion.convert": "ConvertResult convert to_parquet",
    ".datasource.source": "DefaultSource register",
    ".distributed.cloning": "deep_clone",
    ".distributed.compaction": "CompactionFailure CompactionReport compact execute_tasks executor_rewriter",
    ".distributed.computing": "compute_columns executor_of_calls",
    ".distributed.indices": "create_scalar_index",
    ".distributed.search_indices": "executor_index_builder",
    ".lance_table": "LanceMergeBuilder LanceTable",
    ".reading.change_feed": "read_changes",
    ".reading.read": "read",
    ".session": "ensure_java ensure_python local_session",
    ".statements.run": "sql",
    ".writing.option_values": "EmptyOutput OutOfPartition SchemaMode",
    ".writing.write": "write",
}
"""The names that each module defines."""
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

_OF_THE_FORMAT: Final = ("DefaultSource", "register")


def _check_release(name: str) -> None:
    """Make sure that an installed pyspark, or pyspark-client, is new enough.

    Raises:
        ImportError: The installed release is too old; the message names both.
    """
    message = missing_release(f"pyspark_lance.{name}", LOWEST)
    if name in _OF_THE_FORMAT and not message:
        format_name = 'format("lance")'
        lowest, remedy = FEATURES[format_name]
        message = missing_release(f"pyspark_lance.{name}: {format_name}", lowest)
        message = message and f"{message}; {remedy}"
    elif message:
        message = f"{message}: pip install 'lance-dagster[spark]' --upgrade"
    if message:
        raise ImportError(message, name="pyspark")


if not TYPE_CHECKING:
    __all__ = [name for name in sorted(_HOMES) if not name.startswith("_")]

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name in _HOMES:
            _check_release(name)
        return load_name(__name__, name, _HOMES, "pyspark", "pyspark: pip install 'lance-dagster[spark]'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

"""Lance tables from Spark: functions to write and read them, and the data source `lance`.

    pyspark_lance.write(df, uri, mode="append")            -> WriteResult: version, rows, bytes, files
    pyspark_lance.read(spark, uri, columns=["id"])         -> DataFrame, lazy, of one version
    pyspark_lance.read_changes(spark, uri, begin_version=7)-> DataFrame, lazy, of what changed since
    pyspark_lance.merge(df, uri, on="id")                  -> ChangeResult: version, rows inserted, updated, deleted
    pyspark_lance.write_columns(df, uri, on="id")          -> ColumnsResult: version, rows, columns, bytes
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

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pyspark_lance.releases import FEATURES, LOWEST, missing_release

if TYPE_CHECKING:
    from lance_core import WriteResult
    from lance_core import __version__ as __version__
    from pyspark_lance.catalog.reads import on_read
    from pyspark_lance.catalog.registry import register_catalog
    from pyspark_lance.changing.clauses import parse_merge_clauses
    from pyspark_lance.changing.job import ChangeResult
    from pyspark_lance.changing.key_clauses import inserted_rows
    from pyspark_lance.changing.verbs import delete, merge, update
    from pyspark_lance.changing.write_columns import write_columns
    from pyspark_lance.conversion.convert import ConvertResult, convert, to_parquet
    from pyspark_lance.datasource.source import DefaultSource, register
    from pyspark_lance.distributed.cloning import deep_clone
    from pyspark_lance.distributed.compaction import (
        CompactionFailure,
        CompactionReport,
        compact,
        execute_tasks,
        executor_rewriter,
    )
    from pyspark_lance.distributed.indices import create_scalar_index
    from pyspark_lance.lance_table import LanceMergeBuilder, LanceTable
    from pyspark_lance.reading.change_feed import read_changes
    from pyspark_lance.reading.read import read
    from pyspark_lance.session import ensure_java, ensure_python, local_session
    from pyspark_lance.statements.run import sql
    from pyspark_lance.writing.option_values import EmptyOutput, OutOfPartition, SchemaMode
    from pyspark_lance.writing.write import write

__all__ = [
    "ChangeResult",
    "CompactionFailure",
    "CompactionReport",
    "ConvertResult",
    "DefaultSource",
    "EmptyOutput",
    "LanceMergeBuilder",
    "LanceTable",
    "OutOfPartition",
    "SchemaMode",
    "WriteResult",
    "compact",
    "convert",
    "create_scalar_index",
    "deep_clone",
    "delete",
    "ensure_java",
    "ensure_python",
    "execute_tasks",
    "executor_rewriter",
    "inserted_rows",
    "local_session",
    "merge",
    "on_read",
    "parse_merge_clauses",
    "read",
    "read_changes",
    "register",
    "register_catalog",
    "sql",
    "to_parquet",
    "update",
    "write",
    "write_columns",
]

_MODULES: Final = {
    "lance_core": ("WriteResult", "__version__"),
    "pyspark_lance.catalog.reads": ("on_read",),
    "pyspark_lance.catalog.registry": ("register_catalog",),
    "pyspark_lance.changing.clauses": ("parse_merge_clauses",),
    "pyspark_lance.changing.job": ("ChangeResult",),
    "pyspark_lance.changing.key_clauses": ("inserted_rows",),
    "pyspark_lance.changing.verbs": ("delete", "merge", "update"),
    "pyspark_lance.changing.write_columns": ("write_columns",),
    "pyspark_lance.conversion.convert": ("ConvertResult", "convert", "to_parquet"),
    "pyspark_lance.datasource.source": ("DefaultSource", "register"),
    "pyspark_lance.distributed.cloning": ("deep_clone",),
    "pyspark_lance.distributed.compaction": (
        "CompactionFailure",
        "CompactionReport",
        "compact",
        "execute_tasks",
        "executor_rewriter",
    ),
    "pyspark_lance.distributed.indices": ("create_scalar_index",),
    "pyspark_lance.lance_table": ("LanceMergeBuilder", "LanceTable"),
    "pyspark_lance.reading.change_feed": ("read_changes",),
    "pyspark_lance.reading.read": ("read",),
    "pyspark_lance.session": ("ensure_java", "ensure_python", "local_session"),
    "pyspark_lance.statements.run": ("sql",),
    "pyspark_lance.writing.option_values": ("EmptyOutput", "OutOfPartition", "SchemaMode"),
    "pyspark_lance.writing.write": ("write",),
}
"""The public names that each module defines."""
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _check_release(name)
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ModuleNotFoundError(
            f"pyspark_lance.{name} needs pyspark: pip install 'lance-dagster[spark]'", name=error.name
        ) from None
    globals()[name] = value
    return value


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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

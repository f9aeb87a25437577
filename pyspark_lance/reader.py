"""`pyspark_lance.read`: a DataFrame over one version of a table."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from os import PathLike
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from pyspark_lance.read_plan import Piece, ReadPlan, plan_read, plan_tasks, table_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read"]

_UNKNOWN_PARALLELISM: Final = 8
"""Assumed if Spark does not tell."""


def read(
    spark: SparkSession,
    uri: str | PathLike[str],
    *,
    version: int | str | None = None,
    asof: dt.datetime | str | None = None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | str | None = None,  # noqa: A002 - the name that scanners give it
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A lazy DataFrame over a Lance table, classic or Spark Connect as the session is.

    The version is fixed now: later commits do not change what the DataFrame shows. Only the named columns and, where
    the files allow it, the rows that the filter wants are read.

    Args:
        spark: The session.
        uri: The table: a path or a URI.
        version: Version number or tag; None for the latest.
        asof: Take the version that was the latest at this time instead.
        columns: Names of the columns; None for all of them.
        filter: SQL text, or an Arrow expression, over columns of the table, which need not be among `columns`.
        storage_options: Credentials and settings of the storage, by object_store's names. They are sent to the
            executors.

    Returns:
        Every column can be null. Vectors are arrays with the metadata `arrow.fixed-size-list.size`, so that writing
        them makes vectors again. `pyspark_lance.spark_types` lists the other types. Nanoseconds are cut off.

    Raises:
        DatasetNotFoundError: There is no table.
        VersionNotFoundError: It has no such version.
        SchemaError: It has no such column.
        UnsupportedError: Spark has no type for a column; the message names it.
        InvalidInputError: The filter does not fit the columns, or is no SQL.
    """
    dataset = lance_core.dataset(uri, version, asof=asof, storage_options=storage_options)
    schema = table_schema(dataset, columns)
    if isinstance(filter, str):
        filter = dataset.parse_filter(filter)  # noqa: A001 - the name that scanners give it
    plan = plan_read(dataset, schema, filter=filter, storage_options=storage_options)
    tasks = plan_tasks(dataset, plan, parallelism=_parallelism(spark))
    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(partial(_read_tasks, plan, tasks), schema)


def _parallelism(spark: SparkSession) -> int:
    """Tasks that the session runs at once."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return _connect_parallelism(spark)
    return spark.sparkContext.defaultParallelism


@lru_cache(maxsize=8)
def _connect_parallelism(spark: SparkSession) -> int:
    """The parts that a range of numbers would be cut into: a Connect session tells in no other way. No job is run."""
    plan = spark.sql("explain select * from range(1)").collect()[0][0]
    found = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(found.group(1)) if found else _UNKNOWN_PARALLELISM


def _read_tasks(
    plan: ReadPlan, tasks: tuple[tuple[Piece, ...], ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the input says which of the tasks it is."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield from plan.read(tasks[task])

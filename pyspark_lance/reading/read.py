"""`pyspark_lance.read`: a DataFrame over one version of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Final

import pyarrow.compute as pc

import lance_core
from lance_core import LanceDataset
from lance_core.times import moment, zone_named
from pyspark_lance.engine.sessions import check_client, parallelism_of, reject_memory, session_zone
from pyspark_lance.keys.collations import ON_FRAME, session_filter
from pyspark_lance.lazy import DataFrame, SparkSession, StructType
from pyspark_lance.reading.plan import (
    NumberedTasks,
    ReadPlan,
    check_read,
    checked_blob_handling,
    estimate_bytes,
    limit_tasks,
    plan_read,
    plan_tasks,
    table_schema,
)
from pyspark_lance.reading.pruned_frame import Scan, prune_frame
from pyspark_lance.types.column_names import case_sensitive

_NAMED: Final = 16
"""Columns that `explain` names."""
_NUMBER_BYTES: Final = 8
_MOST_NUMBERS: Final = 1 << 28
"""Largest count of numbers in the range by which a frame's size is estimated: 2 GB, which no join broadcasts. They take
a second of processor time.
"""


def read(
    spark: SparkSession,
    uri: str | PathLike[str],
    *,
    version: int | str | None = None,
    asof: dt.datetime | str | None = None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | str | None = None,  # noqa: A002 - the name that scanners give it
    storage_options: Mapping[str, str] | None = None,
    blob_handling: str | None = None,
) -> DataFrame:
    """A lazy DataFrame over a Lance table, in a classic session or in one of Spark Connect.

    The version is fixed now: later commits do not change what the DataFrame shows. Only the named columns are read and,
    as far as indices allow it, only rows that meet the filter. The frame's own `select`, `drop`, `agg`, `where` and
    `limit` read less, and `count` and `isEmpty` use the manifest, unless another verb was called before them.

    Args:
        spark: The session.
        uri: The table: a path or a URI.
        version: Version number or tag; None for the latest.
        asof: Read the version that was the latest at this time, which may be after the latest version; a time without
            a zone is in the session's (`spark.sql.session.timeZone`).
        columns: Names of the columns; None for all columns. A dotted path reads a field of a struct, as a column of
            that name. `_rowid`, `_rowaddr`, `_rowoffset`, `_row_created_at_version` and
            `_row_last_updated_at_version` are the row columns.
        filter: SQL, or an Arrow expression, over columns of the table, which need not be among `columns`.
        storage_options: Credentials and options of the storage, by object_store's names. They are sent to the
            executors.
        blob_handling: How columns of blobs are read: "blobs_descriptions", the default, as structs with the size and
            the position of each blob, without payloads; "all_binary" as binary; "all_descriptions", which is the same
            as the default.

    Returns:
        The DataFrame, with all columns nullable. Vectors are arrays with the metadata `arrow.fixed-size-list.size`, so
        that they are written as vectors again. `pyspark_lance.types.spark_types` lists the other types. Times are
        truncated to microseconds.

    Raises:
        DatasetNotFoundError: The URI holds no table.
        VersionNotFoundError: The table has no such version.
        SchemaError: The table lacks a column.
        UnsupportedError: Spark has no type for a column, or the filter compares a column that has a collation; the
            message names the column.
        InvalidInputError: The filter does not fit the columns, or is not SQL; or the table is in memory.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> pyspark_lance.read(spark, "t.lance", filter="id > 1").count()
        2
    """
    check_client(spark)
    if asof is not None:
        asof = moment(asof, zone=zone_named(session_zone(spark)))
    blobs = checked_blob_handling(blob_handling)
    scans = {"blob_handling": blobs}
    reject_memory(uri)
    dataset = lance_core.dataset(uri, version, asof=asof, storage_options=storage_options, default_scan_options=scans)
    return read_version(
        spark, dataset, columns=columns, filter=filter, storage_options=storage_options, blob_handling=blobs
    )


def read_version(
    spark: SparkSession,
    dataset: LanceDataset,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | str | None = None,  # noqa: A002 - the name that scanners give it
    storage_options: Mapping[str, str] | None = None,
    blob_handling: str | None = None,
) -> DataFrame:
    """Read an open version as `read` does; its scans must handle blobs as `blob_handling` says."""
    blobs = checked_blob_handling(blob_handling)
    schema = table_schema(dataset, columns, case_sensitive=case_sensitive(spark))
    condition = session_filter("filter", filter, dataset, spark, ON_FRAME)
    check_read(dataset, schema, condition)

    def frame(scan: Scan) -> DataFrame:
        scan_schema = table_schema(dataset, scan.columns, case_sensitive=True)
        plan = plan_read(dataset, scan_schema, filter=scan.filter, storage_options=storage_options, blob_handling=blobs)
        return read_frame(spark, dataset, plan, scan_schema, limit=scan.limit)

    return prune_frame(Scan(dataset=dataset, columns=tuple(schema.names), filter=condition, frame=frame))


def read_frame(
    spark: SparkSession,
    dataset: LanceDataset,
    plan: ReadPlan,
    schema: StructType,
    *,
    limit: int | None = None,
    expected_rows: int | None = None,
) -> DataFrame:
    """The frame of a plan, with a size that Spark estimates correctly.

    Spark estimates the size of a range by the count of its numbers, and assumes that the result of a function on it is
    as large. Every `step`th number stands for a task; the others only add to the count, and cost almost nothing.

    Args:
        spark: The session.
        dataset: The version of the plan.
        plan: The plan.
        schema: The columns, in Spark's types.
        limit: The largest number of rows; None for all rows.
        expected_rows: The approximate number of rows, if it is known.
    """
    tasks = plan_tasks(dataset, plan, parallelism=parallelism_of(spark))
    if limit is not None and plan.filter is None:
        tasks = limit_tasks(dataset, tasks, limit)
    if not tasks or limit == 0:
        return spark.createDataFrame([], schema)
    count = len(tasks)
    most = estimate_bytes(dataset, plan.expected)
    row_count = limit if expected_rows is None else expected_rows
    if row_count is not None:
        most = most * row_count // max(row_count, dataset.count_rows(), 1)
    step = min(most, _MOST_NUMBERS * _NUMBER_BYTES) // (_NUMBER_BYTES * count) + 1
    numbers = spark.range(0, count * step, 1, count)
    ids = numbers if step == 1 else numbers.where(f"id % {step} = 0")
    more = f" and {len(plan.columns) - _NAMED} more" if len(plan.columns) > _NAMED else ""
    condition = "" if plan.filter is None else f" where {plan.filter}"
    name = f"lance {plan.uri} version {plan.version} columns {', '.join(plan.columns[:_NAMED])}{more}{condition}"
    name += "" if limit is None else f" limit {limit}"
    frame = ids.mapInArrow(NumberedTasks(name, partial(plan.read, limit=limit), tasks, step), schema)
    return frame if limit is None or plan.filter is None else frame.limit(limit)

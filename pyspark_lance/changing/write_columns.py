"""`pyspark_lance.write_columns`: columns of rows that a table has, in one commit.

    frame with a key --join--> row addresses --shuffle--> one task has all rows of a fragment --> a file per fragment
    frame with _rowaddr --> whole fragments in order? -^ no                                             |
                                   '-- yes --> a file per fragment ----------- their names -------------|
    driver: tasks of fragments without rows, then one commit  <---------------- their names ------------'

Executors write the files of these columns. Of the table's other columns, only the key is read. The driver gets no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from os import PathLike
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import ColumnPlan, ColumnsResult, Commit, LanceDataset, WriteAttempt, WrittenColumns
from lance_core.errors import DatasetNotFoundError, InvalidInputError, SchemaError
from lance_core.extension_types import empty_table
from pyspark_lance.changing.columns_task import COUNT, KEY, ROW_ADDRESS, ColumnsReport, ColumnsTask, delete_written
from pyspark_lance.changing.merge_frames import apply_collations, is_same_value, renamed, rows_of
from pyspark_lance.changing.task import ADDRESS
from pyspark_lance.changing.whole_fragments import write_whole_fragments
from pyspark_lance.engine.partitions import run_on_partitions
from pyspark_lance.engine.sessions import check_frame, parallelism_of, reject_memory, with_times
from pyspark_lance.keys.collations import session_filter
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.lazy import DataFrame, functions
from pyspark_lance.types.column_names import (
    case_sensitive,
    check_spellings,
    match_names,
    names_of,
    quoted,
    rename_columns_like,
)
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.job import open_version
from pyspark_lance.writing.orphan_files import cleaning_up
from pyspark_lance.writing.schema_plan import as_payloads, plan_write

_BLOB_MARK: Final = b"lance-encoding:blob"
_ROW_ID: Final = "_rowid"
_ROW_NAMES: Final = {ROW_ADDRESS: "__lance_row_address", _ROW_ID: "__lance_row_id"}
"""Names of row columns in the frame, where those of the table are reserved."""
_BY_ROWS: Final = (
    "leave where out: with missing='keep' the rows of the DataFrame alone are set, and .where(...) on a read of the"
    " table selects rows as Spark does"
)
_ROUNDS: Final = 3
"""Most tasks for each core: fragments differ in size."""


def write_columns(  # noqa: PLR0913 - each is a choice of its own, all but three have a default
    df: DataFrame,
    uri: str | PathLike[str],
    *,
    on: str | Sequence[str],
    where: str | pc.Expression | None = None,
    missing: Literal["null", "keep", "error"] = "null",
    vector_columns: Mapping[str, int] | None = None,
    field_metadata: Mapping[str, str] | None = None,
    allow_external_blob_outside_bases: bool = False,
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    idempotency_key: tuple[str, str] | None = None,
    write_attempt: WriteAttempt | None = None,
    read_version: int | None = None,
    identity: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ColumnsResult:
    """Set columns of rows that a table has from a DataFrame, classic or Spark Connect, in one commit.

    Executors write one file for each fragment with rows that are set, of these columns alone; other rows of such a
    fragment keep their values. Columns that the table lacks are added, and are nullable. Spark joins the key with row
    addresses, and shuffles the rows of a fragment together, without columns of the table besides the key. A DataFrame
    that kept `_rowaddr` from its read needs no join, and only fragments that do not come whole and in order are
    shuffled. The DataFrame is computed once.

    Args:
        df: The rows: the key, and the columns to set. Blobs of 2.2 are given as binary, or by their URIs as strings.
        uri: The table.
        on: The key: a column or several, `_rowid`, or `_rowaddr` of the version that the write begins with.
        where: The scope: rows for which this is true, as SQL or an Arrow expression; None for all rows.
        missing: What happens to rows of the scope that the DataFrame lacks: "null" sets their columns to null, "keep"
            keeps their values, "error" rejects the write.
        vector_columns: Array columns to store as vectors, as for `pyspark_lance.write`.
        field_metadata: Metadata of the fields of columns that are added.
        allow_external_blob_outside_bases: Accept blobs by any URI, and not only by URIs below the table's base paths.
        transaction_properties: Strings by key that the commit records.
        commit_message: A message that the commit records.
        idempotency_key: A transaction property (key, value) that at most one commit may carry; if one does, it is
            adopted and nothing is committed.
        write_attempt: The write and the number of the attempt, if the write may have several attempts: the columns of
            the last attempt stay.
        read_version: The version to begin with; None for the latest.
        identity: `LanceDataset.identity` of that version, which detects a table that was dropped and made again.
        storage_options: Credentials and options of the storage, by object_store's names. They are sent to the
            executors.

    Returns:
        The version and what was written. Without a row to set or a column to add there is no new version.

    Raises:
        DatasetNotFoundError: The URI holds no table.
        InvalidInputError: `where` does not fit the columns; or a key is null, comes twice, or names no row of the
            scope, or several; or the DataFrame lacks a row of the scope, and `missing` is "error"; or a blob is given
            by a URI that is not allowed. Nothing is committed.
        SchemaError: A column does not fit the table, or the key is missing; the message names the column.
        UnsupportedError: `where` compares a column that has a collation; the message names the column.
        RetryableConflictError: A concurrent commit moved rows, which have no stable ids; do the write again.
        IncompatibleConflictError: A concurrent commit overwrote the rows, or dropped a column.
        SupersededError: A later attempt of the same write has committed.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> scores = spark.createDataFrame([(1, 0.5), (3, 0.75)], "id long, score double")
        >>> pyspark_lance.write_columns(scores, "t.lance", on="id").rows_updated
        2
        >>> lance.dataset("t.lance").to_table()["score"].to_pylist()
        [0.5, None, 0.75]
    """
    commit = Commit.of(locals())
    check_frame("write_columns: df must be", df)
    reject_memory(uri)
    dataset = open_version(lance_core.canonical_uri(uri), read_version, storage_options, identity)
    if dataset is None:
        raise DatasetNotFoundError(f"there is no table at {uri}: write_columns needs a table with rows")
    check_spellings(df, df.columns)
    df = df.withColumnsRenamed(_ROW_NAMES)
    df = rename_columns_like(df, batch_schema(df.schema), dataset.schema)
    keys = _keys(dataset, names_of("on", () if on is None else on), df)
    df = apply_collations(df, [field for field in dataset.schema if field.name in keys])
    stored = _plan_stored_columns(dataset, df, keys, vector_columns, field_metadata)
    scope = session_filter("where", where, dataset, df.sparkSession, _BY_ROWS)
    blobs = {"allow_external_blob_outside_bases": allow_external_blob_outside_bases}
    plan = dataset.plan_columns(stored, where=scope, missing=missing, **blobs)
    task = ColumnsTask(
        uri=dataset.uri,
        version=dataset.version,
        keys=tuple(keys) if keys != [ROW_ADDRESS] else (),
        stored=stored,
        tasks={column_task.fragment_id: column_task for column_task in plan.tasks},
        storage_options=storage_options,
    )
    with with_times(df.sparkSession, df.schema):
        frame = _find_addresses(df, dataset, keys, stored.names, scope, storage_options)
        passed_on = frame if task.keys else write_whole_fragments(frame, task)
        answers = run_on_partitions(_sort_by_fragment(passed_on, plan), task, task.stored)
        reports = [ColumnsReport.from_bytes(answer) for answer in answers]
    return _commit(dataset, plan, task, reports, commit)


def _commit(
    dataset: LanceDataset, plan: ColumnPlan, task: ColumnsTask, reports: Sequence[ColumnsReport], commit: Commit
) -> ColumnsResult:
    """Commit what the tasks report; files that no version uses are deleted."""
    written = [columns for report in reports for columns in report.written]
    with cleaning_up(lambda: delete_written(dataset.uri, written, task.storage_options)):
        for report in reports:
            report.reject()
        written += _write_fragments_without_rows(dataset, plan, written, task.stored)
        return dataset.commit_columns(plan, written, commit)


def _keys(dataset: LanceDataset, on: Sequence[str], df: DataFrame) -> list[str]:
    """The columns of the key, in the table's spelling.

    Raises:
        SchemaError: The table or the DataFrame lacks one of them.
    """
    if not on:
        raise InvalidInputError("on is empty: name the key, which is a column or several, _rowid or _rowaddr")
    row_names = [name for name in on if name in (ROW_ADDRESS, _ROW_ID)]
    if row_names and len(on) > 1:
        raise InvalidInputError(f"on {list(on)}: {row_names[0]} names rows by itself; leave out the other columns")
    possible_keys = [*dataset.schema.names, *row_names]
    names = match_names(on, possible_keys, exact=case_sensitive(df.sparkSession))
    lacking = [name for name in on if name not in names]
    if lacking:
        raise SchemaError(f"on: {dataset.uri} has no column {lacking[0]!r}; it has {dataset.schema.names}")
    keys = [names[name] for name in on]
    absent = [name for name in keys if _ROW_NAMES.get(name, name) not in df.columns]
    if absent:
        raise SchemaError(f"on: the DataFrame has no column {absent[0]!r}; it has {df.columns}")
    if not row_names:
        check_keys_of("on", [dataset.schema.field(name) for name in keys])
    return keys


def _plan_stored_columns(
    dataset: LanceDataset,
    df: DataFrame,
    keys: Sequence[str],
    vector_columns: Mapping[str, int] | None,
    field_metadata: Mapping[str, str] | None,
) -> pa.Schema:
    """The columns to set, as the table stores them; the table's own come first."""
    table, frame_schema = dataset.schema, batch_schema(df.schema)
    source = pa.schema([field for field in frame_schema if field.name not in (*keys, *_ROW_NAMES.values())])
    if not source.names:
        raise InvalidInputError("the DataFrame has no column besides the key: there is nothing to write")
    stored = pa.schema([as_payloads(field, source.field(field.name)) for field in table if field.name in source.names])
    planned = plan_write(
        source,
        stored,
        schema_mode="add_columns",
        vector_columns=vector_columns,
        case_sensitive=case_sensitive(df.sparkSession),
        has_schema_mode=False,
    )
    if planned.grown_columns:
        raise SchemaError(
            f"columns {list(planned.grown_columns)} have fields that the table's columns lack; Column.dropFields leaves"
            " them out"
        )
    fields = []
    for field in planned.stored:
        if field.name not in stored.names and pa.types.is_null(field.type):
            raise SchemaError(f"column {field.name!r} is new, and of Spark's type void; cast it to its type")
        new = field.with_metadata({**(field.metadata or {}), **dict(field_metadata or {})})
        fields.append(stored.field(field.name) if field.name in stored.names else _large_blob(new))
    return pa.schema(fields)


def _large_blob(field: pa.Field) -> pa.Field:
    """A column of bytes with large offsets, which blobs need, if its metadata marks it as one of blobs."""
    is_marked = (field.metadata or {}).get(_BLOB_MARK, b"").lower() == b"true"
    return field.with_type(pa.large_binary()) if is_marked and pa.types.is_binary(field.type) else field


def _find_addresses(
    df: DataFrame,
    dataset: LanceDataset,
    keys: Sequence[str],
    values: Sequence[str],
    scope: pc.Expression | None,
    storage_options: Mapping[str, str] | None,
) -> DataFrame:
    """The values with the addresses of their rows, and with the key and its number of rows if it was joined."""
    if list(keys) == [ROW_ADDRESS]:
        return df.select(functions.col(_ROW_NAMES[ROW_ADDRESS]).cast("bigint").alias(ADDRESS), *map(quoted, values))
    rows = rows_of(df.sparkSession, dataset, [*keys, ROW_ADDRESS], scope, storage_options)
    named = [renamed(name, KEY.format(i)) for i, name in enumerate(keys)]
    ends = [KEY.format(i) for i in range(len(keys))]
    target = rows.select(*named, renamed(ROW_ADDRESS, ADDRESS))
    if list(keys) != [_ROW_ID]:
        counted = [functions.min(ADDRESS).alias(ADDRESS), functions.count(functions.lit(1)).alias(COUNT)]
        target = target.groupBy(*ends).agg(*counted)
    else:
        target = target.withColumn(COUNT, functions.lit(1))
    names = [_ROW_NAMES.get(name, name) for name in keys]
    kinds = [(df.schema[name].dataType, target.schema[end].dataType) for name, end in zip(names, ends, strict=True)]
    same = [
        is_same_value(f"source.{quoted(name)}", f"target.{end}", *both)
        for name, end, both in zip(names, ends, kinds, strict=True)
    ]
    joined = df.alias("source").join(target.alias("target"), reduce(and_, same), "left")
    key_strings = [
        functions.col(f"source.{quoted(name)}").cast("string").alias(end) for name, end in zip(names, ends, strict=True)
    ]
    return joined.select(ADDRESS, COUNT, *key_strings, *[functions.col(f"source.{quoted(name)}") for name in values])


def _sort_by_fragment(frame: DataFrame, plan: ColumnPlan) -> DataFrame:
    """The frame, with all rows of a fragment in one task, in order."""
    tasks = max(1, min(len(plan.tasks), _ROUNDS * parallelism_of(frame.sparkSession)))
    fragment = functions.shiftright(functions.col(ADDRESS), 32)
    return frame.repartition(tasks, fragment).sortWithinPartitions(ADDRESS)


def _write_fragments_without_rows(
    dataset: LanceDataset, plan: ColumnPlan, written: Sequence[WrittenColumns], stored: pa.Schema
) -> list[WrittenColumns]:
    """Write the files of fragments of which the DataFrame has no row."""
    if not plan.tasks or plan.tasks[0].missing == "keep":
        return []
    done = {columns.fragment_id for columns in written}
    empty = empty_table(pa.schema([pa.field(ROW_ADDRESS, pa.uint64()), *stored]))
    written_columns = [task.write(dataset, empty) for task in plan.tasks if task.fragment_id not in done]
    return [columns for columns in written_columns if columns is not None]

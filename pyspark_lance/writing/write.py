"""`pyspark_lance.write`: one Spark job that writes files, then one commit in the calling process.

Rows are clustered by slice first, so that a write makes few files, each with rows of one slice:

    before:  task 0: a b c a b c      task 1: a b c b       ->  one file per task and slice: 6
    after:   task 0: a a a c c c      task 1: b b b b       ->  one file per slice: 3

Spark's `rebalance` moves the rows: adaptive execution then puts small slices into one task and divides a large slice
among several tasks. Correctness does not depend on it: the tasks check the slice of each row.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Final, get_args

from lance_core import AttemptProperties, Between, Equals, Slices, WriteAttempt, WriteResult
from lance_core.errors import DatasetExistsError, InvalidInputError
from pyspark_lance.engine.lexing import has_escapes, translate_strings
from pyspark_lance.engine.partitions import Transport, run_on_partitions
from pyspark_lance.engine.sessions import check_frame, is_connect, is_utc, reject_memory, session_zone
from pyspark_lance.lazy import Column, DataFrame, functions
from pyspark_lance.releases import is_at_least
from pyspark_lance.types.column_names import case_sensitive, check_spellings, names_of, quoted
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.job import find_earlier_write, open_version, prepare_write
from pyspark_lance.writing.option_values import EmptyOutput, OutOfPartition, PartitionOverwrite, SaveMode, SchemaMode
from pyspark_lance.writing.options import OVERWRITE_MODE, WriteArguments


def write(  # noqa: PLR0913 - each is a choice of its own, all but two have a default
    df: DataFrame,
    uri: str | PathLike[str],
    *,
    mode: SaveMode = "append",
    slices: Slices | None = None,
    cluster: bool = True,
    out_of_partition: OutOfPartition = "error",
    vector_columns: Mapping[str, int] | None = None,
    schema_mode: SchemaMode = "strict",
    empty_output: EmptyOutput = "write",
    transaction_properties: Mapping[str, str] | None = None,
    commit_message: str | None = None,
    idempotency_key: tuple[str, str] | None = None,
    idempotency_since: int = 0,
    write_attempt: WriteAttempt | None = None,
    read_version: int | None = None,
    identity: str | None = None,
    table_config: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    max_rows_per_file: int | None = None,
    max_bytes_per_file: int | None = None,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
    replace_where: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    partition_overwrite: PartitionOverwrite | None = None,
    require_empty: bool = False,
    allow_external_blob_outside_bases: bool = False,
) -> WriteResult | None:
    """Write a DataFrame, classic or Spark Connect, to a Lance table in one commit.

    The DataFrame is computed once, by one task per partition. A partition makes one file, or several if it is larger
    than the limits below; adaptive execution, `repartition` or `coalesce` determine the number of partitions. If there
    are more than 256 partitions (or 32 for each core), some may share a task and its file. The rows never pass through
    the calling process. It makes the commit, and therefore must reach the storage.

    Args:
        df: The DataFrame.
        uri: The table: a path or a URI.
        mode: "append"; "overwrite" replaces all rows; "create", which Spark calls "error" and "errorifexists", requires
            that the table does not exist; "ignore" writes nothing if it exists; "replace" replaces the rows of
            `slices`. Each mode creates the table if it does not exist.
        slices: The slices in which the rows lie. No data file then holds rows of two slices.
        cluster: Whether a shuffle brings the rows of each slice together first. Without it, each task keeps a file open
            for each slice of its rows, and writes one file for each.
        out_of_partition: Whether rows that lie in none of the slices are an "error", before anything is changed, or
            are written ("allow").
        vector_columns: Array columns to store as vectors (fixed-size lists), with the number of their items. Columns
            with the metadata `arrow.fixed-size-list.size` (`df.withMetadata`), and columns that are vectors in the
            table, need not be listed.
        schema_mode: "strict": the columns must be the table's, in any order; "add_columns": nullable columns may be
            missing, and columns may be new; "overwrite": with mode "overwrite", the columns replace the table's. A
            column of the table whose type is null gets a type, unless rows are replaced by a condition or dynamically.
        empty_output: What happens to a write without rows: "write" makes a version, "skip" makes none, "error" raises.
        transaction_properties: Strings by key that the commit records.
        commit_message: A message that the commit records.
        idempotency_key: Key and value of a transaction property. If a version has this property, nothing is written;
            otherwise the new version gets it. The table keeps the key in its own state, so that the version may be
            cleaned up. If the state does not record the key, all versions are opened, newest first, down to
            `idempotency_since`.
        idempotency_since: A version that is known to be older than any write with the same `idempotency_key`, such as
            the latest version when the job began: this version and older ones are not opened.
        write_attempt: The write and the number of the attempt, if the write may have several attempts: rows that
            earlier attempts committed are replaced, and the write fails if a later attempt has committed.
        read_version: The version that the write is based on; None for the latest, 0 if the table did not exist.
        identity: `LanceDataset.identity` of that version, which detects a table that was dropped and made again.
        table_config: Configuration of the table to set, unless it has these values already: in the same commit if
            that creates or overwrites the table; else in a version of its own before it, as the transactions of
            appends and replacements have no place for it.
        storage_options: Credentials and options of the storage, by object_store's names. They are sent to the
            executors.
        max_rows_per_file: Rows after which a task begins another file.
        max_bytes_per_file: Bytes after which a task begins another file.
        data_storage_version: Version of the file format for a new table, such as "2.2".
        enable_stable_row_ids: Give the rows of a new table ids that they keep when they are updated or moved, by which
            changes are followed. A table that exists must have them.
        replace_where: With mode "overwrite": SQL that says which rows are replaced. Every row of the DataFrame must
            meet the condition.
        partition_by: Columns of which each data file holds one value. Lance has no partitions: this layout of the rows
            makes reads and replacements faster, and is not recorded in the table.
        partition_overwrite: "dynamic": mode "overwrite" replaces only the partitions that have rows, by the columns of
            `partition_by`, or else of PARTITIONED BY of the table; "static": all rows; None: what
            `spark.sql.sources.partitionOverwriteMode` of the session says, where one of the two names columns.
        require_empty: With mode "append" or "replace": `slices` must be empty except for rows of earlier attempts, also
            in versions of concurrent writers.
        allow_external_blob_outside_bases: Accept blobs by any URI, and not only by URIs below the table's base paths.

    Returns:
        The result; None if there were no rows and `empty_output` is "skip", or if the table exists and the mode is
        "ignore".

    Raises:
        SchemaError: The schema cannot be stored, or does not fit the table's; the message names the column. No task
            was run.
        UnsupportedError: A type cannot be stored; the message names the column. No task was run.
        InvalidInputError: An argument is wrong, or the data: a vector of another length, a row outside of the slices.
        DatasetExistsError: The mode is to create the table, and it exists; or `require_empty` is set, and the slices
            have rows.
        CommitConflictError: A concurrent commit conflicts with the write. No row was changed.
        OutcomeUnknownError: The storage did not report whether the commit took effect.

    Examples:
        >>> frame = spark.range(3)
        >>> pyspark_lance.write(frame, "t.lance").version
        1
        >>> pyspark_lance.write(frame, "t.lance", mode="overwrite").version
        2
    """
    arguments = {name: value for name, value in locals().items() if name not in ("df", "uri")}
    arguments["mode"] = "error" if mode in ("errorifexists", "ignore") else mode
    arguments["partition_by"] = None if partition_by is None else tuple(names_of("partition_by", partition_by))
    options = WriteArguments.of(arguments)
    if mode not in get_args(SaveMode):
        raise InvalidInputError(f"mode {mode!r} is none of {', '.join(get_args(SaveMode))}")
    if isinstance(transaction_properties, AttemptProperties):
        existing = open_version(uri, None, storage_options)
        options = replace(options, commit=options.commit.as_attempt(existing, mode))
    try:
        return write_with(df, uri, options)
    except DatasetExistsError:
        # An external manifest store may list a table whose files were deleted: such a table is not ignored.
        if mode == "ignore" and open_version(uri, None, options.storage_options) is not None:
            return None
        raise


def write_with(
    df: DataFrame, uri: str | PathLike[str], options: WriteArguments, *, transport: Transport = "auto"
) -> WriteResult | None:
    """Write over a chosen transport, as `write` does."""
    check_frame("write: df must be", df)
    reject_memory(uri)
    done, options = find_earlier_write(uri, options)
    if done is not None:
        return done
    source = batch_schema(df.schema)
    if is_connect(df.sparkSession) or not is_at_least((4, 0)):
        check_spellings(df, df.columns)  # columns are passed to a function by their names
    session = df.sparkSession
    in_utc = is_utc(session_zone(session))
    is_dynamic = str(session.conf.get(OVERWRITE_MODE, "static")).lower() == "dynamic"
    if options.replace_where is not None:
        options = replace(options, replace_where=translate_strings(options.replace_where, escapes=has_escapes(session)))
    options = replace(options, case_sensitive=case_sensitive(session), assume_utc=in_utc, session_is_dynamic=is_dynamic)
    job = prepare_write(source, uri, options)
    frame, options = df, job.options
    if options.cluster and options.slices is not None:
        frame = cluster_by_slice(df, options.slices)
    elif options.cluster and options.partition_by is not None:
        frame = cluster_by_columns(df, options.partition_by)
    try:
        answers = run_on_partitions(frame, job.task(), job.plan.stored, transport=transport)
    except BaseException:
        job.clean((), failed=True)
        raise
    return job.finish(answers)


_KEY: Final = "__lance_slice_{}"
_MAX_BUCKETS: Final = 256
"""Most ranges of a column; if there are more, neighbouring ranges are merged to keep the expression short."""


def cluster_by_slice(frame: DataFrame, slices: Slices) -> DataFrame:
    """The frame, with the rows of each slice in few tasks, and next to each other in each task.

    With a single slice the frame stays as it is.
    """
    if len(slices.names) == 1:
        return frame
    check_spellings(frame, frame.columns)
    keys: dict[str, Column] = {}
    sort: list[Any] = []
    for position, name in enumerate(slices.columns):
        column = functions.col(quoted(name))
        conditions = [slice_.conditions[name] for slice_ in slices.slices]
        if all(isinstance(condition, Equals) for condition in conditions):
            key = column
        else:
            starts = sorted({condition.start for condition in conditions if isinstance(condition, Between)})
            step = -(-len(starts) // _MAX_BUCKETS)
            key = _bucket(column, starts[::step], 0)
            if step > 1:
                sort.append(column)
        keys[_KEY.format(position)] = key
    keyed = _gather(frame.withColumns(keys), list(keys))
    return keyed.sortWithinPartitions(*keys, *sort).drop(*keys)


def cluster_by_columns(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The frame, with the rows of each value of the columns in few tasks, and next to each other in each task."""
    check_spellings(frame, frame.columns)
    keys = [quoted(name) for name in columns]
    return _gather(frame, keys).sortWithinPartitions(*keys)


def _gather(frame: DataFrame, keys: list[str]) -> DataFrame:
    """The frame, with equal keys in few tasks: in one task before Spark 4.0, whose hints take no columns."""
    return frame.hint("rebalance", *keys) if is_at_least((4, 0)) else frame.repartition(*keys)


def _bucket(column: Column, starts: list[Any], first: int) -> Column:
    """An expression for the position of the last start at or below the column's value, by bisection."""
    if len(starts) == 1:
        return functions.lit(first)
    middle = len(starts) // 2
    start = starts[middle]
    if isinstance(start, dt.datetime) and start.tzinfo is None:
        literal = functions.lit(start.isoformat()).cast("timestamp_ntz")
    else:
        literal = functions.lit(start)
    return functions.when(column < literal, _bucket(column, starts[:middle], first)).otherwise(
        _bucket(column, starts[middle:], first + middle)
    )

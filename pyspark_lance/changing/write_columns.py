"""`pyspark_lance.write_columns`: columns of rows that a table has, in one commit.

    frame with a key --join--> row addresses --shuffle--> one task has all rows of a fragment --> a file per fragment
    frame with _rowaddr ------------------------^                                                       |
    driver: tasks of fragments without rows, then one commit  <---------- their names ------------------'

Executors write the files of these columns; other columns are neither read nor written, but for the key. The driver gets
no rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from os import PathLike
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lance_core
from lance_core import ColumnPlan, ColumnsResult, ColumnTask, LanceDataset, WriteAttempt, WrittenColumns
from lance_core.errors import (
    DatasetNotFoundError,
    InvalidInputError,
    LanceError,
    SchemaError,
    StoreError,
    UnsupportedError,
)
from pyspark_lance.changing.merge_frames import is_same_value, renamed, rows_of
from pyspark_lance.changing.task import ADDRESS
from pyspark_lance.engine.partitions import run_on_partitions
from pyspark_lance.engine.sessions import is_utc, parallelism_of, reject_memory, session_zone, use_cores_of_task
from pyspark_lance.keys.equality import check_keys_of
from pyspark_lance.types.batch_convert import ConverterTo
from pyspark_lance.types.column_names import case_sensitive, in_case_of_table, matched_names, quoted
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.job import open_version
from pyspark_lance.writing.schema_plan import as_payloads, plan_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_columns"]

_BLOB_MARK: Final = b"lance-encoding:blob"
_KEY: Final = "__lance_key_{}"
_COUNT: Final = "__lance_count"
_ROW_ADDRESS: Final = "_rowaddr"
_ROW_ID: Final = "_rowid"
_ROW_NAMES: Final = {_ROW_ADDRESS: "__lance_row_address", _ROW_ID: "__lance_row_id"}
"""Names of row columns in the frame, where those of the table are reserved."""
_ROUNDS: Final = 3
"""Most tasks for each core: fragments differ in size."""
_REPORTED: Final = {kind.code: kind for kind in (InvalidInputError, SchemaError, UnsupportedError)}


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
    addresses; a DataFrame that kept `_rowaddr` from its read needs no join. The rows of a fragment are then shuffled
    together, without columns of the table besides the key. The DataFrame is computed once.

    Args:
        df: The rows: the key, and the columns to set. Blobs of 2.2 are given as binary, or by their URIs as strings.
        uri: The table.
        on: The key: a column or several, `_rowid`, or `_rowaddr` of the version that the write begins with.
        where: The scope: rows for which this is true, as SQL or an Arrow expression; None for all rows.
        missing: What becomes of the rows of the scope that the DataFrame lacks: "null" sets their columns to null,
            "keep" leaves them, "error" rejects the write.
        vector_columns: Array columns to store as vectors, as for `pyspark_lance.write`.
        field_metadata: Metadata of the fields of columns that are added.
        allow_external_blob_outside_bases: Take blobs by any URI, and not only below base paths of the table.
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
        InvalidInputError: A key is null, comes twice, or names no row of the scope, or several; or the DataFrame lacks
            a row of the scope, and `missing` is "error"; or a blob is given by a URI that is not allowed. Nothing is
            committed.
        SchemaError: A column does not fit the table, or the key is missing; the message names the column.
        RetryableConflictError: Rows moved meanwhile and have no stable ids to be followed by; do the write again.
        IncompatibleConflictError: The rows were overwritten, or a column was dropped, meanwhile.
        SupersededError: A later attempt of the same write has committed.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> scores = spark.createDataFrame([(1, 0.5), (3, 0.75)], "id long, score double")
        >>> pyspark_lance.write_columns(scores, "t.lance", on="id").rows_updated
        2
        >>> lance.dataset("t.lance").to_table()["score"].to_pylist()
        [0.5, None, 0.75]
    """
    reject_memory(uri)
    dataset = open_version(lance_core.canonical_uri(uri), read_version, storage_options, identity)
    if dataset is None:
        raise DatasetNotFoundError(f"there is no table at {uri}: columns are set of rows that a table has")
    df = df.withColumnsRenamed(_ROW_NAMES)
    df = in_case_of_table(df, batch_schema(df.schema), dataset.schema)
    keys = _keys(dataset, [on] if isinstance(on, str) else list(on), df)
    stored = _stored(dataset, df, keys, vector_columns, field_metadata)
    scope = _scope(dataset, df, where)
    plan = dataset.plan_columns(
        stored,
        where=scope,
        missing=missing,
        allow_external_blob_outside_bases=allow_external_blob_outside_bases,
    )
    frame = _by_fragment(_addressed(df, dataset, keys, stored.names, scope, storage_options), plan)
    task = _ColumnsTask(
        uri=dataset.uri,
        version=dataset.version,
        keys=tuple(keys) if keys != [_ROW_ADDRESS] else (),
        stored=stored,
        tasks={one.fragment_id: one for one in plan.tasks},
        storage_options=storage_options,
    )
    messages = [answer.message for answer in run_on_partitions(frame, task, stored)]
    how = {
        "transaction_properties": transaction_properties,
        "commit_message": commit_message,
        "idempotency_key": idempotency_key,
        "write_attempt": write_attempt,
    }
    return _commit(dataset, plan, task, [_ColumnsReport.from_bytes(message) for message in messages], how)


def _commit(
    dataset: LanceDataset,
    plan: ColumnPlan,
    task: _ColumnsTask,
    reports: Sequence[_ColumnsReport],
    how: Mapping[str, Any],
) -> ColumnsResult:
    """Commit what the tasks report; files that no version uses are deleted."""
    written = [one for report in reports for one in report.written]
    try:
        for report in reports:
            report.reject()
        written += _without_rows(dataset, plan, written, task.stored)
        return dataset.commit_columns(plan, written, **how)
    except StoreError:
        raise  # the commit may have taken effect, or may still do so
    except LanceError:
        _delete(dataset.uri, written, task.storage_options)
        raise


def _keys(dataset: LanceDataset, on: Sequence[str], df: DataFrame) -> list[str]:
    """The columns of the key, in the table's spelling.

    Raises:
        SchemaError: The table or the DataFrame lacks one of them.
    """
    if not on:
        raise InvalidInputError("on names the key: a column, several of them, _rowid or _rowaddr")
    row_names = [name for name in on if name in (_ROW_ADDRESS, _ROW_ID)]
    if row_names and len(on) > 1:
        raise InvalidInputError(f"{row_names[0]} names rows by itself; on has {list(on)}")
    known = [*dataset.schema.names, *row_names]
    names = matched_names(on, known, exact=case_sensitive(df.sparkSession))
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


def _stored(
    dataset: LanceDataset,
    df: DataFrame,
    keys: Sequence[str],
    vector_columns: Mapping[str, int] | None,
    field_metadata: Mapping[str, str] | None,
) -> pa.Schema:
    """The columns to set, as the table stores them; the table's own come first."""
    table, given = dataset.schema, batch_schema(df.schema)
    source = pa.schema([one for one in given if one.name not in (*keys, *_ROW_NAMES.values())])
    if not source.names:
        raise InvalidInputError("the DataFrame has no column besides the key: there is nothing to write")
    own = pa.schema([as_payloads(one, source.field(one.name)) for one in table if one.name in source.names])
    planned = plan_write(
        source,
        own,
        schema_mode="add_columns",
        vector_columns=vector_columns,
        case_sensitive=True,
        has_schema_mode=False,
    )
    if planned.grown_columns:
        raise SchemaError(f"columns {list(planned.grown_columns)} have fields that those of the table lack")
    fields = []
    for one in planned.stored:
        if one.name not in own.names and pa.types.is_null(one.type):
            raise SchemaError(f"column {one.name!r} is new, and of Spark's type void; cast it to its type")
        new = one.with_metadata({**(one.metadata or {}), **dict(field_metadata or {})})
        fields.append(own.field(one.name) if one.name in own.names else _large_blob(new))
    return pa.schema(fields)


def _large_blob(field: pa.Field) -> pa.Field:
    """A new column of bytes that is marked as one of blobs, with large offsets, which blobs have."""
    is_marked = (field.metadata or {}).get(_BLOB_MARK, b"").lower() == b"true"
    return field.with_type(pa.large_binary()) if is_marked and pa.types.is_binary(field.type) else field


def _scope(dataset: LanceDataset, df: DataFrame, where: str | pc.Expression | None) -> pc.Expression | None:
    """The scope as an expression; times in SQL are in the session's zone."""
    if not isinstance(where, str):
        return where
    return dataset.parse_filter(where, assume_utc=is_utc(session_zone(df.sparkSession)))


def _addressed(
    df: DataFrame,
    dataset: LanceDataset,
    keys: Sequence[str],
    values: Sequence[str],
    scope: pc.Expression | None,
    storage_options: Mapping[str, str] | None,
) -> DataFrame:
    """The values with the addresses of their rows, and with the key and its number of rows if it was joined."""
    from pyspark.sql import functions

    if list(keys) == [_ROW_ADDRESS]:
        return df.select(functions.col(_ROW_NAMES[_ROW_ADDRESS]).cast("bigint").alias(ADDRESS), *map(quoted, values))
    rows = rows_of(df.sparkSession, dataset, [*keys, _ROW_ADDRESS], scope, storage_options)
    named = [renamed(name, _KEY.format(i)) for i, name in enumerate(keys)]
    ends = [_KEY.format(i) for i in range(len(keys))]
    target = rows.select(*named, renamed(_ROW_ADDRESS, ADDRESS))
    if list(keys) != [_ROW_ID]:
        counted = [functions.min(ADDRESS).alias(ADDRESS), functions.count(functions.lit(1)).alias(_COUNT)]
        target = target.groupBy(*ends).agg(*counted)
    else:
        target = target.withColumn(_COUNT, functions.lit(1))
    given = [_ROW_NAMES.get(name, name) for name in keys]
    kinds = [(df.schema[name].dataType, target.schema[end].dataType) for name, end in zip(given, ends, strict=True)]
    same = [
        is_same_value(f"source.{quoted(name)}", f"target.{end}", *both)
        for name, end, both in zip(given, ends, kinds, strict=True)
    ]
    joined = df.alias("source").join(target.alias("target"), reduce(and_, same), "left")
    own = [
        functions.col(f"source.{quoted(name)}").cast("string").alias(end) for name, end in zip(given, ends, strict=True)
    ]
    return joined.select(ADDRESS, _COUNT, *own, *[functions.col(f"source.{quoted(name)}") for name in values])


def _by_fragment(frame: DataFrame, plan: ColumnPlan) -> DataFrame:
    """The frame, with all rows of a fragment in one task, in order."""
    from pyspark.sql import functions

    tasks = max(1, min(len(plan.tasks), _ROUNDS * parallelism_of(frame.sparkSession)))
    fragment = functions.shiftright(functions.col(ADDRESS), 32)
    return frame.repartition(tasks, fragment).sortWithinPartitions(ADDRESS)


def _without_rows(
    dataset: LanceDataset, plan: ColumnPlan, written: Sequence[WrittenColumns], stored: pa.Schema
) -> list[WrittenColumns]:
    """The files of fragments none of whose rows the DataFrame has."""
    if not plan.tasks or plan.tasks[0].missing == "keep":
        return []
    done = {one.fragment_id for one in written}
    empty = pa.schema([pa.field(_ROW_ADDRESS, pa.uint64()), *stored]).empty_table()
    made = [task.write(dataset, empty) for task in plan.tasks if task.fragment_id not in done]
    return [one for one in made if one is not None]


def _delete(uri: str, written: Sequence[WrittenColumns], storage_options: Mapping[str, str] | None) -> None:
    for one in written:
        name = PurePosixPath(one.file.path).stem
        lance_core.delete_uncommitted_files(uri, file_prefix=name, keep=(), storage_options=storage_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnsReport:
    """What a task has written, or the error in its data."""

    written: tuple[WrittenColumns, ...] = ()
    error: tuple[str, str] | None = None

    def to_bytes(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def from_bytes(data: bytes) -> _ColumnsReport:
        report: _ColumnsReport = pickle.loads(data)  # noqa: S301 - from our own workers
        return report

    def reject(self) -> None:
        """Raise the error in the data with its class."""
        if self.error is not None:
            code, message = self.error
            raise _REPORTED[code](message)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnsTask:
    """Writes the files of the fragments whose rows a partition has; it is pickled.

    Attributes:
        uri: The table.
        version: The version that the rows are in.
        keys: The columns of the key, whose values come as strings for messages; none for row addresses.
        stored: The columns, as the table stores them.
        tasks: The work on each fragment.
        storage_options: Options of the storage.
    """

    uri: str
    version: int
    keys: tuple[str, ...]
    stored: pa.Schema
    tasks: Mapping[int, ColumnTask]
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __call__(self, partition: int, attempt: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the rows of a partition; returns the report as bytes."""
        del partition, attempt
        use_cores_of_task()
        written: list[WrittenColumns] = []
        try:
            for one in self._write(batches):
                written += [one]
        except tuple(_REPORTED.values()) as error:
            _delete(self.uri, written, self.storage_options)
            return _ColumnsReport(error=(error.code, str(error))).to_bytes()
        except BaseException:
            _delete(self.uri, written, self.storage_options)
            raise
        return _ColumnsReport(written=tuple(written)).to_bytes()

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[WrittenColumns]:
        """Yield the file of each fragment; the rows of one are held in memory."""
        dataset = lance_core.dataset(self.uri, self.version, storage_options=self.storage_options)
        convert = ConverterTo(pa.schema([pa.field(ADDRESS, pa.int64()), *self.stored]))
        fragment, parts = -1, list[pa.Table]()
        for batch in batches:
            self._check(batch)
            table = pa.Table.from_batches([convert(batch)])
            ids = pc.shift_right(table.column(ADDRESS), 32).to_numpy()
            ends = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1), len(ids)] if len(ids) else []
            start = 0
            for end in ends:
                if ids[start] != fragment:
                    yield from self._file(dataset, fragment, parts)
                    fragment, parts = int(ids[start]), []
                parts.append(table.slice(start, end - start))
                start = end
        yield from self._file(dataset, fragment, parts)

    def _file(self, dataset: LanceDataset, fragment: int, parts: Sequence[pa.Table]) -> Iterator[WrittenColumns]:
        if not parts:
            return
        table = pa.concat_tables(parts)
        task = self.tasks.get(fragment)
        if task is None:
            raise InvalidInputError(
                f"row address {table.column(ADDRESS)[0].as_py()} names no row of the scope in version "
                f"{self.version} of {self.uri}; nothing was written"
            )
        addresses = table.column(ADDRESS).cast(pa.uint64())
        made = task.write(dataset, table.drop_columns([ADDRESS]).append_column(_ROW_ADDRESS, addresses))
        if made is not None:
            yield made

    def _check(self, batch: pa.RecordBatch) -> None:
        """Reject rows whose key names no row of the table, or several."""
        addresses = batch.column(ADDRESS)
        if addresses.null_count:
            raise InvalidInputError(
                f"{self._key(batch, addresses.is_null())} names no row of the scope in version {self.version} of "
                f"{self.uri}; nothing was written"
            )
        if not self.keys:
            return
        several = pc.greater(batch.column(_COUNT), 1)
        if pc.any(several).as_py():
            raise InvalidInputError(
                f"{self._key(batch, several)} names several rows of {self.uri}; nothing was written"
            )
        twice = pc.equal(addresses.slice(1), addresses.slice(0, max(0, len(addresses) - 1)))
        if pc.any(twice).as_py():
            raise InvalidInputError(f"{self._key(batch.slice(1), twice)} comes twice; nothing was written")

    def _key(self, batch: pa.RecordBatch, rows: pa.Array) -> str:
        """The key of the first of some rows."""
        row = batch.filter(rows).slice(0, 1)
        found = [f"{name} = {row.column(_KEY.format(i))[0].as_py()}" for i, name in enumerate(self.keys)]
        return f"the key {', '.join(found)}" if found else "a null row address"

"""The data source `lance`: Spark's own reading and writing verbs on the package's two functions.

    spark.read.format("lance").option("version", 3).load(uri)          df.write.format("lance").mode("append").save(uri)

    option                     read   write
    -------------------------- ------ ------
    version, tag, asof         x             the version: a number, a tag, or the latest at an ISO 8601 time
    columns                    x             names with commas between; Spark does not tell which ones it needs
    filter                     x             SQL over columns of the table: only such rows are read
    parallelism                x             tasks that run at once; without it, what `register` saw of the session
    vector_columns                    x      "v=128,w=64": arrays to store as vectors of so many items
    schema_mode                       x      strict, add_columns, overwrite
    commit_message, once              x      a text; "key=value"
    max_rows_per_file, max_bytes_per_file, data_storage_version        x      as in `write`
    transaction.<key>                 x      transaction properties
    storage.<key>              x      x      settings of the storage, by object_store's names

A filter is fixed when the frame is made. Filters that Spark finds by itself are not taken (`pushdown`): Spark keeps one
read plan for all uses of a frame, and what one of them filters would be missing in the others.

Where the parts run: Spark makes `LanceDataSource` in a Python process beside the driver, asks it for schema, reader
and writer there, and sends reader and writer to the executors. The commit runs in another such process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - a data source is a subclass of Spark's class
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

import lance_core
from lance_core import LanceDataset
from lance_core.errors import InvalidInputError
from pyspark_lance.parallelism import parallelism_of
from pyspark_lance.read_plan import Piece, ReadPlan, plan_read, plan_tasks, table_schema
from pyspark_lance.spark_types import handed_over
from pyspark_lance.write_job import WriteJob, WriteOptions, already_done, prepare_write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LanceDataSource", "register"]

_READ: Final = frozenset({"version", "tag", "asof", "columns", "filter", "parallelism"})
_WRITE: Final = frozenset(
    {
        "vector_columns",
        "schema_mode",
        "commit_message",
        "once",
        "max_rows_per_file",
        "max_bytes_per_file",
        "data_storage_version",
    }
)
_SPARKS_OWN: Final = frozenset({"path", "location", "provider", "owner", "is_managed_location"})
_PREFIXES: Final = ("storage.", "transaction.")
_LEAST_PARALLELISM: Final = 8
"""Assumed where nothing tells how many tasks run at once."""
_PUSHDOWN: Final = (
    "option pushdown is not offered: Spark keeps one read plan per frame, so that a filter of one use of the frame"
    " would remove rows from the others. option('filter', 'id = 5') fixes a filter when the frame is made"
)


def register(spark: SparkSession, name: str = "lance") -> None:
    """Make the data source known to a session under a name.

    Needed only where Spark does not find the package by itself (it was sent along with the job, for example), or where
    the name is taken: a JVM connector of the same name goes first.
    """
    found = {"name": classmethod(lambda _: name), "parallelism": parallelism_of(spark)}
    spark.dataSource.register(type("NamedLanceDataSource", (LanceDataSource,), found))


class LanceDataSource(DataSource):
    """Lance tables as a Spark data source, see the module's table of options.

    Raises:
        InvalidInputError: An option is not known, or has a value that cannot be.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = {key.lower(): value for key, value in options.items()}
        if "pushdown" in self._given:
            raise InvalidInputError(_PUSHDOWN)
        unknown = [
            key for key in self._given if key not in _READ | _WRITE | _SPARKS_OWN and not key.startswith(_PREFIXES)
        ]
        if unknown:
            raise InvalidInputError(f"options {unknown} are not known; there are {sorted(_READ | _WRITE)}, {_PREFIXES}")
        self._version: int | None = None

    parallelism: int | None = None
    """Tasks that the session runs at once, if `register` was told it."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "lance"

    def schema(self) -> StructType:
        """The columns that are read; the version is fixed from here on."""
        columns = self._given.get("columns")
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        dataset = self._open()
        if "filter" in self._given:
            dataset.parse_filter(self._given["filter"])  # a mistake shows when the frame is made
        return table_schema(dataset, names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the columns of `schema`, which are those of `schema()` unless the user gave others."""
        dataset = self._open()
        text = self._given.get("filter")
        plan = plan_read(
            dataset,
            schema,
            filter=None if text is None else dataset.parse_filter(text),
            storage_options=self._with_prefix("storage."),
        )
        return _Reader(plan, _integer(self._given, "parallelism") or self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """What appends or overwrites; the schema is checked here, before any task runs."""
        given = self._given
        options = WriteOptions(
            mode="overwrite" if overwrite else "append",
            vector_columns=_widths(given.get("vector_columns")),
            schema_mode=given.get("schema_mode", "strict"),  # type: ignore[arg-type]  # checked by plan_write
            transaction_properties=self._with_prefix("transaction."),
            commit_message=given.get("commit_message"),
            once=_pair(given, "once"),
            storage_options=self._with_prefix("storage."),
            max_rows_per_file=_integer(given, "max_rows_per_file"),
            max_bytes_per_file=_integer(given, "max_bytes_per_file"),
            data_storage_version=given.get("data_storage_version"),
        )
        if already_done(self._uri, options) is not None:
            return _Writer(None)
        return _Writer(prepare_write(handed_over(schema), self._uri, options))

    @property
    def _uri(self) -> str:
        path = self._given.get("path")
        if not path:
            raise InvalidInputError("no path was given: Spark passes it on for load(path), save(path) and option path")
        return path

    def _open(self) -> LanceDataset:
        """The table at the version that was asked for, the same one each time."""
        storage_options = self._with_prefix("storage.")
        if self._version is not None:
            return lance_core.dataset(self._uri, self._version, storage_options=storage_options)
        chosen = [name for name in ("version", "tag", "asof") if name in self._given]
        if len(chosen) > 1:
            raise InvalidInputError(f"only one of the options {chosen} can be given")
        version = _integer(self._given, "version") if "version" in chosen else self._given.get("tag")
        dataset = lance_core.dataset(self._uri, version, asof=self._given.get("asof"), storage_options=storage_options)
        self._version = dataset.version
        return dataset

    def _with_prefix(self, prefix: str) -> dict[str, str] | None:
        found = {key.removeprefix(prefix): value for key, value in self._given.items() if key.startswith(prefix)}
        return found or None


class _Partition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class _Reader(DataSourceReader):
    """Reads the columns of a schema; further filters are Spark's business.

    Spark sends it to the tasks as it is before `partitions`, which therefore must not change it.
    """

    def __init__(self, plan: ReadPlan, parallelism: int | None) -> None:
        self._plan = plan
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads."""
        parallelism = self._parallelism or max(_LEAST_PARALLELISM, os.cpu_count() or 1)
        tasks = plan_tasks(self._plan.open(), self._plan, parallelism=parallelism)
        # Spark takes an empty list for one partition of which nothing is known.
        return [_Partition(pieces) for pieces in tasks] or [_Partition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a task."""
        assert isinstance(partition, _Partition)
        return self._plan.read(partition.pieces)


@dataclass(frozen=True, slots=True)
class _Message(WriterCommitMessage):
    """The report of one task."""

    report: bytes


class _Writer(DataSourceArrowWriter):
    """Appends or overwrites; pickled to the tasks, and to the process that commits.

    Without a job, an earlier write has done it already, and there is nothing to do.
    """

    def __init__(self, job: WriteJob | None) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition. Runs in a task."""
        from pyspark import TaskContext

        if self._job is None:
            return _Message(b"")
        context = TaskContext.get()
        assert context is not None, "Spark writes in tasks"
        return _Message(self._job.task()(context.partitionId(), context.attemptNumber(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks wrote."""
        if self._job is not None:
            self._job.finish([message.report for message in messages if isinstance(message, _Message)])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks wrote, if one of them failed.

        Spark also aborts when `commit` failed. Then every task has reported, and `commit` has deleted what it could.
        """
        if self._job is not None and any(message is None for message in messages):
            self._job.clean(())


def _integer(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is not None and not value.strip().isdecimal():
        raise InvalidInputError(f"option {name} must be a number, not {value!r}")
    return None if value is None else int(value)


def _pair(given: Mapping[str, str], name: str) -> tuple[str, str] | None:
    value = given.get(name)
    if value is None:
        return None
    key, separator, text = value.partition("=")
    if not separator or not key:
        raise InvalidInputError(f"option {name} must be of the form key=value, not {value!r}")
    return key, text


def _widths(text: str | None) -> dict[str, int] | None:
    """Widths of vectors from `name=width` with commas between."""
    widths: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, width = part.rpartition("=")
        if not name.strip() or not width.strip().isdecimal():
            raise InvalidInputError(f"option vector_columns must be of the form name=width,..., not {text!r}")
        widths[name.strip()] = int(width)
    return widths or None

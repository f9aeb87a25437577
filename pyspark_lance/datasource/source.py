"""The Python data source `lance`: Spark's own verbs for reading and writing Lance tables.

    spark.read.format("lance").option("version", 3).load(uri)          df.write.format("lance").mode("append").save(uri)
    spark.readStream.format("lance").load(uri)                         stream.writeStream.format("lance").start(uri)

Options are those of `options.py`. A filter is fixed when the frame is made. Filters that Spark would push down are not
accepted (`pushdown`): Spark keeps one read plan for all uses of a frame, and rows that one use filters out would be
missing in the others.

Spark makes `DefaultSource` in a Python process beside the driver, gets schema, reader and writer there, and sends
reader and writer to the executors. The commit runs in another Python process beside the driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (  # noqa: TID253 - a data source is a subclass of Spark's class
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from lance_core import LanceDataset
from lance_core.errors import LanceError, SchemaError
from pyspark_lance.changing.key_merge import KeyMergeJob
from pyspark_lance.datasource.changes import check_feed_options, choose_begin_version, choose_ending_version
from pyspark_lance.datasource.columns import WatchedColumns
from pyspark_lance.datasource.options import SourceOptions
from pyspark_lance.datasource.streams import ReadPartition, RejectedStreamReader, StreamReader, StreamWriter
from pyspark_lance.engine.errors import plain_errors
from pyspark_lance.engine.partitions import local_property, task_identity
from pyspark_lance.engine.sessions import parallelism_of
from pyspark_lance.keys.collations import ON_FRAME, comparable_filter
from pyspark_lance.lazy import SparkSession, StructType
from pyspark_lance.reading.change_feed import FEED_COLUMNS, ChangeFeed, feed_schema
from pyspark_lance.reading.plan import ReadPlan, plan_read, plan_tasks, reject_another, table_schema
from pyspark_lance.releases import require_feature
from pyspark_lance.types.arrow_types import to_arrow
from pyspark_lance.types.spark_types import batch_schema
from pyspark_lance.writing.job import WriteJob, find_earlier_write, prepare_write
from pyspark_lance.writing.options import OVERWRITE_MODE

_LEAST_PARALLELISM: Final = 8
"""The least parallelism that is assumed if the session's parallelism is unknown."""


def register(spark: SparkSession, name: str = "lance") -> None:
    """Register the data source with a session under a name, with the session's parallelism.

    Registration is needed only if Spark does not find the package, for example because the job ships the package, or
    if the name is taken: a JVM connector of the same name takes precedence.

    Examples:
        >>> pyspark_lance.register(spark)
    """
    attributes = {"name": classmethod(lambda _: name), "parallelism": parallelism_of(spark)}
    spark.dataSource.register(type("NamedLanceDataSource", (DefaultSource,), attributes))


class DefaultSource(DataSource):
    """Lance tables as a Spark data source; the options are those of `options.py`.

    Raises:
        InvalidInputError: An option is unknown, or has an invalid value.
    """

    parallelism: int | None = None
    """Number of tasks that the session runs at once; None unless `register` set it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        with plain_errors():
            self._options = SourceOptions(options)
        self._version: int | None = None
        self._identity: str | None = None
        self._has_own_schema = True  # of the user, until Spark asks for the table's

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "lance"

    @plain_errors()
    def schema(self) -> StructType:
        """The columns that are read; the version is fixed from here on."""
        dataset = self._options.open(self._version)
        self._has_own_schema = False
        if self._options.boolean("readChangeFeed"):
            dataset = self._fix_version(self._at_end(dataset))
            return feed_schema(dataset, self._options.names("columns"), self._options.blob_handling)
        self._fix_version(dataset)
        self._condition(dataset)  # so that a mistake shows when the frame is made
        return table_schema(dataset, self._options.names("columns"))

    def _fix_version(self, dataset: LanceDataset) -> LanceDataset:
        """A version that is read from here on.

        Raises:
            IncompatibleConflictError: The table was dropped and made again since the version was fixed.
        """
        reject_another(self._options.uri, self._identity, dataset)
        self._version, self._identity = dataset.version, dataset.identity
        return dataset

    def _at_end(self, dataset: LanceDataset) -> LanceDataset:
        """The last version whose changes are read; the latest for a stream, which has no option for it."""
        last = choose_ending_version(self._options, dataset) if self._version is None else self._version
        return dataset if last == dataset.version else dataset.checkout_version(max(1, last))

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the columns of `schema`, which are those of `schema()` or the user's own."""
        self._options.check_use("read")
        parallelism = self._options.integer("parallelism") or self.parallelism
        parallelism = parallelism or max(_LEAST_PARALLELISM, os.cpu_count() or 1)
        if check_feed_options(self._options, streams=False):
            feed = self._feed(schema, parallelism)
            return _Reader(replace(feed, tasks=()), lambda: feed.tasks)
        plan = self._plan(schema)
        return _Reader(plan, lambda: plan_tasks(plan.open(), plan, parallelism=parallelism))

    def _feed(self, schema: StructType, parallelism: int) -> ChangeFeed:
        """The changes between the versions that the options name."""
        latest = self._options.open()
        dataset = self._at_end(latest)
        begin = choose_begin_version(self._options, latest, dataset)
        self._fix_version(dataset)
        return self._options.plan_feed(
            dataset,
            begin,
            columns=self._table_columns(schema, dataset).names,
            each_version=not self._options.boolean("netChanges"),
            parallelism=parallelism,
        )

    def _table_columns(self, schema: StructType, dataset: LanceDataset) -> StructType:
        """The columns of a feed without those that every feed adds.

        Raises:
            SchemaError: The user's own schema has a column that the table lacks, or that has the name of one of these.
        """
        if self._has_own_schema:
            feed_schema(dataset, schema.names, self._options.blob_handling)
        return type(schema)([field for field in schema if field.name not in FEED_COLUMNS])

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer; the schema is checked here, before any task runs."""
        self._options.check_use("write")
        options = self._options.write_options(overwrite=overwrite)
        done, options = find_earlier_write(self._options.uri, options)
        if done is not None:
            return _BatchWriter(None)
        arrow_schema, uri = batch_schema(schema), self._options.uri
        job = prepare_write(arrow_schema, uri, options)
        dynamic: WriteJob | LanceError | None = None
        if overwrite and options.partition_overwrite is None:
            try:
                by_session = prepare_write(arrow_schema, uri, replace(options, session_is_dynamic=True))
                dynamic = by_session if by_session.options.is_dynamic else None
            except LanceError as error:
                dynamic = error  # of a setting that only tasks can read
        merges = options.merge_on is not None and job.base_version
        return _BatchWriter(KeyMergeJob.of(job) if merges else job, dynamic)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The stream reader."""
        try:
            return self._stream_reader(schema)
        except LanceError as error:
            return RejectedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> StreamReader:
        self._options.check_use("readStream")
        feed = to_arrow(schema) if check_feed_options(self._options, streams=True) else None
        plan = self._plan(schema if feed is None else self._table_columns(schema, self._options.open(self._version)))
        all_columns = not self._has_own_schema and self._options.names("columns") is None
        watched = WatchedColumns.of(plan.open(), plan.columns, all_columns=all_columns)
        return StreamReader(self._options, plan, watched, feed)

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """The stream writer."""
        require_feature('writeStream.format("lance")')
        return StreamWriter(self._options, batch_schema(schema), overwrite=overwrite)

    def _plan(self, schema: StructType) -> ReadPlan:
        dataset = self._fix_version(self._options.open(self._version))
        return plan_read(
            dataset,
            schema,
            filter=self._condition(dataset),
            storage_options=self._options.storage,
            blob_handling=self._options.blob_handling,
        )

    def _condition(self, dataset: LanceDataset) -> pc.Expression | None:
        """The condition of option filter."""
        return comparable_filter(
            "option filter",
            self._options.value("filter"),
            dataset,
            assume_utc=self._options.assume_utc,
            remedy=ON_FRAME,
        )


class _Reader(DataSourceReader):
    """Reads a version or a change feed; Spark evaluates further filters.

    Spark pickles the reader for the tasks, which need no more than the partitions carry.
    """

    def __init__(self, source: ReadPlan | ChangeFeed, divide: Callable[[], Iterable[tuple[Any, ...]]]) -> None:
        self._source = source
        self._divide = divide

    def __getstate__(self) -> dict[str, object]:
        return {}

    @plain_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the read."""
        # Spark treats an empty list as one unknown partition.
        return [ReadPartition(self._source, parts) for parts in self._divide() or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a task."""
        assert isinstance(partition, ReadPartition)
        return partition.read()


@dataclass(frozen=True, slots=True)
class _WriteMessage(WriterCommitMessage):
    """The report of one task.

    Attributes:
        report: What the task has written.
        is_dynamic: Whether the session asks for dynamic overwrites, and the write for nothing else.
    """

    report: bytes
    is_dynamic: bool = False


class _BatchWriter(DataSourceArrowWriter):
    """Appends or overwrites; it is pickled for the tasks, and for the process that commits.

    Only tasks can read settings of the session, so both writes are prepared that `partitionOverwriteMode` may ask for.

    Args:
        job: The write; None if nothing is written, because an earlier write has committed the same `idempotency_key`.
        dynamic: The write, or why it is not possible, if the session asks for dynamic overwrites; None if the setting
            makes no difference.
    """

    def __init__(self, job: WriteJob | None, dynamic: WriteJob | LanceError | None = None) -> None:
        self._job = job
        self._dynamic = dynamic
        self._respelled = () if job is None else job.plan.respelled

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition. Runs in a task."""
        if self._job is None:
            return _WriteMessage(b"")
        if self._respelled and local_property("spark.sql.caseSensitive").lower() == "true":
            raise SchemaError(  # only tasks can read the session's setting
                f"the table spells the columns {list(self._respelled)} differently, and spark.sql.caseSensitive is"
                " true: names must agree in case"
            )
        is_dynamic = self._dynamic is not None and local_property(OVERWRITE_MODE).lower() == "dynamic"
        job = self._chosen(is_dynamic=is_dynamic)
        return _WriteMessage(job.task()(*task_identity(), iterator), is_dynamic)

    def _chosen(self, *, is_dynamic: bool) -> WriteJob:
        """The write that the session asks for."""
        if is_dynamic and isinstance(self._dynamic, LanceError):
            raise self._dynamic
        job = self._dynamic if is_dynamic else self._job
        assert isinstance(job, WriteJob)
        return job

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit what all tasks wrote."""
        if self._job is not None:
            write_messages = [message for message in messages if isinstance(message, _WriteMessage)]
            job = self._chosen(is_dynamic=any(message.is_dynamic for message in write_messages))
            job.finish([message.report for message in write_messages])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks wrote, if one of them failed.

        Spark also aborts when `commit` failed. Then every task has reported, and `commit` has deleted what it could.
        """
        if any(message is None for message in messages):
            for job in (self._job, self._dynamic):
                if isinstance(job, WriteJob):
                    job.clean((), failed=True)

"""Structured Streaming from and to Lance tables: `readStream` and `writeStream`.

    writeStream   micro-batch -> one commit. The table keeps the last batch of each query in its own state
                  (`committed_batches.py`): the last batch, which Spark may repeat after a
                  crash, is not written twice.
    readStream    offset = a version and its table (`offsets.py`). The first batch holds the table's rows (or those of
                  `startingVersion`), later batches the rows of each version that appends. New columns end the query;
                  after a restart it reads them (`columns.py`).

    a version that                                                 is read as
    -------------------------------------------------------------- ----------------------------------------------------
    appends                                                        its rows
    compacts, builds indices, sets configuration, adds columns     no rows
    deletes, updates, overwrites                                   an error; with ignoreChanges its new rows
    restores                                                       an error; with ignoreChanges no rows

With readChangeFeed the first batch holds the table's rows as inserts, and later batches what each version changed.

Tasks and commit have writers of their own, made from the same options. The message of a task must hold all that the
commit needs from it, such as the id of the query, which only tasks can read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import (  # noqa: TID253 - a stream is a subclass of Spark's class
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from lance_core import LanceDataset
from lance_core.errors import InvalidInputError, LanceError, VersionNotFoundError
from pyspark_lance.datasource.changes import choose_starting_version
from pyspark_lance.datasource.columns import FragmentRead, WatchedColumns
from pyspark_lance.datasource.offsets import (
    RESTART,
    START,
    check_offset,
    count_fragments,
    has_all_fragments,
    number_of,
    offset_at,
    version_at,
)
from pyspark_lance.datasource.options import SourceOptions
from pyspark_lance.engine.errors import plain_errors
from pyspark_lance.engine.partitions import local_property, task_identity
from pyspark_lance.reading.change_feed import FEED_COLUMNS, ChangeFeed
from pyspark_lance.reading.plan import ReadPlan, divide_fragments
from pyspark_lance.releases import FEATURES, is_at_least
from pyspark_lance.writing.committed_batches import BATCH, QUERY, CommittedBatches
from pyspark_lance.writing.job import WriteJob, prepare_write

_KEEPS_ALL_ROWS: Final = frozenset(
    {"Rewrite", "ReserveFragments", "CreateIndex", "UpdateConfig", "Project", "UpdateBases", "Clone"}
)
"""Operations that leave all rows as they are."""

_PARALLELISM: Final = 8

if TYPE_CHECKING or is_at_least(FEATURES['writeStream.format("lance")'].lowest):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    DataSourceStreamArrowWriter = DataSourceStreamWriter  # `DefaultSource` rejects it before any use


@dataclass(frozen=True, slots=True)
class _StreamMessage(WriterCommitMessage):
    """The report of one task, with the ids of its write and its query."""

    report: bytes
    job: str
    query: str


class StreamWriter(DataSourceStreamArrowWriter):
    """Commits each micro-batch as one version, and skips a batch that Spark repeats after a crash.

    Args:
        options: The user's options.
        source: Schema of the batches that Spark hands over.
        overwrite: Whether each batch replaces all rows (output mode complete).
    """

    def __init__(self, options: SourceOptions, source: pa.Schema, *, overwrite: bool) -> None:
        self._options = options
        options.check_use("writeStream")
        write_options = options.write_options(overwrite=overwrite)
        options.undecided_batch  # noqa: B018 - so that a mistake shows before any task runs
        if not overwrite:
            write_options = replace(write_options, empty_output="skip")
        self._job = prepare_write(source, options.uri, write_options)
        self._source = source

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition. Runs in a task."""
        report = self._job.task()(*task_identity(), iterator)
        return _StreamMessage(report, self._job.writing.job, local_property("sql.streaming.queryId"))

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit what all tasks of a batch wrote, unless this batch was committed before."""
        stream_messages = [message for message in messages if isinstance(message, _StreamMessage)]
        if not stream_messages:
            return
        job, query = self._of(stream_messages[0], batchId), stream_messages[0].query
        dataset = self._options.open_or_none()
        committed = CommittedBatches(dataset, query, uri=self._options.uri, decision=self._options.undecided_batch)
        try:
            done = committed.has(batchId)
        except LanceError:
            self._clean(job)
            raise
        if done:
            self._clean(job)
        elif job.finish([message.report for message in stream_messages]) is None:
            committed.remember_empty(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete what the tasks wrote, if a task failed; a commit that failed has deleted its files itself."""
        stream_messages = [message for message in messages if isinstance(message, _StreamMessage)]
        if stream_messages and len(stream_messages) < len(messages):
            self._clean(self._of(stream_messages[0], batchId), failed=True)

    def _of(self, message: _StreamMessage, batch: int) -> WriteJob:
        """The write job of one micro-batch: the job id of its tasks, with query and batch number as properties."""
        commit = replace(self._job.options.commit, undecided_batch=self._options.undecided_batch)
        properties = {**(commit.properties or {}), QUERY: message.query, BATCH: str(batch)}
        commit = replace(commit, properties=properties, stream_batch=(message.query, batch))
        writing = replace(self._job.writing, job=message.job)
        return replace(self._job, writing=writing, options=replace(self._job.options, commit=commit))

    def _clean(self, job: WriteJob, *, failed: bool = False) -> None:
        dataset = self._options.open_or_none()
        job.clean([] if dataset is None else [fragment.metadata for fragment in dataset.get_fragments()], failed=failed)


class ReadPartition(InputPartition):
    """What one task reads: pieces of a plan, or parts of a change feed."""

    def __init__(self, source: ReadPlan | ChangeFeed, parts: tuple[Any, ...]) -> None:
        super().__init__(parts)
        self.source = source
        self.parts = parts

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Runs in a task."""
        with plain_errors():
            yield from self.source.read(self.parts)


class StreamReader(DataSourceStreamReader):
    """Reads the rows of versions that append, or a change feed; offsets are those of `offsets.py`.

    Args:
        options: The user's options.
        plan: The columns and the filter, planned for the version at which the query began.
        watched: The columns of the table at that version.
        feed: Arrow schema of the batches of a change feed; None to read the rows of versions that append.
    """

    def __init__(
        self,
        options: SourceOptions,
        plan: ReadPlan,
        watched: WatchedColumns | None = None,
        feed: pa.Schema | None = None,
    ) -> None:
        self._options = options
        self._feed = feed
        self._plan = plan
        self._watched = watched
        self._most = options.integer("maxVersionsPerTrigger")
        if self._most == 0:
            raise InvalidInputError("option maxVersionsPerTrigger must be at least 1")
        self._ignores = options.boolean("ignoreChanges")
        self._starting = options.value("startingVersion") or options.value("startingTimestamp")
        if options.value("startingVersion") not in (None, "latest"):
            options.integer("startingVersion")
        self._last: dict[str, Any] | None = None
        self._end: int | None = None

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offset at which a new query begins: before the first version that it reads."""
        if self._starting is None:
            return dict(START)
        latest = self._options.open_or_none()
        if self._starting == "latest":
            return dict(START) if latest is None else offset_at(latest)
        if latest is not None and self._feed is not None:
            return {"version": choose_starting_version(self._options, latest) - 1}
        first, last = max(1, self._options.integer("startingVersion") or 0), 0 if latest is None else latest.version
        if first > last:
            raise VersionNotFoundError(
                f"option startingVersion: {self._options.uri} has no version {first} yet, its latest one is {last};"
                " 'latest' begins with the rows of later versions"
            )
        return {"version": first - 1}

    @plain_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The last version of the next batch.

        Raises:
            IncompatibleConflictError: The table is not the one that was read up to `start`.
            SchemaError: The columns of the table have changed since the query began.
        """
        start = start or self._last or self.initialOffset()
        latest = self._options.open_or_none()
        check_offset(self._options, start, latest)
        from_version = number_of(start)
        self._last = start
        if latest is None:
            return start
        end = latest.version if self._end is None else min(self._end, latest.version)
        first_batch = self._starting is None and from_version == 0
        if self._most is not None and not first_batch and type(limit).__name__ != "ReadAllAvailable":
            end = min(end, from_version + self._most)
        if end < from_version:
            return start
        dataset = latest if end == latest.version else version_at(self._options, end)
        if end > from_version and self._watched is not None:
            self._watched.check(dataset)
        self._last = offset_at(dataset)
        return self._last

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """The default limit of a batch; Spark's limit of files counts versions here."""
        from pyspark.sql.streaming import datasource

        return datasource.ReadAllAvailable() if self._most is None else datasource.ReadMaxFiles(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the latest version when the query starts; the query ends there, after as many batches as needed."""
        latest = self._options.open_or_none()
        self._end = 0 if latest is None else latest.version

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions for the versions after `start`, up to `end`."""
        first, last = number_of(start), number_of(end)
        if last <= first:
            return []
        latest = self._options.open_or_none()
        check_offset(self._options, end, latest)
        check_offset(self._options, start, latest)
        dataset = version_at(self._options, last)
        if self._feed is not None:
            return self._changes(first, dataset, self._feed)
        if first == 0 and self._starting is None:
            return self._tasks(dataset, -1, dataset)
        parts: list[InputPartition] = []
        read_fragments = start if first and "last_fragment" in start else None
        for version in range(first + 1, last + 1):
            parts += self._read_added(version, dataset, read_fragments)
            read_fragments = None
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a task."""
        assert isinstance(partition, ReadPartition)
        return partition.read()

    def _changes(self, begin: int, end: LanceDataset, expected: pa.Schema) -> list[InputPartition]:
        """The changes after a version, in the columns for which the query was planned."""
        fits = self._watched is None or self._watched.fits(end)
        try:
            feed = self._options.plan_feed(
                end,
                begin,
                columns=self._plan.columns if fits else [name for name in end.schema.names if name not in FEED_COLUMNS],
                each_version=not self._options.boolean("netChanges") and (begin > 0 or self._starting is not None),
                parallelism=_PARALLELISM,
            )
        except VersionNotFoundError as error:
            raise LanceError(f"{error.args[0]}. {RESTART}") from error
        if not fits:
            feed = feed.with_columns_of(self._plan.version, self._plan.columns)
        feed = replace(feed, expected=expected)
        return [ReadPartition(replace(feed, tasks=()), tasks) for tasks in feed.tasks]

    def _read_added(self, version: int, end: LanceDataset, read: Mapping[str, int] | None) -> list[InputPartition]:
        """The fragments that a version added.

        Args:
            version: The version.
            end: The last version of the batch.
            read: The fragments of the version before, if the offset counts them; None to read that version.

        Raises:
            LanceError: The version did not only add rows, or was cleaned up.
        """
        dataset = version_at(self._options, version)
        transaction = dataset.read_transaction(version)
        name = "unknown" if transaction is None else transaction.operation.name
        if name in _KEEPS_ALL_ROWS:
            return []
        before = read
        if before is None and version > 1:
            before = count_fragments(version_at(self._options, version - 1))
        is_new = name == "Overwrite" or before is None
        adds = name == "Append" or (name == "Overwrite" and before is None)
        # A merge adds columns, and perhaps rows; the condition of a deletion may have been true for no row.
        if name in ("Merge", "Delete") and before is not None:
            adds = has_all_fragments(dataset, before)
        if name == "Update" and transaction is not None:
            operation: Any = transaction.operation
            adds = not operation.removed_fragment_ids and not operation.updated_fragments
        if not adds and not self._ignores:
            raise LanceError(
                f"version {version} of {self._options.uri} does not only append ({name}): a stream cannot"
                " determine which rows are new. Option ignoreChanges=true reads the rows of its new files, and ignores"
                " deleted rows"
            )
        last = -1 if is_new or before is None else before["last_fragment"]
        return self._tasks(dataset, last, end) if name != "Restore" else []

    def _tasks(self, dataset: LanceDataset, last: int, end: LanceDataset) -> list[InputPartition]:
        """Plan the fragments with ids above `last`, in the columns of the query."""
        new = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id > last]
        reads = [FragmentRead(dataset=dataset, columns=self._plan.columns, fragments=tuple(new))]
        if self._watched is not None:
            reads = self._watched.reads(self._options, dataset, new, end)
        return [part for read in reads for part in self._parts(read)]

    def _parts(self, read: FragmentRead) -> Iterator[InputPartition]:
        """Split the fragments of one read into partitions of Spark."""
        version, identity = read.dataset.version, read.dataset.identity
        plan = replace(self._plan, version=version, identity=identity, columns=read.columns, renamed=read.renamed)
        return (ReadPartition(plan, pieces) for pieces in divide_fragments(read.fragments, plan, _PARALLELISM))


class RejectedStreamReader(StreamReader):
    """A reader of a query that cannot begin: each call of Spark raises the reason.

    Spark 4.3 ends a query with an UnboundLocalError of its own if `streamReader` raises.
    """

    def __init__(self, reason: LanceError) -> None:
        self._reason = reason

    @plain_errors()
    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise the reason, as the three methods below do: Spark calls one of the four when a query begins."""
        raise self._reason

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> NoReturn:  # noqa: ARG002, N802 - Spark's name and arguments
        """Raise the reason."""
        self.initialOffset()

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise the reason."""
        self.initialOffset()

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise the reason."""
        self.initialOffset()


with contextlib.suppress(ImportError):  # before Spark 4.2, which reads everything in one batch
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    SupportsTriggerAvailableNow.register(StreamReader)

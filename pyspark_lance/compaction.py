"""Compaction by the executors of a Spark session.

    driver      plan: groups of small fragments of one version
    executors   one task per group, `spark.range(0, n, 1, n).mapInArrow`: new data files that nothing refers to yet
    driver      one commit of the results, against the version of the plan

A task is sent as the ids of its fragments: the executor reads the rest from the manifest of the same version. `range`
gives exactly one partition per task in every kind of session; a small DataFrame of rows would be put into one.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import lance_core
from lance_core import LanceDataset
from lance_core.errors import LanceError
from lance_core.maintenance import (
    Compaction,
    CompactionMetrics,
    CompactionOptions,
    CompactionTask,
    RewriteResult,
    commit_what_fits,
)
from pyspark_lance.cores import use_cores_of_task
from pyspark_lance.jobs import run_job
from pyspark_lance.leftovers import delete_leftovers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactionFailure", "CompactionReport", "compact", "execute_tasks"]

_LOGGER = logging.getLogger("pyspark_lance")

_ANSWER_SCHEMA: Final = pa.schema(
    [
        pa.field("task", pa.int64(), nullable=False),
        pa.field("result", pa.binary()),
        pa.field("error", pa.string()),
    ]
)
_POLL_SECONDS: Final = 0.2

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailure:
    """A task that failed; its fragments are as they were.

    Attributes:
        fragment_ids: The fragments that it should have rewritten.
        error: Class and message of the error.
    """

    fragment_ids: tuple[int, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of a compaction.

    Attributes:
        dataset: The table at the version that was made, or at the latest one if there was nothing to do.
        metrics: Fragments and files that were removed and added, and tasks that a concurrent commit made void.
        tasks: How many tasks there were.
        failures: Those that failed.
    """

    dataset: LanceDataset
    metrics: CompactionMetrics
    tasks: int
    failures: tuple[CompactionFailure, ...] = ()


def compact(
    spark: SparkSession,
    uri: str | PathLike[str],
    options: Mapping[str, Any] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    transaction_properties: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> CompactionReport:
    """Rewrite small fragments, and those with many deletions, into fewer and larger ones, on Spark's executors.

    A task that fails, and one whose fragments were changed meanwhile, is left out of the commit; they are left to the
    next run. Files of tasks that failed or were cancelled are deleted once no task runs any more.

    Args:
        spark: The session, classic or Connect.
        uri: The table, at a place that executors reach as well; its latest version is compacted.
        options: Fields of `lance_core.optimize.CompactionOptions`; the table's configuration and the defaults
            complete them. `num_threads` has no effect: Spark decides how many tasks run at a time.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        transaction_properties: Texts for the history, by key.
        progress: Is called with the tasks that are done and those that there are; from another thread while they run.

    Returns:
        The result. If there is nothing to compact, nothing is committed and no Spark job runs.

    Raises:
        InvalidInputError: An option cannot be used.
        LanceError: All tasks failed; the message has the first error.
        RetryableConflictError: The fragments of all tasks were changed meanwhile.
    """
    dataset = lance_core.dataset(uri, storage_options=storage_options)
    plan = Compaction.plan(dataset, options)
    if not plan.tasks:
        return CompactionReport(dataset=dataset, metrics=CompactionMetrics(), tasks=0)
    results, failures = execute_tasks(
        spark, dataset.uri, plan.tasks, storage_options=storage_options, progress=progress
    )
    if not results:
        raise LanceError(f"all {len(failures)} tasks failed; the first: {failures[0].error}")
    deferred = plan.options.defer_index_remap
    metrics = commit_what_fits(dataset, results, transaction_properties or {}, deferred=deferred)
    return CompactionReport(dataset=dataset, metrics=metrics, tasks=len(plan.tasks), failures=tuple(failures))


def execute_tasks(
    spark: SparkSession,
    uri: str,
    tasks: Sequence[CompactionTask],
    *,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[list[RewriteResult], list[CompactionFailure]]:
    """Run tasks of one plan on Spark's executors; nothing is committed.

    Args:
        spark: The session, classic or Connect.
        uri: The table.
        tasks: The tasks, at least one.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        progress: As in `compact`.

    Returns:
        The results, to be committed, and the tasks that failed. All other files of the tasks are deleted, and all of
        them if this is interrupted.
    """
    job = _Tasks(
        uri=uri,
        job=uuid.uuid4().hex,
        read_version=tasks[0].read_version,
        fragment_ids=tuple(tuple(task.fragment_ids) for task in tasks),
        options=tasks[0].options,
        storage_options=dict(storage_options or {}),
    )
    try:
        results, failures = _run(spark, job, progress)
    except BaseException:
        delete_leftovers(job.uri, job.job, (), job.storage_options or None, failed=True)
        raise
    kept = [fragment for result in results for fragment in result.new_fragments]
    delete_leftovers(job.uri, job.job, kept, job.storage_options or None)
    for failure in failures:
        _LOGGER.warning("fragments %s of %s were not compacted: %s", failure.fragment_ids, uri, failure.error)
    return results, failures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """The function that runs in each partition, on the task that has the partition's number; it is pickled.

    The names of all files that its tasks write begin with `job`.
    """

    uri: str
    job: str
    read_version: int
    fragment_ids: tuple[tuple[int, ...], ...]
    options: CompactionOptions
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers come in, and answer with the result of each, or its error."""
        use_cores_of_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = error = None
                try:
                    result = pickle.dumps(self._execute(number))
                except Exception as failure:  # noqa: BLE001 - one that fails must not take the others' work with it
                    error = f"{type(failure).__name__}: {failure}"
                yield pa.RecordBatch.from_pydict(
                    {"task": [number], "result": [result], "error": [error]}, schema=_ANSWER_SCHEMA
                )

    def _execute(self, number: int) -> RewriteResult:
        dataset = lance_core.dataset(self.uri, self.read_version, storage_options=self.storage_options or None)
        fragments = dataset.source.manifest.fragments
        records = [fragment for one in self.fragment_ids[number] if (fragment := fragments.get(one)) is not None]
        task = CompactionTask.of(records, self.read_version, self.options)
        return task.execute(dataset, file_prefix=f"{self.job}-{number}-")


def _run(
    spark: SparkSession, tasks: _Tasks, progress: Progress | None
) -> tuple[list[RewriteResult], list[CompactionFailure]]:
    """Run all tasks, and sort out which of them worked."""
    count = len(tasks.fragment_ids)
    frame = spark.range(0, count, 1, count).mapInArrow(tasks, "task long not null, result binary, error string")
    with contextlib.nullcontext() if progress is None else _watched(spark, count, progress):
        answers = {row.task: row for row in run_job(spark, frame.collect)}
    if progress is not None:
        progress(count, count)
    if sorted(answers) != list(range(count)):
        raise LanceError(f"Spark answered for {len(answers)} of {count} tasks")
    results, failures = [], []
    for number, ids in enumerate(tasks.fragment_ids):
        answer = answers[number]
        if answer.error is None:
            results.append(pickle.loads(answer.result))  # noqa: S301 - from our own workers
        else:
            failures.append(CompactionFailure(fragment_ids=ids, error=answer.error))
    return results, failures


@contextlib.contextmanager
def _watched(spark: SparkSession, count: int, progress: Progress) -> Iterator[None]:
    """Report the number of finished tasks while the job of this thread runs, each number once."""
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if told < done < count:
            told = done
            progress(done, count)

    watch = _watched_connect if type(spark).__module__.startswith("pyspark.sql.connect.") else _watched_classic
    with watch(spark, count, tell):
        yield


@contextlib.contextmanager
def _watched_classic(spark: SparkSession, count: int, tell: Callable[[int], None]) -> Iterator[None]:
    """Poll the status tracker for a job with so many tasks that began after this."""
    tracker, over = spark.sparkContext.statusTracker(), threading.Event()
    earlier = set(tracker.getActiveJobsIds())

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            jobs = (tracker.getJobInfo(job) for job in set(tracker.getActiveJobsIds()) - earlier)
            stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
            tell(max((s.numCompletedTasks for s in stages if s is not None and s.numTasks == count), default=0))

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextlib.contextmanager
def _watched_connect(spark: SparkSession, count: int, tell: Callable[[int], None]) -> Iterator[None]:
    """Watch the server's progress messages for stages with so many tasks."""

    def hear(stages: Iterable[Any] | None, **_: object) -> None:
        tell(max((stage.num_completed_tasks for stage in stages or () if stage.num_tasks == count), default=0))

    spark.registerProgressHandler(hear)  # type: ignore[arg-type]  # a function will do
    try:
        yield
    finally:
        spark.removeProgressHandler(hear)  # type: ignore[arg-type]

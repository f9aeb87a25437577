"""Numbered tasks that the executors run: distributed work on an existing table.

    driver      spark.range(0, n, 1, n).mapInArrow      exactly one partition per task, in every kind of session
    executors   task(number) -> result                  returned as a pickle, or as the message of its error
    driver      results and failures, in the order of the numbers

Spark would put a small DataFrame of rows into one partition; a range keeps its partitions.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from lance_core.errors import LanceError
from pyspark_lance.engine.jobs import run_job
from pyspark_lance.engine.sessions import is_connect, use_cores_of_task
from pyspark_lance.lazy import SparkSession

_Result = TypeVar("_Result")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished tasks and the number of all tasks."""

TASKS_PER_CORE: Final = 3
"""Tasks per core; more than one, so that a long task does not keep all cores waiting."""

_ANSWER_SCHEMA: Final = pa.schema(
    [pa.field("task", pa.int64(), nullable=False), pa.field("result", pa.binary()), pa.field("error", pa.string())]
)
_POLL_SECONDS: Final = 0.2


def run_tasks(
    spark: SparkSession,
    task: Callable[[int], _Result],
    count: int,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> tuple[list[_Result], dict[int, str]]:
    """Run a function on Spark's executors, once for each number from 0 to count - 1.

    Args:
        spark: The session, classic or Connect.
        task: The function; it and its results are pickled.
        count: The number of tasks, at least 1.
        progress: Called from another thread while the tasks run, and from this thread when all have ended.
        timeout_s: The seconds that all tasks may take; None for no limit.

    Returns:
        The results, in the order of their numbers; and of each task that raised, class and message of the error.

    Raises:
        LanceError: Spark returned no answer for some task.
        TimeoutError: The tasks took too long.
    """
    answer: Any = partial(_run_numbers, task)
    frame = spark.range(0, count, 1, count).mapInArrow(answer, "task long not null, result binary, error string")
    with contextlib.nullcontext() if progress is None else _watch_progress(spark, count, progress):
        answers = {row.task: row for row in run_job(spark, frame.collect, timeout_s)}
    if progress is not None:
        progress(count, count)
    if sorted(answers) != list(range(count)):
        raise LanceError(f"Spark answered for {len(answers)} of {count} tasks")
    ordered = sorted(answers.items())
    failures = {number: answer_row.error for number, answer_row in ordered if answer_row.error is not None}
    return [pickle.loads(answer_row.result) for number, answer_row in ordered if number not in failures], failures  # noqa: S301 - from our own workers


def run_all_tasks(
    spark: SparkSession,
    task: Callable[[int], _Result],
    count: int,
    progress: Progress | None = None,
    timeout_s: float | None = None,
) -> list[_Result]:
    """Run tasks as `run_tasks` does; all of them have to succeed.

    Raises:
        LanceError: A task failed (the message has the first error), or Spark returned no answer for some task.
    """
    results, failures = run_tasks(spark, task, count, progress, timeout_s)
    if failures:
        raise LanceError(f"{len(failures)} of {count} tasks failed; the first: {next(iter(failures.values()))}")
    return results


def _run_numbers(task: Callable[[int], object], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the tasks with the numbers that a partition has; yields the result of each, or its error."""
    use_cores_of_task()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = error = None
            try:
                result = pickle.dumps(task(number))
            except Exception as failure:  # noqa: BLE001 - a task that fails must not discard the results of others
                error = f"{type(failure).__name__}: {failure}"
            yield pa.RecordBatch.from_pydict(
                {"task": [number], "result": [result], "error": [error]}, schema=_ANSWER_SCHEMA
            )


@contextlib.contextmanager
def _watch_progress(spark: SparkSession, count: int, progress: Progress) -> Iterator[None]:
    """Report the number of finished tasks while the job of this thread runs, each number once."""
    reported = 0

    def report(done: int) -> None:
        nonlocal reported
        if reported < done < count:
            reported = done
            progress(done, count)

    watch = _watch_connect if is_connect(spark) else _watch_classic
    with watch(spark, count, report):
        yield


@contextlib.contextmanager
def _watch_classic(spark: SparkSession, count: int, report: Callable[[int], None]) -> Iterator[None]:
    """Poll the status tracker for a new job with `count` tasks."""
    tracker, over = spark.sparkContext.statusTracker(), threading.Event()
    earlier = set(tracker.getActiveJobsIds())

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            jobs = (tracker.getJobInfo(job) for job in set(tracker.getActiveJobsIds()) - earlier)
            stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
            report(max((s.numCompletedTasks for s in stages if s is not None and s.numTasks == count), default=0))

    watcher = threading.Thread(target=poll, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextlib.contextmanager
def _watch_connect(spark: SparkSession, count: int, report: Callable[[int], None]) -> Iterator[None]:
    """Watch the server's progress messages for stages with `count` tasks."""

    def handle(stages: Iterable[Any] | None, **_: object) -> None:
        report(max((stage.num_completed_tasks for stage in stages or () if stage.num_tasks == count), default=0))

    spark.registerProgressHandler(handle)  # type: ignore[arg-type]  # a function will do
    try:
        yield
    finally:
        spark.removeProgressHandler(handle)  # type: ignore[arg-type]

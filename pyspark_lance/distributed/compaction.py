"""Compaction by the executors of a Spark session.

    driver      plan: groups of small fragments of one version
    executors   one task per group: new data files, to which no version refers yet
    driver      one commit of the results, based on the version of the plan

A task is sent as the ids of its fragments; the executor reads the fragments from the manifest of the same version.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import lance_core
from lance_core import LanceDataset, errors
from lance_core.errors import LanceError
from lance_core.maintenance import (
    Compaction,
    CompactionMetrics,
    CompactionOptions,
    CompactionTask,
    Rewriter,
    RewriteResult,
    commit_what_fits,
)
from pyspark_lance.engine.executor_tasks import Progress, run_tasks
from pyspark_lance.engine.sessions import check_client, reject_memory
from pyspark_lance.lazy import SparkSession
from pyspark_lance.writing.orphan_files import delete_orphan_files

_LOGGER = logging.getLogger("pyspark_lance")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailure:
    """A task that failed; its fragments are unchanged.

    Attributes:
        fragment_ids: The fragments of the task.
        error: Class and message of the error.
    """

    fragment_ids: tuple[int, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of a compaction.

    Attributes:
        dataset: The table at the new version, or at the latest one if there was nothing to do.
        metrics: Numbers of removed and added fragments and files, and of tasks that a concurrent commit made void.
        tasks: The number of tasks.
        failures: The tasks that failed.
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

    The commit leaves out tasks that failed and tasks whose fragments a concurrent commit has changed: these fragments
    are left to the next run. Files of tasks that failed or were cancelled are deleted once no task runs any more.

    Args:
        spark: The session, classic or Connect.
        uri: The table, at a URI that executors reach; its latest version is compacted.
        options: Fields of `lance_core.optimize.CompactionOptions`; the table's configuration and the defaults
            complete them. `num_threads` has no effect: Spark decides how many tasks run at a time.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        transaction_properties: Strings by key that the commit records.
        progress: Called with the numbers of finished and of all tasks, from another thread while they run.

    Returns:
        The result. If there is nothing to compact, nothing is committed and no Spark job runs.

    Raises:
        InvalidInputError: An option cannot be used.
        LanceError: All tasks failed; the message has the first error.
        RetryableConflictError: Concurrent commits changed the fragments of all tasks.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> pyspark_lance.compact(spark, "t.lance").metrics.fragments_removed
        2
    """
    check_client(spark)
    reject_memory(uri)
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
        uri: The table, at a URI that executors reach.
        tasks: The tasks, at least one.
        storage_options: Credentials and options of the storage. They are sent to the executors.
        progress: Called with the numbers of finished and of all tasks, from another thread while they run.

    Returns:
        The results, which are to be committed, and the tasks that failed. All other files of the tasks are deleted;
        after an interruption, all files of the tasks are.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> from lance_core.optimize import Compaction
        >>> plan = Compaction.plan(table)
        >>> results, failures = pyspark_lance.execute_tasks(spark, table.uri, plan.tasks)
        >>> len(results), len(failures)
        (1, 0)
    """
    check_client(spark)
    reject_memory(uri)
    job = _Tasks(
        uri=lance_core.dataset(uri, storage_options=storage_options).uri,  # absolute: executors run in other folders
        job=uuid.uuid4().hex,
        read_version=tasks[0].read_version,
        fragment_ids=tuple(tuple(task.fragment_ids) for task in tasks),
        options=tasks[0].options,
        storage_options=dict(storage_options or {}),
    )
    try:
        results, failed = run_tasks(spark, job, len(tasks), progress)
    except BaseException:
        delete_orphan_files(job.uri, job.job, (), job.storage_options or None, failed=True)
        raise
    new_fragments = [fragment for result in results for fragment in result.new_fragments]
    delete_orphan_files(job.uri, job.job, new_fragments, job.storage_options or None)
    failures = [CompactionFailure(fragment_ids=job.fragment_ids[number], error=failed[number]) for number in failed]
    for failure in failures:
        _LOGGER.warning("fragments %s of %s were not compacted: %s", failure.fragment_ids, uri, failure.error)
    return results, failures


def executor_rewriter(spark: SparkSession, max_parallel_tasks: int | None = None) -> Rewriter:
    """A rewriter for `lance_core.maintenance.maintain` that runs tasks on Spark's executors.

    Args:
        spark: The session, classic or Connect.
        max_parallel_tasks: The most tasks at a time; None for all at once.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> from lance_core.maintenance import maintain
        >>> maintain(table, rewriter=pyspark_lance.executor_rewriter(spark)).outcome
        'done'
    """

    def run(dataset: Any, tasks: Sequence[CompactionTask]) -> Iterator[RewriteResult | Exception]:
        size = max_parallel_tasks or max(1, len(tasks))
        options = dict(dataset.snapshot.options) or None
        for start in range(0, len(tasks), size):
            results, failures = execute_tasks(spark, dataset.uri, tasks[start : start + size], storage_options=options)
            yield from results
            yield from map(_error_of, failures)

    return run


def _error_of(failure: CompactionFailure) -> LanceError:
    """The error of a task, of its own class, as a file that is missing or corrupt stops a cleanup."""
    kind: type[LanceError] = getattr(errors, failure.error.partition(":")[0], LanceError)
    return kind(f"fragments {failure.fragment_ids}: {failure.error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """The tasks of a plan, run by number; pickled. The names of all files that they write begin with `job`."""

    uri: str
    job: str
    read_version: int
    fragment_ids: tuple[tuple[int, ...], ...]
    options: CompactionOptions
    storage_options: Mapping[str, str] = field(repr=False)

    def __call__(self, number: int) -> RewriteResult:
        """Run a task."""
        dataset = lance_core.dataset(self.uri, self.read_version, storage_options=self.storage_options or None)
        fragments = map(dataset.get_fragment, self.fragment_ids[number])
        records = [fragment.record for fragment in fragments if fragment is not None]
        task = CompactionTask.of(records, self.read_version, self.options)
        return task.execute(dataset, file_prefix=f"{self.job}-{number}-")

"""Compaction: plan -> tasks -> commit.

    plan      facts about the fragments -> groups of fragments              (pure; see `plan`)
    execute   one task, anywhere: new data files that nothing refers to yet  (see `rewrite`)
    commit    ReserveFragments, so that the new ids are known; then one Rewrite of all groups

After a compaction an index covers all rows that it covered before:

    by stable row ids        it covers the new fragments at once
    of a kind built here     it is extended to them right after the Rewrite, by a version of its own (see `coverage`)
    of any other kind        vector, full-text: the Rewrite records in the fragment reuse index how rows moved
    `defer_index_remap`      the same for all kinds, and nothing is extended

Run the tasks of a compaction in several processes of this machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, Final

from lance_core.arguments import checked_methods
from lance_core.commit.loop import commit
from lance_core.commit.versions import reload_latest
from lance_core.errors import (
    InvalidInputError,
    LanceError,
    OutcomeUnknownError,
    RetryableConflictError,
    StoreError,
    UnsupportedError,
)
from lance_core.file.metadata import FileVersion
from lance_core.maintenance.compaction.coverage import (
    extend_after_compaction,
    keep_moves_deferred,
    needs_moves,
    split_to_keep_coverage,
)
from lance_core.maintenance.compaction.late_deletions import commit_despite_deletions, find_late_deletions
from lance_core.maintenance.compaction.misread_pages import group_misread_fragments
from lance_core.maintenance.compaction.options import CompactionOptions
from lance_core.maintenance.compaction.plan import collect_facts, group_fragments, limit_groups
from lance_core.maintenance.compaction.rewrite import CompactionMetrics, RewriteResult, discard, rewrite
from lance_core.maintenance.compaction.tasks import CompactionPlan, CompactionTask
from lance_core.maintenance.compaction.worker import receive, send
from lance_core.maintenance.processes import start_python
from lance_core.retry import backoff
from lance_core.store import note_begun
from lance_core.table.fragment import data_files, own_data_keys
from lance_core.table.index import IndexMetadata
from lance_core.table.manifest.manifest import Manifest
from lance_core.table.operations import ReserveFragments, Rewrite, RewriteGroup
from lance_core.table.operations.base import check_fragment_ids, check_same_fragments
from lance_core.table.transaction import Transaction
from lance_core.threads import ThreadPool
from lance_core.verbs.context.handle import Handle, Snapshot

WORTH_A_PROCESS_BYTES: Final = 256 * 1024 * 1024
"""Bytes of data files below which starting processes takes more time than it saves."""

Outcome = RewriteResult | Exception
"""The result of a task, or its error."""


def worker_count(task_bytes: Sequence[int], num_threads: int | None) -> int:
    """The number of processes to use for tasks of these sizes; 1 stands for this process alone."""
    if num_threads is not None:
        return max(1, min(num_threads, len(task_bytes)))
    if sum(task_bytes) < WORTH_A_PROCESS_BYTES or not sys.executable:  # Python is embedded in another program
        return 1
    return max(1, min(os.cpu_count() or 1, len(task_bytes)))


def run_in_processes(
    dataset: Handle, tasks: Sequence[CompactionTask], workers: int
) -> Iterator[tuple[CompactionTask, Outcome]]:
    """Yield each task with its outcome, as they finish.

    Args:
        dataset: The dataset.
        tasks: The tasks.
        workers: The number of processes.
    """
    waiting: queue.SimpleQueue[CompactionTask] = queue.SimpleQueue()
    for task in tasks:
        waiting.put(task)
    done: queue.SimpleQueue[tuple[CompactionTask, Outcome]] = queue.SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    with ThreadPool(workers) as pool:
        try:
            serving = [pool.submit(_serve, processes, dataset, waiting, done) for _ in range(workers)]
            for _ in tasks:
                yield done.get()
            for each in serving:
                each.result()
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()  # so that no further process is started
            for process in tuple(processes):
                process.kill()
                process.wait()


def _start() -> subprocess.Popen[bytes]:
    # The dataset that it gets may be of classes of the user.
    return start_python("lance_core.maintenance.compaction.worker", imports_from_working_folder=True)


def _serve(
    processes: list[subprocess.Popen[bytes]],
    dataset: Handle,
    waiting: queue.SimpleQueue[CompactionTask],
    done: queue.SimpleQueue[tuple[CompactionTask, Outcome]],
) -> None:
    """Send tasks to one process until none is left; if it dies, its task fails, and a new one takes the next task."""
    process = None
    try:
        while True:
            try:
                task = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if process is None:
                    process = _start()
                    processes.append(process)
                    send(_pipe(process.stdin), dataset)
                send(_pipe(process.stdin), task)
                outcome: Outcome = receive(_pipe(process.stdout))
            except (OSError, EOFError) as error:
                remedy = "compact again, with a lower num_threads if memory ran out"
                outcome = StoreError(f"the worker process of {task} died: {error}; {remedy}")
                _end(process)
                process = None
            done.put((task, outcome))
    finally:
        _end(process)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("a worker without pipes")
    return pipe


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """End a process; all that it was asked for is done, or lost."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was left in its buffer has no reader
                pipe.close()


_logger = logging.getLogger(__name__)


@checked_methods
class Compaction:
    """The three steps of a compaction, for callers that run the tasks themselves."""

    @staticmethod
    def plan(dataset: Handle, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Plan the compaction of the dataset's version.

        Args:
            dataset: The dataset.
            options: Fields of `CompactionOptions`; those that are not given come from the table's configuration.

        Raises:
            InvalidInputError: An option is not known, or its value cannot be used.
        """
        return plan_of(dataset.snapshot, options)

    @staticmethod
    def execute(dataset: Handle, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Plan, run all tasks on this machine, and commit; see `compact`."""
        return compact(dataset, options)

    @staticmethod
    def commit(
        dataset: Handle,
        rewrites: Sequence[RewriteResult],
        options: Mapping[str, Any] | None = None,
        *,
        transaction_properties: Mapping[str, str] | None = None,
    ) -> CompactionMetrics:
        """Replace the old fragments by the new ones; the handle moves to the new version.

        Args:
            dataset: The dataset, at any version from the plan's on.
            rewrites: Results of tasks of one plan: all, or any of them. Without results nothing is committed.
            options: The options of the plan, of which only `defer_index_remap` is used.
            transaction_properties: Transaction properties of the commits.

        Raises:
            ObjectNotFoundError: A new file does not exist; nothing was committed.
            RetryableConflictError: A concurrent commit changed a fragment that was rewritten. Nothing was committed but
                the reservation of ids; the other results can be committed without that one.
            IncompatibleConflictError: The table was dropped and made again since the plan.
        """
        resolved = _resolve_options(options, dataset.snapshot.manifest)
        if not rewrites:
            return CompactionMetrics()
        properties, before = transaction_properties or {}, dataset.snapshot.manifest.indices
        commit_rewrites(dataset.snapshot, rewrites, properties, deferred=resolved.defer_index_remap)
        _follow(dataset)
        _refresh(dataset, rewrites, before, properties, deferred=_is_asked_to_defer(options))
        return sum((result.metrics for result in rewrites), CompactionMetrics())


def plan_of(snapshot: Snapshot, options: Mapping[str, Any] | None) -> CompactionPlan:
    """Plan the compaction of a version; see `Compaction.plan`."""
    manifest = snapshot.manifest
    resolved = _resolve_options(options, manifest)
    if resolved.defer_index_remap and manifest.uses_stable_row_ids:
        raise UnsupportedError(
            "defer_index_remap is not supported in a dataset with stable row ids: its indices follow the rows anyway"
        )
    facts = collect_facts(snapshot, resolved)
    groups = group_fragments(facts, resolved)
    if resolved.repair_pages:
        groups += group_misread_fragments(snapshot, facts, groups, resolved.excluded_fragment_ids)
        groups = limit_groups(sorted(groups, key=lambda group: group[0].position), resolved)
    if manifest.indices:
        groups = split_to_keep_coverage(snapshot, groups)
    raw = manifest.fragments.raw
    tasks = (
        CompactionTask(
            raw=tuple(raw[fact.position] for fact in group),
            read_version=manifest.version,
            options=resolved,
            fragment_ids=[fact.fragment_id for fact in group],
            num_rows=sum(fact.live_rows for fact in group),
            num_deleted_rows=sum(fact.deleted_rows for fact in group),
            num_bytes=sum(fact.num_bytes for fact in group),
        )
        for group in groups
    )
    return CompactionPlan(read_version=manifest.version, tasks=tuple(tasks), options=resolved)


def _resolve_options(options: Mapping[str, Any] | None, manifest: Manifest) -> CompactionOptions:
    """The options for a version of a table: given options, then the table's configuration, then defaults."""
    chosen = CompactionOptions.of(options, manifest.config)
    if manifest.uses_stable_row_ids and not _is_asked_to_defer(options):
        chosen = replace(chosen, defer_index_remap=False)  # the configuration is of a time without stable row ids
    version = FileVersion.for_dataset(chosen.data_storage_version, manifest.data_storage_version)
    return replace(chosen, data_storage_version=version.value)


def commit_rewrites(
    snapshot: Snapshot,
    rewrites: Sequence[RewriteResult],
    properties: Mapping[str, str],
    *,
    deferred: bool = False,
    keep_up: bool = False,
) -> None:
    """Commit results; see `Compaction.commit`.

    `deferred` records how rows moved for indices of all kinds, and not only for indices that cannot be extended here.
    `keep_up` hides rows in the new fragments that concurrent commits have deleted.
    """
    versions = {result.read_version for result in rewrites}
    if len(versions) > 1:
        raise InvalidInputError(f"the results come from plans of several versions: {sorted(versions)}")
    read_version = versions.pop()
    needed = sum(len(result.new_records) for result in rewrites)
    groups = [result.group for result in rewrites]
    base = snapshot.manifest
    check_same_fragments(base, (old for group in groups for old in group.old_fragments), "Rewrite")
    if needed:
        new_files = own_data_keys(data_files(new for group in groups for new in group.new_fragments))
        reserved = commit(
            snapshot.store,
            Transaction(
                read_version=read_version, operation=ReserveFragments(num_fragments=needed), properties=dict(properties)
            ),
            base=base,
            new_files=new_files,
        )
        base = reserved.manifest
        groups = number_new_fragments(groups, (base.max_fragment_id or 0) - needed + 1)
    moved = tuple(result.row_addrs for result in rewrites if result.row_addrs is not None)
    recorded = len(moved) == len(rewrites) and (deferred or needs_moves(base, rewrites))
    if recorded and not deferred:
        base = keep_moves_deferred(snapshot.store, base)
    operation = Rewrite(groups=tuple(groups), moved_rows=moved if recorded else ())
    transaction = Transaction(read_version=read_version, operation=operation, properties=dict(properties))
    try:
        commit(snapshot.store, transaction, base=base)
    except RetryableConflictError:
        if not keep_up:
            raise
        commit_despite_deletions(snapshot, transaction, base)


def number_new_fragments(groups: Iterable[RewriteGroup], first: int) -> list[RewriteGroup]:
    """Give the new fragments ids from `first` on."""
    result = []
    for group in groups:
        new = tuple(replace(fragment, id=first + index) for index, fragment in enumerate(group.new_fragments))
        first += len(new)
        result.append(replace(group, new_fragments=new))
    return result


def compact(
    dataset: Handle,
    options: Mapping[str, Any] | None = None,
    *,
    transaction_properties: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    retries: int = 0,
) -> CompactionMetrics:
    """Plan, run all tasks on this machine, and commit; the handle moves to the new version.

    A task whose fragments a concurrent commit has changed is dropped, and the others are committed; its fragments are
    left to the next run. With `retries`, rows that concurrent commits delete or update are hidden in the new fragments,
    and the fragments of dropped tasks are planned again. If a task fails, the others are committed before its error is
    raised.

    Args:
        dataset: The dataset; its latest version is compacted.
        options: Fields of `CompactionOptions`.
        transaction_properties: Transaction properties of the commits.
        progress: Is called with the number of rewritten rows and the number of all rows to rewrite.
        retries: How often the remaining fragments are planned and compacted again. If it is above 0, tasks that still
            conflict with other writers raise no error, and `tasks_skipped` of the result is above 0.

    Raises:
        RetryableConflictError: Concurrent commits changed the fragments of all tasks, and `retries` is 0.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> maintenance.compact(table).fragments_removed
        2
    """
    done, again = CompactionMetrics(), _resolve_options(options, dataset.snapshot.manifest).may_leave_small_fragments
    # `retrying` does not fit: an attempt with conflicts has committed its other tasks, and only the rest is repeated.
    for attempt in range(retries + 1):
        if attempt:
            time.sleep(backoff(attempt, first=0.1, longest=2.0))
        metrics = _compact_once(dataset, options, transaction_properties or {}, progress, keep_up=retries > 0)
        done = replace(done + metrics, tasks_skipped=metrics.tasks_skipped)
        while again and metrics.fragments_added < metrics.fragments_removed and not metrics.tasks_skipped:
            metrics = _compact_once(dataset, options, transaction_properties or {}, progress, keep_up=retries > 0)
            done = replace(done + metrics, tasks_skipped=metrics.tasks_skipped)
        if not metrics.tasks_skipped:
            break
    return done


def _compact_once(
    dataset: Handle,
    options: Mapping[str, Any] | None,
    properties: Mapping[str, str],
    progress: Callable[[int, int], None] | None,
    *,
    keep_up: bool,
) -> CompactionMetrics:
    """Make one plan, run its tasks, and commit their results; with `keep_up` all of them may be skipped."""
    _follow(dataset)
    plan = plan_of(dataset.snapshot, options)
    total, finished = sum(task.num_rows for task in plan.tasks), 0
    results, errors = [], []
    for task, outcome in _run_tasks(dataset, plan):
        if isinstance(outcome, RewriteResult):
            results.append(outcome)
            for key in own_data_keys(data_files(outcome.new_records)):
                note_begun(key)  # a worker process may have written it, just now
        else:
            errors.append(outcome)
        finished += task.num_rows
        if progress is not None:
            progress(finished, total)
    results.sort(key=lambda result: result.original_records[0].id)
    deferred = _is_asked_to_defer(options)
    try:
        metrics = commit_what_fits(dataset, results, properties, deferred=deferred, keep_up=keep_up)
    except RetryableConflictError as error:
        if not keep_up:
            raise
        _logger.warning("%s", error)
        metrics = CompactionMetrics(tasks_skipped=len(results))
    if errors:
        errors[0].add_note(f"{len(errors)} of {len(plan.tasks)} groups were not compacted; the others were committed")
        raise errors[0]
    return metrics


def _run_tasks(dataset: Handle, plan: CompactionPlan) -> Iterator[tuple[CompactionTask, Outcome]]:
    """Run the tasks, and yield each with its result or its error as they finish."""
    workers = worker_count([task.num_bytes for task in plan.tasks], plan.options.num_threads)
    if workers > 1:
        yield from run_in_processes(dataset, plan.tasks, workers)
        return
    for task in plan.tasks:
        try:
            outcome: Outcome = rewrite(dataset.snapshot, task.raw, task.options)
        except Exception as error:  # noqa: BLE001 - the other tasks are committed first
            outcome = error
        yield task, outcome


def commit_what_fits(
    dataset: Handle,
    results: Sequence[RewriteResult],
    properties: Mapping[str, str],
    *,
    deferred: bool = False,
    keep_up: bool = False,
) -> CompactionMetrics:
    """Commit results; a result whose fragments a concurrent commit has changed is dropped, and its files are deleted.

    Args:
        dataset: The handle, which moves to the version that was made.
        results: Results of tasks of one plan.
        properties: Transaction properties of the commits.
        deferred: Whether moves are recorded for indices of all kinds, and none is extended.
        keep_up: Whether rows that concurrent commits deleted are hidden in the new fragments.

    Raises:
        ObjectNotFoundError: A new file does not exist; nothing was committed.
        RetryableConflictError: All results were dropped, or a commit conflicted although no result has to be dropped.

    Examples:
        >>> table = lance.write_dataset({"id": [1, 2, 3]}, "t.lance")
        >>> table.insert(pa.table({"id": [4]}))
        >>> plan = maintenance.Compaction.plan(table)
        >>> results = [task.execute(table) for task in plan.tasks]
        >>> maintenance.commit_what_fits(table, results, {}).fragments_removed
        2
    """
    left, dropped, before = list(results), 0, dataset.snapshot.manifest.indices
    _reject_overtaken(dataset, [] if keep_up else left)
    while left:
        try:
            commit_rewrites(dataset.snapshot, left, properties, deferred=deferred, keep_up=keep_up)
        except RetryableConflictError:
            _follow(dataset)
            fitting = [result for result in left if _can_still_replace(dataset.snapshot, result, keep_up=keep_up)]
            lost = [result for result in left if result not in fitting]
            for result in lost or left:
                discard(dataset.snapshot.store, result.new_records)
            if not fitting or not lost:
                raise
            _logger.warning("%d tasks were dropped: a concurrent commit changed their fragments", len(lost))
            left, dropped = fitting, dropped + len(lost)
        except OutcomeUnknownError:
            raise  # the files may be in use
        except LanceError:
            for result in left:
                discard(dataset.snapshot.store, result.new_records)
            raise
        else:
            break
    if results:
        _follow(dataset)
    extended = _refresh(dataset, left, before, properties, deferred=deferred)
    metrics = sum((result.metrics for result in left), CompactionMetrics())
    return replace(metrics, tasks_skipped=dropped, indices_extended=tuple(extended))


def _reject_overtaken(dataset: Handle, results: Sequence[RewriteResult]) -> None:
    """Check that a result can be committed before ids are reserved, which makes a version.

    Raises:
        RetryableConflictError: Concurrent commits changed the fragments of all results; their files are deleted.
        CorruptFileError: Two fragments have one id.
    """
    if not results:
        return
    latest = reload_latest(dataset.snapshot.store, dataset.snapshot.manifest)
    if any(_are_unchanged(latest, result) for result in results):
        return
    dataset.move_to(latest)
    for result in results:
        discard(dataset.snapshot.store, result.new_records)
    check_fragment_ids(latest)
    raise RetryableConflictError(
        f"{dataset.uri}: concurrent commits changed the fragments of all {len(results):,} tasks; plan them again"
    )


def _are_unchanged(manifest: Manifest, result: RewriteResult) -> bool:
    return all(manifest.fragments.get(record.id) == record for record in result.original_records)


def _follow(dataset: Handle) -> None:
    """Move the handle to the latest version of the dataset that it was opened on."""
    dataset.move_to(reload_latest(dataset.snapshot.store, dataset.snapshot.manifest))


def _is_asked_to_defer(options: Mapping[str, Any] | None) -> bool:
    """Whether the caller's options, not the table's configuration, ask to record moves for indices of all kinds.

    The configuration is for pylance (see `keep_moves_deferred`): indices that can be extended here must stay extended.
    """
    return bool((options or {}).get("defer_index_remap"))


def _refresh(
    dataset: Handle,
    results: Sequence[RewriteResult],
    before: Sequence[IndexMetadata],
    properties: Mapping[str, str],
    *,
    deferred: bool,
) -> list[str]:
    """Extend indices to the new fragments after the commit, unless the caller defers that; returns their names."""
    if deferred or not dataset.snapshot.manifest.indices:
        return []
    return extend_after_compaction(dataset, [result.group for result in results], before, properties)


def _can_still_replace(snapshot: Snapshot, result: RewriteResult, *, keep_up: bool) -> bool:
    """Whether a result can still replace its old fragments: they are unchanged, or have only lost rows."""
    if keep_up:
        return find_late_deletions(snapshot, result.original_records, result.new_records) is not None
    return _are_unchanged(snapshot.manifest, result)

"""The steps of maintenance on one table; every step can run in another process, and can be repeated.

    expire                  rows that are older than the policy allows -> one Delete
    rewrite_tasks           tasks -> new files that are not committed yet
    commit                  all results of a table -> one Rewrite; fragments that a writer changed meanwhile are planned
                            again (indices are extended before, where the Rewrite needs it: see `indices`). A table that
                            gets stable row ids gets them here, and its rewrites are planned after that
    materialize_deletions   remaining fragments with many deleted rows -> one Rewrite
    refresh_indices         rows that an index does not cover -> the index; zone maps on partition columns are created
    move_files              files of old rows -> a base path, in one Rewrite; copies that no version needs are removed
    clean_up                old versions are removed, with the files that only they need

The plan never changes, and each step returns a new report. Maintenance never waits for writers and never delays them:
the first commit wins, and rewrites that lost are planned again, up to `ATTEMPTS` attempts in all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lance_core.errors import CommitConflictError, LanceError, RetryableConflictError, VersionNotFoundError
from lance_core.maintenance.cleanup.copies import remove_unused_copies
from lance_core.maintenance.cleanup.run import cleanup_old_versions
from lance_core.maintenance.compaction.compaction import Compaction, commit_what_fits, run_in_processes, worker_count
from lance_core.maintenance.compaction.rebase import rebase_results
from lance_core.maintenance.compaction.rewrite import RewriteResult
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.moves import OWN_FOLDER, move_fragments
from lance_core.maintenance.routine.ages import find_old_fragments, is_older
from lance_core.maintenance.routine.budget import choose_tasks_that_fit, explain_put_off, time_is_up
from lance_core.maintenance.routine.declared import (
    find_stale_indices,
    run_due_actions,
    run_early_actions,
    survey_declared,
)
from lance_core.maintenance.routine.health import drop_zone_maps, measure, measure_index_bytes
from lance_core.maintenance.routine.indices import extend_indices
from lance_core.maintenance.routine.report import Log, MaintenanceReport, Rewriter, Rewrites, format_error, shows_damage
from lance_core.maintenance.routine.row_ids import migrate_row_ids
from lance_core.maintenance.routine.survey import cleanup_selectors, count_removed, find_reader_age, list_held_versions
from lance_core.maintenance.search.parts import IndexBuilder
from lance_core.maintenance.zone_maps import index_partitions
from lance_core.retry import backoff
from lance_core.table.fragment import Fragment
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.refs.branches import Branches
from lance_core.verbs.refs.readers import Readers
from lance_core.verbs.refs.tags import Tags
from lance_core.verbs.rows.delete import delete_rows

_logger = logging.getLogger(__name__)

ATTEMPTS: Final = 3
"""The most attempts to commit the rewrites of a table, which are planned again after a writer committed first."""


_LONGEST_PAUSE_S: Final = 5.0
_REFRESH: Final = "refresh_indices"


def rewrite(dataset: Handle, task: CompactionTask) -> RewriteResult:
    """Run one task."""
    return task.execute(dataset)


def run_here(dataset: Handle, tasks: Sequence[CompactionTask]) -> Iterator[RewriteResult | Exception]:
    """A rewriter that runs tasks one after the other in this process.

    Args:
        dataset: The table.
        tasks: The tasks.

    Examples:
        >>> table = lance.write_dataset({"id": [1]}, "t.lance")
        >>> table.insert({"id": [2]})
        >>> report = maintenance.maintain(table, rewriter=maintenance.run_here)
        >>> report.outcome
        'done'
    """
    for task in tasks:
        try:
            yield rewrite(dataset, task)
        except Exception as error:  # noqa: BLE001 - the other tasks run all the same
            yield error


def pool_rewriter(max_parallel_tasks: int | None = None) -> Rewriter:
    """A rewriter that runs tasks in several processes of this machine, if they are large enough.

    Args:
        max_parallel_tasks: The most processes; None for the number of processors.

    Examples:
        >>> table = lance.write_dataset({"id": [1]}, "t.lance")
        >>> table.insert({"id": [2]})
        >>> maintenance.maintain(table, rewriter=maintenance.pool_rewriter(2)).outcome
        'done'
    """

    def run(dataset: Handle, tasks: Sequence[CompactionTask]) -> Iterator[RewriteResult | Exception]:
        workers = worker_count([task.num_bytes for task in tasks], max_parallel_tasks) if tasks else 1
        if workers == 1:
            return run_here(dataset, tasks)
        return (outcome for _, outcome in run_in_processes(dataset, tasks, workers))

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What a step needs besides the table and its report.

    Attributes:
        rewriter: Runs the tasks of further attempts.
        properties: Transaction properties of the commits.
        versions_in_use: Returns further versions that cleanup keeps, by a description of their use.
        log: Gets warnings about indices that were not extended and files that were not deleted.
        index_builder: Builds declared indices in parts; None for one child process.
    """

    rewriter: Rewriter = run_here
    properties: Mapping[str, str] = field(default_factory=dict)
    versions_in_use: Callable[[], Mapping[str, int] | None] = lambda: None
    log: Log = _logger
    index_builder: IndexBuilder | None = None


def run_rewriter(
    dataset: Handle, tasks: Sequence[CompactionTask], rewriter: Rewriter
) -> tuple[list[RewriteResult], list[Exception]]:
    """Run tasks; a task whose version was cleaned up has neither a result nor an error: somebody else has done it."""
    outcomes = list(rewriter(dataset, tasks)) if tasks else []
    results = [outcome for outcome in outcomes if isinstance(outcome, RewriteResult)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    return results, [error for error in errors if not isinstance(error, VersionNotFoundError)]


def rewrite_tasks(
    open_table: Callable[[], Handle], tasks: Sequence[CompactionTask], rewriter: Rewriter, deadline: float | None
) -> tuple[Rewrites, Exception | None]:
    """Run tasks of a plan, unless the deadline has passed: then they are put off.

    Args:
        open_table: Opens the table.
        tasks: The tasks.
        rewriter: Runs them.
        deadline: The time, in seconds since 1970, after which they do not begin; None for no limit.

    Returns:
        The results, and the first error, by which a caller decides whether to try again.
    """
    started, results, errors = time.monotonic(), list[RewriteResult](), list[Exception]()
    if not tasks:
        return Rewrites(), None
    if time_is_up(deadline):
        return Rewrites(put_off=len(tasks)), None
    try:
        results, errors = run_rewriter(open_table(), tasks, rewriter)
    except Exception as error:  # noqa: BLE001 - it is part of the report
        errors = [error]
    first = next(iter(errors), None)
    return Rewrites(
        results=results,
        error=None if first is None else format_error("rewrite", first),
        is_damaged=any(map(shows_damage, errors)),
        seconds=time.monotonic() - started,
    ), first


def expire(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Delete the rows that were older than the policy allows when the table was surveyed, in one commit."""
    plan = report.plan
    if plan.expire_before is None or plan.policy.expire_by is None:
        return report
    condition = is_older(dataset, plan.policy.expire_by, plan.expire_before, "expire_by")
    refs = _list_refs(dataset)  # before the commit, as the table can be dropped directly after it
    try:
        manifest, num_rows = delete_rows(dataset.snapshot, condition, properties=context.properties, skips_empty=True)
    except RetryableConflictError as error:
        context.log.warning("%s: the rows that expire were not deleted: %s", plan.table, error)
        return report.plus(lost=1)
    dataset.move_to(manifest)
    return add_expired_rows(dataset, report, num_rows, refs)


def _list_refs(dataset: Handle) -> list[str]:
    """The tags and branches of a table, in words."""
    refs = dataset._refs  # noqa: SLF001 - same library
    return [
        f"{kind} {name}" for kind, list_refs in (("tag", Tags), ("branch", Branches)) for name in list_refs(refs).list()
    ]


def add_expired_rows(
    dataset: Handle, report: MaintenanceReport, num_rows: int, refs: Sequence[str] | None = None
) -> MaintenanceReport:
    """The report with rows that expired, or would in a dry run, and the tags and branches whose versions have them.

    Args:
        dataset: The table.
        report: The report so far.
        num_rows: The number of rows.
        refs: The tags and branches, in words; None to list them.
    """
    if not num_rows:
        return report
    size, names = report.plan.bytes_to_expire, _list_refs(dataset) if refs is None else refs
    report = report.plus(
        rows_expired=num_rows, bytes_expired=size * num_rows // max(num_rows, report.plan.rows_to_expire)
    )
    return replace(report, expired_rows_in=", ".join(names) or None)


def commit(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Extend the indices that must be extended first, and commit the results of the rewrites of a plan."""
    plan, results = report.plan, list(report.results)
    if plan.row_ids_due:
        report = migrate_row_ids(dataset, report, context.properties, context.log, context.index_builder)
        return report if report.lost else _commit_all(dataset, report, context, "commit")
    # Rewrites that failed are not tried again here: the table is finished without them.
    missing, are_joined = 0 if report.deferred or report.error else plan.num_tasks - len(results), False
    report = replace(report, results=())
    if results and (plan.indices_first or plan.segments_first):
        sizes = measure_index_bytes(dataset)
        # `refresh_indices` retries indices that were not extended here, and reports them.
        done = extend_indices(dataset, plan.indices_first, context.properties, plan.policy)
        report = report.plus(indices_refreshed=done.refreshed)
        if plan.segments_first:
            merges = plan.segments_first == "merge"
            report = run_early_actions(dataset, report, context.properties, merges=merges)
        report = _add_index_growth(dataset, report, sizes)
        rebased_results = rebase_results(dataset, results)
        report = report.plus(bytes_read=_sum_bytes_read(results) - _sum_bytes_read(rebased_results))
        missing += len(results) - len(rebased_results)
        results, are_joined = rebased_results, done.are_joined
    before, report = report, _commit_all(dataset, report, context, "commit", results, missing=missing)
    # Fragments that lost rows were left out of the rewrites.
    report = _commit_all(dataset, report, context, "commit") if are_joined or plan.rows_to_expire else report
    while plan.policy.target_bytes_per_fragment is not None and _has_merged(before, report):
        # The bytes of small files are not those of the merged file, which may have to be merged again.
        before, report = report, _commit_all(dataset, report, context, "commit")
    return report


def _has_merged(before: MaintenanceReport, report: MaintenanceReport) -> bool:
    """Whether a part of a step has committed all its rewrites, and made fewer fragments."""
    merged = [each.done.get("fragments_removed", 0) - each.done.get("fragments_added", 0) for each in (before, report)]
    return merged[0] < merged[1] and not (report.lost or report.deferred or report.error)


def materialize_deletions(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Rewrite the remaining fragments that have a larger share of deleted rows than the policy allows."""
    return _commit_all(dataset, report, context, "materialize_deletions", deletions_only=True)


def _commit_all(
    dataset: Handle,
    report: MaintenanceReport,
    context: StepContext,
    step: str,
    results: Sequence[RewriteResult] | None = None,
    *,
    missing: int = 0,
    **options: Any,
) -> MaintenanceReport:
    """Commit results; while a writer has changed the fragments of some, plan and rewrite the table again.

    A further attempt runs the tasks that fit into the rest of the run's budget; the others are put off.

    Args:
        dataset: The table; it moves to the version that was committed.
        report: The report so far.
        context: The rewriter, and the transaction properties.
        step: The step, for errors.
        results: The results to commit first; None to plan the current version, unless work was put off before.
        missing: The number of tasks without a result.
        **options: Options of the compaction besides those of the policy.
    """
    if results is None and report.deferred:
        return report
    compaction_options, lost = report.plan.policy.compaction_options(**options), 0
    # `retrying` does not fit: an attempt with conflicts commits its other tasks, and only the rest is planned again.
    for attempt in range(ATTEMPTS):
        if results is None:
            if attempt:
                time.sleep(backoff(attempt, first=0.2, longest=_LONGEST_PAUSE_S))
                dataset.checkout_latest()
            old = find_old_fragments(dataset, report.plan.policy, report.plan.move_before)
            compaction_options["apart_fragment_ids"] = [fragment.id for fragment in old]  # as they move
            tasks = Compaction.plan(dataset, compaction_options).tasks
            if not tasks and not attempt:
                return report
            report, results, missing = _rewrite_within_budget(dataset, report, tasks, context, step)
        report, skipped = _commit(dataset, results, report, context.properties)
        lost, results = missing + skipped, None
        if not lost or report.deferred or report.error:
            break
    return report.plus(lost=lost)


def choose_further_tasks(
    tasks: Sequence[CompactionTask], report: MaintenanceReport
) -> tuple[list[CompactionTask], MaintenanceReport]:
    """The tasks of a further plan for which the budget has bytes and time left; the report names the others."""
    left, is_late = report.bytes_left, time_is_up(report.plan.deadline)
    fitting_tasks = [] if is_late else choose_tasks_that_fit(tasks, left)
    if len(fitting_tasks) < len(tasks):
        late = f"max_duration: the time was up before {len(tasks):,} rewrites began again"
        report = replace(
            report,
            deferred=late
            if is_late
            else explain_put_off(tasks, fitting_tasks, f"{left:,} that are left for further attempts"),
        )
    return fitting_tasks, report


def _rewrite_within_budget(
    dataset: Handle, report: MaintenanceReport, tasks: Sequence[CompactionTask], context: StepContext, step: str
) -> tuple[MaintenanceReport, list[RewriteResult], int]:
    """Run the tasks for which the budget has bytes and time left; the report has those that are put off.

    Returns:
        The report, the results, and the number of tasks that were lost to others.
    """
    fitting_tasks, report = choose_further_tasks(tasks, report)
    results, errors = run_rewriter(dataset, fitting_tasks, context.rewriter)
    for error in errors:
        report = report.failed(step, error)
    return report, results, 0 if report.deferred else len(fitting_tasks) - len(results) - len(errors)


def _commit(
    dataset: Handle, results: Sequence[RewriteResult], report: MaintenanceReport, properties: Mapping[str, str]
) -> tuple[MaintenanceReport, int]:
    """Commit the results that no writer has made void; returns the report, and the number of void results."""
    report = report.plus(
        bytes_read=_sum_bytes_read(results),
        bytes_written=_sum_file_bytes(record for result in results for record in result.new_records),
    )
    try:
        metrics = commit_what_fits(dataset, results, properties)
    except CommitConflictError:
        return report, len(results)
    report = report.plus(fragments_removed=metrics.fragments_removed, fragments_added=metrics.fragments_added)
    extended = drop_zone_maps(dataset, metrics.indices_extended)
    if extended:
        report = report.plus(indices_refreshed=len(extended), indices_not_refreshed=0)
    return report, metrics.tasks_skipped


def _sum_bytes_read(results: Iterable[RewriteResult]) -> int:
    """The bytes of the data files that rewrites have read."""
    return _sum_file_bytes(record for result in results for record in result.original_records)


def _sum_file_bytes(fragments: Iterable[Fragment]) -> int:
    """The bytes of the data files of fragments; files without a recorded size count as 0."""
    return sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)


def refresh_indices(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Create the zone maps that are due, and extend indices to the rows that they do not cover.

    Pylance, if it is installed (the extra `search`), extends indices for vector and full-text search. Fragments that
    can be merged only after the extension are rewritten.
    """
    plan, are_joined = report.plan, False
    sizes = measure_index_bytes(dataset)
    try:
        zone_maps = index_partitions(
            dataset,
            plan.partition_columns,
            max_unindexed_fragments=plan.max_unindexed_fragments,
            transaction_properties=context.properties,
        )
    except (LanceError, OSError) as error:
        zone_maps, report = [], report.failed(_REFRESH, error)
        dataset.checkout_latest()
    if zone_maps:
        report = report.plus(indices_refreshed=len(zone_maps))
    declared = survey_declared(dataset, plan.policy)
    due = find_stale_indices(measure(dataset, plan.policy), plan.policy, declared)
    if due:
        done = extend_indices(dataset, dict.fromkeys(due), context.properties, plan.policy)
        are_joined = done.are_joined
        report = report.plus(lost=done.lost, indices_refreshed=done.refreshed, indices_not_refreshed=len(done.problems))
        for failure in done.failures:
            report = report.failed(_REFRESH, failure)
        for problem in done.problems:
            context.log.warning("%s: %s", plan.table, problem)
    version = dataset.version
    report = run_due_actions(dataset, report, context.properties, context.log, context.index_builder)
    report = _add_index_growth(dataset, report, sizes)
    has_new_segments = are_joined or dataset.version > version
    return _commit_all(dataset, report, context, _REFRESH) if has_new_segments else report


def move_files(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Move the files of fragments that were older than the policy allows when the table was surveyed.

    Small files that lie in the base path together then are merged, and what replaces them is moved again.
    """
    while report.plan.move_before is not None:
        report = _move_old_fragments(dataset, report, context)
        before, report = report, _commit_all(dataset, report, context, "move_files")
        if not _has_merged(before, report):
            break
    return report


def _move_old_fragments(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    plan, policy = report.plan, report.plan.policy
    fragments = find_old_fragments(dataset, policy, plan.move_before)
    try:
        moved = move_fragments(dataset, fragments, policy.move_to or OWN_FOLDER, context.properties)
    except RetryableConflictError as error:  # the next run commits the copies
        context.log.warning("%s: files were copied to %r, and not moved: %s", plan.table, policy.move_to, error)
        return report.plus(lost=1)
    if moved:
        size = sum(file.file_size_bytes or 0 for file in moved)
        report = report.plus(files_moved=len(moved), bytes_moved=size, bytes_read=size, bytes_written=size)
    num_files, num_bytes, failures = remove_unused_copies(dataset.snapshot.store, dataset.snapshot.manifest)
    for failure in failures:
        context.log.warning("%s: could not be deleted: %s", plan.table, failure)
    return report.plus(files_removed=num_files, bytes_removed=num_bytes) if num_files else report


def _add_index_growth(dataset: Handle, report: MaintenanceReport, before: Mapping[str, int]) -> MaintenanceReport:
    """The report with the bytes of new index segments."""
    grown = sum(size for uuid, size in measure_index_bytes(dataset).items() if uuid not in before)
    return report.plus(bytes_written=grown) if grown else report


def clean_up(dataset: Handle, report: MaintenanceReport, context: StepContext) -> MaintenanceReport:
    """Remove old versions, and the files that only they need; tagged versions, and those that branches need, are kept.

    Tags of readers of changes that nobody has renewed for long are removed before. Only versions up to the surveyed one
    are counted: versions that the run itself made, such as the reservation of fragment ids, are removed as well but do
    not count. If files could not be deleted, a part of the cleanup is put off: the next run begins with this table.
    """
    plan, policy = report.plan, report.plan.policy
    Readers(dataset._refs).release_older_than(find_reader_age(dataset))  # noqa: SLF001 - same library
    for reader, versions in list_held_versions(dataset).items():
        context.log.info("%s: versions %s are held for incremental reader %s", plan.table, versions, reader)
    if not policy.cleans_up:
        return report
    stats = cleanup_old_versions(
        dataset,
        cleanup_selectors(plan, context.versions_in_use()),
        delete_rate_limit=policy.delete_rate_limit,
        delete_concurrency=policy.delete_concurrency,
        log_level=logging.INFO,
    )
    report = report.plus(**count_removed(stats))
    for problem in (*stats.torn_versions, *(f"could not be deleted: {failure}" for failure in stats.failures)):
        context.log.warning("%s: %s", plan.table, problem)
    if not stats.failures:
        return report
    reason = f"clean_up: {len(stats.failures):,} files could not be deleted; the first: {stats.failures[0]}"
    return report.plus(failed_deletes=stats.failed_deletes).put_off(reason)

"""The maintenance of one table, step by step; every step can run in another process, and can be repeated.

    survey     the manifest -> a plan: numbers, tasks, and whether anything is due      (nothing is written)
    rewrite    one task -> new files that are not committed yet
    commit     all results of a table -> one Rewrite; fragments that a writer changed meanwhile are planned again
               (indices are extended before, where the Rewrite needs it: see `indices`)
    materialize_deletions   remaining fragments with many deleted rows -> one Rewrite
    refresh_indices         rows that an index does not cover -> the index; zone maps on partition columns are created
    clean_up   old versions are removed, with the files that only they need

The steps exchange plain records: the plan never changes, and each step returns a new outcome. Maintenance never waits
for writers and never delays them: the first commit wins, and rewrites that lost are planned again, up to `ATTEMPTS`
attempts in all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import lance_core
from lance_core.errors import (
    CommitConflictError,
    CorruptFileError,
    LanceError,
    ObjectNotFoundError,
    VersionNotFoundError,
)
from lance_core.maintenance import (
    CleanupStats,
    Compaction,
    CompactionTask,
    RewriteResult,
    Selectors,
    cleanup_old_versions,
    columns_without_zone_map,
    commit_what_fits,
    index_partitions,
    rebase_results,
    select,
)
from lance_core.retry import backoff
from lance_core.times import ago
from lance_dagster.health.facts import TableHealth, index_bytes, measure, without_zone_maps
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance.indices import extend_indices, is_extended_here, rewrites_due
from lance_dagster.maintenance.limits import fitting, not_fitting, time_is_up

__all__ = [
    "ATTEMPTS",
    "MaintenanceOutcome",
    "MaintenancePlan",
    "Rewriter",
    "clean_up",
    "cleanup_selectors",
    "commit",
    "expired_version",
    "materialize_deletions",
    "measured",
    "refresh_indices",
    "removed",
    "rewrite",
    "run_here",
    "survey",
    "with_cleanup_of",
]

ATTEMPTS: Final = 3
"""The most attempts to commit the rewrites of a table, which are planned again after a writer committed first."""

_LONGEST_PAUSE_S: Final = 5.0
_REFRESH: Final = "refresh_indices"

Rewriter = Callable[[lance_core.LanceDataset, Sequence[CompactionTask]], list[RewriteResult]]
"""Runs compaction tasks, in this process or elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """The work that is due for one table, by its survey.

    Attributes:
        asset: The asset's key, parts joined by slashes.
        uri: The URI of the table.
        policy: The policy for the table.
        version: The version that was surveyed.
        branch: The branch; None for main.
        before: Numbers of that version.
        health: Entries for events about that version.
        problems: The thresholds that the version exceeds.
        num_tasks: The number of rewrites that are due.
        cleanup_due: Whether there are versions to remove.
        indices_due: Whether an index does not cover all rows, or a partition column lacks a zone map.
        indices_left: The indices that do not cover all rows, and that cannot be extended here.
        indices_first: The indices to extend before rewrites are committed, because the rewrites merge fragments that an
            index covers with fragments that it does not cover.
        partition_columns: The columns on which zone maps are kept.
        max_unindexed_fragments: The most fragments that a zone map may leave uncovered.
        expired_bytes: The bytes of data files of the oldest version that the surveyed version does not have, if cleanup
            is due.
        deadline: The time, in seconds since 1970, after which no further rewrite or step begins; None for no limit.
        max_bytes_rewritten: The bytes of data files that the rewrites of all attempts may read; None for no limit.
        owners: The assets to which the table belongs, by a definition or by its commits; empty if they are unknown.
        other_assets: Further known assets that share the table, such as one that owns columns of it.
        is_defined: Whether the owners come from a definition that the run knows, and not from the table's commits.
        recorded: The metadata `lance/maintenance` of the owner, as JSON; None if it has none.
    """

    asset: str
    uri: str
    policy: LanceMaintenancePolicy = field(default_factory=LanceMaintenancePolicy)
    version: int = 0
    branch: str | None = None
    before: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    num_tasks: int = 0
    cleanup_due: bool = False
    indices_due: bool = False
    indices_left: Sequence[str] = ()
    indices_first: Sequence[str] = ()
    partition_columns: Sequence[str] = ()
    max_unindexed_fragments: int = 0
    expired_bytes: int = 0
    deadline: float | None = None
    max_bytes_rewritten: int | None = None
    owners: Sequence[str] = ()
    other_assets: Sequence[str] = ()
    is_defined: bool = True
    recorded: str | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.num_tasks or self.cleanup_due or self.indices_due)

    def bytes_left(self, done: Mapping[str, int]) -> int | None:
        """The bytes that further rewrites may read, given the numbers of the work so far; None for no limit."""
        if self.max_bytes_rewritten is None:
            return None
        return max(0, self.max_bytes_rewritten - done.get("bytes_read", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOutcome:
    """The work that was done of a plan; each step returns the outcome of the steps so far.

    Attributes:
        plan: The plan.
        results: The results of its rewrites, as JSON.
        lost: The number of rewrites without a result, or that concurrent commits made void, and of extensions of
            indices that were not committed because a writer committed first.
        done: Numbers of the work that was done, as entries of the event.
        seconds: The time that the steps took.
        error: The errors of steps; None if no step failed.
        receipts: The receipts of the steps that changed something, as rows of the log.
        after: Numbers of the table after the last step; empty before.
        health_after: Entries for events about the version after the last step.
        deferred: The work that is put off, and the reason; None if nothing is. With it, nothing is planned again.
        is_put_off: Whether all work on the table is put off.
        was_dropped: Whether the table was dropped after it was planned.
        is_damaged: Whether a step found a file missing or corrupt: then older versions may be needed, and all stay.
    """

    plan: MaintenancePlan
    results: Sequence[str] = ()
    lost: int = 0
    done: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    receipts: Sequence[Mapping[str, Any]] = ()
    after: Mapping[str, int] = field(default_factory=dict)
    health_after: Mapping[str, float] = field(default_factory=dict)
    deferred: str | None = None
    is_put_off: bool = False
    was_dropped: bool = False
    is_damaged: bool = False

    def plus(self, *, lost: int = 0, **numbers: int) -> MaintenanceOutcome:
        """This outcome with numbers of further work."""
        done = {**self.done, **{name: self.done.get(name, 0) + number for name, number in numbers.items()}}
        return replace(self, done=done, lost=self.lost + lost)

    def failed(self, step: str, error: Exception | str) -> MaintenanceOutcome:
        """This outcome with the error of a further step; the others go on."""
        named = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        is_damaged = self.is_damaged or isinstance(error, CorruptFileError | ObjectNotFoundError)
        return replace(self, error="; ".join(filter(None, (self.error, f"{step}: {named}"))), is_damaged=is_damaged)


def survey(
    dataset: lance_core.LanceDataset,
    asset: str,
    policy: LanceMaintenancePolicy,
    partition_columns: Sequence[str] = (),
    max_unindexed_fragments: int | None = None,
    *,
    versions: Sequence[int] | None = None,
) -> tuple[MaintenancePlan, list[CompactionTask]]:
    """Survey a table: its health, and the rewrites that are due, from the newest manifest and an old one.

    Args:
        dataset: The table.
        asset: The asset's key.
        policy: The policy for the table.
        partition_columns: The columns by which the table is partitioned.
        max_unindexed_fragments: The most fragments that zone maps on these columns may leave uncovered; None if no zone
            maps are kept.
        versions: The existing versions in ascending order; None to list them.
    """
    health = measure(dataset, policy, versions=versions)
    indexed_columns = [] if max_unindexed_fragments is None or not policy.refresh_indices else list(partition_columns)
    lacking = columns_without_zone_map(dataset, indexed_columns, max_unindexed_fragments=max_unindexed_fragments or 0)
    oldest = _expired(dataset, health, policy)
    stale = [name for name, share in health.unindexed.items() if share and policy.refresh_indices]
    left = [name for name in stale if not is_extended_here(dataset, name)]
    options = policy.compaction_options()
    tasks = list(Compaction.plan(dataset, options).tasks)
    due, first = [name for name in stale if name not in left], list[str]()
    if due:
        tasks, first = rewrites_due(dataset, tasks, options, due)
    plan = MaintenancePlan(
        asset=asset,
        uri=dataset.uri,
        policy=policy,
        version=dataset.version,
        branch=dataset.branch,
        before=health.numbers(),
        health=health.metadata(),
        problems=health.problems(policy),
        num_tasks=len(tasks),
        cleanup_due=oldest is not None,
        expired_bytes=_bytes_left_behind(oldest, dataset),
        indices_due=bool(lacking or due),
        indices_left=left,
        indices_first=first,
        partition_columns=indexed_columns,
        max_unindexed_fragments=max_unindexed_fragments or 0,
    )
    return plan, tasks


def _expired(
    dataset: lance_core.LanceDataset, health: TableHealth, policy: LanceMaintenancePolicy
) -> lance_core.LanceDataset | None:
    """The oldest version if cleanup is due: there are more versions than are kept, and it is too old. Else None."""
    if not policy.cleans_up or health.versions <= max(1, policy.retain_versions or 1):
        return None
    return expired_version(dataset, health.oldest, policy)


def expired_version(
    dataset: lance_core.LanceDataset, versions: Sequence[int], policy: LanceMaintenancePolicy
) -> lance_core.LanceDataset | None:
    """A version if it is too old, by the commit of the version that followed it; else None.

    Args:
        dataset: The table.
        versions: The number of the version, and that of the next version that exists.
        policy: The policy for the table.
    """
    try:
        version = dataset.checkout_version(versions[0])
        if policy.age is not None and version.timestamp >= ago(policy.age):
            return None  # it was replaced later than it was committed
        following = dataset.checkout_version(versions[1])
    except VersionNotFoundError:  # another cleanup is running
        return None
    except CorruptFileError:  # the cleanup names it, and knows its time
        return dataset
    replaced = max(version.timestamp, following.timestamp)
    return version if policy.age is None or replaced < ago(policy.age) else None


def with_cleanup_of(
    oldest: lance_core.LanceDataset | None, dataset: lance_core.LanceDataset, plan: MaintenancePlan
) -> MaintenancePlan:
    """The plan with a cleanup that removes versions from `oldest` on; without a cleanup if `oldest` is None."""
    return replace(plan, cleanup_due=oldest is not None, expired_bytes=_bytes_left_behind(oldest, dataset))


def _bytes_left_behind(oldest: lance_core.LanceDataset | None, newest: lance_core.LanceDataset) -> int:
    """The bytes of the data files of a version that the newest one does not have."""
    if oldest is None:
        return 0
    newest_paths = {file.path for fragment in newest.get_fragments() for file in fragment.metadata.files}
    files = (file for fragment in oldest.get_fragments() for file in fragment.metadata.files)
    return sum(file.file_size_bytes or 0 for file in files if file.path not in newest_paths)


def rewrite(dataset: lance_core.LanceDataset, task: CompactionTask) -> RewriteResult | None:
    """Run one task; None if its version was cleaned up, because somebody else has done the task."""
    try:
        return task.execute(dataset)
    except VersionNotFoundError:
        return None


def run_here(dataset: lance_core.LanceDataset, tasks: Sequence[CompactionTask]) -> list[RewriteResult]:
    """Run tasks one after the other in this process; a task whose version was cleaned up has no result."""
    return [result for task in tasks if (result := rewrite(dataset, task)) is not None]


def commit(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    properties: Mapping[str, str],
    *,
    rewriter: Rewriter = run_here,
    storage_options: Mapping[str, str] | None = None,
) -> MaintenanceOutcome:
    """Extend the indices that must be extended first, and commit the results of the rewrites of a plan.

    Args:
        dataset: The table at any version; it moves to the version that was committed.
        outcome: The outcome with the results.
        properties: Transaction properties.
        rewriter: Runs the tasks of further attempts.
        storage_options: The options by which pylance reaches the table.
    """
    results = [RewriteResult.from_json(text) for text in outcome.results]
    # Rewrites that failed are not tried again here: the table is finished without them.
    missing, are_joined = 0 if outcome.deferred or outcome.error else outcome.plan.num_tasks - len(results), False
    if results and outcome.plan.indices_first:
        sizes = index_bytes(dataset)
        # `refresh_indices` retries indices that were not extended here, and reports them.
        done = extend_indices(dataset, outcome.plan.indices_first, properties, storage_options)
        outcome = _with_grown_indices(dataset, outcome.plus(indices_refreshed=done.refreshed), sizes)
        rebased_results = rebase_results(dataset, results)
        outcome = outcome.plus(bytes_read=_bytes_read(results) - _bytes_read(rebased_results))
        results, missing, are_joined = rebased_results, missing + len(results) - len(rebased_results), done.are_joined
    outcome = _commit_all(dataset, outcome, results, properties, missing=missing, rewriter=rewriter)
    return _rewrite_all(dataset, outcome, properties, rewriter) if are_joined else outcome


def _rewrite_all(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    properties: Mapping[str, str],
    rewriter: Rewriter,
    **options: Any,
) -> MaintenanceOutcome:
    """Plan the current version, run the rewrites and commit them; do nothing if work was put off before."""
    if outcome.deferred:
        return outcome
    tasks = Compaction.plan(dataset, {**outcome.plan.policy.compaction_options(), **options}).tasks
    if not tasks:
        return outcome
    outcome, results = _rewrite_within_budget(dataset, outcome, tasks, rewriter)
    missing = 0 if outcome.deferred else len(tasks) - len(results)
    return _commit_all(dataset, outcome, results, properties, missing=missing, rewriter=rewriter, **options)


def _commit_all(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    results: Sequence[RewriteResult],
    properties: Mapping[str, str],
    *,
    missing: int,
    rewriter: Rewriter,
    **options: Any,
) -> MaintenanceOutcome:
    """Commit results; while a writer has changed the fragments of some, plan and rewrite the table again.

    A further attempt runs the tasks that fit into the rest of the run's budget; the others are put off.

    Args:
        dataset: The table; it moves to the version that was committed.
        outcome: The outcome so far.
        results: The results to commit first.
        properties: Transaction properties.
        missing: The number of tasks without a result.
        rewriter: Runs the tasks of further attempts.
        **options: Options of the compaction besides those of the policy.
    """
    compaction_options = {**outcome.plan.policy.compaction_options(), **options}
    lost = 0
    # `retrying` does not fit: an attempt with conflicts commits its other tasks, and only the rest is planned again.
    for attempt in range(ATTEMPTS):
        outcome, skipped = _commit(dataset, results, outcome, properties)
        lost = missing + skipped
        if not lost or outcome.deferred or outcome.error:
            break
        if attempt + 1 < ATTEMPTS:
            time.sleep(backoff(attempt + 1, first=0.2, longest=_LONGEST_PAUSE_S))
            dataset.checkout_latest()
            tasks = Compaction.plan(dataset, compaction_options).tasks
            outcome, results = _rewrite_within_budget(dataset, outcome, tasks, rewriter)
            missing = 0 if outcome.deferred else len(tasks) - len(results)
    return outcome.plus(lost=lost)


def _rewrite_within_budget(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    tasks: Sequence[CompactionTask],
    rewriter: Rewriter,
) -> tuple[MaintenanceOutcome, list[RewriteResult]]:
    """Run the tasks for which the budget has bytes and time left; the outcome has those that are put off."""
    left = outcome.plan.bytes_left(outcome.done)
    fitting_tasks = [] if time_is_up(outcome.plan.deadline) else fitting(tasks, left)
    if len(fitting_tasks) == len(tasks):
        return outcome, rewriter(dataset, tasks)
    if time_is_up(outcome.plan.deadline):
        reason = f"max_duration: the time was up before {len(tasks):,} rewrites began again"
    else:
        reason = not_fitting(tasks, fitting_tasks, f"{left:,} that are left for further attempts")
    return replace(outcome, deferred=reason), rewriter(dataset, fitting_tasks)


def _commit(
    dataset: lance_core.LanceDataset,
    results: Sequence[RewriteResult],
    outcome: MaintenanceOutcome,
    properties: Mapping[str, str],
) -> tuple[MaintenanceOutcome, int]:
    """Commit the results that no writer has made void; returns the outcome, and the number of void results."""
    outcome = outcome.plus(
        bytes_read=_bytes_read(results),
        bytes_written=_file_bytes(record for result in results for record in result.new_records),
    )
    try:
        metrics = commit_what_fits(dataset, results, properties)
    except CommitConflictError:
        return outcome, len(results)
    outcome = outcome.plus(fragments_removed=metrics.fragments_removed, fragments_added=metrics.fragments_added)
    extended = without_zone_maps(dataset, metrics.indices_extended)
    if extended:
        outcome = outcome.plus(indices_refreshed=len(extended), indices_not_refreshed=0)
    return outcome, metrics.tasks_skipped


def _bytes_read(results: Iterable[RewriteResult]) -> int:
    """The bytes of the data files that rewrites have read."""
    return _file_bytes(record for result in results for record in result.original_records)


def _file_bytes(fragments: Iterable[Any]) -> int:
    """The bytes of the data files of fragments; files without a recorded size count as 0."""
    return sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)


def materialize_deletions(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    properties: Mapping[str, str],
    *,
    rewriter: Rewriter = run_here,
) -> MaintenanceOutcome:
    """Rewrite the remaining fragments that have a larger share of deleted rows than the policy allows."""
    return _rewrite_all(dataset, outcome, properties, rewriter, deletions_only=True)


def refresh_indices(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str] | None = None,
    *,
    rewriter: Rewriter = run_here,
) -> tuple[MaintenanceOutcome, list[str]]:
    """Create the zone maps that are due, and extend indices to the rows that they do not cover.

    Pylance, if it is installed (the extra `search`), extends indices for vector and full-text search.

    Args:
        dataset: The table.
        outcome: The outcome so far.
        properties: Transaction properties.
        storage_options: The options by which pylance reaches the table.
        rewriter: Rewrites fragments that can be merged only after the extension.

    Returns:
        The outcome, and one sentence for each index that was not extended.
    """
    plan, problems, are_joined = outcome.plan, list[str](), False
    sizes = index_bytes(dataset)
    try:
        zone_maps = index_partitions(
            dataset,
            plan.partition_columns,
            max_unindexed_fragments=plan.max_unindexed_fragments,
            transaction_properties=properties,
        )
    except (LanceError, OSError) as error:
        zone_maps, outcome = [], outcome.failed(_REFRESH, error)
        dataset.checkout_latest()
    if zone_maps:
        outcome = outcome.plus(indices_refreshed=len(zone_maps))
    due = []
    if plan.policy.refresh_indices:
        due = [name for name, share in measure(dataset, plan.policy).unindexed.items() if share]
    if due:
        done = extend_indices(dataset, due, properties, storage_options)
        problems, are_joined = done.problems, done.are_joined
        outcome = outcome.plus(lost=done.lost, indices_refreshed=done.refreshed, indices_not_refreshed=len(problems))
        for failure in done.failures:
            outcome = outcome.failed(_REFRESH, failure)
    outcome = _with_grown_indices(dataset, outcome, sizes)
    if are_joined:
        outcome = _rewrite_all(dataset, outcome, properties, rewriter)
    return outcome, problems


def _with_grown_indices(
    dataset: lance_core.LanceDataset, outcome: MaintenanceOutcome, before: Mapping[str, int]
) -> MaintenanceOutcome:
    """The outcome with the bytes of new index segments."""
    grown = sum(size for uuid, size in index_bytes(dataset).items() if uuid not in before)
    return outcome.plus(bytes_written=grown) if grown else outcome


def clean_up(
    dataset: lance_core.LanceDataset, outcome: MaintenanceOutcome, in_use: Mapping[str, int] | None = None
) -> tuple[MaintenanceOutcome, list[str]]:
    """Remove old versions, and the files that only they need; tagged versions, and those that branches need, are kept.

    Only versions up to the surveyed one are counted: versions that the run itself made, such as the reservation of
    fragment ids, are removed as well but do not count.

    If files could not be deleted, a part of the cleanup is put off: the next run begins with this table.

    Args:
        dataset: The table.
        outcome: The outcome so far.
        in_use: Further versions to keep, by a description of their use.

    Returns:
        The outcome, and one sentence for each file that could not be deleted, and for each version that is torn.
    """
    policy = outcome.plan.policy
    if not policy.cleans_up:
        return outcome, []
    stats = cleanup_old_versions(
        dataset,
        cleanup_selectors(outcome.plan, in_use),
        delete_rate_limit=policy.delete_rate_limit,
        delete_concurrency=policy.delete_concurrency,
    )
    done, torn = outcome.plus(**removed(stats)), list(stats.torn_versions)
    if not stats.failures:
        return done, torn
    reason = f"clean_up: {len(stats.failures):,} files could not be deleted; the first: {stats.failures[0]}"
    return replace(
        done.plus(failed_deletes=stats.failed_deletes), deferred="; ".join(filter(None, (done.deferred, reason)))
    ), [*torn, *(f"could not be deleted: {failure}" for failure in stats.failures)]


def cleanup_selectors(plan: MaintenancePlan, in_use: Mapping[str, int] | None) -> Selectors:
    """The selectors of the versions that the cleanup of a plan removes, and of those that are counted."""
    policy = plan.policy
    selectors = select(
        policy.age,
        policy.retain_versions,
        error_if_tagged_old_versions=False,
        in_use=in_use,
        age_from="replacement",
    )
    return replace(selectors, counted_until=plan.version)


def removed(stats: CleanupStats) -> dict[str, int]:
    """The numbers of versions, files and bytes that a cleanup removed."""
    other_files = stats.transaction_files_removed + stats.index_files_removed + stats.deletion_files_removed
    return {
        "versions_removed": stats.old_versions,
        "data_files_removed": stats.data_files_removed,
        "files_removed": stats.old_versions + stats.data_files_removed + other_files,
        "bytes_removed": stats.bytes_removed,
    }


def measured(dataset: lance_core.LanceDataset, outcome: MaintenanceOutcome) -> MaintenanceOutcome:
    """The outcome with the numbers of the table after the last step."""
    health = measure(dataset, outcome.plan.policy)
    return replace(outcome, after=health.numbers(), health_after=health.metadata())

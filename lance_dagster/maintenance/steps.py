"""The maintenance of one table, step by step; every step can run in another process, and can be run again.

    survey     the manifest -> numbers, tasks, and whether anything is to be done      (nothing is written)
    rewrite    one task -> new files that nothing refers to yet
    commit     all results of a table -> one Rewrite; what a writer was faster at is planned and rewritten again
    materialize_deletions   what is left of fragments with many deletions -> one Rewrite
    refresh_indices         rows that an index does not cover -> the index; zone maps on partition columns are made
    clean_up   old versions, and the files that only they need, go

Between steps travel plain records of texts and numbers. Upkeep never waits for writers and never delays them: the first
commit wins, and maintenance plans again, at most `ATTEMPTS` times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import lance_core
from lance_core.errors import CommitConflictError, UnsupportedError, VersionNotFoundError
from lance_core.maintenance import (
    Compaction,
    CompactionMetrics,
    CompactionTask,
    RewriteResult,
    columns_without_zone_map,
    commit_what_fits,
    index_partitions,
)
from lance_dagster.health.facts import TableHealth, measure
from lance_dagster.health.policy import LanceMaintenancePolicy

__all__ = [
    "ATTEMPTS",
    "Rewriter",
    "Upkeep",
    "clean_up",
    "commit",
    "materialize_deletions",
    "refresh_indices",
    "rewrite",
    "run_here",
    "survey",
]

ATTEMPTS: Final = 3
"""How often maintenance looks again after writers were faster."""

_PAUSE_S: Final = 0.2

Rewriter = Callable[[lance_core.LanceDataset, Sequence[CompactionTask]], list[RewriteResult]]
"""Runs tasks, in this process or elsewhere."""


@dataclass(kw_only=True)
class Upkeep:
    """The state of the maintenance of one table, which is passed from step to step and can be pickled.

    Attributes:
        asset: The asset's key, parts joined by slashes.
        uri: Its table.
        policy: What to do, as `LanceMaintenancePolicy.to_dict` gives it.
        version: The version that was surveyed.
        before: Numbers of that version.
        health: Its entries for events.
        problems: The thresholds that it exceeded.
        num_tasks: How many rewrites there are to do.
        results: Their results, as JSON.
        cleanup_due: Whether there are versions to remove.
        indices_due: Indices that do not cover all rows.
        partition_columns: The columns on which a zone map is kept.
        most_unindexed: How many fragments may lie outside of one.
        zone_maps_due: Columns of these that have none.
        lost: Rewrites that concurrent commits made void, in the end.
        done: The work that was done, as entries of the event.
        seconds: Time that the steps took.
        error: Why it failed; None while it did not.
    """

    asset: str
    uri: str
    policy: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    before: dict[str, int] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_tasks: int = 0
    results: list[str] = field(default_factory=list)
    cleanup_due: bool = False
    indices_due: list[str] = field(default_factory=list)
    partition_columns: list[str] = field(default_factory=list)
    most_unindexed: int = 0
    zone_maps_due: list[str] = field(default_factory=list)
    lost: int = 0
    done: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None

    @property
    def resolved(self) -> LanceMaintenancePolicy:
        """The policy itself."""
        return LanceMaintenancePolicy(**self.policy)

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do, or to report as failed."""
        return bool(self.num_tasks or self.cleanup_due or self.indices_due or self.zone_maps_due or self.error)

    def count(self, **numbers: int) -> None:
        """Add to what was done."""
        for name, number in numbers.items():
            self.done[name] = self.done.get(name, 0) + number


def survey(
    dataset: lance_core.LanceDataset,
    asset: str,
    policy: LanceMaintenancePolicy,
    partition_columns: Sequence[str] = (),
    most_unindexed: int | None = None,
) -> tuple[Upkeep, list[CompactionTask]]:
    """Survey a table: its health, and the rewrites to do; one old manifest is read beside the newest.

    Args:
        dataset: The table.
        asset: The asset's key.
        policy: What to do.
        partition_columns: The columns by which it is partitioned.
        most_unindexed: How many fragments may lie outside of zone maps on them; None if none are kept.
    """
    found = measure(dataset, policy)
    kept = [] if most_unindexed is None or not policy.refresh_indices else list(partition_columns)
    plan = Compaction.plan(dataset, policy.compaction_options())
    upkeep = Upkeep(
        asset=asset,
        uri=dataset.uri,
        policy=policy.to_dict(),
        version=dataset.version,
        before=found.numbers(),
        health=found.metadata(),
        problems=found.problems(policy),
        num_tasks=len(plan.tasks),
        cleanup_due=_cleanup_is_due(dataset, found, policy),
        indices_due=sorted(name for name, share in found.unindexed.items() if share and policy.refresh_indices),
        partition_columns=kept,
        most_unindexed=most_unindexed or 0,
        zone_maps_due=columns_without_zone_map(dataset, kept, most_uncovered=most_unindexed or 0),
    )
    return upkeep, list(plan.tasks)


def _cleanup_is_due(dataset: lance_core.LanceDataset, found: TableHealth, policy: LanceMaintenancePolicy) -> bool:
    """Whether the oldest version is too old, or there are more than are to be kept."""
    if not policy.cleans_up or found.versions <= max(1, policy.retain_versions or 1):
        return False
    if policy.age is None:
        return True
    try:
        return dataset.checkout_version(found.oldest).timestamp < datetime.now(UTC) - policy.age
    except VersionNotFoundError:
        return False  # somebody else cleans up


def rewrite(dataset: lance_core.LanceDataset, task: str) -> str | None:
    """Do one task; None if its version is gone, because somebody else has done it and cleaned up."""
    try:
        return CompactionTask.from_json(task).execute(dataset).json()
    except VersionNotFoundError:
        return None


def run_here(dataset: lance_core.LanceDataset, tasks: Sequence[CompactionTask]) -> list[RewriteResult]:
    """Do tasks one after the other in this process; those whose version is gone give nothing."""
    return [RewriteResult.from_json(done) for task in tasks if (done := rewrite(dataset, task.json())) is not None]


def commit(
    dataset: lance_core.LanceDataset,
    upkeep: Upkeep,
    properties: Mapping[str, str],
    *,
    rewriter: Rewriter = run_here,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Commit the results of rewrites.

    A result whose fragments a writer has changed meanwhile is dropped, and the table is planned again; what writers
    are faster at each time is counted as lost.

    Args:
        dataset: The table at any version; the handle moves to what was made.
        upkeep: Results, and where the numbers go.
        properties: Texts for the table's history.
        rewriter: Does the tasks of further attempts.
        options: Options of the compaction; None for those of the policy.
    """
    results = [RewriteResult.from_json(text) for text in upkeep.results]
    missing = upkeep.num_tasks - len(results)
    given = upkeep.resolved.compaction_options() if options is None else options
    for attempt in range(ATTEMPTS):
        lost = missing + _commit(dataset, results, upkeep, properties)
        upkeep.lost, missing = lost, 0
        if not lost:
            return
        if attempt + 1 < ATTEMPTS:
            time.sleep(random.uniform(0, _PAUSE_S * 2**attempt))  # noqa: S311 - writers that collide spread out
            dataset.checkout_latest()
            results = rewriter(dataset, Compaction.plan(dataset, given).tasks)


def _commit(
    dataset: lance_core.LanceDataset, results: Sequence[RewriteResult], upkeep: Upkeep, properties: Mapping[str, str]
) -> int:
    """Commit what fits; how many results did not."""
    before = _segments(dataset)
    try:
        metrics = commit_what_fits(dataset, results, properties)
    except CommitConflictError:
        return len(results)
    _count(upkeep, metrics)
    extended = {name for name, _ in _segments(dataset) - before}
    if extended:
        upkeep.count(indices_refreshed=len(extended), indices_not_refreshed=0)
    return metrics.tasks_skipped


def _segments(dataset: lance_core.LanceDataset) -> set[tuple[str, str]]:
    """The segments of indices, by name; not of zone maps, which are counted where they are made for partitions."""
    if not dataset.has_index:
        return set()
    described = [found for found in dataset.describe_indices() if not found.name.startswith("__lance_")]
    return {
        (found.name, str(segment.uuid))
        for found in described
        if found.index_type.upper() != "ZONEMAP"
        for segment in found.segments
    }


def _count(upkeep: Upkeep, metrics: CompactionMetrics) -> None:
    upkeep.count(fragments_removed=metrics.fragments_removed, fragments_added=metrics.fragments_added)


def materialize_deletions(
    dataset: lance_core.LanceDataset,
    upkeep: Upkeep,
    properties: Mapping[str, str],
    *,
    rewriter: Rewriter = run_here,
) -> None:
    """Rewrite fragments of which more is deleted than the policy allows, as far as the compaction has left any."""
    options = {**upkeep.resolved.compaction_options(), "deletions_only": True}
    tasks = Compaction.plan(dataset, options).tasks
    if tasks:
        left = Upkeep(asset=upkeep.asset, uri=upkeep.uri, policy=upkeep.policy)
        left.results = [result.json() for result in rewriter(dataset, tasks)]
        left.num_tasks = len(tasks)
        commit(dataset, left, properties, rewriter=rewriter, options=options)
        upkeep.count(**left.done)
        upkeep.lost += left.lost


def refresh_indices(
    dataset: lance_core.LanceDataset,
    upkeep: Upkeep,
    properties: Mapping[str, str],
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Make the zone maps that are due, and extend indices to the rows that they do not cover.

    Indices for vector and full-text search are extended by pylance where it is installed (the extra `search`).

    Yields what could not be done, in words.

    Args:
        dataset: The table.
        upkeep: What is known of it, which is counted on.
        properties: Texts for the table's history.
        storage_options: How pylance reaches the table.
    """
    policy = upkeep.resolved
    most = upkeep.most_unindexed
    made = index_partitions(dataset, upkeep.partition_columns, most_uncovered=most, transaction_properties=properties)
    if made:
        upkeep.count(indices_refreshed=len(made))
    due = [name for name, share in measure(dataset, policy).unindexed.items() if share]
    if not policy.refresh_indices or not due:
        return
    refreshed = 0
    for name in due:
        try:
            dataset.optimize.optimize_indices(index_names=[name], transaction_properties=properties)
            refreshed += 1
        except UnsupportedError as error:
            problem = _extend_by_pylance(dataset, name, storage_options)
            if problem is None:
                refreshed += 1
            else:
                yield f"index {name!r} was not refreshed: {error}; {problem}"
        except CommitConflictError as error:
            upkeep.lost += 1
            yield f"index {name!r} was not refreshed, a writer was faster: {error}"
        dataset.checkout_latest()
    upkeep.count(indices_refreshed=refreshed, indices_not_refreshed=len(due) - refreshed)


def _extend_by_pylance(
    dataset: lance_core.LanceDataset, name: str, storage_options: Mapping[str, str] | None
) -> str | None:
    """Have pylance extend an index of a kind that is not built here, such as vector and full-text ones.

    Returns:
        Why it did not, in words; None if it did.
    """
    try:
        import lance  # noqa: PLC0415 - an extra
    except ImportError:
        return "pylance extends it where it is installed: pip install 'lance-dagster[search]'"
    try:
        found = lance.dataset(dataset.uri, storage_options=dict(storage_options or {}) or None)
        found.optimize.optimize_indices(index_names=[name])
    except (OSError, ValueError, RuntimeError, NotImplementedError) as error:
        return f"nor could pylance extend it: {error}"
    return None


def clean_up(dataset: lance_core.LanceDataset, upkeep: Upkeep, in_use: Mapping[str, int] | None = None) -> None:
    """Remove old versions, and the files that only they need; tagged versions and those of branches stay.

    Args:
        dataset: The table.
        upkeep: What is known of it, which is counted on.
        in_use: Further versions to keep, by what names them.
    """
    policy = upkeep.resolved
    if policy.cleans_up:
        stats = dataset.cleanup_old_versions(
            older_than=policy.age,
            retain_versions=policy.retain_versions,
            error_if_tagged_old_versions=False,
            in_use=in_use,
        )
        upkeep.count(
            versions_removed=stats.old_versions, data_files_removed=stats.data_files_removed,
            bytes_removed=stats.bytes_removed,
        )  # fmt: skip

"""Dry runs of maintenance: the numbers of a run that would follow, if nobody writes in between.

Each step corresponds to one of `steps`, on versions that are expected instead of committed. The bytes that rewrites and
indices would write are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import lance_core
from lance_core.maintenance import Compaction, CompactionTask, ExpectedVersions
from lance_dagster.health.facts import measure, without_zone_maps
from lance_dagster.lineage.reader_tags import expired
from lance_dagster.maintenance.indices import expected_extensions
from lance_dagster.maintenance.limits import num_bytes
from lance_dagster.maintenance.steps import MaintenanceOutcome, cleanup_selectors, removed

__all__ = ["dry_run"]

_Expected = ExpectedVersions[lance_core.LanceDataset]


def dry_run(
    dataset: lance_core.LanceDataset,
    outcome: MaintenanceOutcome,
    tasks: Sequence[CompactionTask],
    in_use: Mapping[str, int] | None = None,
) -> MaintenanceOutcome:
    """The outcome that the steps would have; nothing is written.

    Args:
        dataset: The table at the version that was surveyed.
        outcome: The outcome of its survey, within the budget of the run.
        tasks: The rewrites that fit into the budget.
        in_use: Further versions to keep, by a description of their use.
    """
    if outcome.is_put_off or not outcome.plan.is_due:
        return replace(outcome, after=outcome.plan.before)
    expected = ExpectedVersions(dataset)
    if tasks and outcome.plan.indices_first:
        outcome = outcome.plus(indices_refreshed=expected_extensions(expected, outcome.plan.indices_first))
    outcome = _rewritten(expected, outcome, tasks)
    if not outcome.deferred:
        options = {**outcome.plan.policy.compaction_options(), "deletions_only": True}
        outcome = _rewritten(expected, outcome, Compaction.plan(expected.dataset, options).tasks)
    outcome = _with_indices_refreshed(expected, outcome)
    if outcome.plan.policy.cleans_up:
        selectors = replace(cleanup_selectors(outcome.plan, in_use), ignored_tags=frozenset(expired(dataset)))
        outcome = outcome.plus(**removed(expected.explain_cleanup(selectors)))
    numbers = measure(expected.dataset, outcome.plan.policy, count_versions=False).numbers()
    left = {"versions": expected.num_versions(outcome.plan.before["versions"])}
    expected_numbers = {name: numbers[name] for name in ("fragments", "rows", "deleted_rows")}
    return replace(outcome, after={**expected_numbers, **left})


def _rewritten(expected: _Expected, outcome: MaintenanceOutcome, tasks: Sequence[CompactionTask]) -> MaintenanceOutcome:
    """The outcome after rewrites, with the indices that their commit extends."""
    if not tasks:
        return outcome
    metrics = expected.compact(tasks)
    outcome = outcome.plus(
        bytes_read=num_bytes(tasks),
        fragments_removed=metrics.fragments_removed,
        fragments_added=metrics.fragments_added,
    )
    extended = without_zone_maps(expected.dataset, metrics.indices_extended)
    return outcome.plus(indices_refreshed=len(extended), indices_not_refreshed=0) if extended else outcome


def _with_indices_refreshed(expected: _Expected, outcome: MaintenanceOutcome) -> MaintenanceOutcome:
    """The outcome after the zone maps and indices that are due."""
    plan = outcome.plan
    zone_maps = expected.index_partitions(plan.partition_columns, max_unindexed_fragments=plan.max_unindexed_fragments)
    if zone_maps:
        outcome = outcome.plus(indices_refreshed=len(zone_maps))
    due = []
    if plan.policy.refresh_indices:
        due = [name for name, share in measure(expected.dataset, plan.policy).unindexed.items() if share]
    if due:
        refreshed = expected_extensions(expected, due)
        outcome = outcome.plus(indices_refreshed=refreshed, indices_not_refreshed=len(due) - refreshed)
    return outcome

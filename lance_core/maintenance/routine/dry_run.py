"""Dry runs of maintenance: the numbers of a run that would follow, if nobody writes in between.

Each step corresponds to one of `steps`, on versions that are expected instead of committed. The bytes that rewrites and
indices would write are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.expected_versions import ExpectedVersions
from lance_core.maintenance.routine.ages import find_expiry, find_old_fragments
from lance_core.maintenance.routine.budget import sum_bytes
from lance_core.maintenance.routine.declared import find_stale_indices, survey_declared
from lance_core.maintenance.routine.expected_indices import expect_due_actions, expect_early_actions
from lance_core.maintenance.routine.health import drop_zone_maps, measure
from lance_core.maintenance.routine.indices import count_expected_extensions
from lance_core.maintenance.routine.report import MaintenanceReport
from lance_core.maintenance.routine.steps import add_expired_rows, choose_further_tasks
from lance_core.maintenance.routine.survey import cleanup_selectors, count_removed, find_reader_age
from lance_core.verbs.context.handle import Handle
from lance_core.verbs.refs.readers import Readers

_Expected = ExpectedVersions[Handle]


def foresee(dataset: Handle, report: MaintenanceReport, in_use: Mapping[str, int] | None = None) -> MaintenanceReport:
    """The report that the steps would give; nothing is written.

    Args:
        dataset: The table at the version that was surveyed.
        report: The report of its survey, with the rewrites that fit into the budget of the run.
        in_use: Further versions to keep, by a description of their use.
    """
    plan, policy, tasks = report.plan, report.plan.policy, report.tasks
    report = replace(report, tasks=(), after=plan.health)
    if report.is_put_off or not plan.is_due or plan.health is None:
        report = report.plus(indices_not_refreshed=len(plan.indices_left)) if plan.indices_left else report
        return report if report.is_put_off else report.check_indices(plan.indices_missing, None)
    expected: _Expected = ExpectedVersions(dataset)
    apart = [fragment.id for fragment in find_old_fragments(dataset, policy, plan.move_before)]  # as they move
    expiry = find_expiry(dataset, policy, plan.expire_before)
    if expiry is not None and expiry.rows:
        expected.delete(expiry.rows)
        report = add_expired_rows(dataset, report, expiry.num_rows)
    if tasks and plan.indices_first:
        report = report.plus(indices_refreshed=count_expected_extensions(expected, plan.indices_first))
    if tasks and plan.segments_first:
        report = expect_early_actions(expected, report)
    report = _add_rewrites(expected, report, tasks)
    if plan.rows_to_expire:
        report = _plan_rewrites(expected, report, apart_fragment_ids=apart)
    report = _plan_rewrites(expected, report, deletions_only=True)
    report = _add_refreshed_indices(expected, report, apart)
    if policy.cleans_up:
        expired_tags = frozenset(Readers(dataset._refs).list_older_than(find_reader_age(dataset)))  # noqa: SLF001 - same library
        selectors = replace(cleanup_selectors(plan, in_use), ignored_tags=expired_tags)
        report = report.plus(**count_removed(expected.explain_cleanup(selectors)))
    after = measure(expected.dataset, policy, count_versions=False)
    return replace(report, after=replace(after, bytes=None, versions=expected.num_versions(plan.health.versions)))


def _plan_rewrites(expected: _Expected, report: MaintenanceReport, **options: Any) -> MaintenanceReport:
    """The report after the rewrites that a further plan has, as far as the budget has bytes left for them."""
    if report.deferred:
        return report
    tasks = Compaction.plan(expected.dataset, report.plan.policy.compaction_options(**options)).tasks
    fitting_tasks, report = choose_further_tasks(tasks, report)
    return _add_rewrites(expected, report, fitting_tasks)


def _add_rewrites(expected: _Expected, report: MaintenanceReport, tasks: Sequence[CompactionTask]) -> MaintenanceReport:
    """The report after rewrites, with the indices that their commit extends."""
    if not tasks:
        return report
    metrics = expected.compact(tasks)
    report = report.plus(
        bytes_read=sum_bytes(tasks),
        fragments_removed=metrics.fragments_removed,
        fragments_added=metrics.fragments_added,
    )
    extended = drop_zone_maps(expected.dataset, metrics.indices_extended)
    return report.plus(indices_refreshed=len(extended), indices_not_refreshed=0) if extended else report


def _add_refreshed_indices(expected: _Expected, report: MaintenanceReport, apart: Sequence[int]) -> MaintenanceReport:
    """The report after the zone maps and indices that are due, and the rewrites that these allow."""
    plan = report.plan
    zone_maps = expected.index_partitions(plan.partition_columns, max_unindexed_fragments=plan.max_unindexed_fragments)
    if zone_maps:
        report = report.plus(indices_refreshed=len(zone_maps))
    declared = survey_declared(expected.dataset, plan.policy, base=expected.base)
    health, faults = measure(expected.dataset, plan.policy), {} if plan.health is None else plan.health.faults
    # What shows old words is lost in the fragments of expected rewrites.
    kept_faults = faults.keys() - (plan.indices_first if plan.num_tasks else ())
    health = replace(health, unindexed={**health.unindexed, **dict.fromkeys(kept_faults, 1.0)})
    due = find_stale_indices(health, plan.policy, declared)
    if due:
        refreshed = count_expected_extensions(expected, dict.fromkeys(due))
        report = report.plus(indices_refreshed=refreshed, indices_not_refreshed=len(due) - refreshed)
    version = expected.dataset.version
    report = expect_due_actions(expected, report)
    if expected.dataset.version > version:
        report = _plan_rewrites(expected, report, apart_fragment_ids=apart)
    if plan.files_to_move:
        report = report.plus(files_moved=plan.files_to_move, bytes_moved=plan.bytes_to_move)
    return report.plus(row_ids_migrated=1) if plan.row_ids_due else report

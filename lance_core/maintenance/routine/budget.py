"""The budget of a run: the work that is done now, and the work that is put off.

benefit   SEEK bytes for each fragment that a rewrite saves     opening a fragment costs about as much
          + bytes of deleted rows that a rewrite leaves out
          + bytes of rows that an index does not cover
          + bytes of files of the oldest version that the newest version does not have, if cleanup is due
cost      bytes of the data files that are rewritten + SEEK
rank      tables that the previous run put off come first, then tables with more benefit per cost
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from lance_core.maintenance.compaction.tasks import CompactionTask
from lance_core.maintenance.routine.policy import MaintenanceBudget
from lance_core.maintenance.routine.report import MaintenanceReport

SEEK: Final = 1024 * 1024
"""The number of bytes that cost about as much to read as opening a file."""


def time_is_up(deadline: float | None) -> bool:
    """Whether a time, in seconds since 1970, has passed."""
    return deadline is not None and time.time() >= deadline


def choose_tasks_that_fit(tasks: Sequence[CompactionTask], left: int | None) -> list[CompactionTask]:
    """The tasks that fit into the remaining bytes, those that merge the most fragments per byte first.

    Args:
        tasks: The tasks.
        left: The bytes that tasks may read; None for no limit.
    """
    fitting_tasks = []
    for task in sorted(tasks, key=lambda task: (task.num_bytes + SEEK) / max(1, len(task.raw))):
        if left is None or task.num_bytes <= left:
            fitting_tasks.append(task)
            left = None if left is None else left - task.num_bytes
    return fitting_tasks


def explain_put_off(tasks: Sequence[CompactionTask], fitting_tasks: Sequence[CompactionTask], left: str) -> str:
    """The reason for which tasks are put off.

    Args:
        tasks: All tasks.
        fitting_tasks: The tasks that fit.
        left: A description of the remaining bytes.
    """
    return (
        f"max_bytes_rewritten: {len(tasks) - len(fitting_tasks):,} of {len(tasks):,} rewrites, "
        f"{sum_bytes(tasks) - sum_bytes(fitting_tasks):,} bytes, do not fit into the {left}"
    )


def sum_bytes(tasks: Sequence[CompactionTask]) -> int:
    """The bytes of the data files that tasks read."""
    return sum(task.num_bytes for task in tasks)


def fit_budget(
    due: Sequence[MaintenanceReport], budget: MaintenanceBudget, put_off_before: Collection[str] = ()
) -> list[MaintenanceReport]:
    """The work of a run that fits into its budget; a report has the reason for which some of its work is put off.

    Without limits all work stays, in the order of the survey. With limits it is in the order of its rank. A table whose
    tasks do not fit has none, and is put off if nothing else is due. A table that failed already does not count.

    Args:
        due: Tables with their tasks.
        budget: The limits; the time begins now.
        put_off_before: The URIs of tables for which the previous run put off some work.
    """
    if budget == MaintenanceBudget():
        return list(due)
    left, tables, work = budget.max_bytes_rewritten, 0, list[MaintenanceReport]()
    for report in sorted(due, key=lambda report: (report.plan.uri not in put_off_before, -_rank(report))):
        if report.error is not None:
            work.append(report)
        elif budget.max_tables is not None and tables >= budget.max_tables:
            reason = f"max_tables: {budget.max_tables:,} tables come first"
            work.append(replace(report.put_off(reason), tasks=(), is_put_off=True))
        else:
            tasks = choose_tasks_that_fit(report.tasks, left)
            left = None if left is None else left - sum_bytes(tasks)
            plan, rest = replace(report.plan, num_tasks=len(tasks)), replace(report, tasks=tasks)
            tables += plan.is_due
            if len(tasks) < len(report.tasks):
                limit = f"{left or 0:,} that are left of {budget.max_bytes_rewritten or 0:,}"
                reason = explain_put_off(report.tasks, tasks, limit)
                rest = replace(rest.put_off(reason), plan=plan, is_put_off=not plan.is_due)
            work.append(rest)
    deadline = None if budget.duration is None else time.time() + budget.duration.total_seconds()
    return [
        replace(report, plan=replace(report.plan, deadline=deadline, max_bytes_rewritten=share))
        for report, share in zip(work, _share_rest(work, left), strict=True)
    ]


def _share_rest(work: Sequence[MaintenanceReport], left: int | None) -> list[int | None]:
    """The bytes that the rewrites of each table may read, including further attempts; None without a limit.

    Tables are worked on in parallel, perhaps by several machines. Therefore the rest of the budget is divided
    beforehand, in proportion to the bytes of the rewrites, or evenly if nothing is rewritten.
    """
    if left is None:
        return [None] * len(work)
    is_idle = not any(report.tasks for report in work)
    parts = [0 if report.is_put_off else int(is_idle) or sum_bytes(report.tasks) for report in work]
    return [
        sum_bytes(report.tasks) + left * part // max(1, sum(parts)) for report, part in zip(work, parts, strict=True)
    ]


def _rank(report: MaintenanceReport) -> float:
    """Benefit per cost; the head of the module has the formula."""
    plan, tasks = report.plan, report.tasks
    if plan.health is None:
        return 0.0
    rows, size = plan.health.rows, plan.health.bytes or 0
    saved = sum(len(task.raw) - 1 for task in tasks)
    deleted = sum(task.num_deleted_rows for task in tasks) * size // max(1, rows + plan.health.deleted_rows)
    unindexed = (plan.health.unindexed_fraction or 0) * size if plan.indices_due else 0
    return (SEEK * saved + deleted + unindexed + plan.expired_bytes) / (sum_bytes(tasks) + SEEK)

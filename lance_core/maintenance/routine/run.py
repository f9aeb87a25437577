"""Runs the steps of maintenance on one table, each on its own: where one fails, the later ones run all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lance_core.errors import DatasetNotFoundError, LanceError
from lance_core.maintenance.compaction.compaction import Compaction
from lance_core.maintenance.routine import steps
from lance_core.maintenance.routine.budget import time_is_up
from lance_core.maintenance.routine.health import measure
from lance_core.maintenance.routine.report import Log, MaintenancePlan, MaintenanceReport
from lance_core.maintenance.routine.steps import StepContext
from lance_core.maintenance.routine.survey import survey_table
from lance_core.verbs.context.handle import Handle

STEPS: Final = ("expire", "commit", "materialize_deletions", "refresh_indices", "move_files", "clean_up")
"""The steps after the rewrites, in order: functions of `steps`."""

_LIMIT: Final = "max_duration"

OpenTable = Callable[[], Handle]
"""Opens the newest version of a table."""


def finish(report: MaintenanceReport, open_table: OpenTable, context: StepContext | None = None) -> MaintenanceReport:
    """Run the rewrites and all steps of the survey's report on a table, and return the last report.

    Args:
        report: The report of the survey.
        open_table: Opens the newest version of the table.
        context: What the steps need; None for defaults.
    """
    used = StepContext() if context is None else context
    rewrites, _ = steps.rewrite_tasks(open_table, report.tasks, used.rewriter, report.plan.deadline)
    report = report.with_rewrites([rewrites])
    for step in STEPS:
        report = run_step(step, report, open_table, lambda _: used, used.log)
    return report


def run_step(
    step: str, report: MaintenanceReport, open_table: OpenTable, context_of: Callable[[Handle], StepContext], log: Log
) -> MaintenanceReport:
    """Run one of `STEPS`; an error is kept in the report, so that other steps and tables are finished.

    Args:
        step: The step.
        report: The report so far.
        open_table: Opens the newest version of the table.
        context_of: Returns what the step needs, given the table.
        log: Gets errors with their tracebacks.
    """
    plan = report.plan
    if report.was_dropped or plan.policy.dry_run or plan.health is None:  # the survey failed
        return report
    is_idle = {
        "expire": not plan.rows_to_expire,
        "commit": not (plan.num_tasks or plan.row_ids_due or plan.rows_to_expire),
        "move_files": plan.move_before is None,
    }
    if is_idle.get(step):
        return report
    if step == "clean_up" and report.is_damaged:
        return report.failed(step, "all versions stay, as an older one may be needed in place of the damaged files")
    started, before = time.monotonic(), 0
    dataset: Handle | None = None
    try:
        dataset = open_table()
        before = dataset.version
        report = _run_step(step, report, dataset, context_of)
    except Exception as error:
        if dataset is not None:  # the step may have committed before it failed
            report = report.with_step(report, step, (before, dataset.version), time.monotonic() - started)
        reason = explain_drop(open_table)
        if reason is None:
            log.exception("%s: %s failed", plan.table, step)
            report = report.failed(step, error)
        else:
            log.info("%s: the table was dropped, or given other ids, before %s: %s", plan.table, step, reason)
            report = report.dropped(step, reason)
    return replace(report, seconds=report.seconds + time.monotonic() - started)


def _run_step(
    step: str, report: MaintenanceReport, dataset: Handle, context_of: Callable[[Handle], StepContext]
) -> MaintenanceReport:
    """The report after a step, with a record of it, and after the last step with the table's numbers."""
    before, started = dataset.version, time.monotonic()
    if step != "commit" and time_is_up(report.plan.deadline):
        if _LIMIT not in (report.deferred or "") and _is_due(step, dataset, report.plan):
            report = report.put_off(f"{_LIMIT}: the time was up before {step} began")
    else:
        done: MaintenanceReport = getattr(steps, step)(dataset, report, context_of(dataset))
        report = done.with_step(report, step, (before, dataset.version), time.monotonic() - started)
    return replace(report, after=measure(dataset, report.plan.policy)) if step == "clean_up" else report


def _is_due(step: str, dataset: Handle, plan: MaintenancePlan) -> bool:
    """Whether a step has anything to do on the newest version of the table."""
    if step == "materialize_deletions":
        return bool(Compaction.plan(dataset, plan.policy.compaction_options(deletions_only=True)).tasks)
    newest = survey_table(
        dataset,
        plan.policy,
        partition_columns=plan.partition_columns,
        max_unindexed_fragments=plan.max_unindexed_fragments,
    ).plan
    due = {"expire": newest.rows_to_expire, "move_files": newest.files_to_move or newest.copies_unused}
    due |= {"refresh_indices": newest.indices_due, "clean_up": newest.cleanup_due}
    return bool(due[step])


def explain_drop(open_table: OpenTable) -> str | None:
    """How a table was dropped, or given other ids, since it was planned; None if it was not."""
    try:
        open_table()
    except DatasetNotFoundError as error:
        return str(error)
    except (LanceError, OSError):  # the error of the step is reported instead
        return None
    return None

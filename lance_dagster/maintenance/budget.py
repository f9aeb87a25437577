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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster.health.policy import parse_age
from lance_dagster.maintenance.limits import SEEK, fitting, not_fitting, num_bytes
from lance_dagster.tables.arguments import described

if TYPE_CHECKING:
    from lance_core.maintenance import CompactionTask
    from lance_dagster.maintenance.steps import MaintenanceOutcome
    from lance_dagster.tables.refs import TableRoot

__all__ = [
    "LanceMaintenanceBudget",
    "checked_budget",
    "rank_and_fit",
    "within_budget",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceMaintenanceBudget:
    """The limits of a run; work beyond them is put off, and comes first in the next run.

    Attributes:
        max_bytes_rewritten: The most bytes of data files that all rewrites of the run read.
        max_duration: The time after which no further rewrite or step of a table begins: a string such as "2h", or a
            timedelta.
        max_tables: The most tables that the run works on.

    Raises:
        ValueError: A value is of the wrong type or out of range.
    """

    max_bytes_rewritten: int | None = described(None, "The most bytes that all rewrites of a run read.")
    max_duration: str | timedelta | None = described(
        None, 'The time after which no rewrite or step begins, such as "2h".'
    )
    max_tables: int | None = described(None, "The most tables that a run works on.")

    def __post_init__(self) -> None:
        """Reject invalid values."""
        for name in ("max_bytes_rewritten", "max_tables"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive number or None, not {value!r}")
        if self.max_duration is not None and (self.duration is None or self.duration <= timedelta(0)):
            raise ValueError(f"max_duration must be a positive duration or None, not {self.max_duration!r}")

    @property
    def duration(self) -> timedelta | None:
        """`max_duration` as a timedelta; None for no limit."""
        limit = self.max_duration
        return parse_age(limit) if isinstance(limit, str) else limit

    def changed(self, overrides: Mapping[str, Any]) -> LanceMaintenanceBudget:
        """This budget with some fields changed."""
        return replace(self, **overrides)


def checked_budget(budget: LanceMaintenanceBudget | Mapping[str, Any] | None) -> LanceMaintenanceBudget:
    """The budget for an argument: the budget itself, or one from a mapping of its fields; without limits for None.

    Raises:
        DagsterInvalidDefinitionError: The value is neither a budget nor a mapping of its fields, or a limit is invalid.
    """
    if budget is None or isinstance(budget, LanceMaintenanceBudget):
        return budget or LanceMaintenanceBudget()
    field_names = [field.name for field in fields(LanceMaintenanceBudget)]
    if not isinstance(budget, Mapping) or set(budget) - set(field_names):
        raise dg.DagsterInvalidDefinitionError(
            "budget must be a LanceMaintenanceBudget, or a mapping of its fields "
            f"{', '.join(field_names)}, not {budget!r}"
        )
    try:
        return LanceMaintenanceBudget(**budget)
    except ValueError as error:
        raise dg.DagsterInvalidDefinitionError(f"budget: {error}") from error


def rank_and_fit(
    due: Sequence[tuple[MaintenanceOutcome, list[CompactionTask]]],
    budget: LanceMaintenanceBudget,
    put_off_before: Collection[str],
) -> list[tuple[MaintenanceOutcome, list[CompactionTask]]]:
    """The work of a run in the order of its rank; an outcome has the reason for which some work is put off.

    A table whose tasks do not fit has none, and is put off if nothing else is due. A table that failed already does not
    count.

    Args:
        due: Tables with their tasks.
        budget: The limits.
        put_off_before: The URIs of tables for which the previous run put off some work.
    """
    ranked = sorted(
        due, key=lambda work_of_table: (work_of_table[0].plan.uri not in put_off_before, -_rank(*work_of_table))
    )
    left, tables, work = budget.max_bytes_rewritten, 0, []
    for table, tasks in ranked:
        if table.error is not None:
            work.append((table, tasks))
            continue
        if budget.max_tables is not None and tables >= budget.max_tables:
            work.append((_put_off(table, f"max_tables: {budget.max_tables:,} tables come first"), []))
            continue
        fitting_tasks = fitting(tasks, left)
        left = None if left is None else left - num_bytes(fitting_tasks)
        reason = not_fitting(
            tasks, fitting_tasks, f"{left or 0:,} that are left of {budget.max_bytes_rewritten or 0:,}"
        )
        plan = replace(table.plan, num_tasks=len(fitting_tasks))
        does_nothing = not plan.is_due
        tables += not does_nothing
        if len(fitting_tasks) < len(tasks):
            table = replace(table, plan=plan, deferred=reason, is_put_off=does_nothing)  # noqa: PLW2901 - outcome
        work.append((table, fitting_tasks))
    return work if left is None else _with_shares(work, left)


def _with_shares(
    work: Sequence[tuple[MaintenanceOutcome, list[CompactionTask]]], left: int
) -> list[tuple[MaintenanceOutcome, list[CompactionTask]]]:
    """The work with the bytes that the rewrites of each table may read, including further attempts.

    Tables are worked on in parallel, perhaps by several machines. Therefore the rest of the budget is divided
    beforehand, in proportion to the bytes of the rewrites, or evenly if nothing is rewritten.
    """
    is_idle = not any(tasks for _, tasks in work)
    parts = [0 if table.is_put_off else int(is_idle) or num_bytes(tasks) for table, tasks in work]
    shares = [left * part // max(1, sum(parts)) for part in parts]
    return [
        (replace(table, plan=replace(table.plan, max_bytes_rewritten=num_bytes(tasks) + share)), tasks)
        for (table, tasks), share in zip(work, shares, strict=True)
    ]


def within_budget(
    context: dg.OpExecutionContext,
    root: TableRoot,
    due: Sequence[tuple[MaintenanceOutcome, list[CompactionTask]]],
    budget: LanceMaintenanceBudget,
) -> list[tuple[MaintenanceOutcome, list[CompactionTask]]]:
    """The work of a run that fits into its budget; without a budget all of it, in the order of the survey.

    Args:
        context: The context of the op.
        root: The root whose log records the work that was put off before.
        due: Tables with their tasks.
        budget: The limits.
    """
    from lance_dagster.health.log import open_log, put_off_last  # noqa: PLC0415 - code locations load without lance_core

    if budget == LanceMaintenanceBudget():
        return list(due)
    log = open_log(root.root_uri, root.options)
    chosen = rank_and_fit(due, budget, put_off_last(log) if log is not None else ())
    for table, _ in chosen:
        if table.deferred:
            context.log.info("asset %s: put off: %s", table.plan.asset, table.deferred)
    if budget.duration is None:
        return chosen
    deadline = time.time() + budget.duration.total_seconds()
    return [(replace(table, plan=replace(table.plan, deadline=deadline)), tasks) for table, tasks in chosen]


def _put_off(table: MaintenanceOutcome, reason: str) -> MaintenanceOutcome:
    return replace(table, deferred=reason, is_put_off=True)


def _rank(table: MaintenanceOutcome, tasks: Sequence[CompactionTask]) -> float:
    """Benefit per cost; the head of the module has the formula."""
    plan = table.plan
    rows, size = plan.before.get("rows", 0), plan.before.get("bytes", 0)
    stored = rows + plan.before.get("deleted_rows", 0)
    saved = sum(len(task.raw) - 1 for task in tasks)
    deleted = sum(task.num_deleted_rows for task in tasks) * size // max(1, stored)
    unindexed = plan.health.get("lance/index_unindexed_fraction", 0) * size if plan.indices_due else 0
    return (SEEK * saved + deleted + unindexed + plan.expired_bytes) / (sum(task.num_bytes for task in tasks) + SEEK)

"""The summary of a maintenance run, and observations with numbers to plot.

A run over all tables logs no observation of a healthy table that repeats the newest observation of the asset: 2,000
observations cost more than the survey of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.runs import MAINTAINED
from lance_dagster.maintenance.work import JobSurvey, TableWork
from lance_dagster.tables.branch_policy import BRANCH_TAG

if TYPE_CHECKING:
    from lance_core.maintenance import MaintenanceReport

_SECONDS: Final = "lance/seconds"
PUT_OFF: Final = "lance/put_off"
"""Why work on a table was put off."""

INDEX_WORK: Final = "index_work"
"""The entry of a summary with the work on declared indices, by table."""


def summary_of(surveyed: JobSurvey, tables: Sequence[TableWork]) -> dict[str, Any]:
    """The summary of a run: each table is in one entry, and in a dry run also where something would be put off.

    Args:
        surveyed: The result of `plan`.
        tables: The tables that were worked on.
    """
    reports = [*surveyed.finished, *(work.report for work in sorted(tables, key=lambda work: work.asset))]

    def names(outcome: str, *, is_dry: bool = False) -> list[str]:
        return [
            report.plan.table
            for report in reports
            if outcome in (report.outcome, "any") and report.plan.policy.dry_run is is_dry and report.error is None
        ]

    def reasons(outcome: str) -> dict[str, str | None]:
        return {report.plan.table: report.reason for report in reports if report.outcome == outcome}

    return {
        "done": names("done"),
        "partly_done": reasons("partly done"),
        "skipped": names("skipped"),
        "healthy": names("healthy"),
        "dry_run": names("any", is_dry=True),
        "absent": [*surveyed.absent, *names("absent")],
        "left_alone": surveyed.left_alone,
        "failed": reasons("failed"),
        "put_off": reasons("put off"),
        INDEX_WORK: {report.plan.table: _describe_work(report) for report in reports if report.indices},
    }


def _describe_work(report: MaintenanceReport) -> list[str]:
    """What was done to the declared indices of a table, or in a dry run would be, in words."""
    return [
        f"{work['action']} {work['index']}{' failed' if 'error' in work else ''}: {work.get('error', work['reason'])}"
        for work in report.indices
    ]


def observation_of(work: TableWork) -> dg.AssetObservation:
    """The observation of the work on a table."""
    report, plan = work.report, work.report.plan
    is_dry = plan.policy.dry_run
    before, after = plan.health, report.after or (None if report.was_dropped else plan.health)
    kind = "dry run" if is_dry else report.outcome
    entries: dict[str, Any] = {"lance/maintenance": kind, "dagster/uri": plan.uri}
    if before is not None:
        entries |= {f"lance/{name}_before": number for name, number in before.numbers().items()}
    if before is not None and after is not None:
        entries |= (before if is_dry else after).metadata()
        entries |= {f"lance/{name}_after": number for name, number in after.numbers().items()}
    elif report.was_dropped:
        entries["lance/version"] = report.version_after
    if plan.branch is not None:
        entries[BRANCH_TAG] = plan.branch
    entries |= {f"lance/{name}": number for name, number in report.done.items()}
    entries |= {"lance/tasks": plan.num_tasks, "lance/tasks_lost": report.lost, _SECONDS: report.seconds}
    measured = {} if after is None else {name: dict(recall) for name, recall in after.recall.items() if recall}
    optional_entries = {
        "lance/problems": "; ".join(plan.problems),
        PUT_OFF: report.deferred,
        "lance/index_problems": "; ".join(report.index_problems),
        "lance/index_work": [dict(each) for each in report.indices],
        "lance/index_measurements": measured,
        "lance/expired_rows_in": report.expired_rows_in,
        "lance/expired_partitions": dict(work.expired_partitions),
    }
    for key, value in optional_entries.items():
        if value:
            entries[key] = value if isinstance(value, str) else dg.MetadataValue.json(value)
    owner = next(iter(work.owners), work.asset)
    if owner != work.asset:
        entries[MAINTAINED] = work.asset
    return dg.AssetObservation(dg.AssetKey.from_user_string(owner), metadata=entries)


def repeats_last_observation(instance: dg.DagsterInstance, observation: dg.AssetObservation) -> bool:
    """Whether the newest observation of the asset has the same entries, apart from the seconds."""
    records = instance.fetch_observations(observation.asset_key, limit=1).records
    newest = records[0].asset_observation if records else None
    return newest is not None and _facts(newest) == _facts(observation)


def _facts(observation: dg.AssetObservation) -> dict[str, Any]:
    return {name: value for name, value in observation.metadata.items() if name != _SECONDS}

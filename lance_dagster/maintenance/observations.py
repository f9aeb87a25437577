"""The outcome of each table of a maintenance run, the summary of the run, and observations with numbers to plot.

    failed        a step failed
    skipped       a writer committed before a rewrite or the extension of an index
    put off       work is due, and the run did none of it
    partly done   the run did a part, and put off the rest
    done          all due work is done
    healthy       others did the due work meanwhile: the run changed nothing

A table has one of these outcomes. Its maintenance is finished after `done`, and after `healthy` by the survey.

A run over all tables logs no observation of a healthy table that repeats the newest observation of the asset: 2,000
observations cost more than the survey of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.runs import MAINTAINED
from lance_dagster.tables.branch_policy import BRANCH_TAG

if TYPE_CHECKING:
    from lance_dagster.maintenance.steps import MaintenanceOutcome
    from lance_dagster.maintenance.survey import Survey

__all__ = ["has_work", "is_last", "observation_of", "outcome_of", "summary_of"]

_SECONDS: Final = "lance/seconds"
_WORK: Final = ("fragments_removed", "indices_refreshed", "files_removed", "bytes_removed")


def outcome_of(table: MaintenanceOutcome) -> str:
    """The outcome of a table that was worked on, as the head of the module lists them."""
    if table.error is not None:
        return "failed"
    if table.lost:
        return "skipped"
    if table.deferred is None:
        return "done" if has_work(table) or table.done.get("indices_not_refreshed") else "healthy"
    return "partly done" if has_work(table) else "put off"


def summary_of(surveyed: Survey, tables: Sequence[MaintenanceOutcome]) -> dict[str, Any]:
    """The summary of a run: each table is in one entry, and in a dry run in that of its expected outcome as well.

    Args:
        surveyed: The result of `plan`.
        tables: The outcomes of the tables that were worked on.
    """
    kinds: dict[str, list[MaintenanceOutcome]] = {}
    for table in tables:
        kinds.setdefault("absent" if table.was_dropped and table.error is None else outcome_of(table), []).append(table)
    named = {kind: sorted(outcome.plan.asset for outcome in outcomes) for kind, outcomes in kinds.items()}
    reasons = {kind: {outcome.plan.asset: outcome.deferred for outcome in outcomes} for kind, outcomes in kinds.items()}
    return {
        "done": named.get("done", []),
        "partly_done": {**surveyed.partly_done, **reasons.get("partly done", {})},
        "skipped": named.get("skipped", []),
        "healthy": [*surveyed.healthy, *named.get("healthy", [])],
        "dry_run": surveyed.dry_run,
        "absent": [*surveyed.absent, *named.get("absent", [])],
        "left_alone": surveyed.left_alone,
        "failed": {outcome.plan.asset: outcome.error for outcome in kinds.get("failed", [])},
        "put_off": {**surveyed.put_off, **reasons.get("put off", {})},
    }


def has_work(table: MaintenanceOutcome) -> bool:
    """Whether anything was done; rewrites that a writer made void do not count."""
    return any(table.done.get(name) for name in _WORK)


def observation_of(
    table: MaintenanceOutcome, kind: str, after: Mapping[str, int], health: Mapping[str, float]
) -> dg.AssetObservation:
    """The observation of the work on a table.

    Args:
        table: The plan and the outcome.
        kind: An outcome, or "dry run".
        after: Numbers of the table after the run, or after a run that would follow the dry run.
        health: Entries about the version after the run.
    """
    plan = table.plan
    entries: dict[str, Any] = {"lance/maintenance": kind, "dagster/uri": plan.uri, **health}
    if plan.branch is not None:
        entries[BRANCH_TAG] = plan.branch
    for name, number in plan.before.items():
        entries[f"lance/{name}_before"] = number
        if name in after:
            entries[f"lance/{name}_after"] = after[name]
    entries |= {f"lance/{name}": number for name, number in table.done.items()}
    entries |= {"lance/tasks": plan.num_tasks, "lance/tasks_lost": table.lost, _SECONDS: table.seconds}
    if plan.problems:
        entries["lance/problems"] = "; ".join(plan.problems)
    if table.deferred:
        entries["lance/put_off"] = table.deferred
    owner = next(iter(plan.owners), plan.asset)
    if owner != plan.asset:
        entries[MAINTAINED] = plan.asset
    return dg.AssetObservation(dg.AssetKey.from_user_string(owner), metadata=entries)


def is_last(instance: dg.DagsterInstance, observation: dg.AssetObservation) -> bool:
    """Whether the newest observation of the asset has the same entries, apart from the seconds."""
    records = instance.fetch_observations(observation.asset_key, limit=1).records
    newest = records[0].asset_observation if records else None
    return newest is not None and _facts(newest) == _facts(observation)


def _facts(observation: dg.AssetObservation) -> dict[str, Any]:
    return {name: value for name, value in observation.metadata.items() if name != _SECONDS}

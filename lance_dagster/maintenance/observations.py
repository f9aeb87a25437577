"""Observations of the work, with numbers that Dagster plots.

A run over all tables adds no observation of a healthy one that repeats the newest observation of the asset: 2,000 of
them cost more than the survey of the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.runs import MAINTAINED

if TYPE_CHECKING:
    from lance_dagster.maintenance.steps import MaintenanceOutcome

__all__ = ["has_work", "is_last", "observation_of", "outcome_of"]

_SECONDS: Final = "lance/seconds"
_WORK: Final = ("fragments_removed", "indices_refreshed", "files_removed", "bytes_removed")


def outcome_of(table: MaintenanceOutcome) -> str:
    """What became of a table that was worked on; the head of `summary` lists it."""
    if table.error is not None:
        return "failed"
    if table.lost:
        return "skipped"
    if table.deferred is None:
        return "done"
    return "partly done" if has_work(table) else "put off"


def has_work(table: MaintenanceOutcome) -> bool:
    """Whether anything was done: rewrites that a writer made void, and the versions of others, are no work."""
    return any(table.done.get(name) for name in _WORK)


def observation_of(
    table: MaintenanceOutcome, kind: str, after: Mapping[str, int], health: Mapping[str, float]
) -> dg.AssetObservation:
    """The observation of the work of a run.

    Args:
        table: What was planned and done.
        kind: An outcome, healthy or dry run.
        after: Numbers of the version that the run left.
        health: Entries about that version.
    """
    plan = table.plan
    entries: dict[str, Any] = {"lance/maintenance": kind, "dagster/uri": plan.uri, **health}
    for name, number in plan.before.items():
        entries |= {f"lance/{name}_before": number, f"lance/{name}_after": after[name]}
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
    """Whether the newest observation of the asset has the same entries, the seconds apart."""
    records = instance.fetch_observations(observation.asset_key, limit=1).records
    newest = records[0].asset_observation if records else None
    return newest is not None and _facts(newest) == _facts(observation)


def _facts(observation: dg.AssetObservation) -> dict[str, Any]:
    return {name: value for name, value in observation.metadata.items() if name != _SECONDS}

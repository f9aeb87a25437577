"""Steps of maintenance that a run puts off because its `max_duration` has passed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lance_core.maintenance import Compaction
from lance_dagster.maintenance import steps

if TYPE_CHECKING:
    import lance_core

__all__ = ["put_off_step"]

_LIMIT: Final = "max_duration"


def put_off_step(
    dataset: lance_core.LanceDataset, table: steps.MaintenanceOutcome, step: str
) -> steps.MaintenanceOutcome:
    """The outcome if a step does not begin; the step counts as put off if it has anything to do.

    Args:
        dataset: The newest version of the table.
        table: The outcome so far.
        step: The step that does not begin.
    """
    if _LIMIT in (table.deferred or "") or not _is_due(dataset, table.plan, step):
        return table
    reason = f"{_LIMIT}: the time was up before {step} began"
    return replace(table, deferred="; ".join(filter(None, (table.deferred, reason))))


def _is_due(dataset: lance_core.LanceDataset, plan: steps.MaintenancePlan, step: str) -> bool:
    if step == "materialize_deletions":
        options = {**plan.policy.compaction_options(), "deletions_only": True}
        return bool(Compaction.plan(dataset, options).tasks)
    left, _ = steps.survey(dataset, plan.asset, plan.policy, plan.partition_columns, plan.max_unindexed_fragments)
    return left.indices_due if step == "refresh_indices" else left.cleanup_due

"""Receipts: the rows that a run appends to the log of maintenance (`lance_dagster.health.log`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import lance_core
from lance_core.times import ago
from lance_dagster.health.log import LOG, SCHEMA, WHOLE
from lance_dagster.health.policy import LanceMaintenancePolicy
from lance_dagster.maintenance import steps
from lance_dagster.maintenance.observations import outcome_of
from lance_dagster.maintenance.survey import Survey
from lance_dagster.tables.location import below_root
from lance_dagster.tables.refs import TableRoot

__all__ = ["append_receipts", "receipt_of", "receipts_of", "record_run"]

_SUMMED = ("bytes_read", "bytes_written", "files_removed", "bytes_removed")
_STATE = ("fragments", "rows", "deleted_rows", "bytes", "versions")


def receipt_of(
    before: steps.MaintenanceOutcome, after: steps.MaintenanceOutcome, **step: Any
) -> steps.MaintenanceOutcome:
    """The outcome after a step with the step's receipt; without a receipt if the step changed nothing.

    Args:
        before: The outcome before the step.
        after: The outcome after the step.
        **step: The name, versions and seconds of the step.
    """
    changes = {name: after.done.get(name, 0) - before.done.get(name, 0) for name in _SUMMED}
    if step["version_before"] == step["version_after"] and not any(changes.values()):
        return after
    return replace(after, receipts=[*after.receipts, {**step, **changes}])


def receipts_of(table: steps.MaintenanceOutcome, outcome: str) -> Iterator[dict[str, Any]]:
    """The rows of a table: one for each step that changed something, and one for the table.

    Args:
        table: The plan and the outcome.
        outcome: One of the outcomes that the head of `observations` lists.
    """
    plan = table.plan
    named = {"table": plan.asset, "uri": lance_core.canonical_uri(plan.uri)}
    yield from ({**named, **receipt} for receipt in table.receipts)
    state, health = table.after or plan.before, table.health_after or plan.health
    lost = f"writers committed before {table.lost:,} rewrites or indices" if table.lost else None
    yield {
        **named,
        **{name: table.done.get(name, 0) for name in _SUMMED},
        **{name: state.get(name) for name in _STATE},
        "unindexed": health.get("lance/index_unindexed_fraction"),
        "step": WHOLE,
        "outcome": outcome,
        "version_before": plan.version or None,
        "version_after": health.get("lance/version"),
        "seconds": table.seconds,
        "reason": table.error or "; ".join(filter(None, (lost, table.deferred))) or None,
    }


def record_run(root: TableRoot, surveyed: Survey, tables: Sequence[steps.MaintenanceOutcome], **run: str) -> None:
    """Append the receipts of a run to the log; after a dry run, do nothing.

    Args:
        root: The root below which the log is.
        surveyed: The result of `plan`.
        tables: The outcomes of the tables that were worked on.
        **run: The columns `run_id` and `job`.
    """
    rows = list(surveyed.receipts)
    for table in tables:
        if not table.was_dropped:
            rows += receipts_of(table, outcome_of(table))
    if rows and not surveyed.policy.dry_run:
        append_receipts(root.root_uri, root.options, rows, surveyed.policy, **run)


def append_receipts(
    root_uri: str,
    options: Mapping[str, str] | None,
    rows: Iterable[Mapping[str, Any]],
    policy: LanceMaintenancePolicy,
    **run: str,
) -> None:
    """Append rows to the log in one commit, and keep the log itself small.

    Args:
        root_uri: The root below which the log is.
        options: The options by which it is reached.
        rows: Rows of `receipts_of`.
        policy: The policy by which the log is compacted, cleaned up and shortened.
        **run: The columns `run_id` and `job`.
    """
    common = {"time": datetime.now(UTC), **run}
    receipts = pa.Table.from_pylist([{**common, **row} for row in rows], schema=SCHEMA)
    storage_options = dict(options or {}) or None
    log = lance_core.write_dataset(receipts, below_root(root_uri, LOG), mode="append", storage_options=storage_options)
    _delete_old(log, policy.age_of_receipts)
    plan, tasks = steps.survey(log, LOG, policy)
    outcome = steps.MaintenanceOutcome(plan=plan)
    if plan.problems and tasks:
        results = [result.json() for result in steps.run_here(log, tasks)]
        outcome = steps.commit(log, replace(outcome, results=results), {})
    if plan.cleanup_due:
        steps.clean_up(log, outcome)


def _delete_old(log: lance_core.LanceDataset, age: timedelta | None) -> None:
    """Delete rows older than `age` if they are more than a tenth of the log, because each deletion is a version."""
    if age is None:
        return
    old = f"time < timestamp '{ago(age).replace(tzinfo=None).isoformat(' ', 'seconds')}'"
    if log.count_rows(old) * 10 > log.count_rows():
        log.delete(old)

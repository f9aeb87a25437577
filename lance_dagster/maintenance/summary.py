"""What became of each table of a run: the summary of the run, and the rows of the log.

    failed        a step of it failed
    skipped       a rewrite or an index lost the race against writers
    put off       something is due, and the run did nothing of it
    partly done   the run did a part, and put the rest off
    done          nothing is left of what was due

A table has one of them. Only `done`, and `healthy` of the survey, say that maintenance of it is finished.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster.maintenance.observations import outcome_of
from lance_dagster.maintenance.targets import failure_of

if TYPE_CHECKING:
    from lance_dagster.maintenance.ops import MaintenanceOps
    from lance_dagster.maintenance.steps import MaintenanceOutcome

__all__ = ["summarize_op"]


def summarize_op(job: "MaintenanceOps") -> dg.OpDefinition:
    """The op that counts the tables, and records the work in the log of maintenance."""

    @job.op("summarize", "Counts tables, and records them in the log; fails, and names them, if any failed.")
    def summarize(context: dg.OpExecutionContext, surveyed: dict[str, Any], tables: list[Any]) -> dict[str, Any]:
        summary = _summary(surveyed, tables)
        failed = summary["failed"]
        try:
            _record(job, context, surveyed, tables)
        except Exception as error:  # with the tables that failed it is named below
            context.log.exception("the log of maintenance could not be written")
            failed["the log of maintenance"] = failure_of("append", error)
        counts = ", ".join(f"{len(names)} {kind.replace('_', ' ')}" for kind, names in summary.items() if names)
        if failed:
            named = "; ".join(f"{asset}: {error}" for asset, error in sorted(failed.items()))
            raise dg.Failure(f"maintenance of {len(failed)} tables failed: {named} (in all: {counts})")
        context.log.info("tables: %s", counts or "none")
        return summary

    return summarize


def _summary(surveyed: Mapping[str, Any], tables: "Sequence[MaintenanceOutcome]") -> dict[str, Any]:
    """The summary of a run: each table stands under one entry, those of a dry run under what it foresees as well.

    Args:
        surveyed: What `plan` found.
        tables: The tables that were worked on.
    """
    kinds: dict[str, list[MaintenanceOutcome]] = {}
    for table in tables:
        kinds.setdefault("absent" if table.is_gone and table.error is None else outcome_of(table), []).append(table)
    named = {kind: sorted(one.plan.asset for one in found) for kind, found in kinds.items()}
    reasons = {kind: {one.plan.asset: one.deferred for one in found} for kind, found in kinds.items()}
    return {
        "done": named.get("done", []),
        "partly_done": {**surveyed["partly done"], **reasons.get("partly done", {})},
        "skipped": named.get("skipped", []),
        "healthy": surveyed["healthy"],
        "dry_run": surveyed["dry run"],
        "absent": [*surveyed["absent"], *named.get("absent", [])],
        "left_alone": surveyed["left alone"],
        "failed": {one.plan.asset: one.error for one in kinds.get("failed", [])},
        "put_off": {**surveyed["put off"], **reasons.get("put off", {})},
    }


def _record(
    job: "MaintenanceOps", context: dg.OpExecutionContext, surveyed: Mapping[str, Any], tables: Sequence[Any]
) -> None:
    """Append what was done to the log of maintenance; a dry run does nothing."""
    from lance_dagster.maintenance.receipts import append_receipts, receipts_of  # noqa: PLC0415 - heavy imports at first use

    rows, root = list(surveyed["receipts"]), job.place(context)
    for table in tables:
        if not table.is_gone:
            rows += receipts_of(table, outcome_of(table))
    if rows and not surveyed["policy"].dry_run:
        run = {"run_id": context.run_id, "job": context.job_name}
        append_receipts(root.root_uri, root.options, rows, surveyed["policy"], **run)

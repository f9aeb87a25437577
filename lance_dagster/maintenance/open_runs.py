"""The runs of a maintenance job that have not ended, and the tables that they work on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

from lance_dagster._context.roots import UNFINISHED
from lance_dagster._context.runs import is_silent
from lance_dagster.maintenance.job import TABLES_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run that has not ended.

    Attributes:
        run_id: The run.
        tables: The tables of the run, by name; empty for all tables of the job.
        is_silent: Whether the run has logged nothing for so long that its process seems to have ended.
    """

    run_id: str
    tables: Sequence[str]
    is_silent: bool

    def covers(self, tables: Sequence[str]) -> bool:
        """Whether the run works on all given tables; an empty sequence stands for all tables of the job."""
        return not self.tables or (bool(tables) and set(tables) <= set(self.tables))


def open_runs(instance: dg.DagsterInstance, job: dg.JobDefinition, silent_after: timedelta) -> list[OpenRun]:
    """The runs of a job that have not ended.

    Args:
        instance: The instance that records the runs.
        job: A job of `build_maintenance_job`.
        silent_after: The time without an event after which a run counts as silent.
    """
    records = instance.get_run_records(filters=dg.RunsFilter(job_name=job.name, statuses=UNFINISHED))
    return [
        OpenRun(
            run_id=record.dagster_run.run_id,
            tables=tables_of_run(record.dagster_run),
            is_silent=is_silent(instance, record, silent_after),
        )
        for record in records
    ]


def tables_of_run(run: dg.DagsterRun) -> Sequence[str]:
    """The tables that the tags or the configuration of a run name; empty if they name none."""
    listed = run.tags.get(TABLES_KEY)
    if listed is not None:
        return list(json.loads(listed))
    plan: Any = run.run_config
    for key in ("ops", "plan", "config", "tables"):
        plan = plan.get(key) if isinstance(plan, dict) else None
    return plan if isinstance(plan, list) else []

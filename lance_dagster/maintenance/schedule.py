"""`build_maintenance_schedule`, and run configurations of maintenance jobs."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from lance_dagster._context.runs import tick_time
from lance_dagster.maintenance.job import LAKE_KEY, TABLES_KEY
from lance_dagster.maintenance.open_runs import open_runs, tables_of_run
from lance_dagster.maintenance.targets import ORDER_TAG

_DAY_MINUTES = 24 * 60


def build_maintenance_schedule(
    job: dg.JobDefinition,
    cron_schedule: str = "0 3 * * *",
    *,
    jitter: timedelta | None = None,
    name: str | None = None,
    execution_timezone: str | None = None,
    silent_after: timedelta = timedelta(hours=1),
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Make a cron schedule of a maintenance job, which by default is stopped until somebody starts it.

    A tick is skipped if a run for the same tables, from an earlier tick or by hand, has not ended.

    Each tick draws the order in which its run works on the tables, so that runs that end early do not always leave out
    the same tables. With a `jitter`, the maintenance of each table begins at a minute of its own within that time after
    the cron schedule, the same minute every day, so that not all tables begin at once. A tick makes up for minutes
    without one, such as those in which no daemon ran.

    Args:
        job: A job of `build_maintenance_job`.
        cron_schedule: The cron schedule, such as "0 3 * * *".
        jitter: The time, in whole minutes, over which the tables are spread; needs a cron schedule with a fixed minute
            and hour.
        name: Name of the schedule; by default `<job>_schedule`.
        execution_timezone: The time zone of the cron schedule; by default UTC.
        silent_after: The time without an event after which an open run counts as killed, so that no tick waits for it.
        default_status: Whether the schedule runs as soon as it is deployed.

    Raises:
        ValueError: The cron schedule cannot be spread over `jitter`, or the job lists its tables when it runs.

    Examples:
        >>> job = lance_dagster.build_maintenance_job(["nyc/flights"])
        >>> lance_dagster.build_maintenance_schedule(job, "0 3 * * *").name
        'lance_maintenance_schedule'
    """
    names = tables_of(job)
    if jitter is not None and has_lake(job):
        raise ValueError(
            f"the job {job.name} lists its tables when it runs, so that jitter cannot spread them; make a job and a "
            "schedule for each part of the root, by include"
        )
    crons = [cron_schedule] if jitter is None else _spread(cron_schedule, jitter)
    zone = ZoneInfo(execution_timezone or "UTC")

    def requests(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick = tick_time(context).astimezone(zone)
        due = [] if jitter is None else _list_due(context, job, tick, crons)
        if jitter is not None and not due:
            yield dg.SkipReason(f"no table is due at {tick:%H:%M}")
            return
        # A context that a test builds has no instance, and so no runs.
        running = [] if context.instance_ref is None else open_runs(context.instance, job, silent_after)
        busy = [run for run in running if not run.is_silent]
        parts = [[name] for name in due] or [[]]  # the empty one stands for all tables
        ready = [part for part in parts if not any(run.covers(part) for run in busy)]
        if not ready:
            covering = next(run for run in busy if run.covers(parts[0]))
            yield dg.SkipReason(f"run {covering.run_id} for the same tables has not ended")
            return
        mine = [name for part in ready for name in part]
        tags = {ORDER_TAG: tick.isoformat(), **({TABLES_KEY: json.dumps(mine)} if mine else {})}
        yield dg.RunRequest(run_config=config_for(mine) if mine else None, tags=tags)

    return dg.ScheduleDefinition(
        name=name or f"{job.name}_schedule",
        job=job,
        cron_schedule=crons if len(crons) > 1 else crons[0],
        execution_fn=requests,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Maintenance of {'all' if has_lake(job) else len(names)} Lance tables.",
    )


def tables_of(job: dg.JobDefinition) -> list[str]:
    """The names of the tables of a maintenance job.

    Raises:
        DagsterInvalidDefinitionError: The job is of another kind.
    """
    entry = job.metadata.get(TABLES_KEY)
    value: Any = entry.value if entry is not None else None
    if not isinstance(value, list | tuple):
        raise dg.DagsterInvalidDefinitionError(f"the job {job.name} does not come from build_maintenance_job")
    return list(value)


def has_lake(job: dg.JobDefinition) -> bool:
    """Whether a maintenance job lists tables below a root."""
    entry = job.metadata.get(LAKE_KEY)
    return entry is not None and bool(entry.value)


def config_for(names: list[str]) -> Mapping[str, Any]:
    """The configuration of a run for some tables of a job."""
    return {"ops": {"plan": {"config": {"tables": names}}}}


def _spread(cron_schedule: str, jitter: timedelta) -> list[str]:
    """One cron schedule for each minute of the jitter.

    Raises:
        ValueError: The cron schedule has no fixed minute and hour, the jitter is less than a minute, or it ends on
            another day than the schedule allows.
    """
    fields = cron_schedule.split()
    count = int(jitter / timedelta(minutes=1)) + 1
    if len(fields) != 5 or not (fields[0].isdecimal() and fields[1].isdecimal()) or count < 2:
        raise ValueError(
            f"{cron_schedule!r} cannot be spread over {jitter}: give a fixed minute and hour, and at least one minute"
        )
    first = int(fields[1]) * 60 + int(fields[0])
    if first + count > _DAY_MINUTES and fields[2:] != ["*", "*", "*"]:
        raise ValueError(f"{cron_schedule!r} cannot be spread over {jitter}, which ends on another day; shorten jitter")
    minutes = [(first + offset) % _DAY_MINUTES for offset in range(count)]
    return [" ".join([str(minute % 60), str(minute // 60), *fields[2:]]) for minute in minutes]


def _list_due(
    context: dg.ScheduleEvaluationContext, job: dg.JobDefinition, tick: datetime, crons: list[str]
) -> list[str]:
    """The tables whose minute has come since the first of the spread cron schedules, and that no run has had since.

    A minute may have no tick: the clocks went forward, or no daemon ran.
    """
    minute, hour = crons[0].split()[:2]
    slot = (tick.hour * 60 + tick.minute - int(hour) * 60 - int(minute)) % _DAY_MINUTES
    due = [name for name in tables_of(job) if int(sha256(name.encode()).hexdigest(), 16) % len(crons) <= slot]
    if context.instance_ref is None:
        return due
    begin = tick.astimezone(UTC) - timedelta(minutes=slot)
    runs = context.instance.get_runs(filters=dg.RunsFilter(job_name=job.name, created_after=begin))
    requested = [tables_of_run(run) for run in runs]
    return [name for name in due if not any(not tables or name in tables for tables in requested)]

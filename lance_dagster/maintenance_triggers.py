"""When upkeep runs: by the clock, or when a table needs it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg

from lance_dagster._context import definition_metadata
from lance_dagster.maintenance import ORDER_TAG, TABLES_KEY
from lance_dagster.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.tables import TableLike, TableRef, TableRoot, table_refs, table_root

__all__ = ["build_maintenance_schedule", "build_maintenance_sensor"]

_DAY_MINUTES = 24 * 60
_OPEN = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_maintenance_schedule(
    job: dg.JobDefinition,
    cron_schedule: str = "0 3 * * *",
    *,
    jitter: timedelta | None = None,
    name: str | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Run a maintenance job by the clock; the schedule is stopped until somebody starts it.

    The tables of a run are worked on in an order that each tick draws anew, so that a run that is cut short does not
    always leave the same ones. With a `jitter` each table has a minute of its own within that time after the tick, the
    same every day, so that not all of them begin at once.

    Args:
        job: From `build_maintenance_job`.
        cron_schedule: When.
        jitter: Whole minutes to spread the tables over; needs a cron schedule with a fixed minute and hour.
        name: Name of the schedule; `<job>_schedule` if not given.
        execution_timezone: Whose clock; UTC if not given.
        default_status: Whether it runs as soon as it is deployed.

    Raises:
        ValueError: the schedule cannot be spread.
    """
    names = _tables_of(job)
    crons = [cron_schedule] if jitter is None else _spread(cron_schedule, jitter)
    zone = ZoneInfo(execution_timezone or "UTC")

    def requests(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        tick = context.scheduled_execution_time.astimezone(zone)
        tags = {ORDER_TAG: tick.isoformat()}
        if jitter is None:
            yield dg.RunRequest(tags=tags)
            return
        slot = _slot(tick, crons[0])
        mine = [name for name in names if int(sha256(name.encode()).hexdigest(), 16) % len(crons) == slot]
        if mine:
            yield dg.RunRequest(run_config=_config(mine), tags={**tags, TABLES_KEY: json.dumps(mine)})
        else:
            yield dg.SkipReason(f"no table has its turn at {tick:%H:%M}")

    return dg.ScheduleDefinition(
        name=name or f"{job.name}_schedule",
        job=job,
        cron_schedule=crons if len(crons) > 1 else crons[0],
        execution_fn=requests,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description=f"Upkeep of {len(names)} Lance tables.",
    )


def build_maintenance_sensor(
    job: dg.JobDefinition,
    tables: Iterable[TableLike] | TableLike,
    policy: LanceMaintenancePolicy | None = None,
    *,
    name: str | None = None,
    io_manager_key: str = "io_manager",
    minimum_interval_seconds: int = 300,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Run a maintenance job for the tables that need it, one run for all that do at a tick.

    A table needs it with too many small fragments, with too large a share of deleted rows, or after too many versions
    since the last time; the policy says how many. Of each table the newest manifest is read, nothing else. A table
    that an open run of the job works on, or that has no new version since it was last asked for, waits.

    Args:
        job: From `build_maintenance_job`, for these tables at least.
        tables: Assets, specs or keys.
        policy: The thresholds; the defaults if it is not given.
        name: Name of the sensor; `<job>_sensor` if not given.
        io_manager_key: The resource that knows where the tables are.
        minimum_interval_seconds: Between two ticks.
        default_status: Whether it runs as soon as it is deployed.

    Raises:
        DagsterInvalidDefinitionError: a table is not one of the job, or its metadata cannot be used.
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    refs = table_refs(tables)
    for ref in refs:
        policy_of(chosen, ref.metadata, where=f"asset {ref.name}")
        if ref.name not in _tables_of(job):
            raise dg.DagsterInvalidDefinitionError(f"asset {ref.name} is no table of the job {job.name}")

    @dg.sensor(
        name=name or f"{job.name}_sensor",
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={io_manager_key},
        description=f"Upkeep of those of {len(refs)} Lance tables that need it.",
    )
    def needed(context: dg.SensorEvaluationContext, **_resources: Any) -> dg.SensorResult | dg.SkipReason:
        root = table_root(getattr(context.resources, io_manager_key))
        last: dict[str, int] = json.loads(context.cursor) if context.cursor else {}
        busy = _busy(context, job)
        due: dict[str, tuple[int, list[str]]] = {}
        for ref in refs:
            found = _needs(context, root, ref, chosen, last.get(ref.name)) if ref.name not in busy else None
            if found is not None:
                due[ref.name] = found
        if not due:
            return dg.SkipReason(f"none of {len(refs)} tables needs upkeep")
        for asset, (_, problems) in due.items():
            context.log.info("%s: %s", asset, "; ".join(problems))
        last |= {asset: version for asset, (version, _) in due.items()}
        names = sorted(due)
        seen = json.dumps([[asset, due[asset][0]] for asset in names])
        request = dg.RunRequest(
            run_key=sha256(seen.encode()).hexdigest(), run_config=_config(names), tags={TABLES_KEY: json.dumps(names)}
        )
        return dg.SensorResult(run_requests=[request], cursor=json.dumps(last))

    return needed


def _needs(
    context: dg.SensorEvaluationContext,
    root: TableRoot,
    ref: TableRef,
    policy: LanceMaintenancePolicy,
    last: int | None,
) -> tuple[int, list[str]] | None:
    """Version of a table that needs upkeep, and why; None if it does not, or cannot be read."""
    from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without lance_core
    from lance_dagster.health import measure  # noqa: PLC0415 - heavy imports at first use

    known = ref if ref.metadata is not None else TableRef(key=ref.key, metadata=definition_metadata(context, ref.key))
    own = policy_of(policy, known.metadata, where=f"asset {ref.name}")
    if own is None:
        return None
    try:
        dataset = root.open_or_none(known)
    except (LanceError, OSError) as error:  # the others are looked at; the next run of the schedule reports it
        context.log.warning("%s cannot be read: %s", ref.name, error)
        return None
    if dataset is None or dataset.version == last:
        return None
    found = measure(dataset, own, count_versions=False)
    since = found.version - (last if last is not None and last < found.version else 0)
    problems = found.problems(own, versions=since, indices=False)
    return (found.version, problems) if problems else None


def _busy(context: dg.SensorEvaluationContext, job: dg.JobDefinition) -> set[str]:
    """The tables that open runs of the job work on; a run that names none works on all."""
    names: set[str] = set()
    for run in context.instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=_OPEN)):
        told = run.tags.get(TABLES_KEY)
        names |= set(json.loads(told)) if told is not None else set(_tables_of(job))
    return names


def _tables_of(job: dg.JobDefinition) -> list[str]:
    entry = job.metadata.get(TABLES_KEY)
    value: Any = entry.value if entry is not None else None
    if not isinstance(value, list | tuple):
        raise dg.DagsterInvalidDefinitionError(f"the job {job.name} does not come from build_maintenance_job")
    return list(value)


def _config(names: list[str]) -> Mapping[str, Any]:
    return {"ops": {"plan": {"config": {"tables": names}}}}


def _spread(cron_schedule: str, jitter: timedelta) -> list[str]:
    """One cron schedule for each minute of the jitter."""
    fields = cron_schedule.split()
    count = int(jitter / timedelta(minutes=1)) + 1
    if len(fields) != 5 or not (fields[0].isdigit() and fields[1].isdigit()) or count < 2:
        raise ValueError(f"{cron_schedule!r} cannot be spread over {jitter}: fixed minute and hour, whole minutes")
    first = int(fields[1]) * 60 + int(fields[0])
    if first + count > _DAY_MINUTES and fields[2:] != ["*", "*", "*"]:
        raise ValueError(f"{cron_schedule!r} cannot be spread over {jitter}: that ends on another day")
    minutes = [(first + offset) % _DAY_MINUTES for offset in range(count)]
    return [" ".join([str(minute % 60), str(minute // 60), *fields[2:]]) for minute in minutes]


def _slot(tick: datetime, first: str) -> int:
    """How many minutes a tick is behind the first one."""
    minute, hour = first.split()[:2]
    return (tick.hour * 60 + tick.minute - int(hour) * 60 - int(minute)) % _DAY_MINUTES

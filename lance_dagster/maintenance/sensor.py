"""`build_maintenance_sensor`: maintenance when a table needs it.

The cursor records for each table the version of the last successful request for maintenance, and the request whose
outcome is open:

    {"nyc/flights": {"done": 17}, "nyc/planes": {"done": 3, "asked": 9, "request": "4be1...", "failures": 2}}

A run that failed is asked for again for the tables that it did not report, at once and then after one, three, seven ...
intervals, at most a day, even if by then they pass no threshold: its last steps may be left. Tables that a run did not
finish, since its budget was spent or another writer committed first, are asked for again at once as long as runs do any
work, and else like those of a run that failed. A run that was canceled is not asked for again, before there is a new
version: a person decided against it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from lance_dagster._context.runs import is_silent, observed_in
from lance_dagster.health.lake import Lake, checked_lake
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.maintenance.job import TABLES_KEY
from lance_dagster.maintenance.open_runs import OpenRun, open_runs
from lance_dagster.maintenance.schedule import config_for, has_lake, tables_of
from lance_dagster.maintenance.targets import MaintenanceTarget, choose_targets, is_left_alone, policy_of_target
from lance_dagster.tables.refs import (
    MAINTENANCE_KEY,
    TableLike,
    TableRef,
    TableRoot,
    is_foreign,
    table_refs,
    table_root,
)

__all__ = ["build_maintenance_sensor"]

REQUEST_TAG: Final = "lance/request"
_LONGEST_WAIT: Final = timedelta(days=1)
_LEFT: Final = frozenset({"put off", "partly done", "skipped"})
"""What a run reports of a table that it did not finish."""
_WORK: Final = frozenset({"done", "partly done"})


@dataclass(slots=True)
class _TableRequest:
    """The cursor's record of one table.

    Attributes:
        done: The version that maintenance was asked for and went well; None for none yet.
        asked: The version that it was asked for last.
        request: The request, as the tag of its run; None if it went well.
        failures: How many runs, one after the other, failed, or had no work done on any table.
        failed_at: When the last of them ended, in seconds since 1970.
        left: How many runs, since the last one that went well, left some of the work.
    """

    done: int | None = None
    asked: int | None = None
    request: str | None = None
    failures: int = 0
    failed_at: float = 0.0
    left: int = 0

    def waits(self, interval: timedelta) -> bool:
        """Whether it is too early to ask again after runs that failed or did nothing."""
        pause = min(interval * (2 ** min(self.failures - 1, 32) - 1), _LONGEST_WAIT) if self.failures else timedelta(0)
        return datetime.now(UTC) < datetime.fromtimestamp(self.failed_at, UTC) + pause

    def settle(self, status: dg.DagsterRunStatus, when: float, kind: str | None, *, has_work: bool) -> None:
        """Note how the requested run ended.

        Args:
            status: Of the run.
            when: It ended.
            kind: What the run reported of the table; None if nothing.
            has_work: Whether it did any work, on whatever table.
        """
        self.request = None
        is_canceled = status is dg.DagsterRunStatus.CANCELED
        if kind in _LEFT and not is_canceled:
            self.left += 1
            if kind == "partly done":
                self.failures, self.failed_at = 0, 0.0
            elif not has_work:
                self.failures, self.failed_at = self.failures + 1, when
        elif kind is None and status is dg.DagsterRunStatus.FAILURE:
            self.failures, self.failed_at = self.failures + 1, when
        else:
            self.failures, self.failed_at, self.left = 0, 0.0, 0
            if kind not in _LEFT and (kind is not None or not is_canceled):
                self.done = self.asked


def build_maintenance_sensor(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    job: dg.JobDefinition,
    tables: Iterable[TableLike] | TableLike = (),
    policy: LanceMaintenancePolicy | None = None,
    *,
    root: str | bool | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    policies: Mapping[str, Any] | None = None,
    name: str | None = None,
    io_manager_key: str = "io_manager",
    minimum_interval_seconds: int = 300,
    silent_after: timedelta = timedelta(hours=1),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Make a sensor that runs a maintenance job for the tables that need it, with at most one run per tick.

    A table needs maintenance if it has too many small fragments, too large a share of deleted rows, or too many
    versions since its last maintenance; the policy has the thresholds. Of each table only the newest manifest is read,
    and of one that is due and has no asset here its history, for the wishes of its owner.
    A table waits while an open run of the job works on it, and while it has no new version since its last
    successful maintenance. A table that a run did not finish is asked for again.

    Args:
        job: From `build_maintenance_job`, for these tables at least.
        tables: Assets, specs or keys; external and observable assets are left alone, as by the job.
        policy: The thresholds; the defaults if it is not given.
        root: As for the job: the tables below a root are listed at each tick.
        include: As for the job.
        exclude: As for the job.
        policies: As for the job.
        name: Name of the sensor; `<job>_sensor` if not given.
        io_manager_key: The resource that knows where the tables are.
        minimum_interval_seconds: Between two ticks.
        silent_after: An open run that has logged no event for that long counts as killed, and its tables no
            longer wait for it. Where that is wrong, both runs finish: one finds the work done.
        default_status: Whether it runs as soon as it is deployed.

    Raises:
        DagsterInvalidDefinitionError: A table is not one of the job, or its metadata cannot be used.

    Examples:
        >>> job = lance_dagster.build_maintenance_job(["nyc/flights"])
        >>> lance_dagster.build_maintenance_sensor(job, ["nyc/flights"]).name
        'lance_maintenance_sensor'
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    lake = checked_lake(root, include, exclude, policies, chosen)
    refs = [ref for ref in table_refs(tables) if lake is not None or not is_foreign(ref)]
    _check_job(job, refs, lake, chosen)

    @dg.sensor(
        name=name or f"{job.name}_sensor",
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={io_manager_key},
        description=f"Maintenance of those of {'all' if lake else len(refs)} Lance tables that need it.",
    )
    def needed(context: dg.SensorEvaluationContext, **_resources: Any) -> dg.SensorResult | dg.SkipReason:
        tables_root = table_root(getattr(context.resources, io_manager_key))
        states = _read(context.cursor)
        _resolve_requests(context, job, states, silent_after)
        targets = choose_targets(context, tables_root, refs, lake)
        running = open_runs(context.instance, job, silent_after)
        policies = {target.ref.name: policy_of_target(context, target, chosen, lake) for target in targets}
        busy = {name for one in running if not one.is_silent for name in one.tables or policies}
        waits = {name for name, state in states.items() if state.waits(timedelta(seconds=minimum_interval_seconds))}
        left_alone = {name for name, own in policies.items() if own is None}
        asked = [target for target in targets if target.ref.name not in busy | waits | left_alone]
        recorded_so = partial(is_left_alone, policy=chosen, lake=lake)
        due, unread = _due(context, tables_root, asked, policies, states, recorded_so)
        _log(context, due, [one for one in running if one.is_silent], silent_after)
        requests = [_request(due, states)] if due else []
        reason = None if due else _reason(list(policies), left_alone=left_alone, busy=busy, waits=waits, unread=unread)
        cursor = _written(states)
        if reason is not None and cursor == (context.cursor or "{}"):
            return dg.SkipReason(reason)
        return dg.SensorResult(run_requests=requests, cursor=cursor, skip_reason=reason)

    return needed


def _check_job(
    job: dg.JobDefinition, refs: Sequence[TableRef], lake: Lake | None, policy: LanceMaintenancePolicy
) -> None:
    """Reject tables that the job does not maintain, and metadata that cannot be used."""
    for ref in refs:
        policy_of(policy, ref.metadata, where=f"asset {ref.name}")
        if ref.name not in tables_of(job):
            raise dg.DagsterInvalidDefinitionError(f"asset {ref.name} is not a table of the job {job.name}")
    if lake is not None and not has_lake(job):
        raise dg.DagsterInvalidDefinitionError(
            f"the job {job.name} looks for no tables below a root; give build_maintenance_job the root as well"
        )


def _due(
    context: dg.SensorEvaluationContext,
    root: TableRoot,
    targets: Sequence[MaintenanceTarget],
    policies: Mapping[str, LanceMaintenancePolicy | None],
    states: dict[str, _TableRequest],
    recorded_so: Callable[..., bool],
) -> tuple[dict[str, tuple[int, list[str]]], set[str]]:
    """Version of each table that needs maintenance, and why; and the tables that cannot be read.

    Args:
        context: The tick.
        root: The tables.
        targets: Those to look at.
        policies: The policy of each by name.
        states: What the cursor knows.
        recorded_so: Whether the owner of a table, which the code location does not know, wants it left alone.
    """
    from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without lance_core

    due, unread = {}, set[str]()
    for target in targets:
        name, own = target.ref.name, policies[target.ref.name]
        if own is None:
            continue
        try:
            need = _needs(context, root, target, own, states.get(name, _TableRequest()), recorded_so)
        except (LanceError, OSError) as error:  # the others are looked at; the next run of the schedule reports it
            context.log.warning("%s cannot be read: %s", name, error)
            unread.add(name)
            continue
        if need is not None:
            due[name] = need
    return due, unread


def _reason(names: Sequence[str], *, left_alone: set[str], busy: set[str], waits: set[str], unread: set[str]) -> str:
    """Why there is no run, in words: each table counts once."""
    looked_at = set(names) - left_alone - busy - waits - unread
    groups = (
        (busy - left_alone, "are in a run that has not ended"),
        (waits - left_alone - busy, "wait after runs that failed or left them"),
        (unread, "cannot be read, as the log of the tick says"),
        (left_alone, "are left alone by their metadata or policy"),
    )
    counts = [(len(group & set(names)), why) for group, why in groups]
    rest = "".join(f"; {count:,} more {why}" for count, why in counts if count)
    return f"none of {len(looked_at):,} tables needs maintenance{rest}"


def _log(
    context: dg.SensorEvaluationContext,
    due: dict[str, tuple[int, list[str]]],
    silent: Sequence[OpenRun],
    silent_after: timedelta,
) -> None:
    """Say why tables are due, and which open runs are not waited for."""
    for asset, (_, problems) in due.items():
        context.log.info("%s: %s", asset, "; ".join(problems))
        for run in silent:
            if run.tables and asset not in run.tables:
                continue
            context.log.warning(
                "%s: the open run %s has logged nothing for %s, its process seems to have ended, and it is not waited "
                "for. Terminate it in the UI",
                asset, run.run_id, silent_after,
            )  # fmt: skip


def _read(cursor: str | None) -> dict[str, _TableRequest]:
    """The cursor; one of an earlier release has the version that maintenance was asked for in the place of a record."""
    records: dict[str, Any] = json.loads(cursor) if cursor else {}
    return {
        name: _TableRequest(**one) if isinstance(one, dict) else _TableRequest(done=one, asked=one)
        for name, one in records.items()
    }


def _written(states: dict[str, _TableRequest]) -> str:
    records = {name: {key: value for key, value in asdict(one).items() if value} for name, one in states.items()}
    return json.dumps(records)


def _request(due: dict[str, tuple[int, list[str]]], states: dict[str, _TableRequest]) -> dg.RunRequest:
    """The one request for all tables that are due; remembered as such."""
    names = sorted(due)
    known = {name: states.get(name, _TableRequest()) for name in names}
    seen = [[name, due[name][0], known[name].failures, known[name].left] for name in names]
    key = sha256(json.dumps(seen).encode()).hexdigest()
    for name in names:
        state = states.setdefault(name, _TableRequest())
        state.asked, state.request = due[name][0], key
    tags = {TABLES_KEY: json.dumps(names), REQUEST_TAG: key}
    return dg.RunRequest(run_key=key, run_config=config_for(names), tags=tags)


def _resolve_requests(
    context: dg.SensorEvaluationContext,
    job: dg.JobDefinition,
    states: dict[str, _TableRequest],
    silent_after: timedelta,
) -> None:
    """Look up the outcome of the requested runs."""
    ends: dict[str, tuple[dg.DagsterRunStatus | None, float, dict[str, str]]] = {}
    for name, state in states.items():
        if state.request is None:
            continue
        if state.request not in ends:
            ends[state.request] = _end(context.instance, job, state.request, silent_after)
        status, when, kinds = ends[state.request]
        if status is not None:
            state.settle(status, when, kinds.get(name), has_work=bool(_WORK & set(kinds.values())))


def _end(
    instance: dg.DagsterInstance, job: dg.JobDefinition, request: str, silent_after: timedelta
) -> tuple[dg.DagsterRunStatus | None, float, dict[str, str]]:
    """How the run of a request ended, when, and what it reported of its tables until then.

    The first is None while it has not ended, and if Dagster has no record of it.
    """
    wanted = dg.RunsFilter(job_name=job.name, tags={REQUEST_TAG: request})
    for record in instance.get_run_records(filters=wanted, limit=1):
        run = record.dagster_run
        if run.is_finished:
            when = record.end_time or record.update_timestamp.replace(tzinfo=UTC).timestamp()
            return run.status, when, _kinds(instance, run.run_id)
        if is_silent(instance, record, silent_after):
            return dg.DagsterRunStatus.FAILURE, 0.0, _kinds(instance, run.run_id)
    return None, 0.0, {}


def _kinds(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """What a run reported of its tables, as the entry of the observation says it."""
    observed = observed_in(instance, run_id)
    return {
        name: str(one.metadata[MAINTENANCE_KEY].value)
        for name, one in observed.items()
        if MAINTENANCE_KEY in one.metadata
    }


def _needs(
    context: dg.SensorEvaluationContext,
    root: TableRoot,
    target: MaintenanceTarget,
    policy: LanceMaintenancePolicy,
    state: _TableRequest,
    recorded_so: Callable[..., bool],
) -> tuple[int, list[str]] | None:
    """Version of a table that needs maintenance, and why; None if it does not."""
    from lance_dagster.health.facts import measure  # noqa: PLC0415 - heavy imports at first use

    if target.table is not None and _is_asked(state, target.table.latest):
        return None
    dataset = target.open(root)
    if dataset is None or _is_asked(state, dataset.version):
        return None
    found = measure(dataset, policy, count_versions=False)
    since = found.version - (state.done if state.done is not None and state.done < found.version else 0)
    problems = found.problems(policy, versions=since, indices=False)
    if state.failures or state.left:
        problems.append("the last run for it did not finish it")
    if not problems or (not target.is_defined and recorded_so(context, dataset, target)):
        return None
    return found.version, problems


def _is_asked(state: _TableRequest, version: int | None) -> bool:
    """Whether maintenance of a version was asked for, and nothing is known to be left."""
    is_open = state.request is not None or not (state.failures or state.left)
    return version is not None and version == state.asked and is_open

"""`build_maintenance_sensor`: runs maintenance for tables that need it.

For each table, the cursor records the version of the last successful request for maintenance, and the request whose run
has not ended:

    {"nyc/flights": {"done": 17}, "nyc/planes": {"done": 3, "asked": 9, "request": "4be1...", "failures": 2}}

After a run that failed, its unreported tables are requested again, at once and then after one, three, seven ...
intervals, at most a day, even if they exceed no threshold by then, because the last steps may be missing. Tables that a
run did not finish, because its budget was spent or another writer committed first, are requested again at once if the
run did any work, and otherwise like tables of a failed run. After a run was canceled, its tables are requested again
only at a new version, because a person decided against the run.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from lance_dagster._context.runs import find_observations, is_silent
from lance_dagster.health.lake import Lake, make_lake
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.maintenance.job import TABLES_KEY
from lance_dagster.maintenance.observations import PUT_OFF
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

REQUEST_TAG: Final = "lance/request"
_LONGEST_WAIT: Final = timedelta(days=1)
_LEFT: Final = frozenset({"put off", "partly done", "skipped"})
"""The outcomes that a run reports for tables that it did not finish."""
_WORK: Final = frozenset({"done", "partly done"})
_Need = tuple[int, str, list[str]]
"""The version of a table that needs maintenance, its identity with the work due on indices, and the reasons."""


@dataclass(slots=True)
class _TableRequest:
    """The cursor's record of one table.

    Attributes:
        done: The last version for which maintenance was requested and succeeded; None if there is none.
        asked: The last version for which maintenance was requested.
        request: The tag of the requested run; None if its outcome is known.
        failures: The number of last consecutive runs that failed, or did no work on any table.
        failed_at: When the last of these runs ended, in seconds since 1970.
        left: The number of runs since the last successful one that did not finish the table.
    """

    done: int | None = None
    asked: int | None = None
    request: str | None = None
    failures: int = 0
    failed_at: float = 0.0
    left: int = 0

    def waits(self, interval: timedelta) -> bool:
        """Whether it is too early for another request after runs that failed or did nothing."""
        pause = min(interval * (2 ** min(self.failures - 1, 32) - 1), _LONGEST_WAIT) if self.failures else timedelta(0)
        return datetime.now(UTC) < datetime.fromtimestamp(self.failed_at, UTC) + pause

    def settle(self, status: dg.DagsterRunStatus, when: float, kind: str | None, *, has_work: bool) -> None:
        """Record the outcome of the requested run.

        Args:
            status: The status of the run.
            when: When the run ended, in seconds since 1970.
            kind: The outcome that the run reported for the table; None if it reported none.
            has_work: Whether the run did any work, on this table or another one.
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
    namespace: Mapping[str, Any] | None = None,
    name: str | None = None,
    io_manager_key: str = "io_manager",
    minimum_interval_seconds: int = 300,
    silent_after: timedelta = timedelta(hours=1),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Make a sensor that runs a maintenance job for the tables that need it, with at most one run per tick.

    A table needs maintenance if it has too many small fragments, too large a share of deleted rows, or too many
    versions since its last maintenance, for which the policy has the thresholds, or if a declared index is missing, is
    to be built again, or misses more than 5 % of the rows. A tick reads only the newest manifest of each
    table, and the history of a table that is due and has no asset here, because its owner may have excluded it. A table
    waits while an open run of the job works on it, and while it has no new version since its last successful
    maintenance. A table that a run did not finish is requested again.

    Args:
        job: A job of `build_maintenance_job` for these tables, or for more.
        tables: Assets, specs or keys; external and observable assets are left alone, as by the job.
        policy: The thresholds; by default those of `LanceMaintenancePolicy()`.
        root: As for the job; the tables below a root are listed at each tick.
        include: As for the job.
        exclude: As for the job.
        policies: As for the job.
        namespace: As for the job.
        name: Name of the sensor; by default `<job>_sensor`.
        io_manager_key: The resource that knows where the tables are.
        minimum_interval_seconds: The shortest time between two ticks, in seconds.
        silent_after: The time without an event after which an open run counts as killed, and its tables no longer wait
            for it. If the run goes on nevertheless, both runs finish: one finds the work done.
        default_status: Whether the sensor runs as soon as it is deployed.

    Raises:
        DagsterInvalidDefinitionError: The job does not have a table or the root, or a policy is invalid.

    Examples:
        >>> job = lance_dagster.build_maintenance_job(["nyc/flights"])
        >>> lance_dagster.build_maintenance_sensor(job, ["nyc/flights"]).name
        'lance_maintenance_sensor'
    """
    chosen = LanceMaintenancePolicy() if policy is None else policy
    lake = make_lake(root, include, exclude, policies, chosen, namespace=namespace)
    refs = [ref for ref in table_refs(tables) if lake is not None or not is_foreign(ref)]
    _check_job(job, refs, lake, chosen)

    @dg.sensor(
        name=name or f"{job.name}_sensor",
        job=job,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={io_manager_key},
        description=f"Starts maintenance for {'all' if lake else len(refs)} Lance tables, where they need it.",
    )
    def needed(context: dg.SensorEvaluationContext, **_resources: Any) -> dg.SensorResult | dg.SkipReason:
        tables_root = table_root(getattr(context.resources, io_manager_key))
        states = _read(context.cursor)
        tick = _Tick(context=context, job=job, root=tables_root, states=states, silent_after=silent_after)
        tick.resolve_requests()
        targets = choose_targets(context, tables_root, refs, lake)
        running = open_runs(context.instance, job, silent_after)
        policies, invalid = dict[str, LanceMaintenancePolicy | None](), set[str]()
        for target in targets:
            try:
                policies[target.ref.name] = policy_of_target(context, target, chosen, lake)
            except dg.DagsterInvalidDefinitionError as error:  # assets of one table declare what does not fit together
                context.log.warning("%s", error)
                invalid.add(target.ref.name)
        busy = {name for run in running if not run.is_silent for name in run.tables or policies}
        waits = {name for name, state in states.items() if state.waits(timedelta(seconds=minimum_interval_seconds))}
        left_alone = {name for name, table_policy in policies.items() if table_policy is None}
        skipped = busy | waits | invalid
        pairs = [(target, policies[target.ref.name]) for target in targets if target.ref.name not in skipped]
        available_targets = [(target, table_policy) for target, table_policy in pairs if table_policy is not None]
        due, unread = tick.find_due(available_targets, partial(is_left_alone, policy=chosen, lake=lake))
        tick.log(due, [run for run in running if run.is_silent])
        requests = [tick.request(due)] if due else []
        reason = (
            None
            if due
            else _reason(list(policies), left_alone=left_alone, busy=busy, waits=waits, unread=unread | invalid)
        )
        cursor = _format_cursor(states)
        if reason is not None and cursor == (context.cursor or "{}"):
            return dg.SkipReason(reason)
        return dg.SensorResult(run_requests=requests, cursor=cursor, skip_reason=reason)

    return needed


def _check_job(
    job: dg.JobDefinition, refs: Sequence[TableRef], lake: Lake | None, policy: LanceMaintenancePolicy
) -> None:
    """Reject tables that the job does not maintain, and invalid metadata.

    Raises:
        DagsterInvalidDefinitionError: The job does not have a table or the root, or metadata is invalid.
    """
    for ref in refs:
        policy_of(policy, ref.metadata, label=f"asset {ref.name}")
        if ref.name not in tables_of(job):
            raise dg.DagsterInvalidDefinitionError(f"asset {ref.name} is not a table of the job {job.name}")
    if lake is not None and not has_lake(job):
        raise dg.DagsterInvalidDefinitionError(
            f"the job {job.name} lists no tables below a root; pass root to build_maintenance_job as well"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tick:
    """One evaluation of the sensor.

    Attributes:
        context: Its context.
        job: The job that maintains the tables.
        root: The root of the IO manager.
        states: The records of the cursor, by table; the methods change them.
        silent_after: The time without an event after which an open run counts as killed.
    """

    context: dg.SensorEvaluationContext
    job: dg.JobDefinition
    root: TableRoot
    states: dict[str, _TableRequest]
    silent_after: timedelta

    def resolve_requests(self) -> None:
        """Look up the outcomes of the requested runs, and record them."""
        ends: dict[str, tuple[dg.DagsterRunStatus | None, float, dict[str, str]]] = {}
        for name, state in self.states.items():
            if state.request is None:
                continue
            if state.request not in ends:
                ends[state.request] = self._find_end(state.request)
            status, when, kinds = ends[state.request]
            if status is not None:
                state.settle(status, when, kinds.get(name), has_work=bool(_WORK & set(kinds.values())))

    def _find_end(self, request: str) -> tuple[dg.DagsterRunStatus | None, float, dict[str, str]]:
        """The status with which the run of a request ended, when it ended, and the outcomes that it reported by table.

        The status is None if the run has not ended, or if Dagster has no record of it.
        """
        instance = self.context.instance
        runs_of_request = dg.RunsFilter(job_name=self.job.name, tags={REQUEST_TAG: request})
        for record in instance.get_run_records(filters=runs_of_request, limit=1):
            run = record.dagster_run
            if run.is_finished:
                when = record.end_time or record.update_timestamp.replace(tzinfo=UTC).timestamp()
                return run.status, when, _kinds(instance, run.run_id)
            if is_silent(instance, record, self.silent_after):
                return dg.DagsterRunStatus.FAILURE, 0.0, _kinds(instance, run.run_id)
        return None, 0.0, {}

    def find_due(
        self, targets: Sequence[tuple[MaintenanceTarget, LanceMaintenancePolicy]], is_excluded: Callable[..., bool]
    ) -> tuple[dict[str, _Need], set[str]]:
        """The tables that need maintenance, and those that cannot be read.

        Args:
            targets: The tables to check, with their policies.
            is_excluded: Returns whether the owner of a table, whose definition is unknown here, has excluded the table.
        """
        from lance_core.errors import LanceError  # noqa: PLC0415 - code locations load without lance_core

        due, unread = {}, set[str]()
        for target, policy in targets:
            name = target.ref.name
            try:
                need = self._find_need(target, policy, is_excluded)
            except (LanceError, OSError) as error:  # must not stop the check of the others
                self.context.log.warning("%s cannot be read: %s", name, error)
                unread.add(name)
                continue
            if need is not None:
                due[name] = need
        return due, unread

    def _find_need(
        self, target: MaintenanceTarget, policy: LanceMaintenancePolicy, is_excluded: Callable[..., bool]
    ) -> _Need | None:
        """Why a table needs maintenance; None if it needs none."""
        from lance_core.maintenance import survey_declared  # noqa: PLC0415 - heavy imports
        from lance_core.maintenance.routine.health import measure  # noqa: PLC0415 - heavy imports at first use

        state, branch = self.states.get(target.ref.name, _TableRequest()), self.root.branch_of_job(self.context)
        # Indices can be due at a version that was maintained: another declaration, or the end of a wait.
        is_idle = policy.indices is None or state.request is not None
        if is_idle and target.table is not None and branch is None and _is_requested(state, target.table.latest):
            return None
        dataset = target.open(self.root, branch)
        if dataset is None or (is_idle and _is_requested(state, dataset.version)):
            return None
        core_policy = policy.to_core()
        declared = survey_declared(dataset, core_policy)
        actions = [] if declared is None else declared.find_pressing(core_policy)
        health = measure(dataset, core_policy, count_versions=False)
        since = health.version - (state.done if state.done is not None and state.done < health.version else 0)
        problems = []
        if not _is_requested(state, dataset.version):
            problems = health.problems(core_policy, versions=since, indices=False)
        problems += [f"{action.action} index {action.name!r}: {action.reason}" for action in actions]
        if state.failures or state.left:
            problems.append("the last run did not finish the table")
        if not problems or (not target.is_defined and is_excluded(self.context, dataset, target)):
            return None
        return health.version, dataset.identity + "".join(f" {each.name} {each.action}" for each in actions), problems

    def log(self, due: Mapping[str, _Need], silent: Sequence[OpenRun]) -> None:
        """Log why tables are due, and for which open runs they do not wait."""
        for asset, (_, _, problems) in due.items():
            self.context.log.info("%s: %s", asset, "; ".join(problems))
            for run in silent:
                if run.tables and asset not in run.tables:
                    continue
                self.context.log.warning(
                    "%s: the open run %s has logged nothing for %s, so that its process seems to have ended; the table "
                    "no longer waits for it. Terminate the run in the UI",
                    asset, run.run_id, self.silent_after,
                )  # fmt: skip

    def request(self, due: Mapping[str, _Need]) -> dg.RunRequest:
        """The one request for all tables that are due, which their records keep."""
        names = sorted(due)
        known_states = {name: self.states.get(name, _TableRequest()) for name in names}
        # A table that was dropped and made again has the versions of the first one, but other identities.
        facts = [[name, *due[name][:2], known_states[name].failures, known_states[name].left] for name in names]
        key = sha256(json.dumps(facts).encode()).hexdigest()
        for name in names:
            state = self.states.setdefault(name, _TableRequest())
            state.asked, state.request = due[name][0], key
        tags = {TABLES_KEY: json.dumps(names), REQUEST_TAG: key}
        return dg.RunRequest(run_key=key, run_config=config_for(names), tags=tags)


def _reason(names: Sequence[str], *, left_alone: set[str], busy: set[str], waits: set[str], unread: set[str]) -> str:
    """The reason for which no run is requested; each table counts once."""
    looked_at = set(names) - left_alone - busy - waits - unread
    groups = (
        (busy - left_alone, "are in a run that has not ended"),
        (waits - left_alone - busy, "wait after runs that failed or did no work"),
        (unread, "cannot be read, see the log of the tick"),
        (left_alone, "are excluded by their metadata or policy"),
    )
    counts = [(len(group & set(names)), why) for group, why in groups]
    rest = "".join(f"; {count:,} more {why}" for count, why in counts if count)
    return f"none of {len(looked_at):,} tables needs maintenance{rest}"


def _read(cursor: str | None) -> dict[str, _TableRequest]:
    """The records of the cursor; a cursor of an earlier release has the requested version in place of each record."""
    records: dict[str, Any] = json.loads(cursor) if cursor else {}
    return {
        name: _TableRequest(**record) if isinstance(record, dict) else _TableRequest(done=record, asked=record)
        for name, record in records.items()
    }


def _format_cursor(states: dict[str, _TableRequest]) -> str:
    records = {name: {key: value for key, value in asdict(state).items() if value} for name, state in states.items()}
    return json.dumps(records)


def _kinds(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """The outcomes that a run reported in observations, by table."""
    observed = find_observations(instance, run_id)
    kinds = {}
    for name, observation in observed.items():
        if MAINTENANCE_KEY in observation.metadata:
            kind = str(observation.metadata[MAINTENANCE_KEY].value)
            # A table that has only problems with declared indices is finished: they are due again after their wait.
            kinds[name] = "done" if kind == "partly done" and PUT_OFF not in observation.metadata else kind
    return kinds


def _is_requested(state: _TableRequest, version: int | None) -> bool:
    """Whether maintenance of a version was requested, and its run has not ended or finished the table."""
    is_open = state.request is not None or not (state.failures or state.left)
    return version is not None and version == state.asked and is_open

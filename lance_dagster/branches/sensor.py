"""`build_branch_sensor`: promotes or discards the branches of backfills and runs that have ended.

    backfill or run       checks on the branch      what is done
    ---------------       --------------------      ------------
    succeeded             blocking ones passed,     a run of the job that promotes, once, and again after each newer
                          none failed               result of a check, for which the job may have waited; with
                                                    auto_promote=False an observation of the table, once
    succeeded             one failed                on_failure: an observation of the table, once, a run of the job that
                                                    discards, or nothing
    succeeded             a blocking one has not    an observation of the table, once, unless on_failure is "ignore"
                          passed, none failed
    failed                                          on_failure
    canceled                                        on_cancel, with the same choices
    running, unknown                                nothing

The state of a backfill is that of its newest re-execution. While a run of it, or a re-execution of such a run, is under
way or about to be retried, it is running.

A promoted branch is also discarded when nothing was committed to it for `promoted_ttl`, a week by default, and any
branch when nothing was committed to it for `ttl`, if one is given, unless its backfill or run is under way. Discarding
a branch also deletes the tags of its promotion.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import dagster as dg

from lance_dagster._context.definitions import blocking_checks
from lance_dagster._context.roots import find_newest_backfill, list_unfinished_runs, root_of_run, waits_for_retry
from lance_dagster.tables.branch_policy import BRANCH_TAG, only_branch
from lance_dagster.tables.refs import TableLike, TableRef, group_by_table, is_foreign, table_refs, table_root

if TYPE_CHECKING:
    import lance_core
    from lance_dagster.branches.check_results import BranchChecks

Ending = Literal["report", "discard", "ignore"]
State = Literal["running", "succeeded", "failed", "canceled", "unknown"]

PROMOTED_TTL = timedelta(days=7)
"""The default time that a promoted branch is kept after its last commit."""

_BACKFILL = "dagster/backfill/"
_RUN = "dagster/run/"
_BACKFILL_STATES: Mapping[str, State] = {
    "COMPLETED_SUCCESS": "succeeded",
    "COMPLETED": "succeeded",
    "COMPLETED_FAILED": "failed",
    "FAILED": "failed",
    "CANCELED": "canceled",
}
_RUN_STATES: Mapping[str, State] = {"SUCCESS": "succeeded", "FAILURE": "failed", "CANCELED": "canceled"}

_STATE_KEY: Final = "lance/branch_state"
"""Why a branch is reported or discarded: an entry of the observation, or a tag of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableBranch:
    """A branch of a table."""

    ref: TableRef
    main: "lance_core.LanceDataset"
    branch: str
    is_promoted: bool
    committed: datetime
    version: int
    branch_id: str | None


def build_branch_sensor(  # noqa: PLR0913 - each is a choice of its own, most by keyword only
    tables: Iterable[TableLike] | TableLike,
    jobs: tuple[dg.JobDefinition, dg.JobDefinition],
    *,
    auto_promote: bool = True,
    require_checks: bool = True,
    on_failure: Ending = "report",
    on_cancel: Ending = "report",
    ttl: timedelta | None = None,
    promoted_ttl: timedelta | None = PROMOTED_TTL,
    name: str = "lance_branches",
    io_manager_key: str = "io_manager",
    minimum_interval_seconds: int = 30,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Make a sensor that promotes, discards or reports the branches of tables; the head of the module has the rules.

    Args:
        tables: Assets, specs or keys; branches of external and observable assets are left alone, as by the jobs.
        jobs: The jobs of `build_branch_jobs` for these tables, or for more.
        auto_promote: Whether branches are promoted; otherwise a branch that is ready is reported.
        require_checks: Whether checks count: a failed one, and a blocking one that has not passed on the branch as it
            is. The latter only reports the branch, whatever `on_failure` says.
        on_failure: What to do with a branch if its backfill, its run or one of its checks failed.
        on_cancel: What to do with a branch if its backfill or run was canceled.
        ttl: How long a branch is kept after its last commit; None for ever.
        promoted_ttl: How long a promoted branch is kept after its last commit; None for ever.
        name: Name of the sensor.
        io_manager_key: The resource that knows where the tables are.
        minimum_interval_seconds: The shortest time between two ticks, in seconds.
        default_status: Whether the sensor runs as soon as it is deployed.

    Raises:
        ValueError: `on_failure` or `on_cancel` has an unknown value.
        DagsterInvalidDefinitionError: A reference to a table is invalid.

    Examples:
        >>> jobs = lance_dagster.build_branch_jobs(["nyc/flights"])
        >>> lance_dagster.build_branch_sensor(["nyc/flights"], jobs, auto_promote=False).name
        'lance_branches'
    """
    for argument, ending in (("on_failure", on_failure), ("on_cancel", on_cancel)):
        if ending not in get_args(Ending):
            raise ValueError(f"{argument} must be one of {get_args(Ending)}, not {ending!r}")
    refs = table_refs(tables)
    promote, discard = jobs
    rules = _Rules(
        promote=promote.name if auto_promote else None,
        discard=discard.name,
        require_checks=require_checks,
        on_failure=on_failure,
        on_cancel=on_cancel,
        ttl=ttl,
        promoted_ttl=promoted_ttl,
    )

    @dg.sensor(
        name=name,
        jobs=[promote, discard],
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={io_manager_key},
        description=f"Promotes or discards the branches of {len(refs)} Lance tables.",
    )
    def branches(context: dg.SensorEvaluationContext, **_resources: Any) -> dg.SensorResult | dg.SkipReason:
        return _run_tick(context, refs, getattr(context.resources, io_manager_key), rules)

    return branches


def _run_tick(
    context: dg.SensorEvaluationContext, refs: list[TableRef], resource: Any, rules: "_Rules"
) -> dg.SensorResult | dg.SkipReason:
    """Look at all branches once; the cursor holds the keys of the reports that were made."""
    reported = set(json.loads(context.cursor)) if context.cursor else set()
    by_branch: dict[str, list[_TableBranch]] = {}
    for table_branch in _list_branches(context, refs, resource):
        by_branch.setdefault(table_branch.branch, []).append(table_branch)
    requests: list[dg.RunRequest] = []
    events: list[dg.AssetObservation] = []
    report_keys: set[str] = set()
    busy = _Busy.of(context.instance) if by_branch else _Busy(runs=frozenset(), backfills=frozenset())
    for branch, where in by_branch.items():
        state = _state(context.instance, branch, busy)
        action, reason, newest_result = rules.decide(context, branch, where, state)
        # A branch that was discarded and begun again has the versions of the first one, but another identifier.
        key = f"{action}:{branch}:{'.'.join(f'{head.version}@{head.branch_id}' for head in where)}"
        if action in ("promote", "discard"):
            job = rules.promote if action == "promote" else rules.discard
            why = {_STATE_KEY: reason} if reason else {}
            key += f":{newest_result}" if newest_result else ""  # the job may have rejected it for an older one
            requests.append(dg.RunRequest(run_key=key, job_name=job, tags={BRANCH_TAG: branch} | why))
        elif action == "report":
            key += f":{reason}"
            report_keys.add(key)
            if key not in reported:
                events += _make_reports(context.instance, where, reason)
    if not requests and not events and report_keys == reported:
        return dg.SkipReason(f"{len(by_branch)} branches, none to promote, discard or report")
    return dg.SensorResult(run_requests=requests, asset_events=events, cursor=json.dumps(sorted(report_keys)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The rules by which branches are promoted, discarded or reported."""

    promote: str | None
    discard: str
    require_checks: bool
    on_failure: Ending
    on_cancel: Ending
    ttl: timedelta | None
    promoted_ttl: timedelta | None

    def decide(
        self, context: dg.SensorEvaluationContext, branch: str, where: list[_TableBranch], state: State
    ) -> tuple[str, str, str]:
        """What to do about a branch ("promote", "discard", "report", "ignore"), why, and the newest result of a check.

        The result is named only if the branch is promoted.
        """
        idle = datetime.now(UTC) - max(table_branch.committed for table_branch in where)
        promoted = all(table_branch.is_promoted for table_branch in where)
        limits = [limit for limit in (self.ttl, self.promoted_ttl if promoted else None) if limit is not None]
        if limits and idle > min(limits) and state != "running":
            return "discard", f"nothing was committed to it for {idle}", ""
        if promoted:
            return "ignore", "it was promoted", ""
        if state == "canceled":
            return self.on_cancel, "its backfill or run was canceled", ""
        if state == "failed":
            return self.on_failure, "its backfill or run failed", ""
        if state != "succeeded":
            return "ignore", "its backfill or run is under way or unknown", ""
        due = [table_branch for table_branch in where if not table_branch.is_promoted]  # as in the job that promotes
        checks = self._read_check_results(context, branch, due)
        failed, missing = (
            [name for table_checks in checks for name in table_checks.names(failed=which)] for which in (True, False)
        )
        if failed:
            return self.on_failure, f"checks failed on it: {', '.join(failed)}", ""
        if missing:  # they may still run, so that the branch is never discarded for it
            action = "ignore" if self.on_failure == "ignore" else "report"
            return action, f"blocking checks have not passed on it as it is: {', '.join(missing)}", ""
        if self.promote is None:
            return "report", "it is ready to be promoted", ""
        number, event = max((table_checks.newest_result for table_checks in checks), default=(0, 0))
        return "promote", "", f"{number}.{event}" if number else ""

    def _read_check_results(
        self, context: dg.SensorEvaluationContext, branch: str, where: list[_TableBranch]
    ) -> "list[BranchChecks]":
        """What checks say about the branch of each table."""
        from lance_dagster.branches.check_results import check_branch  # noqa: PLC0415 - heavy imports at first use

        if not self.require_checks:
            return []
        blocking = partial(blocking_checks, context)
        return [
            check_branch(context.instance, main, branch, [ref.key for ref in refs], blocking)
            for main, refs in group_by_table((table_branch.ref, table_branch.main) for table_branch in where)
        ]


def _list_branches(context: dg.SensorEvaluationContext, refs: list[TableRef], resource: Any) -> Iterator[_TableBranch]:
    from lance_dagster.lineage.check_reads import branch_id  # noqa: PLC0415 - heavy imports at first use

    root = table_root(resource)
    only = only_branch(root.branching)
    for asset_ref in refs:
        ref = asset_ref.resolved(context)
        main = None if is_foreign(ref, context) else root.open_or_none(ref)
        if main is None:
            continue
        for branch, description in main.branches.list().items():
            if only not in (None, branch):
                continue
            head = main.checkout_version((branch, None))
            yield _TableBranch(
                ref=ref,
                main=main,
                branch=branch,
                is_promoted="lance.promoted_version" in description["metadata"],
                committed=main.branches.last_commit(branch),
                version=head.version,
                branch_id=branch_id(main, branch),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Busy:
    """The roots of the runs that have not ended."""

    runs: frozenset[str]
    backfills: frozenset[str]

    @classmethod
    def of(cls, instance: dg.DagsterInstance) -> "_Busy":
        """Look up the runs that have not ended."""
        roots = [root_of_run(instance, run) for run in list_unfinished_runs(instance)]
        backfills = frozenset(root.backfill_id for root in roots if root.backfill_id is not None)
        return cls(runs=frozenset(root.run_id for root in roots), backfills=backfills)


def _state(instance: dg.DagsterInstance, branch: str, busy: _Busy) -> State:
    """The state of the backfill or run that writes a branch."""
    if branch.startswith(_BACKFILL):
        return _state_of_backfill(instance, branch.removeprefix(_BACKFILL), branch, busy)
    if branch.startswith(_RUN):
        root = branch.removeprefix(_RUN)
        runs = list(instance.get_runs(filters=dg.RunsFilter(tags={"dagster/root_run_id": root}), limit=1))
        last = runs[0] if runs else instance.get_run_by_id(root)
        if last is None:
            return "unknown"
        if root in busy.runs or waits_for_retry(instance, last):
            return "running"
        return _RUN_STATES.get(last.status.value, "running")
    return "unknown"


def _state_of_backfill(instance: dg.DagsterInstance, backfill_id: str, branch: str, busy: _Busy) -> State:
    """The state of the newest re-execution of a backfill; failed if a run that was re-executed after it failed."""
    newest = find_newest_backfill(instance, backfill_id)
    if newest is None:
        return "unknown"
    state = _BACKFILL_STATES.get(newest.status.value, "running")
    if backfill_id in busy.backfills:
        return "running"
    runs = instance.get_runs(filters=dg.RunsFilter(tags={BRANCH_TAG: branch}))
    last: dict[str, dg.DagsterRun] = {}
    for run in runs:  # newest first
        last.setdefault(run.root_run_id or run.run_id, run)
    if any(waits_for_retry(instance, run) for run in last.values()):
        return "running"
    # Dagster's own re-executions outside of a backfill do not change the backfill's status.
    is_after = [run for run in last.values() if run.parent_run_id and "dagster/backfill" not in run.tags]
    failed = any(run.status.value in ("FAILURE", "CANCELED") for run in is_after)
    return "failed" if failed and state == "succeeded" else state


def _make_reports(
    instance: dg.DagsterInstance, where: list[_TableBranch], reason: str
) -> Iterator[dg.AssetObservation]:
    from lance_dagster.branches.page import describe_branches  # noqa: PLC0415 - code locations load without lance_core

    for table_branch in where:
        metadata: dict[str, Any] = {
            BRANCH_TAG: table_branch.branch,
            _STATE_KEY: reason,
            **describe_branches(table_branch.main, instance, table_branch.ref.key),
        }
        yield dg.AssetObservation(asset_key=table_branch.ref.key, metadata=metadata)

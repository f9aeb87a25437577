"""The step that is running in this process, and facts about runs from the records of the Dagster instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lance_dagster._context.steps import ABSENT, RunFacts, evaluates_checks, facts_of

MAINTAINED = "lance/maintained"
"""Entry of an observation of the asset that owns a maintained table: the table's name in the job, if that differs."""


CLOCK_SKEW = timedelta(hours=1)
"""How far the clocks of the Dagster instance and of the committing machine may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStep:
    """The step that is running in this thread, in the body of an asset or op.

    Attributes:
        instance: The Dagster instance.
        facts: The run and the step.
        assets: The assets that the step materializes.
        resources: Its resources, IO managers among them.
        partitions: The partitions of the run; None without partitions.
        attempt: The number of the step's attempt in the run.
    """

    instance: dg.DagsterInstance
    facts: RunFacts
    assets: frozenset[dg.AssetKey] = frozenset()
    resources: Sequence[Any] = ()
    partitions: Sequence[str] | None = None
    attempt: int = 0


def is_silent(instance: dg.DagsterInstance, record: dg.RunRecord, longer_than: timedelta) -> bool:
    """Whether an unfinished run has logged no event for longer than a given time: its process may have been killed.

    Dagster does not notice that a local process was killed: such a run stays in the state STARTED for ever. A queued
    run is never silent.
    """
    if record.dagster_run.is_finished or record.dagster_run.status is dg.DagsterRunStatus.QUEUED:
        return False
    newest_events = instance.get_records_for_run(record.dagster_run.run_id, limit=1, ascending=False).records
    newest = record.create_timestamp.replace(tzinfo=UTC).timestamp()
    if newest_events:
        newest = newest_events[0].event_log_entry.timestamp
    return _now() - datetime.fromtimestamp(newest, UTC) > longer_than


def tick_time(context: dg.ScheduleEvaluationContext) -> datetime:
    """The time that a schedule is evaluated for; the current time if the context has none."""
    try:
        return context.scheduled_execution_time
    except ABSENT:
        return _now()


def find_observations(instance: dg.DagsterInstance, run_id: str) -> dict[str, dg.AssetObservation]:
    """The newest observation that a run logged of each table, by the table's name in maintenance or the asset's key."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION).records
    seen = [record.asset_observation for record in records]
    return {
        str(observation.metadata[MAINTAINED].value)
        if MAINTAINED in observation.metadata
        else observation.asset_key.to_user_string(): observation
        for observation in seen
        if observation is not None
    }


def _now() -> datetime:
    return datetime.now(UTC)


def plan_materializations(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, events: Sequence[dg.AssetMaterialization]
) -> None:
    """Announce the partitions that the running step will materialize, as Dagster does for a run of assets.

    All partitions count as in progress until the last one is reported. Otherwise an automation tick in between would
    start downstream runs for the first partitions, and again for the rest. Where Dagster lacks this event, nothing is
    announced.
    """
    try:
        # Dagster has no public interface for this event.
        from dagster._core.events import AssetMaterializationPlannedData  # noqa: PLC0415, TID251 - see above
    except ImportError:
        return
    build = getattr(dg.DagsterEvent, "build_asset_materialization_planned_event", None)
    if build is None or not hasattr(context.instance, "report_dagster_event"):
        return
    for event in events:
        if event.partition is not None:
            planned = AssetMaterializationPlannedData(event.asset_key, partition=event.partition)
            running = running_step()
            planned_event = build(context.run.job_name, (running and running.facts.step_key) or "", planned)
            context.instance.report_dagster_event(planned_event, context.run.run_id)


def running_step() -> RunningStep | None:
    """The step that is running in this thread, in the body of an asset or op; None outside of one."""
    try:
        context = dg.OpExecutionContext.get()
        instance, facts = context.instance, facts_of(context.run, context.instance)
    except (dg.DagsterInvariantViolationError, AttributeError):
        return None
    try:
        step = context.get_step_execution_context()
        resources = list(context.resources._asdict().values())
    except (dg.DagsterInvariantViolationError, AttributeError):  # a body that a test calls directly
        return RunningStep(instance=instance, facts=facts)
    assets = getattr(step, "assets_def", None)
    is_partitioned = context.has_partition_key or context.has_partition_key_range
    return RunningStep(
        instance=instance,
        facts=replace(facts, step_key=step.step.key, evaluates_checks=evaluates_checks(step)),
        assets=frozenset(() if assets is None else assets.keys),
        resources=resources,
        partitions=list(context.partition_keys) if is_partitioned else None,
        attempt=context.retry_number,
    )


def attempt_facts(running: RunningStep) -> dict[str, Any]:
    """The facts of a step by which the attempts of one write are recognized, as JSON values.

    `succeeded` lists the successful runs of the chain of re-executions: their writes do not count as attempts.
    """
    facts, instance = running.facts, running.instance
    record, began = facts.record(facts.run_id), facts.record(facts.root_run_id)
    chain = [] if began is None else [began.dagster_run]
    chain += instance.get_runs(filters=dg.RunsFilter(tags={"dagster/root_run_id": facts.root_run_id}))
    return {
        "root_run_id": facts.root_run_id,
        "step_key": facts.step_key,
        "backfill_id": facts.backfill_id,
        "number": 0 if record is None else int(record.storage_id),
        "is_retry": facts.is_retry,
        "since": None if began is None else (began.create_timestamp.replace(tzinfo=UTC) - CLOCK_SKEW).isoformat(),
        "succeeded": [run.run_id for run in chain if run.status is dg.DagsterRunStatus.SUCCESS],
    }

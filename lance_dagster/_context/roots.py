"""The root of a run: what it belongs to, whatever Dagster leaves out of the tags of re-executions.

    run -> its root run (`dagster/root_run_id`) -> the backfill that launched that one (`dagster/backfill`)
        -> the backfill that this one re-executes (`dagster/root_backfill_id`)

A re-execution of a run whose backfill has ended has no tag of the backfill; a re-executed backfill has an id of its
own; and a step that is re-executed by `dg.execute_job` has no tag of its first run at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from lance_dagster._context.steps import RunFacts

_BACKFILL: Final = "dagster/backfill"
_ROOT_BACKFILL: Final = "dagster/root_backfill_id"
_ROOT_RUN: Final = "dagster/root_run_id"
_RUNS_AT_A_TIME: Final = 100
UNFINISHED: Final = [
    status
    for status in dg.DagsterRunStatus
    if status not in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRoot:
    """The root of a run.

    Attributes:
        run_id: The root run; the run itself if it re-executes none.
        backfill_id: The root backfill, which is the first one of a chain of re-executions; None without a backfill.
        tags: The tags of the root run; those of the run itself if the instance has no record of the root run.
        is_known: Whether these are the tags of the root run.
    """

    run_id: str
    backfill_id: str | None
    tags: Mapping[str, str]
    is_known: bool = True


def root_of(facts: RunFacts) -> RunRoot:
    """The root of a run."""
    record = facts.record(facts.root_run_id)
    tags = facts.tags if record is None else record.dagster_run.tags
    return RunRoot(
        run_id=facts.root_run_id,
        backfill_id=_root_backfill(tags),
        tags=tags,
        is_known=record is not None or facts.run_id == facts.root_run_id or facts.instance is None,
    )


def root_of_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> RunRoot:
    """The root of a run that the instance has recorded."""
    root_run_id = run.root_run_id or run.run_id
    first = run if root_run_id == run.run_id else instance.get_run_by_id(root_run_id)
    tags = run.tags if first is None else first.tags
    return RunRoot(run_id=root_run_id, backfill_id=_root_backfill(tags), tags=tags, is_known=first is not None)


def _root_backfill(tags: Mapping[str, str]) -> str | None:
    """The root backfill of a run that a backfill has launched, which passes its own tags on to its runs."""
    return tags.get(_ROOT_BACKFILL) or tags.get("dagster/parent_backfill_id") or tags.get(_BACKFILL)


def find_start_of_root(facts: RunFacts) -> datetime | None:
    """When the root backfill of a run was requested, or else its root run was created; None if that is unknown."""
    if facts.instance is None:
        return None
    root = root_of(facts)
    backfill = None if root.backfill_id is None else facts.instance.get_backfill(root.backfill_id)
    if backfill is not None:
        return datetime.fromtimestamp(backfill.backfill_timestamp, UTC)
    return facts.created_at(root.run_id)


def list_runs_of_root(instance: dg.DagsterInstance, root: RunRoot) -> list[dg.DagsterRun]:
    """The recorded runs of a root: those of its backfill and of re-executions of it, and the re-executions of each."""
    if root.backfill_id is None:
        first = instance.get_run_by_id(root.run_id)
        firsts = [] if first is None else [first]
    else:
        filters = [dg.RunsFilter(tags={tag: root.backfill_id}) for tag in (_BACKFILL, _ROOT_BACKFILL)]
        firsts = [run for each in filters for run in instance.get_runs(filters=each)]
    runs = {run.run_id: run for run in firsts}
    ids = sorted(runs) or [root.run_id]
    for start in range(0, len(ids), _RUNS_AT_A_TIME):
        again = dg.RunsFilter(tags={_ROOT_RUN: ids[start : start + _RUNS_AT_A_TIME]})
        runs.update({run.run_id: run for run in instance.get_runs(filters=again)})
    return list(runs.values())


def list_unfinished_runs(instance: dg.DagsterInstance) -> Sequence[dg.DagsterRun]:
    """The runs that have not ended, queued ones included."""
    return instance.get_runs(filters=dg.RunsFilter(statuses=UNFINISHED))


def waits_for_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster's daemon is about to retry a failed run; it retries none whose backfill has ended."""
    tags = run.tags
    if run.status is not dg.DagsterRunStatus.FAILURE or tags.get("dagster/auto_retry_run_id") is not None:
        return False
    if tags.get("dagster/will_retry", "").lower() != "true":
        return False
    backfill = instance.get_backfill(tags[_BACKFILL]) if _BACKFILL in tags else None
    return _BACKFILL not in tags or (backfill is not None and backfill.status.value == "REQUESTED")


def find_newest_backfill(instance: dg.DagsterInstance, backfill_id: str) -> Any | None:
    """The newest re-execution of a root backfill, or that one itself; None if the instance does not know it.

    Of re-executions that have ended, those count that have launched a run.
    """
    # Dagster has no public interface for backfills that are under way.
    from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus  # noqa: PLC0415, TID251 - see above

    statuses = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
    underway: Iterable[Any] = instance.get_backfills(filters=BulkActionsFilter(statuses=statuses))
    for backfill in underway:  # newest first
        if (backfill.tags or {}).get(_ROOT_BACKFILL) == backfill_id:
            return backfill
    newest = instance.get_runs(filters=dg.RunsFilter(tags={_ROOT_BACKFILL: backfill_id}), limit=1)
    return instance.get_backfill(newest[0].tags.get(_BACKFILL, backfill_id) if newest else backfill_id)


def is_repeated(facts: RunFacts) -> Callable[[dg.AssetKey, str | None, dg.DagsterRun], bool]:
    """A function that returns whether a run, or the backfill that launched it, writes an asset's partition again.

    Its arguments are an asset, a partition, and the earlier run that wrote it. A backfill does not repeat its own runs.
    """
    planned = _find_planned_outputs(facts)
    backfill_id, targets = facts.backfill_id, _match_targets_of_backfill(facts)

    def repeats(key: dg.AssetKey, partition: str | None, writer: dg.DagsterRun) -> bool:
        if (key, partition) in planned or (key, None) in planned:
            return True
        return writer.tags.get(_BACKFILL) != backfill_id and targets(key, partition)

    return repeats


def _find_planned_outputs(facts: RunFacts) -> set[tuple[dg.AssetKey, str | None]]:
    """The assets and partitions that a run writes, by the plan that Dagster has recorded of it."""
    planned: set[tuple[dg.AssetKey, str | None]] = set()
    if facts.instance is None:
        return planned
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    for record in facts.instance.get_records_for_run(facts.run_id, of_type=kind).records:
        event = record.event_log_entry.dagster_event
        data: Any = None if event is None else event.event_specific_data
        if data is None:
            continue
        subset = getattr(data, "partitions_subset", None)
        keys = [data.partition] if subset is None else list(subset.get_partition_keys())
        planned |= {(data.asset_key, key) for key in keys}
    return planned


def _match_targets_of_backfill(facts: RunFacts) -> Callable[[dg.AssetKey, str | None], bool]:
    """A function that returns whether the backfill that launched a run targets an asset's partition."""
    backfill: Any = None
    if facts.instance is not None and facts.backfill_id is not None:
        backfill = facts.instance.get_backfill(facts.backfill_id)
    if backfill is None:
        return lambda _key, _partition: False
    data = getattr(backfill, "asset_backfill_data", None)
    if data is not None:
        pairs = {(pair.asset_key, pair.partition_key) for pair in data.target_subset.iterate_asset_partitions()}
        return lambda key, partition: (key, partition) in pairs
    # A backfill of a job repeats all of its steps, unless it only repeats those that failed or were chosen.
    names = set() if backfill.from_failure or backfill.reexecution_steps else set(backfill.partition_names or ())
    return lambda _key, partition: partition in names

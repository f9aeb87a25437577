"""What the log of a run records besides Dagster's events: what checks read, deferred writes, the begin of overwrites.

    ENGINE_EVENT             step  lance/check_read: {"uri", "branch", "branch_id", "version", "partitions", "wrote"}
    ENGINE_EVENT             step  lance/provenance: {"asset", "partitions", "version", "tags"}
    ENGINE_EVENT             step  lance/begin: {"uri", "version"}
    ASSET_CHECK_EVALUATION   step  passed, severity

An evaluation belongs to the reads of the same attempt of its step. Dagster's evaluations do not say what was read, and
its event of a loaded input has no place for it. An engine event is shown in the log of the run, and on no asset. Of a
write in a run with the tag `dagster/defer_asset_events` Dagster records no event, and so no code version and inputs.
The first attempt of a step records the newest version of the table of each output; a retry, perhaps in another process,
has begun at that version as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from lance_dagster._context.steps import RunFacts

CHECK_READ: Final = "lance/check_read"
PROVENANCE: Final = "lance/provenance"
_BEGIN: Final = "lance/begin"
_TYPES: Final = {
    dg.DagsterEventType.STEP_START,
    dg.DagsterEventType.STEP_RESTARTED,
    dg.DagsterEventType.ENGINE_EVENT,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED,
}

Attempt = tuple[str | None, int]
"""The key of a step, and the number of its attempt in the run, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEvaluation:
    """One result of a check.

    Attributes:
        asset_key: The asset.
        name: The check.
        attempt: The step, and its attempt.
        number: The number of the event in the log of its run.
        passed: Whether the check passed.
        only_warns: Whether a failure is only a warning.
        is_blocking: Whether the check was blocking then.
        partition: The partition for which Dagster keeps the result; None for the whole asset.
    """

    asset_key: dg.AssetKey
    name: str
    attempt: Attempt
    number: int
    passed: bool
    only_warns: bool
    is_blocking: bool
    partition: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLog:
    """The events about checks of one run.

    Attributes:
        planned: The checks that the run was to execute, by asset.
        evaluations: The results, oldest first.
        reads: The tables that attempts of steps read or wrote, oldest first.
    """

    planned: set[tuple[dg.AssetKey, str]] = field(default_factory=set)
    evaluations: list[CheckEvaluation] = field(default_factory=list)
    reads: dict[Attempt, list[Mapping[str, Any]]] = field(default_factory=dict)


def log_entry(facts: RunFacts, name: str, entry: Mapping[str, Any], message: str) -> None:
    """Record an entry in the log of a run, as an engine event of its step.

    Args:
        facts: The run and the step.
        name: `CHECK_READ`: what a step that evaluates checks has read. `PROVENANCE`: what the rows of a write were made
            from, as tags of the event that is deferred.
        entry: What is recorded; the head of the module has its parts.
        message: The same as a sentence.
    """
    # Dagster has no public name for the metadata of an engine event.
    from dagster._core.events import EngineEventData  # noqa: PLC0415, TID251 - see above

    if facts.instance is None or facts.step_key is None:
        return
    facts.instance.report_engine_event(
        message,
        run_id=facts.run_id,
        job_name=facts.job_name or "",
        step_key=facts.step_key,
        engine_event_data=EngineEventData({name: dg.MetadataValue.json(dict(entry))}),
    )


def read_provenance_log(
    instance: dg.DagsterInstance, run_id: str, key: dg.AssetKey
) -> list[tuple[str | None, int, dict[str, str]]]:
    """The partition, version and tags of each deferred write of an asset in a run, oldest first."""
    entries = []
    for _, entry in _read_entries(instance, run_id, PROVENANCE):
        if entry["asset"] == key.to_user_string():
            partitions = [None] if entry["partitions"] is None else entry["partitions"]
            entries += [(partition, entry["version"], dict(entry["tags"])) for partition in partitions]
    return entries


def record_or_find_begin(facts: RunFacts, uri: str, version: int) -> int:
    """Return the newest version of a table as the first attempt of a step began.

    The first attempt records it in the event log of its run, by an engine event; later attempts look it up there.

    Args:
        facts: The run and the step.
        uri: The table.
        version: The version that is the newest now.
    """
    if facts.attempt == 0 or facts.instance is None:
        log_entry(facts, _BEGIN, {"uri": uri, "version": version}, f"began at version {version} of {uri}")
        return version
    for step_key, entry in _read_entries(facts.instance, facts.run_id, _BEGIN):
        if step_key == facts.step_key and entry["uri"] == uri:
            return min(int(entry["version"]), version)
    return version


def _read_entries(instance: dg.DagsterInstance, run_id: str, name: str) -> Iterator[tuple[str | None, Any]]:
    """Yield the step and the entry of each event that `log_entry` has recorded under a name, oldest first."""
    for record in instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records:
        event = record.event_log_entry.dagster_event
        metadata: Any = {} if event is None else getattr(event.event_specific_data, "metadata", {})
        if event is not None and name in metadata:
            yield event.step_key, metadata[name].value


def read_check_log(instance: dg.DagsterInstance, run_id: str) -> CheckLog:
    """Read the results of checks, and what they read, from the log of a run."""
    log, starts = CheckLog(), Counter[str | None]()
    for record in instance.get_records_for_run(run_id, of_type=_TYPES).records:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        data: Any = event.event_specific_data
        attempt = (event.step_key, max(starts[event.step_key] - 1, 0))
        if event.event_type in (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_RESTARTED):
            starts[event.step_key] += 1
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED:
            log.planned.add((data.asset_key, data.check_name))
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            log.evaluations.append(
                CheckEvaluation(
                    asset_key=data.asset_key,
                    name=data.check_name,
                    attempt=attempt,
                    number=record.storage_id,
                    passed=data.passed,
                    only_warns=data.severity == dg.AssetCheckSeverity.WARN,
                    is_blocking=bool(data.blocking),
                    partition=getattr(data, "partition", None),  # newer versions of Dagster have it
                )
            )
        elif CHECK_READ in getattr(data, "metadata", ()):
            log.reads.setdefault(attempt, []).append(data.metadata[CHECK_READ].value)
    return log

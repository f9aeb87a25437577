"""Rejects runs whose branch was discarded, so that half of what belongs together is not written to a new one.

    this run, or its backfill, belongs to the same root as runs that wrote to the branch (by Dagster's events)
    and a table to which they wrote has the branch no longer
    and main does not have what they wrote, by a promotion
    and this run, or the backfill that launched it, does not write it again

Then the run fails. Nothing is looked up as long as the table that is read or written has the branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.roots import find_start_of_root, is_repeated, list_runs_of_root, root_of
from lance_dagster._context.runs import CLOCK_SKEW
from lance_dagster._context.steps import RunFacts
from lance_dagster.properties import PROMOTED_FROM, RUN_ID, properties_of, split_values

if TYPE_CHECKING:
    import lance_core

_BRANCH: Final = "lance/branch"
_EVENTS_PER_PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoggedWrite:
    """A write to a branch that Dagster has recorded."""

    key: dg.AssetKey
    partition: str | None
    uri: str
    run: dg.DagsterRun
    event_id: int

    @property
    def what(self) -> str:
        """The asset and its partition, for messages."""
        part = "" if self.partition is None else f" ({self.partition})"
        return f"{self.key.to_user_string()}{part}"


def reject_lost_writes(facts: RunFacts, branch: str, root_uri: str, options: Mapping[str, str] | None) -> None:
    """Reject a run that is about to create a branch, if earlier runs of its root wrote to one that was discarded.

    Args:
        facts: The run.
        branch: The branch of the run.
        root_uri: The root of the tables that are looked at.
        options: The options by which the root is reached.

    Raises:
        Failure: What the earlier runs wrote is lost, and not written again.
    """
    if facts.instance is None:
        return
    runs = [run for run in list_runs_of_root(facts.instance, root_of(facts)) if run.tags.get(_BRANCH) == branch]
    writes = [write for run in runs for write in _writes_of_run(facts.instance, run, branch)]
    tables = {uri: _main_without(uri, branch, root_uri, options) for uri in {write.uri for write in writes}}
    _reject(facts, branch, [(write, main) for write in writes if (main := tables[write.uri]) is not None])


def reject_lost_input(facts: RunFacts, branch: str, key: dg.AssetKey, main: lance_core.LanceDataset) -> None:
    """Reject a run that reads main instead of its branch, if earlier runs of its root wrote the input to the branch.

    Args:
        facts: The run.
        branch: The branch of the run.
        key: The asset that is read.
        main: Its table, which does not have the branch.

    Raises:
        Failure: What the earlier runs wrote is lost, and not written again.
    """
    instance, since = facts.instance, find_start_of_root(facts)
    if instance is None or since is None:
        return
    newer = dg.AssetRecordsFilter(asset_key=key, after_timestamp=(since - CLOCK_SKEW).timestamp())
    events = [event for event in _materializations(instance, newer) if _is_about(event, branch)]
    if not events:
        return
    runs = {run.run_id: run for run in list_runs_of_root(instance, root_of(facts))}
    _reject(facts, branch, [(_write(event, runs[event.run_id]), main) for event in events if event.run_id in runs])


def _reject(facts: RunFacts, branch: str, writes: Sequence[tuple[_LoggedWrite, lance_core.LanceDataset]]) -> None:
    """Reject a run unless the newest of these writes of each asset and partition is on main, or written again."""
    if not writes or facts.instance is None:
        return
    ordered = sorted(writes, key=lambda pair: pair[0].event_id)
    newest = {(write.key, write.partition): (write, main) for write, main in ordered}
    repeats = is_repeated(facts)
    for write, main in newest.values():
        if repeats(write.key, write.partition, write.run) or _is_promoted(facts.instance, main, branch, write):
            continue
        raise dg.Failure(
            f"branch {branch} was discarded, and with it what run {write.run.run_id} wrote to it: {write.what}; and "
            f"this run does not repeat it, so that only a part would be on a new branch {branch}. Re-execute all steps "
            "of the first run, or the whole backfill, or launch a new one",
            allow_retries=False,
        )


def _main_without(
    uri: str, branch: str, root_uri: str, options: Mapping[str, str] | None
) -> lance_core.LanceDataset | None:
    """A table below the root, if it exists and lacks the branch; else None."""
    import lance_core  # noqa: PLC0415 - code locations load without it
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - code locations load without it

    if not lance_core.canonical_uri(uri).startswith(lance_core.canonical_uri(root_uri).rstrip("/") + "/"):
        return None  # of another IO manager, which looks at its own tables
    try:
        main = lance_core.dataset(uri, storage_options=dict(options or {}) or None)
    except DatasetNotFoundError:  # the table was dropped, with all that was written to it
        return None
    return None if branch in main.branches.list() else main


def _is_promoted(instance: dg.DagsterInstance, main: lance_core.LanceDataset, branch: str, write: _LoggedWrite) -> bool:
    """Whether main has a write, by the newest promotion of the branch or by a later event of one."""
    promotion = main.find_transaction(PROMOTED_FROM, branch)
    if promotion is not None and write.run.run_id in split_values(properties_of(promotion[1]).get(RUN_ID)):
        return True
    later = dg.AssetRecordsFilter(asset_key=write.key, after_storage_id=write.event_id)
    return any(_text(event, "lance/promoted_from") == branch for event in _materializations(instance, later))


def _writes_of_run(instance: dg.DagsterInstance, run: dg.DagsterRun, branch: str) -> Iterator[_LoggedWrite]:
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for event in instance.get_records_for_run(run.run_id, of_type=kind).records:
        if _is_about(event, branch):
            yield _write(event, run)


def _materializations(instance: dg.DagsterInstance, records_filter: dg.AssetRecordsFilter) -> Iterator[Any]:
    """The materializations that a filter chooses, newest first."""
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(records_filter, limit=_EVENTS_PER_PAGE, cursor=cursor)
        yield from page.records
        if not page.has_more:
            return
        cursor = page.cursor


def _is_about(event: Any, branch: str) -> bool:
    """Whether an event is about a write to a branch, and names the table."""
    return _text(event, _BRANCH) == branch and _text(event, "dagster/uri") is not None


def _write(event: Any, run: dg.DagsterRun) -> _LoggedWrite:
    materialization = event.asset_materialization
    return _LoggedWrite(
        key=materialization.asset_key,
        partition=materialization.partition,
        uri=str(_text(event, "dagster/uri")),
        run=run,
        event_id=event.storage_id,
    )


def _text(event: Any, entry: str) -> str | None:
    """An entry of a materialization, or of its entry `lance/commit`, which has those that are not at the top."""
    materialization: dg.AssetMaterialization | None = event.asset_materialization
    if materialization is None:
        return None
    entries: Mapping[str, Any] = {name: value.value for name, value in materialization.metadata.items()}
    below = entries.get("lance/commit") or {}
    value = entries.get(entry, below.get(entry.split("/", 1)[1]) if isinstance(below, Mapping) else None)
    return None if value is None else str(value)

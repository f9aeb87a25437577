"""Rejects runs whose branch was discarded, so that half of what belongs together is not written to a new one.

    this run, or its backfill, belongs to the same root as runs that wrote to the branch (by Dagster's events)
    and a table to which they wrote has the branch no longer, or one that was begun again since
    and main does not have what they wrote, by a promotion
    and this run, or the backfill that launched it, does not write it again

Then the run fails. Nothing is looked up as long as the table that is read or written has the branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster._context.roots import find_start_of_root, is_repeated, list_runs_of_root, root_of
from lance_dagster._context.runs import CLOCK_SKEW
from lance_dagster._context.steps import RunFacts
from lance_dagster.properties import PROMOTED_FROM, RUN_ID, properties_of, split_values
from lance_dagster.tables.branch_policy import BRANCH_TAG
from lance_dagster.tables.namespaces import Root, open_below
from lance_dagster.tables.write_events import (
    WriteEvent,
    has_later_entry,
    read_write_events,
    read_write_events_of_run,
)

if TYPE_CHECKING:
    import lance_core


def reject_lost_writes(facts: RunFacts, branch: str, root: Root) -> None:
    """Reject a run that is about to create a branch, if earlier runs of its root wrote to one that was discarded.

    Args:
        facts: The run.
        branch: The branch of the run.
        root: The root of the tables that are looked at.

    Raises:
        Failure: What the earlier runs wrote is lost, and not written again.
    """
    if facts.instance is None:
        return
    runs = [run for run in list_runs_of_root(facts.instance, root_of(facts)) if run.tags.get(BRANCH_TAG) == branch]
    events = [(event, run) for run in runs for event in read_write_events_of_run(facts.instance, run.run_id)]
    writes = [(event, run, uri) for event, run in events if (uri := _uri_on(branch, event)) is not None]
    names = {uri: str(event.entry("dagster/table_name")) for event, _, uri in writes}
    mains = {uri: open_below(root, uri, name) for uri, name in names.items()}
    _reject(facts, branch, [(event, run, main) for event, run, uri in writes if (main := mains[uri]) is not None])


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
    events = [event for event in read_write_events(instance, newer) if _uri_on(branch, event)]
    if not events:
        return
    runs = {run.run_id: run for run in list_runs_of_root(instance, root_of(facts))}
    _reject(facts, branch, [(event, run, main) for event in events if (run := runs.get(event.record.run_id))])


def _reject(
    facts: RunFacts, branch: str, writes: Sequence[tuple[WriteEvent, dg.DagsterRun, lance_core.LanceDataset]]
) -> None:
    """Reject a run unless the newest of these writes of each asset and partition is on main, or written again."""
    if not writes or facts.instance is None:
        return
    ordered = sorted(writes, key=lambda write: write[0].record.storage_id)
    newest = {(event.key, event.partition): (event, run, main) for event, run, main in ordered}
    repeats = is_repeated(facts)
    has_later_writes: set[str] = set()
    for event, run, main in sorted(newest.values(), key=lambda write: write[0].record.storage_id):
        if main.root_uri in has_later_writes or repeats(event.key, event.partition, run):
            continue
        lacks_write = _lacks(main, branch, event)
        if lacks_write is False:  # so that the branch, as it is now, has later writes as well
            has_later_writes.add(main.root_uri)
        if not lacks_write or is_promoted(facts.instance, main, branch, event):
            continue
        what = event.key.to_user_string() + ("" if event.partition is None else f" ({event.partition})")
        raise dg.Failure(
            f"branch {branch} was discarded, and with it what run {run.run_id} wrote to it: {what}; and "
            f"this run does not repeat it, so that only a part would be on a new branch {branch}. Re-execute all steps "
            "of the first run, or the whole backfill, or launch a new one",
            allow_retries=False,
        )


def _uri_on(branch: str, event: WriteEvent) -> str | None:
    """The URI of the table whose branch an event is about; None if it is about another branch, or names no table."""
    uri = event.entry("dagster/uri")
    return None if uri is None or event.branch != branch else str(uri)


def _lacks(main: lance_core.LanceDataset, branch: str, event: WriteEvent) -> bool | None:
    """Whether a table lacks a branch, or has one that was begun again since a write; None if that is not known."""
    from lance_core.errors import NotFoundError  # noqa: PLC0415 - code locations load without it

    if branch not in main.branches.list():
        return True
    uuid, version = event.entry("lance/transaction_uuid"), event.version
    if not uuid or version is None:  # a write without a commit
        return None
    head = main.checkout_version((branch, None))
    try:
        transaction = head.read_transaction(version)
    except NotFoundError:
        return True if head.version < version else None  # else it was cleaned up
    return None if transaction is None else transaction.uuid != uuid


def is_promoted(instance: dg.DagsterInstance, main: lance_core.LanceDataset, branch: str, event: WriteEvent) -> bool:
    """Whether main has a write, by the newest promotion of the branch or by a later event of one."""
    promotion = main.find_transaction(PROMOTED_FROM, branch)
    if promotion is not None and event.record.run_id in split_values(properties_of(promotion[1]).get(RUN_ID)):
        return True
    return has_later_entry(instance, event, {"lance/promoted_from": branch})

"""Tables to which runs wrote, by Dagster's events, and that are not the tables of their assets any more.

    missing       dropped, moved, or deregistered by a client of the namespace
    another       the id has another location now, or the table was dropped and made again

What belongs together is promoted, and undone, in all tables or in none, so that such a table must be named. It counts
no more once the branch was discarded or promoted, or the run undone, by a later event of the asset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

import lance_core
from lance_core.errors import LanceError, NotFoundError
from lance_dagster._context.runs import CLOCK_SKEW
from lance_dagster.lineage.table_life import is_about_another
from lance_dagster.tables.branch_policy import BRANCH_TAG
from lance_dagster.tables.event_keys import DISCARDED, UNDO_ENTRY
from lance_dagster.tables.lost_writes import is_promoted
from lance_dagster.tables.namespaces import describe_return
from lance_dagster.tables.refs import on_branch
from lance_dagster.tables.write_events import WriteEvent, has_later_entry, read_write_events

if TYPE_CHECKING:
    from lance_dagster.tables.refs import TableRef, TableRoot


def explain_lost_branches(
    instance: dg.DagsterInstance,
    root: TableRoot,
    tables: Iterable[tuple[TableRef, lance_core.LanceDataset | None]],
    branch: str,
) -> dict[dg.AssetKey, str]:
    """The assets that runs wrote to a branch of a table which is not theirs any more, each with the reason.

    Args:
        instance: The instance that recorded the runs.
        root: The root of the tables.
        tables: The assets with their tables; None for a table that does not exist.
        branch: The branch.
    """
    tagged = dg.RunsFilter(tags={BRANCH_TAG: branch})
    oldest = instance.get_run_records(tagged, limit=1, order_by="create_timestamp", ascending=True)
    reasons = {}
    for ref, main in tables if oldest else ():
        if main is not None and on_branch(main, branch) is not None:
            continue
        event = _find_write_to_branch(instance, ref.key, branch, oldest[0].create_timestamp)
        reason = None if event is None else _explain(event, main, root)
        if reason is None or event is None or (main is not None and is_promoted(instance, main, branch, event)):
            continue
        reasons[ref.key] = reason
    return reasons


def _find_write_to_branch(
    instance: dg.DagsterInstance, key: dg.AssetKey, branch: str, since: datetime
) -> WriteEvent | None:
    """The newest write of an asset to a branch; None if the branch was promoted or discarded after it."""
    newer = dg.AssetRecordsFilter(asset_key=key, after_timestamp=(since - CLOCK_SKEW).timestamp())
    for event in read_write_events(instance, newer):
        if branch in (event.entry("lance/promoted_from"), event.entry(DISCARDED)):
            return None
        if event.branch == branch and event.version is not None and not event.is_skipped:
            return None if has_later_entry(instance, event, {DISCARDED: branch}) else event
    return None


def explain_lost_versions(
    instance: dg.DagsterInstance,
    root: TableRoot,
    run_id: str,
    writes: Iterable[tuple[WriteEvent, lance_core.LanceDataset | None]],
    planned: Collection[tuple[dg.AssetKey, str | None]],
) -> list[str]:
    """The reasons for which versions that a run has recorded cannot be undone, as they are not there any more.

    Args:
        instance: The instance that recorded the run.
        root: The root of the tables.
        run_id: The run.
        writes: The events of the run with the tables of their assets; None for a table that does not exist.
        planned: The assets and branches on which the run is undone, or was before.
    """
    lost: dict[tuple[dg.AssetKey, str | None], str] = {}
    for event, main in writes:
        branch, version = event.branch, event.version
        at = (event.key, branch)
        if version is None or event.is_skipped or at in planned or at in lost:
            continue
        reason = _explain(event, main, root)
        if main is None or reason is not None:
            settled = {UNDO_ENTRY: run_id} | ({} if branch is None else {DISCARDED: branch})
            is_undone = (event.key, None) in planned or has_later_entry(instance, event, settled)
            if reason is not None and not is_undone:
                lost[at] = reason
            continue
        if branch is not None and branch not in main.branches.list():  # it was promoted to main, or discarded
            continue
        try:
            main.checkout_version((branch, version))
        except NotFoundError:
            lost[at] = f"{_describe_write(event)}, and that version was cleaned up"
    return list(lost.values())


def _explain(event: WriteEvent, main: lance_core.LanceDataset | None, root: TableRoot) -> str | None:
    """Why the table of an asset is not the one that an event is about, and the remedy; None if it is."""
    uri = event.uri
    if main is not None and uri in (None, main.root_uri):
        if not is_about_another(event.data_version, main):
            return None
        return (
            f"{_describe_write(event)}, and the table there does not have it: it was cleaned up, or the table was "
            "dropped and made again"
        )
    now = "the asset has no table now" if main is None else f"the table of the asset is {main.root_uri} now"
    if uri is None:
        return f"{_describe_write(event)}, and {now}"
    try:
        is_there = root.open_uri(uri) is not None
    except (LanceError, OSError) as error:
        return f"{_describe_write(event)}, but {now}, and what is there cannot be opened: {error}"
    if not is_there:
        return f"{_describe_write(event)}, but {now}, and no table is there: bring it back, if it was moved"
    return f"{_describe_write(event)}, but {now}: {describe_return(root, uri, event.object_id)}"


def _describe_write(event: WriteEvent) -> str:
    of_branch = "" if event.branch is None else f" of branch {event.branch}"
    place = "" if event.uri is None else f" of the table {event.uri}"
    return f"{event.key.to_user_string()}: run {event.record.run_id} wrote version {event.version}{of_branch}{place}"

"""Metadata that the runs on a branch reported about their writes, which the event of the branch's promotion repeats.

The commit of a promotion does not record the columns that were set, the rows of a merge, or the changes that were
consumed. If several runs wrote to a partition, no run's numbers hold for all of them: then only the columns are
repeated, besides the numbers that the commit of the promotion counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import dagster as dg

from lance_dagster.tables.write_events import WriteEvent, read_write_events_of_run

_COLUMNS: Final = ("lance/columns", "lance/columns_added")
_NUMBERS: Final = (
    "lance/rows_written",
    "lance/rows_inserted",
    "lance/rows_updated",
    "lance/rows_deleted",
    "lance/rows_nulled",
    "lance/changes",
    "lance/changes_inserted",
    "lance/changes_updated",
    "lance/changes_deleted",
    "lance/casts",
)


def find_written_entries(
    instance: dg.DagsterInstance, key: dg.AssetKey, branch: str, run_ids: Iterable[str]
) -> dict[str | None, dict[str, Any]]:
    """The entries of an asset's events on a branch that the promotion repeats, by partition, or by None.

    Args:
        instance: The instance that recorded the events.
        key: The asset.
        branch: The branch.
        run_ids: The runs that wrote to the branch.
    """
    events: dict[str | None, list[WriteEvent]] = {}
    for event in (event for run_id in run_ids for event in read_write_events_of_run(instance, run_id, key)):
        if event.branch == branch:
            events.setdefault(event.partition, []).append(event)
    return {partition: _join_entries(same) for partition, same in events.items()}


def _join_entries(events: Sequence[WriteEvent]) -> dict[str, Any]:
    if len(events) == 1:
        all_entries = {name: events[0].entry(name) for name in (*_COLUMNS, *_NUMBERS)}
    else:
        columns_by_name = {
            name: [column for event in events for column in event.entry(name) or ()] for name in _COLUMNS
        }
        all_entries = {name: list(dict.fromkeys(columns)) or None for name, columns in columns_by_name.items()}
    return {name: value for name, value in all_entries.items() if value is not None}

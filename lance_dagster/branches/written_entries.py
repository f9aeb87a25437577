"""Metadata that the runs on a branch reported about their writes, which the event of the branch's promotion repeats.

The commit of a promotion does not record the columns that were set, the rows of a merge, or the changes that were
consumed. If several runs wrote to a partition, no run's numbers hold for all of them: then only the columns are
repeated, besides the numbers that the commit of the promotion counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import dagster as dg

from lance_dagster.events.event_order import branch_of_event
from lance_dagster.events.layout import COMMIT

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
    events: dict[str | None, list[dg.AssetMaterialization]] = {}
    for run_id in run_ids:
        records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
        for record in records:
            materialization = record.asset_materialization
            if (
                materialization is not None
                and materialization.asset_key == key
                and branch_of_event(materialization) == branch
            ):
                events.setdefault(materialization.partition, []).append(materialization)
    return {partition: _join_entries(materializations) for partition, materializations in events.items()}


def _join_entries(events: list[dg.AssetMaterialization]) -> dict[str, Any]:
    entries_per_event = [_select_entries(event.metadata, (*_COLUMNS, *_NUMBERS)) for event in events]
    if len(entries_per_event) == 1:
        return entries_per_event[0]
    return {
        name: list(dict.fromkeys(column for entries in entries_per_event for column in entries.get(name, ())))
        for name in _COLUMNS
        if any(name in entries for entries in entries_per_event)
    }


def _select_entries(metadata: Mapping[str, dg.MetadataValue[Any]], names: Iterable[str]) -> dict[str, Any]:
    """The named entries of an event, from its top level or, as plain values, from its entry `lance/commit`."""
    rest = metadata[COMMIT].value if COMMIT in metadata else None
    commit_entries: Mapping[str, Any] = rest if isinstance(rest, Mapping) else {}
    entries: dict[str, Any] = {}
    for name in names:
        short = name.rpartition("/")[2]
        if name in metadata:
            entries[name] = metadata[name]
        elif short in commit_entries:
            entries[name] = commit_entries[short]
    return entries

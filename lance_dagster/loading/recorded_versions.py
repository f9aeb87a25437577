"""The newest version of main that Dagster's events name, which inputs with `read="materialized"` load.

Maintenance keeps the version of the asset's newest event, and of the newest event of each partition. If the cleanup of
another tool has removed such a version, the oldest later version is loaded if only maintenance was committed between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import dagster as dg

from lance_core.errors import IncompatibleConflictError
from lance_dagster.events.event_order import EventOrder
from lance_dagster.lineage.table_life import is_about_another, table_id_in
from lance_dagster.tables.write_events import WriteEvent, read_write_events

if TYPE_CHECKING:
    import lance_core

_MOST_EVENTS: Final = 10_000
_EVENTS_AT_FIRST: Final = 100


def recorded_version(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    dataset: lance_core.LanceDataset,
    partitions: Sequence[str] | None = None,
) -> int | None:
    """The newest version of main in Dagster's events for an asset, or for some partitions of it.

    None if there is no such event. Events that name no version, such as materializations that were reported by hand, do
    not count, and neither do those of a table that was dropped and made again since.

    Args:
        instance: The instance that records the events.
        key: The asset.
        dataset: The table at its newest version; events that name a later one are about a table that was dropped.
        partitions: The partitions; None for all.

    Raises:
        IncompatibleConflictError: The last event is about a table that was dropped, and none is about the table that
            was made again.
    """
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    of_other_tables: list[WriteEvent] = []

    def is_about_table(event: WriteEvent) -> bool:
        if is_about_another(event.data_version, dataset):
            of_other_tables.append(event)
            return False
        return event.version is not None and event.version <= dataset.version

    events = filter(is_about_table, islice(_events_of_main(instance, records_filter), _MOST_EVENTS))
    newest = EventOrder(instance).newest(events)
    for last in of_other_tables[:1]:
        names_no_table = newest is not None and table_id_in(newest.data_version) is None
        if newest is None or (names_no_table and last.record.storage_id > newest.record.storage_id):
            raise IncompatibleConflictError(
                f"version {last.version} of {dataset.uri}, which Dagster recorded last, is not in the table: "
                "others have dropped the table and made it again, or have restored an old version and cleaned up"
                " this one"
            )
    return None if newest is None else newest.version


def _events_of_main(instance: dg.DagsterInstance, events: dg.AssetRecordsFilter | dg.AssetKey) -> Iterator[WriteEvent]:
    """The events about main, the one with the highest id first."""
    return (event for event in read_write_events(instance, events, _EVENTS_AT_FIRST) if event.branch is None)


def recorded_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """The versions that an input of an asset can load, by the event that names each, as a description of the event."""
    order = EventOrder(instance)
    last: dict[str, WriteEvent] = {}
    versions: dict[str, int] = {}
    for event in _events_of_main(instance, key):
        version = event.version
        if version is None:
            continue
        names = ["Dagster's last materialization"]
        if event.partition is not None:
            names.append(f"Dagster's last materialization of partition {event.partition!r}")
        for name in names:
            newest = last.setdefault(name, event)
            if version > versions.setdefault(name, version) and order.overlaps(newest, event):
                versions[name] = version
    return versions


def equal_version(dataset: lance_core.LanceDataset, version: int) -> lance_core.LanceDataset | None:
    """The oldest version after one that was cleaned up, if it certainly has the same rows; else None.

    Args:
        dataset: The table.
        version: The version that was cleaned up.
    """
    from lance_dagster.lineage.history import read_history  # noqa: PLC0415 - heavy imports at first use

    later = [ref["version"] for ref in dataset.version_refs() if ref["version"] > version]
    if not later:
        return None
    oldest = dataset.checkout_version(min(later))
    commit = next(iter(read_history(oldest, count_changes=False)), None)
    if commit is None or commit.changes_rows:
        return None
    # A compaction reserves its fragment ids in a version between the one it was planned for and its own.
    follows = commit.version == version + 1
    compacted = commit.operation == "Rewrite" and commit.version == version + 2 and commit.read_version == version
    return oldest if follows or compacted else None

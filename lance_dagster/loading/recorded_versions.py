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
from lance_dagster.events.event_order import EventOrder, branch_of_event, version_of, version_of_event
from lance_dagster.lineage.table_life import is_about_another, table_id_in

if TYPE_CHECKING:
    import lance_core

_MOST_EVENTS: Final = 10_000
_EVENTS_AT_FIRST: Final = 100
_EVENTS_PER_PAGE: Final = 1000


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
    of_other_tables: list[dg.EventLogRecord] = []

    def is_about_table(record: dg.EventLogRecord) -> bool:
        if is_about_another(_data_version(record), dataset):
            of_other_tables.append(record)
            return False
        version = version_of(record)
        return version is not None and version <= dataset.version

    records = filter(is_about_table, islice(_records(instance, records_filter), _MOST_EVENTS))
    newest = EventOrder(instance).newest(records)
    for last in of_other_tables[:1]:
        if newest is None or (last.storage_id > newest.storage_id and not _names_table(newest)):
            raise IncompatibleConflictError(
                f"version {version_of(last)} of {dataset.uri}, which Dagster recorded last, is not in the table: "
                "others have dropped the table and made it again, or have restored an old version and cleaned up"
                " this one"
            )
    return None if newest is None else version_of(newest)


def _data_version(record: dg.EventLogRecord) -> str | None:
    event = record.asset_materialization
    return None if event is None else (event.tags or {}).get("dagster/data_version")


def _names_table(record: dg.EventLogRecord) -> bool:
    """Whether an event names its table."""
    return table_id_in(_data_version(record)) is not None


def _records(
    instance: dg.DagsterInstance, records_filter: dg.AssetRecordsFilter | dg.AssetKey
) -> Iterator[dg.EventLogRecord]:
    """The records of events about main, the one with the highest id first; pages are read as they are needed."""
    cursor: str | None = None
    limit = _EVENTS_AT_FIRST
    while True:
        page = instance.fetch_materializations(records_filter, limit=limit, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and branch_of_event(event) is None:
                yield record
        if not page.has_more:
            return
        cursor, limit = page.cursor, _EVENTS_PER_PAGE


def recorded_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """The versions that an input of an asset can load, by the event that names each, as a description of the event."""
    order = EventOrder(instance)
    last: dict[str, dg.EventLogRecord] = {}
    versions: dict[str, int] = {}
    for record in _records(instance, key):
        event = record.asset_materialization
        version = None if event is None else version_of_event(event)
        if event is None or version is None:
            continue
        names = ["Dagster's last materialization"]
        if event.partition is not None:
            names.append(f"Dagster's last materialization of partition {event.partition!r}")
        for name in names:
            newest = last.setdefault(name, record)
            if version > versions.setdefault(name, version) and order.overlaps(newest, record):
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

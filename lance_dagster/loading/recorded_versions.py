"""The versions of main that Dagster's events recorded last, which inputs with `read="materialized"` load.

Maintenance keeps the version of the asset's last event, and of the last event of each partition. If the cleanup of
another tool has removed such a version, the oldest later version is loaded if only maintenance was committed between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import dagster as dg

from lance_dagster.events.reporting import branch_of_event

if TYPE_CHECKING:
    import lance_core

__all__ = ["equal_version", "recorded_version", "recorded_versions"]

_EVENTS_LOOKED_AT: Final = 100
_EVENTS_PER_PAGE: Final = 1000


def recorded_version(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str] | None = None
) -> int | None:
    """The version of main in Dagster's last event for an asset, or for some partitions of it.

    None if there is no such event, or if it names no version.
    """
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    for record in instance.fetch_materializations(wanted, limit=_EVENTS_LOOKED_AT).records:
        event = record.asset_materialization
        if event is not None and branch_of_event(event) is None:
            return _version(event)
    return None


def recorded_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """The versions that an input of an asset can load, by the event that names each, as a description of the event."""
    found: dict[str, int | None] = {}
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(key, limit=_EVENTS_PER_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is None or branch_of_event(event) is not None:
                continue
            found.setdefault("Dagster's last materialization", _version(event))
            if event.partition is not None:
                found.setdefault(f"Dagster's last materialization of partition {event.partition!r}", _version(event))
        if not page.has_more:
            return {name: version for name, version in found.items() if version is not None}
        cursor = page.cursor


def equal_version(dataset: lance_core.LanceDataset, version: int) -> lance_core.LanceDataset | None:
    """The oldest version after one that was cleaned up, if it certainly has the same rows; else None.

    Args:
        dataset: The table.
        version: The version that was cleaned up.
    """
    from lance_dagster.lineage.history import read_history  # noqa: PLC0415 - heavy imports at first use

    later = [one["version"] for one in dataset.version_refs() if one["version"] > version]
    if not later:
        return None
    oldest = dataset.checkout_version(min(later))
    made = next(iter(read_history(oldest, count_changes=False)), None)
    if made is None or made.changes_rows:
        return None
    # A compaction reserves its fragment ids in a version between the one it was planned for and its own.
    follows = made.version == version + 1
    compacted = made.operation == "Rewrite" and made.version == version + 2 and made.read_version == version
    return oldest if follows or compacted else None


def _version(event: dg.AssetMaterialization) -> int | None:
    entry = event.metadata.get("lance/version")
    value = entry.value if entry is not None else None
    return value if isinstance(value, int) else None

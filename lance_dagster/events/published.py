"""The partitions that main has, by Dagster's events: Dagster itself counts writes to a branch as materializations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import dagster as dg

from lance_dagster.tables.write_events import read_write_events

PUBLISHED: Final = "lance/published"
"""Entry of an event: False if the partition is on a branch alone, or was on one that was discarded."""


def find_published_partitions(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Collection[str], *, branch: str | None = None
) -> set[str]:
    """Those of some partitions that were written to main or to a branch.

    Args:
        instance: The instance that recorded the events.
        key: The asset.
        partitions: The partitions.
        branch: The branch whose writes count, too; None for main alone.
    """
    published: set[str] = set()
    if not partitions:
        return published
    for event in read_write_events(instance, dg.AssetRecordsFilter(asset_key=key, asset_partitions=sorted(partitions))):
        if (event.branch is None and event.entry(PUBLISHED) is not False) or (branch and event.branch == branch):
            published.add(str(event.partition))
        if len(published) == len(set(partitions)):
            break
    return published

"""The partitions that main has, by Dagster's events: Dagster itself counts writes to a branch as materializations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import dagster as dg

from lance_dagster.events.event_order import branch_of_event

PUBLISHED: Final = "lance/published"
"""Entry of an event: False if the partition is on a branch alone, or was on one that was discarded."""

_PAGE: Final = 500


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
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=sorted(partitions))
    cursor: str | None = None
    while True:
        page = instance.fetch_materializations(records_filter, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is None or event.partition is None:
                continue
            of_branch, entry = branch_of_event(event), event.metadata.get(PUBLISHED)
            if (of_branch is None and (entry is None or entry.value is not False)) or (branch and of_branch == branch):
                published.add(event.partition)
        if not page.has_more or published.issuperset(partitions):
            return published
        cursor = page.cursor

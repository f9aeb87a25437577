"""The newest version that Dagster's events of an asset name, although events are logged in another order than commits.

Of two runs that write at the same time, the one that commits first may log its event last. The event with the highest
id then names the older version. An event that was logged before it counts if it names a later version, and if the run
of the last event was under way by then. Events of a table that was dropped and made again since do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from lance_dagster._context.runs import CLOCK_SKEW
from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN


@dataclass(slots=True)
class EventOrder:
    """Finds the event of the newest version among events of main.

    Attributes:
        instance: The instance that has recorded the events.
        created: When runs were created, by run; None for a run that the instance does not know.
    """

    instance: dg.DagsterInstance
    created: dict[str, datetime | None] = field(default_factory=dict)

    def overlaps(self, last: dg.EventLogRecord, earlier: dg.EventLogRecord) -> bool:
        """Whether the run of an event may have been under way when an earlier event was logged."""
        if last.run_id not in self.created:
            run = self.instance.get_run_record_by_id(last.run_id)
            self.created[last.run_id] = None if run is None else run.create_timestamp.replace(tzinfo=UTC)
        created = self.created[last.run_id]
        return created is not None and created - CLOCK_SKEW <= datetime.fromtimestamp(earlier.timestamp, UTC)

    def newest(self, records: Iterable[dg.EventLogRecord]) -> dg.EventLogRecord | None:
        """The record of the newest version; None without records.

        Args:
            records: The records of main that name versions, the one with the highest id first. They are read
                until the run of the first one was not under way.
        """
        last = newest = None
        for record in records:
            if last is None or newest is None:
                last = newest = record
            elif not self.overlaps(last, record):
                break
            elif (version_of(record) or 0) > (version_of(newest) or 0):
                newest = record
        return newest


def version_of(record: dg.EventLogRecord) -> int | None:
    """The version that the event of a record names."""
    event = record.asset_materialization
    return None if event is None else version_of_event(event)


def version_of_event(event: dg.AssetMaterialization) -> int | None:
    """The version that an event names; None if it names none."""
    entry = event.metadata.get("lance/version")
    value = entry.value if entry is not None else None
    return value if isinstance(value, int) else None


def branch_of_event(event: dg.AssetMaterialization) -> str | None:
    """The branch that an event is about; None for main."""
    entry = event.metadata.get(BRANCH_TAG)
    return None if entry is None or entry.value == MAIN else str(entry.value)

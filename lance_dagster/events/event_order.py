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
from lance_dagster.tables.write_events import WriteEvent


@dataclass(slots=True)
class EventOrder:
    """Finds the event of the newest version among events of main.

    Attributes:
        instance: The instance that has recorded the events.
        created: When runs were created, by run; None for a run that the instance does not know.
    """

    instance: dg.DagsterInstance
    created: dict[str, datetime | None] = field(default_factory=dict)

    def overlaps(self, last_event: WriteEvent, earlier_event: WriteEvent) -> bool:
        """Whether the run of an event may have been under way when an earlier event was logged."""
        last, earlier = last_event.record, earlier_event.record
        if last.run_id not in self.created:
            run = self.instance.get_run_record_by_id(last.run_id)
            self.created[last.run_id] = None if run is None else run.create_timestamp.replace(tzinfo=UTC)
        created = self.created[last.run_id]
        return created is not None and created - CLOCK_SKEW <= datetime.fromtimestamp(earlier.timestamp, UTC)

    def newest(self, events: Iterable[WriteEvent]) -> WriteEvent | None:
        """The event of the newest version; None without events.

        Args:
            events: The events of main that name versions, the one with the highest id first. They are read until
                the run of the first one was not under way.
        """
        last = newest = None
        for event in events:
            if last is None or newest is None:
                last = newest = event
            elif not self.overlaps(last, event):
                break
            elif (event.version or 0) > (newest.version or 0):
                newest = event
        return newest

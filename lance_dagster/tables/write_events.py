"""Writes of tables as Dagster's materializations record them.

Dagster logs materializations in another order than that of commits, and of writes to a branch as of writes to main.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import dagster as dg

from lance_dagster.tables.branch_policy import BRANCH_TAG, MAIN
from lance_dagster.tables.event_keys import COMMIT

DATA_VERSION_TAG: Final = "dagster/data_version"
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """A materialization in Dagster's log.

    Attributes:
        record: The record of the log, with the id and the time of the event.
        materialization: What it records.
    """

    record: dg.EventLogRecord
    materialization: dg.AssetMaterialization

    @property
    def key(self) -> dg.AssetKey:
        """The asset."""
        return self.materialization.asset_key

    @property
    def partition(self) -> str | None:
        """The partition; None for an asset without partitions."""
        return self.materialization.partition

    @property
    def version(self) -> int | None:
        """The version of the table; None for an event that names none, such as one that was reported by hand."""
        value = self.entry("lance/version")
        return value if isinstance(value, int) else None

    @property
    def uri(self) -> str | None:
        """The canonical URI of the table; None for an event that names none."""
        from lance_core import canonical_uri  # noqa: PLC0415 - code locations load without it

        value = self.entry("dagster/uri")
        return None if value is None else canonical_uri(str(value))

    @property
    def object_id(self) -> str:
        """The id of the table in a namespace, parts joined by slashes."""
        name = self.entry("dagster/table_name")
        # A part with a dot is that of the key, unless the metadata of the asset names its table.
        return "/".join(self.key.path if name in (None, ".".join(self.key.path)) else str(name).split("."))

    @property
    def is_skipped(self) -> bool:
        """Whether the output had no rows, and nothing was written."""
        return self.entry("lance/rows_written") == 0 and self.entry("lance/operation") is None

    @property
    def branch(self) -> str | None:
        """The branch that the event is about; None for main."""
        branch = self.entry(BRANCH_TAG)
        return None if branch in (None, MAIN) else str(branch)

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags, such as those that name the origin of the rows."""
        return self.materialization.tags or {}

    @property
    def data_version(self) -> str | None:
        """The data version, see `history.format_data_version`."""
        return self.tags.get(DATA_VERSION_TAG)

    def entry(self, name: str) -> Any:
        """The value of an entry of the metadata; None if the event lacks it."""
        return find_entry(self.materialization.metadata, name)


def find_entry(metadata: Mapping[str, dg.MetadataValue[Any]], name: str) -> Any:
    """The value of an entry of an event, from its top level or from its entry `lance/commit`; None if it lacks it."""
    if name in metadata:
        return metadata[name].value
    below = metadata[COMMIT].value if COMMIT in metadata else None
    return below.get(name.rpartition("/")[2]) if isinstance(below, Mapping) else None


def read_write_events(
    instance: dg.DagsterInstance, events: dg.AssetKey | dg.AssetRecordsFilter, first_page: int = _PAGE
) -> Iterator[WriteEvent]:
    """The events of an asset, or those that a filter chooses, newest first; see `read_pages`."""
    return chain.from_iterable(read_pages(instance, events, first_page))


def read_pages(
    instance: dg.DagsterInstance, events: dg.AssetKey | dg.AssetRecordsFilter, first_page: int = _PAGE
) -> Iterator[list[WriteEvent]]:
    """The events of an asset, newest first, by page; each page is read when the iterator reaches it.

    Args:
        instance: The instance that has recorded the events.
        events: The asset, or a filter.
        first_page: The number of events that are read at first.
    """
    for records in _read_record_pages(instance.fetch_materializations, events, first_page):
        yield _as_write_events(records)


def has_later_entry(instance: dg.DagsterInstance, event: WriteEvent, entries: Mapping[str, str]) -> bool:
    """Whether a later materialization or observation of the asset of an event has one of some entries."""
    later = dg.AssetRecordsFilter(asset_key=event.key, after_storage_id=event.record.storage_id)
    fetches = (instance.fetch_materializations, instance.fetch_observations)
    pages = chain.from_iterable(_read_record_pages(fetch, later) for fetch in fetches)
    recorded = (record.asset_materialization or record.asset_observation for record in chain.from_iterable(pages))
    return any(
        find_entry(other.metadata, name) == value
        for other in recorded
        if other is not None
        for name, value in entries.items()
    )


def _read_record_pages(
    fetch: Callable[..., Any], events: dg.AssetKey | dg.AssetRecordsFilter, first_page: int = _PAGE
) -> Iterator[Sequence[dg.EventLogRecord]]:
    page = fetch(events, limit=first_page)
    yield page.records
    while page.has_more:
        page = fetch(events, limit=_PAGE, cursor=page.cursor)
        yield page.records


def read_write_events_of_run(
    instance: dg.DagsterInstance, run_id: str, key: dg.AssetKey | None = None
) -> list[WriteEvent]:
    """The events of a run, of one asset or of all, oldest first."""
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    return [event for event in _as_write_events(records) if key in (None, event.key)]


def _as_write_events(records: Any) -> list[WriteEvent]:
    pairs = ((record, record.asset_materialization) for record in records)
    return [WriteEvent(record, materialization) for record, materialization in pairs if materialization is not None]

"""The state of a table as Dagster's events record it, and materializations of its current state.

Promotions, discards and undos change main, or make an earlier event about main wrong. Each reports in two steps:

    known_versions      the newest version of main that Dagster's events name, for each partition
    materializations    one event per partition: version, data version, current rows of the table and the partition

Assets that share the table, and whose own rows have not changed, get an observation of the table.

An event whose metadata has `lance/branch` is about a branch, and does not count as an event about main.

The IO manager counts the rows of partitions of other writes here as well (`count_rows_of_written_partitions`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import dagster as dg
import numpy as np
import pyarrow as pa

import lance_core
from lance_core.errors import LanceError
from lance_core.row_addresses import fragment_ids_of
from lance_dagster._context.runs import plan_materializations
from lance_dagster._context.steps import downstream_keys
from lance_dagster.events.event_order import EventOrder
from lance_dagster.events.layout import describe_version
from lance_dagster.events.materialization import build_lineage_entries, build_partition_entries, column_schema
from lance_dagster.events.provenance import provenance_tags
from lance_dagster.handlers.arrow_schema import owners
from lance_dagster.lineage.consumers import consumers
from lance_dagster.lineage.history import compute_data_version
from lance_dagster.lineage.table_life import is_about_another
from lance_dagster.tables.branch_policy import BRANCH_TAG
from lance_dagster.tables.location import TABLE_KEY, TableLocation
from lance_dagster.tables.names import listed_columns
from lance_dagster.tables.partitions import slices_of
from lance_dagster.tables.refs import TableRef, TableRoot
from lance_dagster.tables.write_events import DATA_VERSION_TAG, WriteEvent, read_pages, read_write_events_of_run

_MOST_PAGES: Final = 40
_COUNTED_ALONE: Final = 8
_MOST_OPENED: Final = 64
"""The most fragments that are opened for counting, besides those of the write, if no zone maps are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedState:
    """The state of one partition, or of a table without partitions, as Dagster's newest events record it.

    Attributes:
        version: The version of main that the newest event about main names; None if there is no such event.
        branch: The branch of the newest event; None if that event is about main, or there is no event.
        data_version: The data version of the newest event about main; None if it has none.
        provenance: The tags of the newest event about main that name the origin of its rows.
    """

    version: int | None = None
    branch: str | None = None
    data_version: str | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRows:
    """The rows of one partition.

    Attributes:
        rows: The number of all its rows.
        written: The number of its rows in the fragments that a commit added; None if unknown.
        erased: The number of its rows that an erasure deleted; None without an erasure.
    """

    rows: int
    written: int | None = None
    erased: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """The report of a table to Dagster, for one asset.

    Attributes:
        ref: The asset.
        dataset: The table at the version that is reported.
        partitions: The partitions; empty for a table without partitions.
        metadata: Further entries of all events.
        rows: The rows of partitions, by partition; may lack some.
        entries_by_partition: Further entries of the event of each partition, by partition, or by None for a table
            without partitions.
        unchanged: The data versions of partitions whose rows are the same as in the last event, by partition, or by
            None for a table without partitions. The others get the data version of the table's last change.
        provenance: The tags that name the origin of the rows, by partition, or by None for a table without partitions.
    """

    ref: TableRef
    dataset: lance_core.LanceDataset
    partitions: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, PartitionRows] = field(default_factory=dict)
    entries_by_partition: Mapping[str | None, Mapping[str, Any]] = field(default_factory=dict)
    unchanged: Mapping[str | None, str] = field(default_factory=dict)
    provenance: Mapping[str | None, Mapping[str, str]] = field(default_factory=dict)


def read_recorded_states(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    partitions: Sequence[str],
    table: lance_core.LanceDataset | None,
    *,
    without: Collection[int] = (),
) -> dict[str | None, ReportedState]:
    """The state that Dagster's events record, by partition, or by None for an asset without partitions.

    Events count by the versions that they name, as `event_order` says. Those about a table that was dropped, and made
    again since, do not count.

    Args:
        instance: The instance that records the events.
        key: The asset.
        partitions: The partitions; empty for an asset without partitions.
        table: The table that is there now; None to count all events.
        without: Versions of main whose events do not count, such as of changes that were undone.
    """
    requested_partitions: list[str | None] = [*partitions] or [None]
    newest: dict[str | None, str | None] = {}
    last: dict[str | None, WriteEvent] = {}
    states: dict[str | None, ReportedState] = {}
    order = EventOrder(instance)
    records_filter = dg.AssetRecordsFilter(asset_key=key, asset_partitions=list(partitions) or None)
    for page in islice(read_pages(instance, records_filter), _MOST_PAGES):
        for event in page:
            at, branch, version = event.partition if partitions else None, event.branch, event.version
            if branch is None and table is not None and is_about_another(event.data_version, table):
                continue
            newest.setdefault(at, branch)
            if branch is not None or version is None or version in without:
                continue
            state = states.get(at)
            if state is None or (version > (state.version or 0) and order.overlaps(last[at], event)):
                last.setdefault(at, event)
                states[at] = ReportedState(
                    version=version, data_version=event.data_version, provenance=provenance_tags(event.tags)
                )
        if all(partition in states for partition in requested_partitions):
            break
    return {
        partition: replace(states.get(partition, ReportedState()), branch=newest.get(partition))
        for partition in requested_partitions
    }


def list_partitions_of_runs(instance: dg.DagsterInstance, key: dg.AssetKey, run_ids: Iterable[str]) -> list[str]:
    """The partitions of an asset that runs have materialized, as Dagster recorded them."""
    events = (event for run_id in run_ids for event in read_write_events_of_run(instance, run_id, key))
    return sorted({event.partition for event in events if event.partition is not None})


def count_partition_rows(
    dataset: lance_core.LanceDataset, ref: TableRef, partitions: Sequence[str], new: Iterable[int] | None = None
) -> dict[str, PartitionRows]:
    """Count the rows of partitions; the result is empty if the partition columns are unknown.

    A few partitions are counted one by one, mostly by zone maps; many, or those of a commit, by one scan of the
    partition columns.

    Args:
        dataset: The table.
        ref: The asset; its partitions and its metadata `partition_expr` are used.
        partitions: The partitions.
        new: The fragments that a commit added, whose rows count as written; None if they are not known.
    """
    if not partitions or ref.partitions_def is None:
        return {}
    try:
        slices = slices_of(ref, partitions, dataset.schema)
    except LanceError:  # such as for an asset without `partition_expr`, whose body writes the table
        return {}
    if new is None and len(partitions) <= _COUNTED_ALONE:
        alone = {key: slices_of(ref, [key], dataset.schema).expression(dataset.schema) for key in slices.names}
        return {key: PartitionRows(rows=dataset.count_rows(filter=rows)) for key, rows in alone.items()}
    added = None if new is None else np.array(sorted(new), np.uint64)
    rows, written = np.zeros(len(slices.names), np.int64), np.zeros(len(slices.names), np.int64)
    batches = dataset.to_batches(
        columns=list(slices.columns), filter=slices.expression(dataset.schema), with_row_address=True
    )
    for batch in batches:
        at = slices.assign(batch.select(list(slices.columns)))
        inside = at >= 0
        rows += np.bincount(at[inside], minlength=len(rows))
        if added is not None:
            fragments = fragment_ids_of(batch.column("_rowaddr").to_numpy())
            written += np.bincount(at[inside & np.isin(fragments, added)], minlength=len(rows))
    return {
        name: PartitionRows(rows=int(rows[at]), written=None if added is None else int(written[at]))
        for at, name in enumerate(slices.names)
    }


def count_rows_of_written_partitions(
    result: lance_core.WriteResult,
    ref: TableRef,
    keys: Sequence[str],
    columns: Sequence[str],
    *,
    replaces: bool,
    max_unindexed_fragments: int | None,
) -> dict[str, int]:
    """The number of rows of each partition in the version that a write made, without partitions where it is unknown.

    A partition that the write replaced, or created with its table, has the rows that were written. After an append, a
    merge, the adoption of an earlier attempt's commit, or commits of others during the write, which may have added rows
    to the partition, the rows are counted in the new version, by zone maps where these suffice. Nothing is counted if
    more than `max_unindexed_fragments` fragments would have to be opened besides those of the write, so that the cost
    of a step does not grow with the table.

    Args:
        result: The result of the write.
        ref: The asset.
        keys: The partitions.
        columns: The partition columns.
        replaces: Whether the partitions have no rows but those of the write.
        max_unindexed_fragments: The most fragments that zone maps may leave uncovered; None for no zone maps.
    """
    if result.slice_rows and (result.operation == "Overwrite" or replaces):
        return {key: result.slice_rows[key] for key in keys if key in result.slice_rows}
    most = _MOST_OPENED if max_unindexed_fragments is None else max_unindexed_fragments
    if _count_uncovered_fragments(result.dataset, columns) > most + (result.fragments_added or 0):
        return {}
    return {key: counts.rows for key, counts in count_partition_rows(result.dataset, ref, keys).items()}


def _count_uncovered_fragments(dataset: lance_core.LanceDataset, columns: Sequence[str]) -> int:
    """The number of fragments that the zone maps on one of the columns do not cover, from the manifest alone."""
    covered: dict[str, set[int]] = {column: set() for column in columns}
    for index in dataset.describe_indices():
        if index.index_type == "ZoneMap" and len(index.field_names) == 1 and index.field_names[0] in covered:
            covered[index.field_names[0]].update(*(segment.fragment_ids for segment in index.segments))
    all_fragments = set(dataset.fragment_ids())
    return len(set[int]().union(*(all_fragments - fragments for fragments in covered.values())))


def build_materializations(
    report: TableReport,
    location: TableLocation,
    context: dg.OpExecutionContext | dg.AssetExecutionContext | None = None,
    ui_url: str = "",
) -> list[dg.AssetMaterialization]:
    """The events of a report, one per partition.

    Args:
        report: The report.
        location: The location of the table.
        context: The context of the step that reports; None outside of a step, where the assets downstream are unknown.
        ui_url: The URL of the Dagster UI, for links to runs.
    """
    dataset, ref, events = report.dataset, report.ref, []
    entries = {
        **describe_version(dataset),
        "dagster/column_schema": column_schema(_own_columns(ref, dataset)),
        "dagster/table_name": location.name,
        "dagster/uri": location.uri,
        **{name: value for name, value in report.metadata.items() if value is not None},
    }
    if dataset.branch is not None:
        entries |= {BRANCH_TAG: dataset.branch, "lance/published": False}
    readers = None if context is None else consumers(downstream_keys(context, ref.key), ref.key)
    label = f"asset {ref.name}"
    entries |= build_lineage_entries(ref.metadata or {}, dataset, label, consumers=readers, ui_url=ui_url)
    changed = compute_data_version(dataset)
    keys: list[str | None] = [*report.partitions] or [None]
    for partition in keys:
        event_entries: dict[str, Any] = {}
        counted = report.rows.get(partition) if partition is not None else None
        if counted is not None:
            event_entries = {"dagster/partition_row_count": counted.rows}
            event_entries |= {} if counted.written is None else {"lance/rows_written": counted.written}
            event_entries |= {} if counted.erased is None else {"lance/rows_erased": counted.erased}
        event_entries |= report.entries_by_partition.get(partition, {})
        shown = build_partition_entries(entries, event_entries, partition, keys)
        tags = {DATA_VERSION_TAG: report.unchanged.get(partition, changed), **report.provenance.get(partition, {})}
        events.append(dg.AssetMaterialization(asset_key=ref.key, partition=partition, metadata=shown, tags=tags))
    return events


def _own_columns(ref: TableRef, dataset: lance_core.LanceDataset) -> pa.Schema:
    """The columns that the events of an asset show: all, or for an asset that owns columns these and the key."""
    metadata, schema = ref.metadata or {}, dataset.schema
    if TABLE_KEY not in metadata:
        return schema
    asset_columns = {name for name, owner in owners(schema).items() if owner == ref.name}
    shown = asset_columns.union(listed_columns(metadata.get("lance/key")))
    return pa.schema([column for column in schema if column.name in shown]) if asset_columns else schema


def build_observation(
    root: TableRoot, ref: TableRef, dataset: lance_core.LanceDataset, metadata: Mapping[str, Any]
) -> dg.AssetObservation:
    """The observation of a table for one of its assets, after a change that was made for other assets.

    Args:
        root: The root of the table.
        ref: An asset that shares the table.
        dataset: The table at the version that is reported.
        metadata: Entries about the change.

    Raises:
        DatasetNotFoundError: The asset has another table since.
    """
    root.locate_changed(ref, dataset)
    return dg.AssetObservation(asset_key=ref.key, metadata={**describe_version(dataset), **metadata})


def log_events(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    root: TableRoot,
    report: TableReport | None,
    location: TableLocation,
) -> bool:
    """Log the events of a report together, so that they start downstream automation once; returns whether any are.

    Args:
        context: The step that reports.
        root: The root of the table.
        report: The report; None if there is nothing to report.
        location: The location of the table, which the asset had after the change (`TableRoot.locate_changed`).
    """
    if report is None:
        return False
    events = build_materializations(report, location, context, root.ui_url)
    plan_materializations(context, events)
    for event in events:
        context.log_event(event)
    return True

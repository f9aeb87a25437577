"""Metadata of materializations; `stamp.py` has the metadata of definitions.

`layout` decides which entries are at the top of an event. A run of more than 31 partitions has the long entries
(schema, inputs, table log) only in the event of its last partition. An entry that the asset's body sets is kept. The
operation of a first write is called Create.

All numbers come from the manifest of the commit and from the writers, except for the rows of partitions after a write
that adds to them (`reporting`). Unknown numbers, such as the rows that an earlier attempt wrote, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_core.maintenance.routine.health import DEFAULT_TARGET, TARGET_KEY
from lance_dagster.events.layout import describe_columns, describe_version, split_entries
from lance_dagster.events.table_log import read_recent_versions, render_table_log
from lance_dagster.lineage.declared_columns import column_lineage
from lance_dagster.lineage.history import input_record
from lance_dagster.properties import ATTEMPT, RUN_ID, properties_of
from lance_dagster.tables.event_keys import COMMIT, RUN_ENTRIES
from lance_dagster.tables.location import TableLocation
from lance_dagster.tables.names import plain_metadata

if TYPE_CHECKING:
    import pyarrow as pa

    import lance_core
from lance_core.errors import NotFoundError

_MOST_PAGES: Final = 31
"""The most partitions of a run whose events all have the long entries."""

_LONG: Final = frozenset(
    {"lance/table_log", "lance/branches", "lance/inputs", "dagster/column_schema", "dagster/column_lineage"}
)


def build_shared_entries(
    result: lance_core.WriteResult, location: TableLocation, kept_attempts: Sequence[int] = ()
) -> dict[str, Any]:
    """The entries of a write that the events of all its partitions share.

    Args:
        result: The result of the write.
        location: The table.
        kept_attempts: Versions of earlier attempts of the write whose rows the table keeps.
    """
    dataset = result.dataset
    target = int(dataset.config().get(TARGET_KEY, DEFAULT_TARGET))
    stats = dataset.stats.dataset_stats(target)
    wrote = not result.deduplicated
    created = result.operation == "Overwrite" and result.read_version == 0
    entries: dict[str, Any] = {
        **describe_version(dataset),
        "lance/replaced_attempt": _attempt_of(result, result.replaced_versions),
        "lance/kept_attempt": _attempt_of(result, kept_attempts),
        "lance/rows_written": result.rows_written if wrote else None,
        "lance/rows_inserted": result.rows_inserted,
        "lance/rows_updated": result.rows_updated,
        "lance/rows_deleted": result.rows_deleted,
        "lance/operation": "Create" if created else result.operation,
        "lance/read_version": result.read_version,
        "dagster/table_name": location.name,
        "dagster/uri": location.uri,
        "dagster/column_schema": column_schema(dataset.schema),
        "lance/bytes_written": result.bytes_written if wrote and result.rows_inserted is None else None,
        "lance/fragments": stats["num_fragments"],
        "lance/fragments_added": result.fragments_added,
        "lance/fragments_removed": result.fragments_removed,
        "lance/small_fragments": stats["num_small_files"],
        "lance/attempts": result.attempts,
        "lance/transaction_uuid": result.transaction_uuid,
        "lance/deduplicated": result.deduplicated or None,
    }
    return {key: value for key, value in entries.items() if value is not None}


def _attempt_of(result: lance_core.WriteResult, versions: Sequence[int]) -> dg.JsonMetadataValue | None:
    """The run, attempt number and version of the newest of some earlier attempts; None without any.

    Args:
        result: The result of the write.
        versions: The versions that the attempts committed, oldest first.
    """
    if not versions:
        return None
    version = versions[-1]
    try:
        properties = properties_of(result.dataset.read_transaction(version))
    except NotFoundError:  # the version was cleaned up
        properties = {}
    attempt = properties.get(ATTEMPT, "")
    return dg.MetadataValue.json(
        {"run_id": properties.get(RUN_ID), "version": version, "attempt": int(attempt) if attempt.isdecimal() else None}
    )


def build_lineage_entries(
    definition: Mapping[str, Any],
    dataset: lance_core.LanceDataset,
    label: str,
    *,
    consumers: Mapping[str, int | None] | None = None,
    ui_url: str = "",
    derived: dg.TableColumnLineage | None = None,
    branches: str | None = None,
) -> dict[str, Any]:
    """The entries about the origin of a table: its inputs, its log as Markdown, and its column lineage.

    Args:
        definition: The asset's definition metadata.
        dataset: The table at the version that was written.
        label: The asset, for messages.
        consumers: The assets that read the table, with the version that each read last.
        ui_url: The URL of the Dagster UI, for links to runs.
        derived: The column lineage to report if the asset declares none.
        branches: Markdown about the branches, for the log of the table.
    """
    versions = read_recent_versions(dataset)
    page = render_table_log(dataset, versions, consumers, ui_url, branches)
    inputs = [input_record(read) for read in versions[0].inputs] if versions else []
    entries: dict[str, Any] = {
        "lance/inputs": dg.MetadataValue.json(inputs) if inputs else None,
        "lance/table_log": dg.MetadataValue.md(page),
        "dagster/column_lineage": column_lineage(definition, label=label) or derived,
    }
    return {key: value for key, value in entries.items() if value is not None}


def partition_entries(
    entries: Mapping[str, Any], result: lance_core.WriteResult, keys: Sequence[str]
) -> dict[str, Any]:
    """The entries of a write, with the figures of the run in `lance/commit` if they are not those of one partition.

    A merge into several partitions does not count rows by partition; `lance/commit` is about the whole commit.
    """
    if len(keys) <= 1 or result.slice_rows:
        return dict(entries)
    return {key.replace("lance", COMMIT) if key in RUN_ENTRIES else key: value for key, value in entries.items()}


def build_entries_by_partition(
    result: lance_core.WriteResult, entries: Mapping[str, Any], keys: Sequence[str], rows: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """All entries of the event of each partition, by partition; empty if the events can share the entries of the write.

    Args:
        result: The result of the write.
        entries: The entries of the whole write.
        keys: The partitions, in the order of their events.
        rows: The number of rows of each partition after the write; may lack partitions.
    """
    if not result.slice_rows and not rows and len(keys) <= _MOST_PAGES:
        return {}
    metadata_by_key = {}
    for key in keys:
        event_entries: dict[str, Any] = {}
        if key in result.slice_rows:
            event_entries["lance/rows_written"] = result.slice_rows[key]
        if key in rows:
            event_entries["dagster/partition_row_count"] = rows[key]
        metadata_by_key[key] = build_partition_entries(entries, event_entries, key, keys)
    return metadata_by_key


def build_partition_entries(
    entries: Mapping[str, Any], event_entries: Mapping[str, Any], key: str | None, keys: Sequence[str | None]
) -> dict[str, Any]:
    """The entries of the event of one partition, laid out.

    Args:
        entries: The entries of all events.
        event_entries: The entries of this event.
        key: The partition of this event.
        keys: The partitions, in the order of their events.
    """
    is_short = len(keys) > _MOST_PAGES and key != keys[-1]
    return ordered_entries(
        {name: value for name, value in entries.items() if not (is_short and name in _LONG)} | dict(event_entries)
    )


def ordered_entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries laid out for an event: some at the top (see `layout`), the others in `lance/commit`."""
    shown, rest = split_entries(entries)
    commit_entries = {key: plain_metadata(value) for key, value in rest.items()}
    return {**shown, COMMIT: dg.MetadataValue.json(commit_entries)} if commit_entries else shown


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """The columns as Dagster's table schema: Arrow types, nullability, and short metadata of fields as tags."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name=name, type=kind, constraints=dg.TableColumnConstraints(nullable=nullable), tags=dict(tags)
            )
            for name, kind, nullable, tags in describe_columns(schema)
        ]
    )

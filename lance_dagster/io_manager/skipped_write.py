"""The events of outputs without rows that are skipped, or remove none: Dagster records them, and they must be true.

No row has changed, so that the data version stays as it was, and nothing downstream is stale or starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance_core
from lance_dagster._context.steps import add_metadata, set_data_version
from lance_dagster.branches.writing import describe_write_to_branch
from lance_dagster.events.layout import describe_version
from lance_dagster.events.materialization import ordered_entries
from lance_dagster.events.reporting import count_partition_rows, read_recorded_states
from lance_dagster.io_manager.output import TableOutput
from lance_dagster.lineage.history import compute_data_version, format_data_version, last_data_change, read_history
from lance_dagster.tables.refs import TableRef


def report_skipped(output: TableOutput) -> None:
    """Report an output that was skipped: the version that the table has, its rows and its data version."""
    context, existing = output.context, output.existing
    set_data_version(context, unchanged_data_version(output))
    entries: dict[str, Any] = {"lance/rows_written": 0}
    if existing is None:
        context.add_output_metadata(entries)
        return
    entries |= {**describe_version(existing), "dagster/uri": output.location.uri}
    if existing.branch is not None:
        entries |= describe_write_to_branch(existing, output.instance, context.asset_key)
        entries.pop("lance/branches", None)
    definition = context.asset_partitions_def if output.keys is not None else None
    ref = TableRef(key=context.asset_key, metadata=output.metadata, partitions_def=definition)
    counted = count_partition_rows(existing, ref, output.keys or ())
    by_partition = {
        key: ordered_entries({**entries, "dagster/partition_row_count": counted[key].rows})
        for key in output.keys or ()
        if key in counted
    }
    add_metadata(context, ordered_entries(entries), by_partition)


def unchanged_data_version(output: TableOutput) -> str:
    """The data version that Dagster knows of the output's partitions, if they have one in common; else the table's."""
    existing = output.existing
    if existing is None:
        return format_data_version(lance_core.canonical_uri(output.location.uri), 0, output.branch)
    if output.keys is not None and existing.branch is None and output.instance is not None:
        recorded_versions = read_recorded_states(
            output.instance, output.context.asset_key, output.keys, existing
        ).values()
        common = {recorded.data_version for recorded in recorded_versions}
        since = min((recorded.version or 0 for recorded in recorded_versions), default=0)
        if len(common) == 1 and None not in common and not _has_changed(existing, output.keys, since):
            return str(common.pop())
    return compute_data_version(existing)


def _has_changed(table: lance_core.LanceDataset, partitions: Sequence[str], since: int) -> bool:
    """Whether commits after a version may have changed rows of partitions: all that do not name others alone."""
    if last_data_change(table) <= since:
        return False
    if len([version for version in table.version_refs() if version["version"] > since]) < table.version - since:
        return True  # versions were cleaned up
    for commit in read_history(table, after=since, count_changes=False):
        named = commit.partitions
        if (
            commit.changes_rows
            and not commit.is_idle
            and not (isinstance(named, list) and set(named).isdisjoint(partitions))
        ):
            return True
    return False

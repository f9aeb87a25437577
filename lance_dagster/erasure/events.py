"""Logs an erasure to Dagster: materializations where it removed versions that events name, else observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

import dagster as dg

import lance_core
from lance_core.maintenance import ErasureReport
from lance_dagster.events import reporting
from lance_dagster.events.reporting import PartitionRows
from lance_dagster.properties import ERASURE
from lance_dagster.tables.refs import TableRef, TableRoot

ERASURE_ENTRY: Final = "lance/erasure"
"""Entry of the events with the report of the erasure."""


def log_erasure(
    context: dg.OpExecutionContext,
    root: TableRoot,
    dataset: lance_core.LanceDataset,
    refs: Sequence[TableRef],
    report: ErasureReport,
    erasure_name: str,
    rows_before: Mapping[str, Mapping[str, PartitionRows]],
) -> None:
    """Log the erasure of a table, for each asset that shares the table.

    If the erasure removed versions that Dagster's events name, materializations name the version that exists now: one
    of the asset, or one of each of its partitions whose version was removed. Otherwise an observation is logged. The
    data version is kept where no row was erased, so that automation computes nothing again from the same rows.

    Args:
        context: The context of the step that reports.
        root: The root of the tables.
        dataset: The table, at the version after the erasure.
        refs: The assets that share the table; the job names the first one.
        report: The report of the erasure.
        erasure_name: The name of the erasure; may be empty.
        rows_before: The rows of partitions before the erasure, by the name of the asset.

    Raises:
        DatasetNotFoundError: The first asset has another table since the erasure.
    """
    entries: dict[str, Any] = {
        ERASURE_ENTRY: asdict(report),
        "lance/rows_erased": sum(report.rows_deleted.values()),
        "lance/erasure_proven": report.proven,
        "lance/erasure_dry_run": report.dry_run,
        **({"lance/erasure_request": erasure_name} if erasure_name else {}),
    }
    is_removed = partial(_is_removed, dataset, frozenset(report.versions_removed.get("main", ())))
    is_idle = report.dry_run or report.obstacles
    location = root.locate(refs[0]) if is_idle else root.locate_changed(refs[0], dataset)
    for ref in refs:
        recorded_versions = reporting.read_recorded_states(
            context.instance, ref.key, _list_materialized_partitions(context.instance, ref), dataset
        )
        removed = [partition for partition, reported in recorded_versions.items() if is_removed(reported.version)]
        if is_idle or not removed:
            context.log_event(dg.AssetObservation(asset_key=ref.key, metadata=entries))
            continue
        names = [partition for partition in removed if partition is not None]
        earlier = rows_before.get(ref.name, {})
        rows = {
            name: replace(now, erased=max(earlier[name].rows - now.rows, 0)) if name in earlier else now
            for name, now in reporting.count_partition_rows(dataset, ref, names).items()
        }
        data_versions = {
            partition: data_version
            for partition in removed
            if (data_version := recorded_versions[partition].data_version)
            and (not report.rows_deleted.get("main") or (partition in rows and rows[partition].erased == 0))
        }
        table_report = reporting.TableReport(
            ref=ref,
            dataset=dataset,
            partitions=names,
            metadata={name: value for name, value in entries.items() if not (names and name == "lance/rows_erased")},
            rows=rows,
            unchanged=data_versions,
            provenance={partition: recorded_versions[partition].provenance for partition in removed},
        )
        reporting.log_events(context, root, table_report, location)


def count_rows_before_erasure(
    instance: dg.DagsterInstance, dataset: lance_core.LanceDataset, refs: Sequence[TableRef]
) -> dict[str, dict[str, PartitionRows]]:
    """The rows of materialized partitions, by the name of the asset, before rows are erased.

    Args:
        instance: The instance that records the events.
        dataset: The table.
        refs: The assets that share the table.
    """
    return {
        ref.name: reporting.count_partition_rows(dataset, ref, _list_materialized_partitions(instance, ref))
        for ref in refs
    }


def _is_removed(dataset: lance_core.LanceDataset, removed: frozenset[int], version: int | None) -> bool:
    """Whether an erasure removed a version: this one, or an earlier one that ended before it logged events."""
    if version is None or version in removed:
        return version is not None
    if any(ref["version"] == version for ref in dataset.version_refs()):
        return False
    return dataset.find_transaction(ERASURE, "true", newer_than=version) is not None


def _list_materialized_partitions(instance: dg.DagsterInstance, ref: TableRef) -> list[str]:
    """The materialized partitions of an asset; the newest event shows whether an asset without a definition has any."""
    if ref.partitions_def is None and ref.metadata is not None:
        return []
    newest = None if ref.partitions_def is not None else instance.get_latest_materialization_event(ref.key)
    materialization = None if newest is None else newest.asset_materialization
    is_partitioned = ref.partitions_def is not None or (
        materialization is not None and materialization.partition is not None
    )
    return sorted(instance.get_materialized_partitions(ref.key)) if is_partitioned else []

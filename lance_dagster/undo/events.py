"""The reports of a table after an undo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import dagster as dg

import lance_core
from lance_dagster.events import reporting
from lance_dagster.events.provenance import Origins, add_provenance_of_commits, find_written_provenance
from lance_dagster.events.reporting import TableReport
from lance_dagster.lineage.history import TableVersion, read_history
from lance_dagster.lineage.runs import versions_of_run
from lance_dagster.properties import FOREIGN_BRANCH_VERSIONS
from lance_dagster.tables.event_keys import UNDO_ENTRY
from lance_dagster.tables.refs import TableRef
from lance_dagster.undo.plan import Undo

INDICES_LOST: Final = "lance/indices_lost"
"""Entry of the events with the indices that are to be built again."""


def report_undo(instance: dg.DagsterInstance, ref: TableRef, plan: Undo, version: int) -> TableReport | None:
    """The report of an undo that was just committed, of the partitions that the run wrote for the asset.

    An undo on a branch is reported only for partitions whose newest event is about that branch.

    Args:
        instance: The instance that records the events.
        ref: The asset.
        plan: The undo.
        version: The version of the undo.
    """
    dataset = plan.dataset.checkout_version((plan.dataset.branch, version))
    partitions = _partitions(instance, ref, plan.run_versions)
    reported_versions = reporting.read_recorded_states(instance, ref.key, partitions, dataset)
    if dataset.branch is not None:
        due = [partition for partition, reported in reported_versions.items() if reported.branch == dataset.branch]
        if not due:
            return None
        partitions = [partition for partition in due if partition is not None]
    elif any((reported.version or 0) > version for reported in reported_versions.values()):
        dataset = dataset.checkout_version((None, None))
    return _make_report(instance, ref, dataset, partitions, plan.run_id, plan.versions, plan.indices_lost)


def report_earlier_undo(
    instance: dg.DagsterInstance, ref: TableRef, dataset: lance_core.LanceDataset, run_id: str
) -> TableReport | None:
    """The report of an earlier undo, of the partitions whose newest event is about a version before it.

    Args:
        instance: The instance that records the events.
        ref: The asset.
        dataset: The newest version of the branch.
        run_id: The run that was undone.
    """
    undone = next(version for version in read_history(dataset, count_changes=False) if version.undid == run_id)
    run_versions = versions_of_run(dataset, run_id)
    partitions = _partitions(instance, ref, run_versions)
    reported_versions = reporting.read_recorded_states(instance, ref.key, partitions, dataset)
    due = [
        partition
        for partition, reported in reported_versions.items()
        if reported.version is not None and reported.version < undone.version
    ]
    if dataset.branch is not None or not due:
        return None
    names = [partition for partition in due if partition is not None]
    return _make_report(instance, ref, dataset, names, run_id, [version.version for version in run_versions])


def _partitions(instance: dg.DagsterInstance, ref: TableRef, versions: Sequence[TableVersion]) -> list[str]:
    """The partitions of an asset that versions wrote, from their commits, or else from Dagster's events.

    If a version was made for several assets, or has changes of others, Dagster's events show the partitions of each.
    """
    versions = [version for version in versions if ref.name in version.assets] or list(versions)
    named = [version.partitions for version in versions]
    is_mixed = any(len(version.assets) > 1 or FOREIGN_BRANCH_VERSIONS in version.properties for version in versions)
    if all(keys is None for keys in named):
        return []
    if all(isinstance(keys, list) for keys in named) and not is_mixed:
        return sorted({str(key) for keys in named if isinstance(keys, list) for key in keys})
    runs = {run for version in versions for run in (*version.writers, version.committed_by) if run is not None}
    return reporting.list_partitions_of_runs(instance, ref.key, sorted(runs))


def _make_report(
    instance: dg.DagsterInstance,
    ref: TableRef,
    dataset: lance_core.LanceDataset,
    partitions: Sequence[str],
    run_id: str,
    versions: Sequence[int],
    indices_lost: Sequence[str] = (),
) -> TableReport:
    return TableReport(
        ref=ref,
        dataset=dataset,
        partitions=partitions,
        metadata={
            "lance/operation": "Undo",
            UNDO_ENTRY: run_id,
            "lance/undone_versions": dg.MetadataValue.json(list(versions)),
            INDICES_LOST: dg.MetadataValue.json(list(indices_lost)) if indices_lost else None,
        },
        rows=reporting.count_partition_rows(dataset, ref, partitions),
        provenance=_provenance(instance, ref.key, dataset, partitions, versions),
    )


def _provenance(
    instance: dg.DagsterInstance,
    key: dg.AssetKey,
    dataset: lance_core.LanceDataset,
    partitions: Sequence[str],
    undone: Sequence[int],
) -> dict[str | None, dict[str, str]]:
    """The tags that name the origin of the rows that are there after an undo, by partition, or by None."""
    branch, without = dataset.branch, undone
    if branch is not None:  # which began with the rows that main had then
        fork = dataset.branches.list()[branch]["parent_version"]
        without = range(fork + 1, sys.maxsize)
    before = reporting.read_recorded_states(instance, key, partitions, dataset, without=without)
    origins: Origins = {partition: (state.version or 0, dict(state.provenance)) for partition, state in before.items()}
    if branch is None:
        add_provenance_of_commits(instance, key, dataset, origins, without=undone)
    else:
        runs = {run for version in read_history(dataset, count_changes=False) for run in version.writers}
        origins |= find_written_provenance(instance, key, branch, runs, head=dataset, without=undone)
    return {partition: tags for partition, (_, tags) in origins.items()}

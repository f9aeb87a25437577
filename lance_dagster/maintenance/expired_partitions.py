"""The partitions of which maintenance has deleted the last row, because their rows expired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.maintenance.work import TableWork
from lance_dagster.tables.refs import TableRef

if TYPE_CHECKING:
    import lance_core
    from lance_core.maintenance import MaintenanceReport


def find_expired_partitions(
    context: dg.OpExecutionContext,
    report: MaintenanceReport,
    refs: Sequence[TableRef],
    dataset: lance_core.LanceDataset,
) -> dict[str, list[str]]:
    """The materialized partitions that have no rows any more, by asset; only columns of the expired rows are read.

    Args:
        context: The context of the step that deleted the rows.
        report: The report of that step.
        refs: The assets of the table, with their partitions.
        dataset: The table.
    """
    from lance_core.maintenance.routine.ages import is_older  # noqa: PLC0415 - code locations load without it
    from lance_dagster.events.reporting import count_partition_rows  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.tables.partitions import slices_of  # noqa: PLC0415 - heavy imports at first use

    plan, step, expired = report.plan, report.steps[-1], dict[str, list[str]]()
    if plan.expire_before is None or plan.policy.expire_by is None:
        return {}
    before, after = (dataset.checkout_version(step.version_after - number) for number in (1, 0))
    condition = is_older(before, plan.policy.expire_by, plan.expire_before, "expire_by")
    for ref in refs:
        if ref.partitions_def is None or "partition_expr" not in (ref.metadata or {}):
            continue
        names = sorted(context.instance.get_materialized_partitions(ref.key))
        if not names:
            continue
        slices, places = slices_of(ref, names, before.schema), set[int]()
        for batch in before.to_batches(columns=list(slices.columns), filter=condition):
            places.update(slices.assign(batch).tolist())
        reduced = [slices.names[place] for place in sorted(places) if place >= 0]
        rows = count_partition_rows(after, ref, reduced)
        expired[ref.name] = [name for name, count in rows.items() if not count.rows]
    return {name: partitions for name, partitions in expired.items() if partitions}


def observe_expired_partitions(work: TableWork) -> Iterator[dg.AssetObservation]:
    """One observation of each partition that has no rows any more."""
    version = next(step.version_after for step in work.report.steps if step.step == "expire")
    metadata: Mapping[str, str | int] = {
        "lance/maintenance": "expired",
        "dagster/partition_row_count": 0,
        "lance/version": version,
        "dagster/uri": work.report.plan.uri,
    }
    for name, partitions in work.expired_partitions.items():
        for partition in partitions:
            yield dg.AssetObservation(dg.AssetKey.from_user_string(name), partition=partition, metadata=metadata)

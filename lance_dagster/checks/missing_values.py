"""`build_lance_missing_values_checks`: rows of a shared table that have no value in the columns of an asset."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from lance_dagster._context.steps import run_partition_keys
from lance_dagster.checks.table_check import Finding, open_and_record_read, table_check
from lance_dagster.tables.refs import TableLike, TableRef, table_refs

if TYPE_CHECKING:
    import lance_core

_SHOWN: Final = 100
"""The most partitions that a result lists."""


def build_lance_missing_values_checks(
    assets: Iterable[TableLike] | TableLike,
    *,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    blocking: bool = False,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that an asset that owns columns of a shared table has set them in all rows.

    Rows that were appended after the asset's last run have nulls in these columns until the next run of their
    partitions. For a partitioned asset the partitions of the run are checked, or, in a run without partitions, the
    materialized ones: Dagster shows the others as missing already. The metadata of the result has the number of rows
    without values by partition, and the columns that count, which are those that the asset's last run returned. A value
    that is null on purpose counts as missing: let the asset write another value, or leave out this check.

    Args:
        assets: Assets with the write mode `columns`.
        severity: The severity of a failed check.
        blocking: Whether a failed check stops the assets downstream in the same run.
        io_manager_key: The resource that knows where the tables are.

    Examples:
        >>> checks = lance_dagster.build_lance_missing_values_checks(["embeddings"])
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_missing_values']
    """
    return [_build_missing_values_check(ref, severity, io_manager_key, blocking=blocking) for ref in table_refs(assets)]


def _build_missing_values_check(
    ref: TableRef, severity: dg.AssetCheckSeverity, io_manager_key: str, *, blocking: bool
) -> dg.AssetChecksDefinition:
    description = "All rows have values in the columns of this asset."

    @table_check(ref, "lance_missing_values", description, severity, io_manager_key, blocking=blocking)
    def missing_values(context: dg.AssetCheckExecutionContext) -> Finding | None:
        resolved_ref = ref.resolved(context)
        keys = run_partition_keys(context, resolved_ref.partitions_def)
        dataset = open_and_record_read(context, ref, io_manager_key, keys)
        if dataset is None:
            return None
        columns = _find_columns_set(dataset, resolved_ref)
        if not columns:
            return _make_finding_without_columns(context, dataset, resolved_ref, severity)
        if keys is None and resolved_ref.partitions_def is not None:
            keys = _find_published(context, resolved_ref, dataset.branch)
        missing_by_partition = _count_rows_without_values(dataset, resolved_ref, columns, keys)
        total = sum(missing_by_partition.values())
        named = {str(name): count for name, count in missing_by_partition.items() if name is not None and count}
        shown = dict(sorted(named.items())[:_SHOWN])
        said = f"{total:,} rows have no value in the columns of this asset" if total else "all rows have values"
        return Finding(
            passed=not total,
            description=f"{said}; a run of their partitions sets them" if named else said,
            metadata={
                "lance/version": dataset.version,
                "lance/rows_missing": total,
                "lance/columns": columns,
                **({"lance/partitions_missing": len(named), "lance/missing_by_partition": shown} if named else {}),
            },
        )

    return missing_values


def _find_published(context: dg.AssetCheckExecutionContext, ref: TableRef, branch: str | None) -> list[str]:
    from lance_dagster.events.published import find_published_partitions  # noqa: PLC0415 - heavy imports at first use

    materialized = context.instance.get_materialized_partitions(ref.key)
    return sorted(find_published_partitions(context.instance, ref.key, materialized, branch=branch))


def _find_columns_set(dataset: "lance_core.LanceDataset", ref: TableRef) -> list[str]:
    """The columns that an asset owns and that its last run set; all columns that it owns if that run set none of them.

    An owned column that the asset no longer returns keeps its values.
    """
    from lance_dagster.handlers.arrow_schema import owners  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.lineage.history import columns_set_by  # noqa: PLC0415 - heavy imports at first use

    columns = [name for name, owner in owners(dataset.schema).items() if owner == ref.name]
    last = columns_set_by(dataset, ref.name)
    return [name for name in columns if name in last] or columns


def _make_finding_without_columns(
    context: dg.AssetCheckExecutionContext,
    dataset: "lance_core.LanceDataset",
    ref: TableRef,
    severity: dg.AssetCheckSeverity,
) -> Finding:
    """The finding for an asset that owns no column; a check that only warns passes if the asset was never materialized.

    Raises:
        SchemaError: The asset's write mode is not `columns`.
    """
    from lance_core.errors import SchemaError  # noqa: PLC0415 - heavy imports at first use
    from lance_dagster.events.reporting import read_recorded_states  # noqa: PLC0415 - heavy imports at first use

    if (ref.metadata or {}).get("lance/write_mode") != "columns":
        raise SchemaError(
            f"asset {ref.name} owns no column of {dataset.uri}: the check is for assets whose lance/write_mode is "
            "columns"
        )
    is_new = read_recorded_states(context.instance, ref.key, [], dataset)[None].version is None
    said = "has set no columns of the table yet" if is_new else "owns no columns of the table now: materialize it again"
    return Finding(
        passed=is_new and severity is dg.AssetCheckSeverity.WARN,
        description=f"asset {ref.name} {said}",
        metadata={"lance/version": dataset.version, "lance/columns": []},
    )


def _count_rows_without_values(
    dataset: "lance_core.LanceDataset", ref: TableRef, columns: Sequence[str], partitions: Sequence[str] | None
) -> Mapping[str | None, int]:
    """The number of rows with a null in at least one of the columns, by partition; by None without partitions."""
    import numpy as np  # noqa: PLC0415 - heavy imports at first use
    import pyarrow.compute as pc  # noqa: PLC0415 - heavy imports at first use

    from lance_dagster.tables.partitions import slices_of  # noqa: PLC0415 - heavy imports at first use

    is_missing: Any = reduce(or_, (pc.field(name).is_null() for name in columns))
    if partitions is None or ref.partitions_def is None:
        return {None: dataset.count_rows(filter=is_missing)}
    if not partitions:
        return {}
    slices = slices_of(ref, partitions, dataset.schema)
    condition = slices.expression(dataset.schema) & is_missing
    rows = np.zeros(len(slices.names), np.int64)
    for batch in dataset.to_batches(columns=list(slices.columns), filter=condition):
        at = slices.assign(batch)
        rows += np.bincount(at[at >= 0], minlength=len(rows))
    return {name: int(count) for name, count in zip(slices.names, rows, strict=True)}

"""The parts that checks of tables share: opening the table as the run sees it, and the result without a table."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster._context.runs import running_step
from lance_dagster._context.steps import facts_of
from lance_dagster.lineage.check_reads import record_check_read
from lance_dagster.tables.branch_policy import tag_run_with_branch
from lance_dagster.tables.refs import TableRef, table_root

if TYPE_CHECKING:
    import lance_core

Check = Callable[[dg.AssetCheckExecutionContext, "lance_core.LanceDataset"], dg.AssetCheckResult]


def table_check(
    ref: TableRef,
    name: str,
    description: str,
    severity: dg.AssetCheckSeverity,
    io_manager_key: str,
    *,
    partitions: Callable[[dg.AssetCheckExecutionContext], Sequence[str] | None] = lambda _: None,
    **options: Any,
) -> Callable[[Check], dg.AssetChecksDefinition]:
    """Make an asset check from a function of the check's context and the table; without a table it is not called.

    Args:
        ref: The asset.
        name: Name of the check.
        description: Description of the check.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the table is.
        partitions: Returns the partitions whose rows the check reads in a run; None for all rows.
        **options: Further arguments of `dg.asset_check`.
    """

    def decorate(look: Check) -> dg.AssetChecksDefinition:
        @dg.asset_check(
            asset=ref.key, name=name, description=description, required_resource_keys={io_manager_key}, **options
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            dataset = open_and_record_read(context, ref, io_manager_key, partitions(context))
            if dataset is None:
                return dg.AssetCheckResult(**describe_missing_table(context, ref, severity))
            return look(context, dataset)

        return check

    return decorate


def open_and_record_read(
    context: dg.AssetCheckExecutionContext, ref: TableRef, io_manager_key: str, partitions: Sequence[str] | None = None
) -> "lance_core.LanceDataset | None":
    """Open the table as the run of a check sees it, and log that the check read it; None if there is no table.

    Args:
        context: The context of the check.
        ref: The asset.
        io_manager_key: The resource that knows where the table is.
        partitions: The partitions whose rows the check reads; None for all rows.
    """
    from lance_core.errors import DatasetNotFoundError  # noqa: PLC0415 - heavy imports at first use

    root, running = table_root(getattr(context.resources, io_manager_key)), running_step()
    facts = facts_of(context.run, context.instance) if running is None else running.facts
    try:
        dataset = root.open_in_run(ref.resolved(context), facts)
    except DatasetNotFoundError:
        return None
    record_check_read(facts, tag_run_with_branch(root.branching, facts), dataset, partitions)
    return dataset


def describe_missing_table(
    context: dg.AssetCheckExecutionContext, ref: TableRef, severity: dg.AssetCheckSeverity
) -> dict[str, Any]:
    """Return the arguments of `AssetCheckResult` where the table is missing.

    A check that only warns passes if the asset was never materialized.

    Args:
        context: The context of the check.
        ref: The asset, which has no table.
        severity: The severity of a failed check; with ERROR the check always fails without a table.
    """
    event = context.instance.get_latest_materialization_event(ref.key)
    if event is None:
        said = "there is no table yet: the asset was never materialized"
    else:
        said = (
            f"the table no longer exists: run {event.run_id} materialized the asset. Put the table back, "
            "materialize the asset again, or wipe its materializations in Dagster"
        )
    passed = event is None and severity is dg.AssetCheckSeverity.WARN
    return {"passed": passed, "severity": severity, "description": said}

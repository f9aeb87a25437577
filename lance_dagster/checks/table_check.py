"""The parts that checks of tables share: opening the table as the run sees it, and the finding without a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from lance_dagster._context.runs import running_step
from lance_dagster._context.steps import facts_of, is_external_asset
from lance_dagster.health.policy import parse_age
from lance_dagster.lineage.check_reads import record_check_read
from lance_dagster.tables.branch_policy import tag_run_with_branch
from lance_dagster.tables.refs import TableRef, table_root

if TYPE_CHECKING:
    import lance_core


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        passed: Whether the table is as the check wants it.
        description: Why.
        metadata: Numbers.
    """

    passed: bool
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_result(self, severity: dg.AssetCheckSeverity, **target: Any) -> dg.AssetCheckResult:
        """Return the result of a check of a severity."""
        return dg.AssetCheckResult(
            passed=self.passed, severity=severity, description=self.description, metadata=self.metadata, **target
        )


def table_check(
    ref: TableRef,
    name: str,
    description: str,
    severity: dg.AssetCheckSeverity,
    io_manager_key: str,
    **options: Any,
) -> Callable[[Callable[[dg.AssetCheckExecutionContext], Finding | None]], dg.AssetChecksDefinition]:
    """Make an asset check from a function of the check's context, which returns None if there is no table.

    Args:
        ref: The asset.
        name: Name of the check.
        description: Description of the check.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the table is.
        **options: Further arguments of `dg.asset_check`.
    """

    def decorate(look: Callable[[dg.AssetCheckExecutionContext], Finding | None]) -> dg.AssetChecksDefinition:
        @dg.asset_check(
            asset=ref.key, name=name, description=description, required_resource_keys={io_manager_key}, **options
        )
        def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
            return (look(context) or describe_missing_table(context, ref, severity)).to_result(severity)

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
) -> Finding:
    """Return what is said of a missing table.

    A check that only warns passes if the asset was never materialized, unless others write its table.

    Args:
        context: The context of the check.
        ref: The asset, which has no table.
        severity: The severity of a failed check; with ERROR the check always fails without a table.
    """
    event = context.instance.get_latest_materialization_event(ref.key)
    is_external = event is None and is_external_asset(context, ref.key)
    if is_external:
        said = "there is no table: those who write it have dropped or renamed it, or have not created it yet"
    elif event is None:
        said = "there is no table yet: the asset was never materialized"
    else:
        said = (
            f"the table no longer exists: run {event.run_id} materialized the asset. Put the table back, "
            "materialize the asset again, or wipe its materializations in Dagster"
        )
    return Finding(event is None and not is_external and severity is dg.AssetCheckSeverity.WARN, said)


def parse_limit(max_age: str | timedelta, least: timedelta = timedelta.resolution) -> timedelta:
    """Return the length of time that an argument `max_age` gives.

    Raises:
        ValueError: `max_age` is not a length of time, or is shorter than `least`.
    """
    limit = parse_age(max_age)
    if limit is None or limit < least:
        kind = "positive length" if least else "length"
        raise ValueError(f'max_age must be a {kind} of time such as "1d", not {max_age!r}')
    return limit

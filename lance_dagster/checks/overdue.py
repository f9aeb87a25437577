"""`build_lance_overdue_checks`: whether maintenance of a table is overdue, by the log that its runs write."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lance_dagster.checks.table_check import missing_table
from lance_dagster.health.policy import LanceMaintenancePolicy, parse_age, policy_of
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root

__all__ = ["build_lance_overdue_checks"]


def build_lance_overdue_checks(
    assets: Iterable[TableLike] | TableLike,
    max_age: str | timedelta = "2d",
    *,
    root: str | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that a run of maintenance has found a table healthy, or has finished it, within some time.

    They read the log that each run of a maintenance job appends to, `{root}/_maintenance/log.lance`. An asset passes
    whose metadata `lance/maintenance` is False, and so does one that was never materialized; one whose table is gone
    does not.

    Args:
        assets: Assets, specs or keys.
        max_age: Time after which maintenance is overdue: a string such as "2d" or "36h", or a timedelta.
        root: The root that the job was given, if it is not that of the IO manager.
        severity: Of a check that fails.
        io_manager_key: The resource that knows where the log is.

    Raises:
        ValueError: `max_age` is no time.

    Examples:
        >>> checks = lance_dagster.build_lance_overdue_checks(["nyc/flights"], "36h")
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_maintenance_overdue']
    """
    limit = parse_age(max_age) if isinstance(max_age, str) else max_age
    if limit is None or limit <= timedelta(0):
        raise ValueError(f'max_age must be a time such as "2d", not {max_age!r}')
    return [_overdue_check(ref, limit, root, severity, io_manager_key) for ref in table_refs(assets)]


def _overdue_check(
    ref: TableRef, limit: timedelta, root: str | None, severity: dg.AssetCheckSeverity, io_manager_key: str
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=ref.key,
        name="lance_maintenance_overdue",
        description=f"A run of maintenance has looked after the table within {limit}.",
        required_resource_keys={io_manager_key},
    )
    def overdue(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        from lance_dagster.health.log import last_maintained, open_log  # noqa: PLC0415 - heavy imports at first use

        own = ref.resolved(context)
        if policy_of(LanceMaintenancePolicy(), own.metadata, where=f"asset {ref.name}") is None:
            return dg.AssetCheckResult(passed=True, description="left alone: its metadata lance/maintenance is False")
        tables: Any = table_root(getattr(context.resources, io_manager_key))
        if root is None and not _is_there(tables, own):
            return dg.AssetCheckResult(**missing_table(context, ref, severity))
        log = open_log(root or tables.root_uri, tables.options)
        last = None if log is None else last_maintained(log, ref.name)
        if last is None:
            where = "there is no log of maintenance" if log is None else "no run in the log has finished this table"
            return dg.AssetCheckResult(passed=False, severity=severity, description=where)
        age = datetime.now(UTC) - last
        return dg.AssetCheckResult(
            passed=age <= limit,
            severity=severity,
            description=f"maintained {timedelta(seconds=int(age.total_seconds()))} ago, the limit is {limit}",
            metadata={
                "lance/maintained": dg.TimestampMetadataValue(last.timestamp()),
                "lance/age_s": age.total_seconds(),
            },
        )

    return overdue


def _is_there(root: TableRoot, ref: TableRef) -> bool:
    """Whether there is a table, readable or not."""
    from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

    try:
        return root.open_or_none(ref) is not None
    except LanceError:  # of a table that cannot be read the log says what came of it
        return True

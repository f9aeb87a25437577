"""`build_lance_overdue_checks`: whether maintenance of a table is overdue, by the log that its runs write."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.checks.table_check import missing_table
from lance_dagster.health.policy import LanceMaintenancePolicy, parse_age, policy_of
from lance_dagster.tables.location import checked_root
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root

if TYPE_CHECKING:
    import lance_core

__all__ = ["build_lance_overdue_checks"]


def build_lance_overdue_checks(
    assets: Iterable[TableLike] | TableLike,
    max_age: str | timedelta = "2d",
    *,
    root: str | bool | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that a run of maintenance has found a table healthy, or has finished it, within some time.

    The checks read the log that each run of a maintenance job appends to, `{root}/_maintenance/log.lance`. An asset
    passes if its metadata `lance/maintenance` is False, or if it was never materialized; it does not pass if its table
    was dropped. A table is identified by its URI, whatever name it has for the job.

    Args:
        assets: Assets, specs or keys.
        max_age: Time after which maintenance is overdue: a string such as "2d" or "36h", or a timedelta.
        root: The root that the job was given: the URI of the folder with the log; True, as None, for that of the IO
            manager. It chooses no tables: those of a root are given by `lance_external_assets`.
        severity: Of a check that fails.
        io_manager_key: The resource that knows where the log is.

    Raises:
        DagsterInvalidDefinitionError: The root is empty, or holds credentials.
        ValueError: `max_age` is not a time.

    Examples:
        >>> checks = lance_dagster.build_lance_overdue_checks(["nyc/flights"], "36h")
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_maintenance_overdue']
    """
    limit = parse_age(max_age) if isinstance(max_age, str) else max_age
    if limit is None or limit <= timedelta(0):
        raise ValueError(f'max_age must be a time such as "2d", not {max_age!r}')
    place = None if isinstance(root, bool) else checked_root(root)
    return [_overdue_check(ref, limit, place, severity, io_manager_key) for ref in table_refs(assets)]


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
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use
        from lance_dagster.health.log import open_log  # noqa: PLC0415 - heavy imports at first use

        own = ref.resolved(context)
        if policy_of(LanceMaintenancePolicy(), own.metadata, where=f"asset {ref.name}") is None:
            return dg.AssetCheckResult(passed=True, description="left alone: its metadata lance/maintenance is False")
        tables = table_root(getattr(context.resources, io_manager_key))
        if root is None and not _is_there(tables, own):
            return dg.AssetCheckResult(**missing_table(context, ref, severity))
        try:
            log = open_log(root or tables.root_uri, tables.options)
            last = None if log is None else _last(log, own, tables, root)
        except LanceError as error:
            return dg.AssetCheckResult(
                passed=False, severity=severity, description=f"the log of maintenance cannot be read: {error}"
            )
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


def _last(log: "lance_core.LanceDataset", ref: TableRef, tables: TableRoot, root: str | None) -> datetime | None:
    """When the table of an asset was last maintained: where the IO manager has it, else below the root of the log."""
    from lance_dagster.health.log import last_maintained  # noqa: PLC0415 - heavy imports at first use

    found = last_maintained(log, tables.locate(ref).uri)
    if found is not None or root is None:
        return found
    return last_maintained(log, replace(tables, root_uri=root).locate(ref).uri)


def _is_there(root: TableRoot, ref: TableRef) -> bool:
    """Whether there is a table, readable or not."""
    from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

    try:
        return root.open_or_none(ref) is not None
    except LanceError:  # of a table that cannot be read the log says what came of it
        return True

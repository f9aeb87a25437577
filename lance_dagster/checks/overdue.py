"""`build_lance_overdue_checks`: whether maintenance of a table is overdue, by the log that its runs write."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from lance_dagster.checks.table_check import Finding, parse_limit, table_check
from lance_dagster.health.policy import LanceMaintenancePolicy, policy_of
from lance_dagster.tables.location import checked_root
from lance_dagster.tables.refs import TableLike, TableRef, TableRoot, table_refs, table_root

if TYPE_CHECKING:
    import lance_core


def build_lance_overdue_checks(
    assets: Iterable[TableLike] | TableLike,
    max_age: str | timedelta = "2d",
    *,
    root: str | bool | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    io_manager_key: str = "io_manager",
) -> list[dg.AssetChecksDefinition]:
    """Checks that fail if no run of maintenance has maintained a table, or found it healthy, within some time.

    The checks read the log to which each run of a maintenance job appends, `{root}/_maintenance/log.lance`, and find a
    table there by its URI. An asset passes if its metadata `lance/maintenance` is False. Unless `root` is a URI,
    a table that does not exist fails; with severity WARN it passes while its asset was never materialized.

    Args:
        assets: Assets, specs or keys.
        max_age: Time after which maintenance is overdue: a string such as "2d" or "36h", or a timedelta.
        root: The URI of the root whose `_maintenance/log.lance` is read; None, True or False for the root of the IO
            manager. Only `assets` are checked: `lance_external_assets` returns those of a root.
        severity: The severity of a failed check.
        io_manager_key: The resource that knows where the tables and the log are.

    Raises:
        DagsterInvalidDefinitionError: The root is no valid `root_uri`.
        ValueError: `max_age` is not a length of time, or not positive.

    Examples:
        >>> checks = lance_dagster.build_lance_overdue_checks(["nyc/flights"], "36h")
        >>> [key.name for check in checks for key in check.check_keys]
        ['lance_maintenance_overdue']
    """
    limit = parse_limit(max_age)
    place = None if isinstance(root, bool) else checked_root(root)
    return [_build_overdue_check(ref, limit, place, severity, io_manager_key) for ref in table_refs(assets)]


def _build_overdue_check(
    ref: TableRef, limit: timedelta, root: str | None, severity: dg.AssetCheckSeverity, io_manager_key: str
) -> dg.AssetChecksDefinition:
    description = f"A run of maintenance has finished the table, or found it healthy, within {limit}."

    @table_check(ref, "lance_maintenance_overdue", description, severity, io_manager_key)
    def overdue(context: dg.AssetCheckExecutionContext) -> Finding | None:
        from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use
        from lance_dagster.health.log import open_log  # noqa: PLC0415 - heavy imports at first use

        resolved_ref = ref.resolved(context)
        if policy_of(LanceMaintenancePolicy(), resolved_ref.metadata, label=f"asset {ref.name}") is None:
            return Finding(True, "not maintained: the asset's metadata lance/maintenance is False")
        tables = table_root(getattr(context.resources, io_manager_key))
        branch = tables.branch_of_job(context)
        if root is None and not _is_there(tables, resolved_ref):
            return None
        try:
            log = open_log(root or tables.root_uri, tables.options)
            last = None if log is None else _find_last_maintenance(log, resolved_ref, tables, root, branch)
        except LanceError as error:
            return Finding(False, f"the log of maintenance cannot be read: {error}")
        if last is None:
            said = "there is no log of maintenance" if log is None else "no run in the log has finished this table"
            return Finding(False, said)
        age = datetime.now(UTC) - last
        return Finding(
            passed=age <= limit,
            description=f"maintained {timedelta(seconds=int(age.total_seconds()))} ago, the limit is {limit}",
            metadata={
                "lance/maintained": dg.TimestampMetadataValue(last.timestamp()),
                "lance/age_s": age.total_seconds(),
            },
        )

    return overdue


def _find_last_maintenance(
    log: "lance_core.LanceDataset", ref: TableRef, tables: TableRoot, root: str | None, branch: str | None
) -> datetime | None:
    """When an asset's table was last maintained: below the root of the IO manager, or else below that of the log."""
    from lance_dagster.health.log import find_last_maintenance  # noqa: PLC0415 - heavy imports at first use

    below = "" if branch is None else f"/tree/{branch}"
    maintained = find_last_maintenance(log, tables.locate(ref).uri + below)
    if maintained is not None or root is None:
        return maintained
    return find_last_maintenance(log, replace(tables, root_uri=root).locate(ref).uri + below)


def _is_there(root: TableRoot, ref: TableRef) -> bool:
    """Whether the table exists, readable or not."""
    from lance_core.errors import LanceError  # noqa: PLC0415 - heavy imports at first use

    try:
        return root.open_or_none(ref) is not None
    except LanceError:  # the log records the failure of a table that cannot be read
        return True

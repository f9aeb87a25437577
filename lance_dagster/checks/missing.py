"""What a check says of an asset without a table."""

from typing import Any

import dagster as dg

from lance_dagster.tables.refs import TableRef

__all__ = ["missing_table"]


def missing_table(
    context: dg.AssetCheckExecutionContext, ref: TableRef, severity: dg.AssetCheckSeverity
) -> dict[str, Any]:
    """The fields of the result; an asset that was never materialized has nothing to warn of.

    Args:
        context: The check.
        ref: The asset, which has no table.
        severity: Of a check that fails; one that is no warning fails without a table in any case.
    """
    event = context.instance.get_latest_materialization_event(ref.key)
    if event is None:
        said = "there is no table yet: the asset was never materialized"
    else:
        said = (
            f"the table is gone: run {event.run_id} materialized the asset, and there is no table now. Put it back, "
            "materialize the asset again, or wipe its materializations in Dagster"
        )
    passed = event is None and severity is dg.AssetCheckSeverity.WARN
    return {"passed": passed, "severity": severity, "description": said}

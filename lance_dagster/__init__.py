"""Lance tables in Dagster: IO manager, resources, checks, branches and maintenance jobs.

    LanceIOManager               stores assets as Lance tables: Spark, pyarrow, pandas and polars frames
    LanceTableResource           opens these tables in bodies of assets, checks, sensors and ops
    LanceSparkResource           the one Spark session of a process: on this machine, a cluster or Spark Connect
    stamp_lance_metadata         adds table name and URI to definitions, for the Dagster UI
    lance_filter                 a pyarrow expression as metadata of an input
    LanceMaintenancePolicy       what maintenance does to tables, and when they need it
    LanceMaintenanceBudget       the limits of a run of maintenance
    build_maintenance_job        maintenance as a job;  build_maintenance_schedule, build_maintenance_sensor run it
    build_lance_*_check(s)       health, integrity, primary_key, drift, overdue, missing_values, lag, freshness
    lance_external_assets        the tables below a root as external assets
    observable_lance_asset       a table that others write;  build_lance_observation_sensor reports their commits
    BranchPolicy                 which runs write to a branch;  build_branch_jobs, build_branch_sensor promote branches
    build_audited_job            write, audit and publish: a branch whose checks must pass before it is promoted
    build_undo_job               undoes the writes of a run
    build_erasure_job            erases rows from all versions and files, with a proof
    build_change_type_job        changes the type of a column of a table
    lance_eager                  an automation condition that waits until changes are published on main;
                                 lance_changed_rows one that waits until many rows of a table have changed

Importing this package imports neither lance_core nor pyarrow nor pyspark, and each name imports its module on first
use: a code location loads quickly and `dg` commands stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lance_core import __version__ as __version__
    from lance_dagster.branches.audited_job import build_audited_job
    from lance_dagster.branches.jobs import build_branch_jobs
    from lance_dagster.branches.sensor import build_branch_sensor
    from lance_dagster.change_type_job import build_change_type_job
    from lance_dagster.checks.builders import (
        build_lance_drift_check,
        build_lance_integrity_checks,
        build_lance_primary_key_check,
    )
    from lance_dagster.checks.freshness import build_lance_freshness_checks
    from lance_dagster.checks.health import build_lance_health_checks
    from lance_dagster.checks.lag import build_lance_lag_checks
    from lance_dagster.checks.missing_values import build_lance_missing_values_checks
    from lance_dagster.checks.overdue import build_lance_overdue_checks
    from lance_dagster.erasure.jobs import build_erasure_job
    from lance_dagster.health.lake import lance_external_assets
    from lance_dagster.health.policy import LanceMaintenancePolicy
    from lance_dagster.io_manager.config import LanceIOManager
    from lance_dagster.maintenance.budget import LanceMaintenanceBudget
    from lance_dagster.maintenance.job import build_maintenance_job
    from lance_dagster.maintenance.schedule import build_maintenance_schedule
    from lance_dagster.maintenance.sensor import build_maintenance_sensor
    from lance_dagster.observation import build_lance_observation_sensor, observable_lance_asset
    from lance_dagster.resource import LanceTableResource
    from lance_dagster.spark import LanceSparkResource
    from lance_dagster.stamp import stamp_lance_metadata
    from lance_dagster.tables.branch_policy import BranchPolicy
    from lance_dagster.tables.filters import lance_filter
    from lance_dagster.undo.jobs import build_undo_job

__all__ = [
    "BranchPolicy",
    "LanceIOManager",
    "LanceMaintenanceBudget",
    "LanceMaintenancePolicy",
    "LanceSparkResource",
    "LanceTableResource",
    "build_audited_job",
    "build_branch_jobs",
    "build_branch_sensor",
    "build_change_type_job",
    "build_erasure_job",
    "build_lance_drift_check",
    "build_lance_freshness_checks",
    "build_lance_health_checks",
    "build_lance_integrity_checks",
    "build_lance_lag_checks",
    "build_lance_missing_values_checks",
    "build_lance_observation_sensor",
    "build_lance_overdue_checks",
    "build_lance_primary_key_check",
    "build_maintenance_job",
    "build_maintenance_schedule",
    "build_maintenance_sensor",
    "build_undo_job",
    "lance_changed_rows",
    "lance_eager",
    "lance_external_assets",
    "lance_filter",
    "observable_lance_asset",
    "stamp_lance_metadata",
]

_MODULES: Final = {
    "__version__": "lance_core",
    "build_audited_job": "lance_dagster.branches.audited_job",
    "build_branch_sensor": "lance_dagster.branches.sensor",
    "build_branch_jobs": "lance_dagster.branches.jobs",
    "build_undo_job": "lance_dagster.undo.jobs",
    "BranchPolicy": "lance_dagster.tables.branch_policy",
    "build_change_type_job": "lance_dagster.change_type_job",
    "build_erasure_job": "lance_dagster.erasure.jobs",
    "LanceIOManager": "lance_dagster.io_manager.config",
    "LanceMaintenanceBudget": "lance_dagster.maintenance.budget",
    "LanceMaintenancePolicy": "lance_dagster.health.policy",
    "LanceSparkResource": "lance_dagster.spark",
    "LanceTableResource": "lance_dagster.resource",
    "build_lance_drift_check": "lance_dagster.checks.builders",
    "build_lance_freshness_checks": "lance_dagster.checks.freshness",
    "build_lance_health_checks": "lance_dagster.checks.health",
    "build_lance_integrity_checks": "lance_dagster.checks.builders",
    "build_lance_lag_checks": "lance_dagster.checks.lag",
    "build_lance_missing_values_checks": "lance_dagster.checks.missing_values",
    "build_lance_observation_sensor": "lance_dagster.observation",
    "build_lance_overdue_checks": "lance_dagster.checks.overdue",
    "build_lance_primary_key_check": "lance_dagster.checks.builders",
    "build_maintenance_job": "lance_dagster.maintenance.job",
    "build_maintenance_schedule": "lance_dagster.maintenance.schedule",
    "build_maintenance_sensor": "lance_dagster.maintenance.sensor",
    "lance_changed_rows": "lance_dagster.automation",
    "lance_eager": "lance_dagster.automation",
    "lance_external_assets": "lance_dagster.health.lake",
    "lance_filter": "lance_dagster.tables.filters",
    "observable_lance_asset": "lance_dagster.observation",
    "stamp_lance_metadata": "lance_dagster.stamp",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "dagster":
            raise
        raise ModuleNotFoundError(
            f"lance_dagster.{name} needs Dagster: pip install 'lance-dagster[dagster]'", name=error.name
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

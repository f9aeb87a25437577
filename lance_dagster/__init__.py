"""Lance tables in Dagster: IO manager, resources, checks, branches and maintenance jobs.

    LanceIOManager               stores assets as Lance tables: Spark, pyarrow, pandas and polars frames
    LanceTableResource           opens these tables in bodies of assets, checks, sensors and ops
    LanceSparkResource           the one Spark session of a process: on this machine, a cluster or Spark Connect
    stamp_lance_metadata         adds table name and URI to definitions, for the Dagster UI
    lance_filter                 a pyarrow expression as metadata of an input
    LanceMaintenancePolicy       what maintenance does to tables, and when they need it
    LanceMaintenanceBudget       the limits of a run of maintenance
    build_maintenance_job        maintenance as a job;  build_maintenance_schedule, build_maintenance_sensor run it
    build_lance_*_check(s)       health, integrity, primary_key, drift, overdue, missing_values, lag, freshness, index
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

from typing import TYPE_CHECKING, Any, Final

from pyspark_lance.lazy import load_name

if TYPE_CHECKING:
    from lance_core import __version__ as __version__
    from lance_dagster.automation import lance_changed_rows as lance_changed_rows
    from lance_dagster.automation import lance_eager as lance_eager
    from lance_dagster.branches.audited_job import build_audited_job as build_audited_job
    from lance_dagster.branches.jobs import build_branch_jobs as build_branch_jobs
    from lance_dagster.branches.sensor import build_branch_sensor as build_branch_sensor
    from lance_dagster.change_type_job import build_change_type_job as build_change_type_job
    from lance_dagster.checks.builders import build_lance_drift_check as build_lance_drift_check
    from lance_dagster.checks.builders import build_lance_integrity_checks as build_lance_integrity_checks
    from lance_dagster.checks.builders import build_lance_primary_key_check as build_lance_primary_key_check
    from lance_dagster.checks.freshness import build_lance_freshness_checks as build_lance_freshness_checks
    from lance_dagster.checks.health import build_lance_health_checks as build_lance_health_checks
    from lance_dagster.checks.indices import build_lance_index_checks as build_lance_index_checks
    from lance_dagster.checks.lag import build_lance_lag_checks as build_lance_lag_checks
    from lance_dagster.checks.missing_values import (
        build_lance_missing_values_checks as build_lance_missing_values_checks,
    )
    from lance_dagster.checks.overdue import build_lance_overdue_checks as build_lance_overdue_checks
    from lance_dagster.computed import computed_columns as computed_columns
    from lance_dagster.erasure.jobs import build_erasure_job as build_erasure_job
    from lance_dagster.health.lake import lance_external_assets as lance_external_assets
    from lance_dagster.health.policy import LanceMaintenancePolicy as LanceMaintenancePolicy
    from lance_dagster.io_manager.config import LanceIOManager as LanceIOManager
    from lance_dagster.maintenance.budget import LanceMaintenanceBudget as LanceMaintenanceBudget
    from lance_dagster.maintenance.job import build_maintenance_job as build_maintenance_job
    from lance_dagster.maintenance.schedule import build_maintenance_schedule as build_maintenance_schedule
    from lance_dagster.maintenance.sensor import build_maintenance_sensor as build_maintenance_sensor
    from lance_dagster.observation import build_lance_observation_sensor as build_lance_observation_sensor
    from lance_dagster.observation import observable_lance_asset as observable_lance_asset
    from lance_dagster.resource import LanceTableResource as LanceTableResource
    from lance_dagster.spark import LanceSparkResource as LanceSparkResource
    from lance_dagster.stamp import stamp_lance_metadata as stamp_lance_metadata
    from lance_dagster.tables.branch_policy import BranchPolicy as BranchPolicy
    from lance_dagster.tables.filters import lance_filter as lance_filter
    from lance_dagster.undo.jobs import build_undo_job as build_undo_job

_MODULES: Final = {
    ".automation": "lance_changed_rows lance_eager",
    ".branches.audited_job": "build_audited_job",
    ".branches.jobs": "build_branch_jobs",
    ".branches.sensor": "build_branch_sensor",
    ".change_type_job": "build_change_type_job",
    ".checks.builders": "build_lance_drift_check build_lance_integrity_checks build_lance_primary_key_check",
    ".checks.freshness": "build_lance_freshness_checks",
    ".checks.health": "build_lance_health_checks",
    ".checks.indices": "build_lance_index_checks",
    ".checks.lag": "build_lance_lag_checks",
    ".checks.missing_values": "build_lance_missing_values_checks",
    ".checks.overdue": "build_lance_overdue_checks",
    ".computed": "computed_columns",
    ".erasure.jobs": "build_erasure_job",
    ".health.lake": "lance_external_assets",
    ".health.policy": "LanceMaintenancePolicy",
    ".io_manager.config": "LanceIOManager",
    ".maintenance.budget": "LanceMaintenanceBudget",
    ".maintenance.job": "build_maintenance_job",
    ".maintenance.schedule": "build_maintenance_schedule",
    ".maintenance.sensor": "build_maintenance_sensor",
    ".observation": "build_lance_observation_sensor observable_lance_asset",
    ".resource": "LanceTableResource",
    ".spark": "LanceSparkResource",
    ".stamp": "stamp_lance_metadata",
    ".tables.branch_policy": "BranchPolicy",
    ".tables.filters": "lance_filter",
    ".undo.jobs": "build_undo_job",
    "lance_core": "__version__",
}
"""The names that each module defines."""
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:
    __all__ = [name for name in sorted(_HOMES) if not name.startswith("_")]

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        return load_name(__name__, name, _HOMES, "dagster", "Dagster: pip install 'lance-dagster[dagster]'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

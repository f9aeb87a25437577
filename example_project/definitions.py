"""The code location: assets and their checks, jobs, maintenance by schedule and sensor, and the IO managers."""

from pathlib import Path

import dagster as dg

from example_project import assets, column_assets, sql_assets
from example_project.home import example_home
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    LanceTableResource,
    build_audited_job,
    build_branch_jobs,
    build_branch_sensor,
    build_lance_drift_check,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_lance_missing_values_checks,
    build_lance_observation_sensor,
    build_lance_primary_key_check,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
    stamp_lance_metadata,
)
from lance_dagster.components import LanceLakehouseComponent, LanceMaintenanceComponent

__all__ = ["defs"]

_ROOT = str(example_home() / "lake")
_spark = assets.local_spark()
_TABLES = [
    assets.airlines,
    assets.airports,
    assets.planes,
    assets.weather,
    assets.calendar,
    assets.flights,
    assets.delays,
    assets.flight_vectors,
    assets.aircraft,
    assets.routes,
    sql_assets.carriers,
    column_assets.cancellations,
]
_policy = LanceMaintenancePolicy(cleanup_older_than="30d")
_maintenance = build_maintenance_job(_TABLES, _policy)
_here = Path(__file__).parent
_weekly = LanceMaintenanceComponent.resolve_from_yaml((_here / "weekly_maintenance.yaml").read_text())
_reports = LanceLakehouseComponent.resolve_from_yaml((_here / "reports.yaml").read_text(), scope={"lake": _ROOT})
_branch_jobs = build_branch_jobs([assets.flights])
_unique_delays = build_lance_primary_key_check(assets.delays, ["date", "carrier"], blocking=True)

_parts = (
    dg.Definitions(
        assets=[*_TABLES, column_assets.time_of_day, column_assets.captions, assets.notices],
        asset_checks=[
            *build_lance_health_checks([assets.flights, assets.delays], _policy),
            *build_lance_integrity_checks(_TABLES),
            build_lance_primary_key_check(assets.airlines, ["carrier"]),
            build_lance_drift_check(assets.flights),
            *build_lance_missing_values_checks([column_assets.time_of_day]),
            _unique_delays,
        ],
        jobs=[
            dg.define_asset_job("reference_tables", selection=dg.AssetSelection.groups("reference")),
            dg.define_asset_job("flight_days", selection=dg.AssetSelection.groups("flights")),
            dg.define_asset_job("flight_captions", selection=dg.AssetSelection.groups("captions")),
            dg.define_asset_job("derived_tables", selection=dg.AssetSelection.groups("derived")),
            dg.define_asset_job("observe_notices", selection=dg.AssetSelection.assets(assets.notices.key)),
            dg.define_asset_job("check_tables", selection=dg.AssetSelection.all_asset_checks()),
            dg.define_asset_job("aircraft_seen", selection=dg.AssetSelection.assets(assets.aircraft)),
            dg.define_asset_job("cancellations_since", selection=dg.AssetSelection.assets(column_assets.cancellations)),
            # `delays` is published only if its blocking check passes.
            build_audited_job(
                [assets.delays, _unique_delays],
                name="audited_delays",
                upstream=[assets.flights],
                resources={"spark": _spark},
            ),
            *_branch_jobs,
            _maintenance,
        ],
        schedules=[build_maintenance_schedule(_maintenance, cron_schedule="0 3 * * *")],
        sensors=[
            build_maintenance_sensor(_maintenance, _TABLES, _policy),
            build_branch_sensor([assets.flights], _branch_jobs),
            build_lance_observation_sensor([assets.notices, assets.flights]),
        ],
        resources={
            "spark": _spark,
            "lake": LanceTableResource(root_uri=_ROOT),
            "pipes": dg.PipesSubprocessClient(),
            "io_manager": LanceIOManager(root_uri=_ROOT, spark=_spark, branching=BranchPolicy.from_tag("lance/branch")),
        },
        executor=dg.in_process_executor,  # one JVM for all steps of a run
    ),
    _weekly.build_defs(None),
    _reports.build_defs(None),
)

defs = stamp_lance_metadata(dg.Definitions.merge(*_parts))

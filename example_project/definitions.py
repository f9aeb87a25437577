"""What Dagster loads: assets and their checks, jobs, upkeep by schedule and sensor, and the IO manager of all."""

import dagster as dg

from example_project import assets
from example_project.home import example_home
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceMaintenancePolicy,
    build_branch_jobs,
    build_lance_drift_check,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_lance_observation_sensor,
    build_lance_primary_key_check,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
    stamp_lance_metadata,
)

__all__ = ["defs"]

_spark = assets.LocalSpark()
_TABLES = [
    assets.airlines,
    assets.airports,
    assets.planes,
    assets.weather,
    assets.flights,
    assets.delays,
    assets.flight_vectors,
    assets.aircraft,
]
_policy = LanceMaintenancePolicy(cleanup_older_than="30d")
_upkeep = build_maintenance_job(_TABLES, _policy)

defs = stamp_lance_metadata(
    dg.Definitions(
        assets=[*_TABLES, assets.notices],
        asset_checks=[
            *build_lance_health_checks([assets.flights, assets.delays], _policy),
            *build_lance_integrity_checks(_TABLES),
            build_lance_primary_key_check(assets.airlines, ["carrier"]),
            build_lance_drift_check(assets.flights),
        ],
        jobs=[
            dg.define_asset_job("reference_tables", selection=dg.AssetSelection.groups("reference")),
            dg.define_asset_job("flight_days", selection=dg.AssetSelection.groups("flights")),
            dg.define_asset_job("derived_tables", selection=dg.AssetSelection.groups("derived")),
            dg.define_asset_job("observe_notices", selection=dg.AssetSelection.assets(assets.notices.key)),
            dg.define_asset_job("check_tables", selection=dg.AssetSelection.all_asset_checks()),
            dg.define_asset_job("aircraft_seen", selection=dg.AssetSelection.assets(assets.aircraft)),
            *build_branch_jobs([assets.flights]),
            _upkeep,
        ],
        schedules=[build_maintenance_schedule(_upkeep, cron_schedule="0 3 * * *")],
        sensors=[
            build_maintenance_sensor(_upkeep, _TABLES, _policy),
            build_lance_observation_sensor([assets.notices, assets.flights]),
        ],
        resources={
            "spark": _spark,
            "io_manager": LanceIOManager(
                root_uri=str(example_home() / "lake"), spark=_spark, branching=BranchPolicy.from_tag("lance/branch")
            ),
        },
        executor=dg.in_process_executor,  # one JVM for all steps of a run
    )
)

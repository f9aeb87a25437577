"""What Dagster loads: assets, their jobs, those of branches, and the IO manager that stores all as Lance tables."""

import dagster as dg

from example_project import assets
from example_project.home import example_home
from lance_dagster import BranchPolicy, LanceIOManager, build_branch_jobs, stamp_lance_metadata

__all__ = ["defs"]

_spark = assets.LocalSpark()

defs = stamp_lance_metadata(
    dg.Definitions(
        assets=[
            assets.airlines,
            assets.airports,
            assets.planes,
            assets.weather,
            assets.flights,
            assets.delays,
            assets.flight_vectors,
        ],
        jobs=[
            dg.define_asset_job("reference_tables", selection=dg.AssetSelection.groups("reference")),
            dg.define_asset_job("flight_days", selection=dg.AssetSelection.groups("flights")),
            dg.define_asset_job("derived_tables", selection=dg.AssetSelection.groups("derived")),
            *build_branch_jobs([assets.flights]),
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

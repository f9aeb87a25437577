"""The code location of the story about flights: the example's own asset, a blocking check, and a table that is woken."""

import dagster as dg
import pyarrow as pa

from example_project import assets
from example_project.home import example_home
from lance_dagster import (
    BranchPolicy,
    LanceIOManager,
    LanceTableResource,
    build_branch_jobs,
    build_branch_sensor,
    lance_eager,
)

spark = assets.local_spark("local[1]")
ROOT = str(example_home() / "lake")


@dg.asset_check(asset=assets.flights, blocking=True)
def plausible(context: dg.AssetCheckExecutionContext, flights: pa.Table) -> dg.AssetCheckResult:
    """Looks at the branch; fails where the run's tag says so."""
    fails = context.run.tags.get("fail") == "true"
    return dg.AssetCheckResult(passed=flights.num_rows > 0 and not fails, metadata={"rows": flights.num_rows})


# The other days of the year stay missing.
@dg.asset(
    key_prefix="nyc",
    deps=[assets.flights],
    automation_condition=lance_eager(allow_missing_deps=True),
)
def carriers(lake: LanceTableResource) -> pa.Table:
    """Downstream: how many flights each carrier has."""
    table = lake.open(assets.flights.key).to_table(columns=["carrier"])
    return table.group_by("carrier").aggregate([("carrier", "count")])


branch_jobs = build_branch_jobs([assets.flights])

defs = dg.Definitions(
    assets=[assets.flights, carriers],
    asset_checks=[plausible],
    jobs=branch_jobs,
    sensors=[
        build_branch_sensor(
            [assets.flights],
            branch_jobs,
            on_cancel="discard",
            minimum_interval_seconds=5,
            default_status=dg.DefaultSensorStatus.RUNNING,
        ),
        dg.AutomationConditionSensorDefinition(
            "automation", target="*", minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING
        ),
    ],
    resources={
        "spark": spark,
        "lake": LanceTableResource(root_uri=ROOT),
        "io_manager": LanceIOManager(root_uri=ROOT, spark=spark, branching=BranchPolicy.from_tag("lance/branch")),
    },
    executor=dg.in_process_executor,
)

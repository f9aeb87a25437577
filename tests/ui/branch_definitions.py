"""The code location of the stories about branches: thirty partitions, a blocking check, a table that is woken."""

import json
import os

import dagster as dg
import pyarrow as pa

from lance_dagster import BranchPolicy, LanceIOManager, build_branch_jobs, build_branch_sensor, lance_eager

DAYS = dg.StaticPartitionsDefinition([f"d{number:02d}" for number in range(30)])


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.multi_run(15), metadata={"partition_expr": "day"})
def events(context: dg.AssetExecutionContext) -> pa.Table:
    """Two rows per day; their number is the run's tag `n`."""
    days = sorted(context.partition_keys)
    return pa.table({"day": [day for day in days for _ in range(2)], "n": [int(context.run.tags["n"])] * 2 * len(days)})


@dg.asset_check(asset=events, blocking=True)
def positive(context: dg.AssetCheckExecutionContext, events: pa.Table) -> dg.AssetCheckResult:
    """Looks at the branch."""
    return dg.AssetCheckResult(passed=min(events.column("n").to_pylist()) >= 0, metadata={"rows": events.num_rows})


@dg.asset(deps=[events], automation_condition=lance_eager())
def woken() -> None:
    """Downstream."""


branch_jobs = build_branch_jobs([events])

defs = dg.Definitions(
    assets=[events, woken],
    asset_checks=[positive],
    jobs=branch_jobs,
    sensors=[
        build_branch_sensor(
            [events],
            branch_jobs,
            on_cancel="discard",
            minimum_interval_seconds=3,
            default_status=dg.DefaultSensorStatus.RUNNING,
        ),
        dg.AutomationConditionSensorDefinition(
            # Long enough for all events of one promotion to come between two ticks.
            "automation",
            target="*",
            minimum_interval_seconds=20,
            default_status=dg.DefaultSensorStatus.RUNNING,
        ),
    ],
    resources={
        "io_manager": LanceIOManager(
            root_uri=os.environ["LANCE_TEST_ROOT"],
            storage_options=json.loads(os.environ.get("LANCE_TEST_STORAGE", "{}")),
            branching=BranchPolicy.from_tag("lance/branch"),
        )
    },
    executor=dg.in_process_executor,
)

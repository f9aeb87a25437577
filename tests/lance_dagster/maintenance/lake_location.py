"""A code location that maintains a whole lake, for `test_lake_beside_writers.py`; the daemon loads it by its path."""

import json
import os

import dagster as dg

from lance_dagster import (
    LanceIOManager,
    LanceMaintenanceBudget,
    LanceMaintenancePolicy,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
)

policy = LanceMaintenancePolicy(cleanup_older_than="30s", max_versions=20)
budget = LanceMaintenanceBudget(max_tables=20, max_duration="1m")
job = build_maintenance_job(root=True, policy=policy, budget=budget, policies={"left": False})

defs = dg.Definitions(
    jobs=[job],
    schedules=[build_maintenance_schedule(job, "*/3 * * * *", default_status=dg.DefaultScheduleStatus.RUNNING)],
    sensors=[
        build_maintenance_sensor(
            job,
            policy=policy,
            root=True,
            policies={"left": False},
            minimum_interval_seconds=10,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    executor=dg.in_process_executor,
    resources={
        "io_manager": LanceIOManager(
            root_uri=os.environ["LANCE_TEST_ROOT"], storage_options=json.loads(os.environ["LANCE_TEST_OPTIONS"])
        )
    },
)

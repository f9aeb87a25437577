"""Maintenance of tables as Dagster jobs, schedules and sensors."""

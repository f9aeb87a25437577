"""The undo of a run's commits, and the report of it to Dagster."""

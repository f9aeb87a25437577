"""Access to Spark: properties of sessions, jobs, tasks on executors, and errors of tasks."""

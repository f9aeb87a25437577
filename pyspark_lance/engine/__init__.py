"""Spark itself: sessions' properties, jobs, tasks on executors and their errors."""

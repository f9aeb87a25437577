"""Erasing rows from tables, and reporting it to Dagster."""

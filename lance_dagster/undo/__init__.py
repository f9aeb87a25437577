"""Undoing what a run committed, and reporting it to Dagster."""

"""Erasure of rows from tables, and the report of it to Dagster."""

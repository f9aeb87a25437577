"""Metadata of materializations and observations, as the Dagster UI shows it."""

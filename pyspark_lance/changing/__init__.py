"""Merge, update and delete through Spark."""

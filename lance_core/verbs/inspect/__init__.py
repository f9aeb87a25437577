"""Inspect a version without reading its rows: files, statistics, indices, validity."""

"""Conditions that an index can answer, and the sets of rows that are the answers."""

"""Expressions over columns, as SQL text or as Arrow's."""

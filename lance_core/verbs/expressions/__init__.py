"""Expressions over columns, as SQL or as Arrow's."""

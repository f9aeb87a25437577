"""Lineage of tables as their commits record it: runs, inputs and columns."""

"""Add and change columns."""

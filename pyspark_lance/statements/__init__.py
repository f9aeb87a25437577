"""Statements of SQL: read into records, then run by the functions of this package."""

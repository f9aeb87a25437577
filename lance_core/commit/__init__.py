"""Commits and history: finds and reads the versions of a dataset, and commits new versions beside other writers."""

from lance_core.errors import CommitConflictError

__all__ = ["CommitConflictError"]

"""Promotion: commit the changes of a branch to its parent in one version; `promote` is the entry point."""

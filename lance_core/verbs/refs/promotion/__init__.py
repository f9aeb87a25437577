"""Promotion: the changes of a branch become one version of its parent; `promote` is the way in."""

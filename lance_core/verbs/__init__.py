"""Functions on one version of a dataset. CONTRIBUTING.md has the order of the packages, the contracts hold it."""

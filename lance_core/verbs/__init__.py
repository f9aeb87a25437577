"""Functions on one version of a dataset. Each package imports those after it only.

refs write columns rows files inspect scan records expressions version
"""

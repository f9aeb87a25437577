"""Code locations that Dagster loads are no tests."""

collect_ignore = [
    "definitions.py",
    "branch_definitions.py",
    "columns_definitions.py",
    "flights_definitions.py",
    "maintenance_definitions.py",
    "search_definitions.py",
]

"""`python -m lance_dagster.cli`."""

from lance_dagster.cli import main

main()

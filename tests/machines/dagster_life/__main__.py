"""`python -m tests.machines.dagster_life`."""

from tests.machines.dagster_life.machine import main

main()

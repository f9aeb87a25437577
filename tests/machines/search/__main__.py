"""Indices for search as a machine: `python -m tests.machines.search --minutes M`; the random histories are a test's."""

from tests.lance_core.maintenance.test_search_machine import main

if __name__ == "__main__":
    main()

"""The corpus as a machine: `python -m tests.machines.corpus --minutes M`; see `tests.corpus`."""

import sys

from tests.corpus.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.machines.lake [--seed N] [--steps N] [--place disk|memory|s3] [--seconds S | --minutes M]`.

Without a seed, seeds are drawn until so much processor time is spent. A finding ends the program with the exit code 1, after a line
`replay: ...` with the arguments that repeat it.
"""

import argparse
import logging
import sys
import time
import warnings

from tests.machines.lake.runs import run_seed
from tests.machines.lake.server import running
from tests.processes import processor_seconds


def main() -> int:
    """Run seeds; returns the exit code."""
    parser = argparse.ArgumentParser(description="Find what a lake loses.")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--place")
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    until = processor_seconds() + (arguments.seconds or 60 * arguments.minutes)
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000_000
    count = 0
    with running() as server:
        while True:
            finding = run_seed(seed, server, arguments.place, arguments.steps, print if arguments.verbose else None)
            count += 1
            if finding is not None:
                print(finding)
                return 1
            seed += 1
            if processor_seconds() > until:
                print(f"{count} seeds, no finding")
                return 0


if __name__ == "__main__":
    sys.exit(main())

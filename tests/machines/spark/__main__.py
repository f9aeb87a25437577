"""`python -m tests.machines.spark --seed 7`, or random seeds for `--seconds` or `--minutes`; exits with 1 on a finding."""

import argparse
import itertools
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.machines.spark.machine import Machine
from tests.machines.spark.session import machine_session


def main() -> None:
    """Run seeds; before each, print the line that repeats it, as a fault may end the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; without a time, the only one")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    arguments = parser.parse_args()
    limit = 60 * arguments.minutes + arguments.seconds
    first = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    spark = machine_session()
    end, done = time.monotonic() + limit, 0
    for seed in itertools.count(first):
        print(f"replay: --seed {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="spark-machine-") as place:
            machine = None
            try:
                machine = Machine(spark, Path(place), seed)
                machine.run()
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                traceback.print_exc()
                print(f"steps: {machine.log if machine else []}")
                print(f"replay: --seed {seed}", flush=True)
                sys.exit(1)
        done += 1
        if time.monotonic() >= end:
            break
    print(f"{done} seeds, no finding")
    spark.stop()


if __name__ == "__main__":
    main()

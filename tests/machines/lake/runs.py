"""One run of the machine: a seed, and what it found."""

import traceback
from collections.abc import Callable
from random import Random
from unittest.mock import patch

from lance_core.store import s3_client
from tests.machines.lake import traps
from tests.machines.lake.machine import Machine
from tests.machines.lake.places import KINDS, opened
from tests.machines.lake.server import Server

__all__ = ["run_seed"]

MOST_STEPS_AT_S3 = 20
SHARES = (5, 5, 2)  # a seed at S3 takes ten times as long


def run_seed(
    seed: int, server: Server | None, kind: str | None, steps: int, log: Callable[[str], None] | None = None
) -> str | None:
    """Take some steps; returns what was found, with the steps and the line that repeats them.

    Args:
        seed: The seed.
        server: The S3 server; None if there is none, and all lakes are elsewhere.
        kind: The place; None for one that the seed gives.
        steps: How many steps to take.
        log: Gets a line for each step as well.
    """
    random = Random(seed)
    (drawn,) = random.choices(KINDS, SHARES if server is not None else (*SHARES[:2], 0))
    kind = kind or drawn
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if log is not None:
            log(line)

    with opened(kind, server) as place, traps.installed(), patch.object(s3_client, "_FIRST_PAUSE_S", 0.005):
        try:
            machine = Machine(place, random, note)
            for _ in range(steps if place.server is None else min(steps, MOST_STEPS_AT_S3)):
                machine.step()
        except Exception as error:  # noqa: BLE001 - it is reported with the steps
            trace = "".join(traceback.format_exception(error)[-6:])
            steps_taken = "\n".join(f"  {line}" for line in lines)
            return f"{kind}, seed {seed}:\n{steps_taken}\n{trace}\n{error}\nreplay: --seed {seed} --steps {steps} --place {kind}"
    return None

"""Random damage to tables: every verb ends well, or in an error of ours, soon and in little memory."""

import json
import os
import sys

import pytest

from lance_core.commit import loop
from tests import processes
from tests.hostile.fuzz import KINDS, VERBS, described, hunt

TABLES = int(os.environ.get("LANCE_FUZZ_CALLS", "100000")) // len(VERBS)
SLICE = 250
"""Tables of one process."""


def test_a_few_damaged_tables(monkeypatch):
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    # The processor's time is looked at in the slow test alone.
    counts, wrong = hunt(seed=1, num_tables=len(KINDS), seconds=60)
    assert described(wrong) == []
    assert sum(counts.values()) == len(KINDS) * len(VERBS)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(0, TABLES, SLICE))
def test_many_damaged_tables(first):
    """`LANCE_FUZZ_CALLS` says how many calls, `LANCE_FUZZ_SEED` the seed: a new one each time, which is shown."""
    seed = int(os.environ.get("LANCE_FUZZ_SEED") or int.from_bytes(os.urandom(4)))
    command = [sys.executable, "-m", "tests.hostile.fuzz", seed, min(SLICE, TABLES - first), first]
    done = processes.run(command, limit_s=3600, check=True)
    counts, wrong = json.loads(done.stdout)
    assert wrong == [], (seed, counts)

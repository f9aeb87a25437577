"""Random damage to tables: every verb ends well, or in an error of ours, soon and in little memory."""

import json
import os
import sys
from collections import Counter

import pytest

from lance_core.commit import loop
from tests import processes
from tests.hostile.fuzz import KINDS, VERBS, hunt, told

SLICE = 250
"""Tables of one process."""


def test_a_few_damaged_tables(monkeypatch):
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    # The processor's time is looked at in the slow test alone.
    counts, wrong = hunt(seed=1, num_tables=len(KINDS), seconds=60)
    assert told(wrong) == []
    assert sum(counts.values()) == len(KINDS) * len(VERBS)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_damaged_tables():
    """`LANCE_FUZZ_CALLS` says how many calls, `LANCE_FUZZ_SEED` the seed: a new one each time, which is told."""
    seed = int(os.environ.get("LANCE_FUZZ_SEED") or os.urandom(4).hex(), 16)
    tables = int(os.environ.get("LANCE_FUZZ_CALLS", "100000")) // len(VERBS)
    counts, wrong = Counter(), []
    for first in range(0, tables, SLICE):
        command = [sys.executable, "-m", "tests.hostile.fuzz", seed, min(SLICE, tables - first), first]
        done = processes.run(command, limit_s=3600, check=True)
        found, failed = json.loads(done.stdout)
        counts.update(found)
        wrong += failed
        print(f"seed {seed}, tables from {first}: {found}", *failed, sep="\n", flush=True)
    assert wrong == [], (seed, counts)

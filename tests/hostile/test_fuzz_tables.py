"""Random damage to tables: every verb ends well, or in an error of ours."""

import os

import pytest

from lance_core.commit import loop
from tests.hostile.fuzz import VERBS, hunt


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)


def told(wrong):
    return [f"{verb} of {damage}: {type(error).__name__}: {error}" for verb, damage, error in wrong]


def test_a_few_damaged_tables():
    counts, wrong = hunt(seed=1, num_tables=8)
    assert told(wrong) == []
    assert sum(counts.values()) == 8 * len(VERBS)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_damaged_tables():
    """`LANCE_FUZZ_CALLS` says how many calls; the seed is a new one each time, and is told."""
    seed = int(os.environ.get("LANCE_FUZZ_SEED") or os.urandom(4).hex(), 16)
    calls = int(os.environ.get("LANCE_FUZZ_CALLS", "100000"))
    counts, wrong = hunt(seed, calls // len(VERBS))
    assert told(wrong) == [], (seed, counts)

"""The machine of Spark, in a process of its own: fixed seeds, and random ones in `make test-slow`."""

import sys

import pytest

from tests.processes import run


def passes(*arguments, limit_s):
    """Run the machine, which must have no finding; what it printed."""
    done = run([sys.executable, "-m", "tests.machines.spark", *arguments], limit_s=limit_s)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_fixed_seeds():
    """As many of the seeds from 1 on as 15 seconds allow, and at least one."""
    assert "no finding" in passes("--seed", "1", "--seconds", "15", limit_s=600)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_random_seeds(part):
    assert "no finding" in passes("--minutes", "2", limit_s=1200)

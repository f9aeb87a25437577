"""The machine of Spark, with random seeds, in a process of its own; `tests/pyspark_lance/test_machine.py` has fixed ones."""

import sys

import pytest

from tests.processes import run


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_random_seeds(part):
    done = run([sys.executable, "-m", "tests.machines.spark", "--minutes", "2"], limit_s=1200)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "no finding" in done.stdout

"""Fixed seeds of the machine of Spark, each with every step once, in the session of these tests, which has started already."""

import random

import pytest

from tests.machines.spark.machine import WEIGHTS, Machine


@pytest.mark.parametrize("seed", [1])
def test_every_step_once(spark, connect, tmp_path, seed):
    if connect:
        pytest.skip("the machine looks into checkpoints of a classic session")
    machine = Machine(spark, tmp_path, seed)
    names = random.Random(seed).sample(list(WEIGHTS), len(WEIGHTS))
    try:
        machine.run(names)
    except Exception as error:
        raise AssertionError(f"{error}\nsteps: {machine.log}") from error

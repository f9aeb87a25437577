"""A fixed seed of the machine of Spark, in the session of these tests, which has started already."""

import random

import pytest

from tests.machines.spark.machine import Machine

WORTH_MOST = ("look", "columns", "fields", "delete", "update", "cleanup", "make_again")
"""Steps that few other tests combine; a stream, frames and a feed are compared with each seed."""


@pytest.mark.parametrize("seed", [2])
def test_a_fixed_seed(spark, connect, tmp_path, seed):
    if connect:
        pytest.skip("the machine looks into checkpoints of a classic session")
    machine = Machine(spark, tmp_path, seed, many=100)
    names = list(WORTH_MOST)
    random.Random(seed).shuffle(names)
    try:
        machine.run(names)
    except Exception as error:
        raise AssertionError(f"{error}\nsteps: {machine.log}") from error

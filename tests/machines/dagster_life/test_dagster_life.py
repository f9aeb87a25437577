"""The machine of Dagster's lifecycle: a fixed set of seeds, and random ones in `make test-slow`."""

import random

import pytest

from tests.machines.dagster_life.machine import STEPS, play, replay_arguments

pytestmark = pytest.mark.filterwarnings("ignore")


def passes(seed):
    done, problems, _ = play(seed, list(range(STEPS)))
    assert not problems, "\n".join([*problems, *done, f"replay: {replay_arguments(seed, list(range(STEPS)))}"])


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_a_fixed_seed(seed):
    passes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_random_seeds(part):
    first = random.SystemRandom().randrange(10**6)
    for seed in range(first, first + 10):
        passes(seed)

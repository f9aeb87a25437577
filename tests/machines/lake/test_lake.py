"""The lake machine: the same seeds in each run, and random ones among the slow tests."""

import time

import pytest

from tests.machines.lake.runs import run_seed
from tests.machines.lake.server import running

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def server():
    """S3 in this process."""
    with running() as served:
        yield served


@pytest.mark.parametrize(
    ("place", "seed", "steps"), [("memory", 1, 40), ("memory", 2, 40), ("disk", 3, 30), ("disk", 4, 30), ("s3", 5, 5)]
)
def test_a_lake_is_what_its_model_says(server, place, seed, steps):
    finding = run_seed(seed, server, place, steps)
    assert finding is None, finding


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("place", ["memory", "disk", "s3"])
def test_random_lakes(server, place, number):
    seed, until = time.time_ns() % 1_000_000_000 + number, time.monotonic() + 60
    while time.monotonic() < until:
        finding = run_seed(seed, server, place, 30)
        assert finding is None, finding
        seed += 1

"""Fixtures: a lake in a temporary folder, and the one Spark session of a test run."""

import dagster as dg
import pytest

from tests.lance_dagster.lake import Lake
from tests.pyspark_lance.conftest import connect, spark

__all__ = ["connect", "lake", "spark"]


@pytest.fixture
def lake(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=str(tmp_path / "lake"), instance=instance)

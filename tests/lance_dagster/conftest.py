"""Fixtures: a lake in a temporary folder, and the one Spark session of a test run."""

import dagster as dg
import pytest
from alembic.script import ScriptDirectory

from tests.lance_dagster.lake import Lake
from tests.pyspark_lance.conftest import connect, pytest_runtest_makereport, spark

__all__ = ["connect", "lake", "pytest_runtest_makereport", "revisions_read_once", "spark"]


@pytest.fixture(scope="session", autouse=True)
def revisions_read_once():
    """Keep the revisions of Dagster's schema, which each new instance reads twice: half of the time of short tests."""
    read, kept = ScriptDirectory.from_config, {}

    def from_config(config):
        place = config.get_main_option("script_location")
        return kept.get(place) or kept.setdefault(place, read(config))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


@pytest.fixture
def lake(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=str(tmp_path / "lake"), instance=instance)

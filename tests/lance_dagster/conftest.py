"""Fixtures: a lake in a temporary folder, and the one Spark session of a test run."""

import dagster as dg
import pytest

from tests.lance_dagster.lake import Lake


@pytest.fixture
def lake(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=str(tmp_path / "lake"), instance=instance)


@pytest.fixture(scope="session")
def spark():
    """One Spark session for all tests of this process; never stopped, others may hold it."""
    import pyspark_lance

    config = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    return pyspark_lance.local_session("local[2]", app_name="tests", config=config)

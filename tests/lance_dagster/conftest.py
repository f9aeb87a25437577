"""Fixtures: a lake in a temporary folder, and the one Spark session of a test run."""

import dagster as dg
import pytest
from alembic.script import ScriptDirectory
from dagster._config.pythonic_config import resource
from dagster._core.storage.runs import SqlRunStorage

from tests.lance_dagster.lake import Lake
from tests.pyspark_lance.conftest import connect, pytest_runtest_makereport, spark

__all__ = ["connect", "dagster_looks_once", "lake", "pytest_runtest_makereport", "spark"]


@pytest.fixture(scope="session", autouse=True)
def dagster_looks_once():
    """Keep what Dagster computes again for each instance, run or resource, and what is always the same.

    The revisions of its schema, which each new instance reads twice; whether the table of runs has columns of an early
    migration, for which each run inspects the database seven times; and the schemas of classes of resources. The first
    takes half of the time of short tests, the others a quarter of that of a run.
    """
    read_revisions, revisions = ScriptDirectory.from_config, {}
    infer_schema, schemas = resource.infer_schema_from_config_class, {}

    def from_config(config):
        place = config.get_main_option("script_location")
        return revisions.get(place) or revisions.setdefault(place, read_revisions(config))

    def infer_schema_from_config_class(cls, fields_to_omit=(), **options):
        key = cls, frozenset(fields_to_omit)
        if options or key not in schemas:
            schema = infer_schema(cls, fields_to_omit=set(fields_to_omit), **options)
            return schema if options else schemas.setdefault(key, schema)
        return schemas[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        patch.setattr(SqlRunStorage, "has_run_stats_index_cols", lambda _storage: True)
        patch.setattr(resource, "infer_schema_from_config_class", infer_schema_from_config_class)
        yield


@pytest.fixture
def lake(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=str(tmp_path / "lake"), instance=instance)

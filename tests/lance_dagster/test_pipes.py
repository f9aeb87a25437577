"""A process that has no Dagster tags its commit with the run, and reports it."""

import json
import sys

import dagster as dg
import pytest

from tests import processes

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")  # Dagster warns of its own Pipes

SCRIPT = """
import sys
sys.modules["dagster"] = None  # not installed there

import pyarrow as pa
from dagster_pipes import open_dagster_pipes

import lance_core
from lance_dagster.pipes import commit_properties, report_commit

with open_dagster_pipes() as pipes:
    uri = pipes.get_extra("uri")
    source = lance_core.write_dataset(pa.table({"n": [1]}), uri + ".source")
    table = lance_core.write_dataset(
        pa.table({"n": [1, 2]}), uri, transaction_properties=commit_properties(pipes, inputs={"raw/n": source})
    )
    report_commit(pipes, table, metadata={"mine": 7})
"""


def remote(lake, **options):
    @dg.asset(key_prefix="nyc", **options)
    def flights(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient):
        return pipes.run(
            command=[sys.executable, "-c", SCRIPT],
            context=context,
            extras={"uri": lake.uri("nyc/flights")},
            env={"PYTHONPATH": str(processes.ROOT)},
        ).get_materialize_result()

    return flights


@pytest.mark.parametrize("partition", [None, "b"])
def test_the_commit_and_the_event_know_each_other(lake, partition):
    options = {} if partition is None else {"partitions_def": dg.StaticPartitionsDefinition(["a", "b"])}
    result = lake.run(remote(lake, **options), partition=partition, resources={"pipes": dg.PipesSubprocessClient()})
    (properties,) = lake.properties("nyc/flights")
    assert properties["dagster.run_id"] == result.run_id
    assert properties["dagster.asset_key"] == "nyc/flights"
    assert properties.get("dagster.partition_keys") == (None if partition is None else '["b"]')
    assert json.loads(properties["dagster.input.raw/n"])["version"] == 1
    (event,) = result.asset_materializations_for_node("nyc__flights")
    values = {key: entry.value for key, entry in event.metadata.items()}
    assert (values["dagster/row_count"], values["lance/version"], values["mine"]) == (2, 1, 7)
    assert f"/runs/{result.run_id}" in values["lance/history"]
    assert event.tags["dagster/data_version"].endswith(":main:1")

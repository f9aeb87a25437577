"""The life of tables at Azure and Google: written, retried, branched, promoted, maintained, and changed by Spark.

pylance reads what became of them.
"""

import time
import warnings
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
import pyspark_lance
from lance_core.maintenance.cleanup import plan
from lance_dagster import BranchPolicy, LanceMaintenancePolicy, build_branch_jobs, build_maintenance_job
from tests.lance_dagster.io_manager.test_retries import FailsAfterCommit
from tests.lance_dagster.lake import QUIET, Lake

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
POLICY = LanceMaintenancePolicy(cleanup_older_than=timedelta(microseconds=1))


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    keys = sorted(context.partition_keys)
    return pa.table({"day": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
def log(context) -> pa.Table:
    return pa.table({"n": [10 * int(context.run.tags["n"]) + context.retry_number]})


@pytest.fixture(params=["azure", "gcs"])
def cloud(request):
    """A server; `storage_options` are those of both libraries."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def cloud_lake(cloud):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=f"{cloud.new_place()}/the lake", instance=instance, storage_options=cloud.storage_options)


def run_job(lake, job):
    resources = {"io_manager": lake.manager()}
    resolved = dg.Definitions(assets=[events, log], jobs=[job], resources=resources).resolve_job_def(job.name)
    return resolved.execute_in_process(instance=lake.instance, run_config=QUIET, tags={"lance/branch": "fix"})


def read_by_pylance(lake, name):
    """The version, the number of fragments and the rows of a table."""
    import lance

    table = lance.dataset(lake.uri(name), storage_options=lake.storage_options)
    rows = sorted(tuple(row.values()) for row in table.to_table().to_pylist())
    assert rows == lake.rows(name)
    return table.version, len(table.get_fragments()), rows


def test_the_life_of_a_table(cloud_lake, monkeypatch):
    import lance

    lake = cloud_lake
    lake.run(events, span=("2024-01-01", "2024-01-03"))
    lake.run(events, partition="2024-01-02", tags={"n": "5"})
    manager = FailsAfterCommit(root_uri=lake.root, storage_options=lake.storage_options, write_mode="append")
    for number in ("1", "2"):
        lake.run(log, tags={"n": number}, resources={"io_manager": manager})
    assert read_by_pylance(lake, "log")[2] == [(11,), (21,)]
    tags = {"lance/branch": "fix", "n": "7"}
    for day in ("2024-01-03", "2024-01-04"):
        lake.run(events, partition=day, tags=tags, branching=BranchPolicy.from_tag("lance/branch"))
    days = [("2024-01-01", 0), ("2024-01-02", 5), ("2024-01-03", 0)]
    assert read_by_pylance(lake, "events")[2] == days
    promote, discard = build_branch_jobs([events])
    run_job(lake, promote)
    run_job(lake, discard)
    expected = [*days[:2], ("2024-01-03", 7), ("2024-01-04", 7)]
    version, fragments, rows = read_by_pylance(lake, "events")
    assert rows == expected
    assert fragments > 1
    lance.write_dataset(pa.table({"n": [3]}), lake.uri("log"), mode="append", storage_options=lake.storage_options)
    monkeypatch.setattr(plan, "YOUNG_AGE", timedelta(0))  # younger versions stay on object storage
    time.sleep(1.1)  # these storages count whole seconds
    result = run_job(lake, build_maintenance_job([events, log], POLICY))
    assert sorted(result.output_for_node("summarize")["done"]) == ["events", "log"]
    compacted, fragments, rows = read_by_pylance(lake, "events")
    assert (compacted > version, fragments, rows) == (True, 1, expected)
    numbers = [entry["version"] for entry in lake.table("events").versions()]
    assert compacted in numbers
    assert min(numbers) > version  # those of the job itself may be of the same second
    assert read_by_pylance(lake, "log")[1:] == (1, [(3,), (11,), (21,)])
    lake.run(events, partition="2024-01-05")
    assert read_by_pylance(lake, "events")[2] == [*expected, ("2024-01-05", 0)]


@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
def test_spark_writes_reads_and_merges(spark, cloud, cloud_lake):
    uri, options = cloud_lake.uri("spark"), cloud.storage_options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = spark.range(4).selectExpr("id", "id * 10 AS x")
        assert pyspark_lance.write(rows, uri, storage_options=options).rows_written == 4
        changed = spark.createDataFrame([(1, 0), (9, 90)], "id long, x long")
        merged = pyspark_lance.merge(changed, uri, on="id", storage_options=options)
        assert (merged.rows_updated, merged.rows_inserted) == (1, 1)
        pyspark_lance.delete(uri, "id = 3", storage_options=options)
        frame = pyspark_lance.read(spark, uri, storage_options=options)
        read = sorted(tuple(row) for row in frame.collect())
        pyspark_lance.compact(spark, uri, storage_options=options)
    assert read == [(0, 0), (1, 0), (2, 20), (9, 90)]
    _, fragments, rows = read_by_pylance(cloud_lake, "spark")
    assert (fragments, rows) == (1, read)
    lance_core.write_dataset({"id": [10], "x": [100]}, uri, mode="append", storage_options=options)
    assert pyspark_lance.read(spark, uri, filter="id = 10", storage_options=options).collect() == [(10, 100)]

"""`read="materialized"` goes on working when old versions are cleaned up."""

from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import QUIET, errors

DAYS = dg.StaticPartitionsDefinition(["a", "b"])
POLICY = LanceMaintenancePolicy(retain_versions=1, cleanup_older_than=None)


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [1, 2]})


@dg.asset(key_prefix="nyc", partitions_def=DAYS, metadata={"partition_expr": "day"})
def trips(context) -> pa.Table:
    return pa.table({"day": [context.partition_key] * 2, "n": [1, 2]})


def maintain(lake, *assets):
    job = build_maintenance_job(list(assets), POLICY)
    manager = lake.manager(read="materialized")
    defs = dg.Definitions(assets=list(assets), jobs=[job], resources={"io_manager": manager})
    assert defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET).success


def load(lake, asset, *, partition=None, fails=False, partitions_def=None, upstream=()):
    """The rows that a downstream asset gets."""
    seen = []

    @dg.asset(ins={"rows": dg.AssetIn(asset.key)}, partitions_def=partitions_def)
    def reader(rows: pa.Table) -> None:
        seen.append(rows.num_rows)

    result = lake.run(asset, reader, *upstream, select=[reader], partition=partition, read="materialized", fails=fails)
    return errors(result) if fails else seen


def test_the_version_of_the_last_event_is_kept(lake):
    lake.run(flights)
    for n in range(6):
        lake.table("nyc/flights").insert(pa.table({"n": [n]}))
    maintain(lake, flights)
    assert len(lake.table("nyc/flights").versions()) == 2
    assert load(lake, flights) == [2]


def test_the_versions_of_the_last_events_of_partitions_are_kept(lake):
    for key in ("a", "b", "b"):
        lake.run(trips, partition=key)
    for _ in range(4):
        lake.table("nyc/trips").insert(pa.table({"day": ["a", "b"], "n": [7, 7]}))
    maintain(lake, trips)
    for key in ("a", "b"):
        assert load(lake, trips, partition=key, partitions_def=DAYS) == [2]


def test_a_removed_version_is_read_as_a_later_one_with_the_same_rows(lake):
    lake.run(flights)
    lake.table("nyc/flights").update_config({"a": "b"})
    lake.table("nyc/flights").cleanup_old_versions(timedelta(0))
    assert load(lake, flights) == [2]


def test_a_removed_version_is_read_as_its_compaction(lake):
    lake.run(flights)
    lake.run(flights, write_mode="append")
    lake.table("nyc/flights").optimize.compact_files()
    assert len(lake.table("nyc/flights").get_fragments()) == 1
    lake.table("nyc/flights").cleanup_old_versions(timedelta(0))
    assert load(lake, flights) == [4]


@pytest.mark.parametrize("compacts", [False, True])
def test_a_removed_version_is_not_read_as_one_that_others_changed(lake, compacts):
    lake.run(flights)
    lake.table("nyc/flights").insert(pa.table({"n": [9]}))
    if compacts:
        lake.table("nyc/flights").optimize.compact_files()
    lake.table("nyc/flights").cleanup_old_versions(timedelta(0))
    message = load(lake, flights, fails=True)
    assert "input 'rows'" in message
    assert 'read="latest"' in message
    assert lance_core.dataset(lake.uri("nyc/flights")).count_rows() == 3


@dg.asset
def people() -> pa.Table:
    return pa.table({"id": [1, 2, 3]})


@dg.asset(metadata={"lance/write_mode": "columns", "lance/table": "people", "lance/key": "id"})
def labels(people: pa.Table) -> pa.Table:
    return people.append_column("label", pa.array(["a", "b", "c"]))


def test_the_versions_of_an_asset_of_another_code_location_are_kept(lake):
    lake.run(people, labels)
    lake.run(people)
    for n in range(4):
        lake.table("people").insert(pa.table({"id": [n], "label": ["x"]}))
    maintain(lake, people)
    assert load(lake, labels, upstream=[people]) == [3]

"""A lake on object storage: the same runs against a real S3 server."""

import datetime as dt

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import IncompatibleConflictError
from lance_core.store.s3_client import S3Client
from lance_dagster import build_maintenance_job
from lance_dagster.io_manager.write_attempts import error_of_write
from lance_dagster.tables.settings import TableSettings
from tests.lance_dagster.lake import QUIET, Lake, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")


@dg.asset(key_prefix="analytics", partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    days = [dt.date.fromisoformat(key) for key in context.partition_keys]
    return pa.table({"day": pa.array(days, pa.date32()), "n": [day.day for day in days]})


@pytest.fixture
def bucket(s3):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=f"s3://{s3.new_bucket()}/lake", instance=instance, storage_options=s3.storage_options)


def test_a_range_then_a_day_then_a_reader(bucket):
    got = []

    @dg.asset(partitions_def=DAYS, ins={"events": dg.AssetIn(["analytics", "events"], metadata={"columns": ["n"]})})
    def reader(events: pa.Table) -> None:
        got.append(events.column("n").to_pylist())

    bucket.run(events, span=("2024-01-01", "2024-01-03"))
    result = bucket.run(events, partition="2024-01-02")
    bucket.run(events, reader, select=[reader], span=("2024-01-02", "2024-01-03"))
    assert sorted(got[0]) == [2, 3]
    assert [p["dagster.run_id"] for p in bucket.properties("analytics/events")][-1] == result.run_id
    metadata = result.asset_materializations_for_node("analytics__events")[0].metadata
    assert metadata["lance/version"].value == 2
    assert metadata["dagster/row_count"].value == 3
    assert metadata["dagster/uri"].value == bucket.uri("analytics/events")


def test_secrets_stay_out_of_events_and_commits(bucket):
    result = bucket.run(events, partition="2024-01-02")
    secrets = [value for key, value in bucket.storage_options.items() if "secret" in key or "access_key" in key]
    assert secrets
    written = repr(result.all_events) + repr(bucket.properties("analytics/events")) + repr(bucket.manager())
    assert not [secret for secret in secrets if secret in written]


def test_a_wrong_secret_is_an_error_that_does_not_show_it(bucket):
    options = {**bucket.storage_options, "aws_endpoint": "http://127.0.0.1:1", "aws_secret_access_key": "hush-hush"}
    lost = Lake(root=bucket.root, instance=bucket.instance, storage_options=options)
    said = errors(lost.run(events, partition="2024-01-02", fails=True))
    assert "StoreError" in said
    assert "hush-hush" not in said


def test_who_was_in_the_way_is_asked_of_the_same_storage(bucket):
    result = bucket.run(events, partition="2024-01-02")
    settings = TableSettings(root_uri=bucket.root, storage_options=bucket.storage_options)
    said = error_of_write(
        IncompatibleConflictError("version 1 was faster"), "asset x", None, bucket.uri("analytics/events"), settings
    )
    assert f'Version 1 was committed by run {result.run_id} (partitions ["2024-01-02"]).' in str(said)


def test_maintenance_of_healthy_tables_costs_four_requests_each(bucket, monkeypatch):
    names, real, made = ["one", "two", "three"], S3Client._once, []

    async def request_once(self, method, parameters):
        made.append(f"{method} {parameters.get('Key', parameters.get('Prefix'))}")
        return await real(self, method, parameters)

    for name in names:
        for mode in ("create", "overwrite"):
            lance_core.write_dataset(
                pa.table({"n": [1]}), bucket.uri(f"s/{name}"), mode=mode, storage_options=bucket.storage_options
            )
    job = build_maintenance_job([f"s/{name}" for name in names])
    defs = dg.Definitions(jobs=[job], resources={"io_manager": bucket.manager()})
    monkeypatch.setattr(S3Client, "_once", request_once)
    assert defs.resolve_job_def(job.name).execute_in_process(instance=bucket.instance, run_config=QUIET).success
    for name in names:
        asked = [one for one in made if f"/{name}.lance/" in one]
        assert 0 < len(asked) <= 4, asked

"""Deletions by cleanup as the policy paces them, and files that could not be deleted."""

from datetime import timedelta

import dagster as dg
import lance
import pytest
from botocore.exceptions import ClientError

import lance_core
from lance_core.maintenance.cleanup import plan as cleanup_plan
from lance_core.maintenance.cleanup import run as cleanup
from lance_core.store import open_store
from lance_core.store.s3_client import S3Client
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import Lake
from tests.lance_dagster.maintenance.test_lake import ROWS
from tests.lance_dagster.maintenance.test_maintenance import NOW, failures, observations, run

TABLE = "nyc/flights"


class Requests:
    """The requests that delete, and the keys that the server is to reject."""

    def __init__(self, monkeypatch):
        self.sizes, self.rejected = [], ""
        real = S3Client._once

        async def request_once(client, method, parameters):
            if method == "delete_object":
                self.sizes.append(1)
            if method != "delete_objects":
                return await real(client, method, parameters)
            keys = [one["Key"] for one in parameters["Delete"]["Objects"]]
            self.sizes.append(len(keys))
            rejected = [key for key in keys if self.rejected and self.rejected in key]
            left = [{"Key": key} for key in keys if key not in rejected]
            if left:
                await real(client, method, {**parameters, "Delete": {**parameters["Delete"], "Objects": left}})
            return {"Errors": [{"Key": key, "Code": "AccessDenied", "Message": "no"} for key in rejected]}

        monkeypatch.setattr(S3Client, "_once", request_once)


@pytest.fixture
def remote(s3, monkeypatch):
    """A lake with a table of thirteen versions, of which twelve can go however young they are."""
    monkeypatch.setattr(cleanup_plan, "YOUNG_AGE", timedelta(0))
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(root=f"s3://{s3.new_bucket()}/lake", instance=instance, storage_options=s3.storage_options)
        for _ in range(13):
            lance_core.write_dataset(ROWS, lake.uri(TABLE), mode="overwrite", storage_options=s3.storage_options)
        yield lake


def files(lake):
    return {one.key for one in open_store(lake.uri(TABLE), lake.storage_options).list("")}


def job(**policy):
    return build_maintenance_job([TABLE], LanceMaintenancePolicy(cleanup_older_than=NOW, **policy))


def test_a_table_costs_two_requests_and_those_of_the_clock_and_the_claim(remote, monkeypatch):
    requests = Requests(monkeypatch)
    result = run(remote, job())
    assert result.success, failures(result)
    clock, removal = requests.sizes[:2], requests.sizes[2:]
    assert clock == [1, 1]  # plan and cleanup ask for the storage's time, as the versions are young
    assert len(removal) == 3
    assert removal[1:] == [12, 1]  # the manifests, after all that they refer to; the claim, at the end
    assert observations(result)[TABLE]["lance/versions_removed"] == 12
    assert len(lance.dataset(remote.uri(TABLE), storage_options=remote.storage_options).versions()) == 1


def test_the_rate_of_the_policy_and_of_a_run_bounds_each_request(remote, monkeypatch):
    requests = Requests(monkeypatch)
    config = {"ops": {"plan": {"config": {"policy": {"delete_rate_limit": 8}}}}}
    assert run(remote, job(delete_rate_limit=1), config).success
    assert max(requests.sizes) == 8
    assert requests.sizes[-3:] == [8, 4, 1]


@pytest.mark.variants(1)
@pytest.mark.parametrize(("given", "workers"), [(None, cleanup.REMOTE_CONCURRENCY), (3, 3)])
def test_the_parallelism_of_the_policy(remote, monkeypatch, given, workers):
    pools, real = [], cleanup.ThreadPool
    monkeypatch.setattr(cleanup, "ThreadPool", lambda count: (pools.append(count), real(count))[1])
    assert run(remote, job(delete_concurrency=given, delete_rate_limit=8)).success
    assert set(pools) == {workers}


def test_files_that_are_not_deleted_are_named_and_deleted_by_the_next_run(remote, monkeypatch):
    requests, whole = Requests(monkeypatch), files(remote)
    (requests.rejected,) = {
        file.path
        for number in (3,)
        for fragment in lance.dataset(
            remote.uri(TABLE), version=number, storage_options=remote.storage_options
        ).get_fragments()
        for file in fragment.data_files()
    }
    first = run(remote, job())
    assert first.success, failures(first)
    seen = observations(first)[TABLE]
    assert (seen["lance/failed_deletes"], seen["lance/versions_removed"]) == (1, 0)
    reason = first.output_for_node("summarize")["partly_done"][TABLE]
    assert reason.startswith("clean_up: 1 files could not be deleted; the first: data/")
    assert requests.rejected in reason
    assert "AccessDenied" in reason
    warnings = [one.user_message for one in remote.instance.all_logs(first.run_id) if one.level == 30]
    assert [requests.rejected in message for message in warnings] == [True]
    left = files(remote)
    assert any(requests.rejected in key for key in left)
    assert {key for key in whole if key.startswith("_versions/")} <= left
    requests.rejected = ""
    second = run(remote, job())
    assert second.output_for_node("summarize")["done"] == [TABLE]
    assert observations(second)[TABLE]["lance/versions_removed"] == 12
    assert sum(key.startswith("data/") for key in files(remote)) == 1
    lance.dataset(remote.uri(TABLE), storage_options=remote.storage_options).validate()


def test_a_passing_failure_is_tried_again_in_the_same_run(remote, monkeypatch):
    real, slow = S3Client._once, []

    async def request_once(client, method, parameters):
        if method == "delete_objects" and not slow:
            slow.append(method)
            raise ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, method)
        return await real(client, method, parameters)

    monkeypatch.setattr(S3Client, "_once", request_once)
    result = run(remote, job())
    assert result.output_for_node("summarize")["done"] == [TABLE]
    assert slow
    assert "lance/failed_deletes" not in observations(result)[TABLE]


@pytest.mark.parametrize("name", ["delete_rate_limit", "delete_concurrency"])
def test_numbers_that_mean_nothing_are_rejected(name):
    with pytest.raises(ValueError, match=f"{name} must be a positive number or None, not 0"):
        LanceMaintenancePolicy(**{name: 0})

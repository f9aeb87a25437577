"""Backfills on a branch with a real daemon and webserver: published, held up by a check, canceled."""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

import dagster as dg
import pytest

import lance_core
from tests import processes
from tests.ui.test_asset_page import wait_for

ROOT = Path(__file__).parents[2]
DEFINITIONS = Path(__file__).with_name("branch_definitions.py")
DAYS = [f"d{number:02d}" for number in range(30)]
LAUNCH = """
mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
} }
"""
CANCEL = "mutation($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"


class Site:
    """A running Dagster: its webserver, its instance, and the lake."""

    def __init__(self, url, instance, lake, folder):
        self.url, self.instance, self.lake, self.folder = url, instance, lake, folder

    def ask(self, query, **variables):
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def backfill(self, days, n):
        tags = [{"key": "lance/branch", "value": "auto"}, {"key": "n", "value": str(n)}]
        params = {"assetSelection": [{"path": ["events"]}], "partitionNames": days, "tags": tags}
        told = self.ask(LAUNCH, p=params)["launchPartitionBackfill"]
        assert told["__typename"] == "LaunchBackfillSuccess", told
        return told["backfillId"]

    def table(self):
        return lance_core.dataset(str(self.lake / "public" / "events.lance"))

    def rows(self, branch=None):
        table = self.table().checkout_version((branch, None)).to_table()
        return sorted(zip(*table.to_pydict().values(), strict=True))

    def events(self, key):
        records = self.instance.fetch_materializations(dg.AssetKey(key), limit=500).records
        return [record.asset_materialization for record in records]

    def when(self, *keys):
        """The materializations of assets in the order of time."""
        records = [r for key in keys for r in self.instance.fetch_materializations(dg.AssetKey(key), limit=500).records]
        records.sort(key=lambda record: record.timestamp)
        return [(round(r.timestamp), r.asset_key.to_user_string(), r.partition_key, r.run_id[:8]) for r in records]

    def published(self):
        return [event for event in self.events("events") if "lance/promoted_from" in event.metadata]

    def status(self, backfill):
        return self.instance.get_backfill(backfill).status.value

    def until(self, what, holds, limit_s=300):
        end = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < end, f"{what}: still not so"
            time.sleep(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("story")
    home, lake = folder / "home", folder / "lake"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "LANCE_TEST_ROOT": str(lake),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    with processes.held_port() as port:
        server_command = [sys.executable, "-m", "dagster_webserver", "-h", "127.0.0.1", "-p", port, "-f", DEFINITIONS]
        daemon_command = [sys.executable, "-m", "dagster._daemon", "run", "-f", DEFINITIONS]
        with (
            processes.running(server_command, env=environment, log=folder / "webserver.log") as server,
            processes.running(daemon_command, env=environment, log=folder / "daemon.log"),
            dg.DagsterInstance.from_config(str(home)) as instance,
        ):
            wait_for(f"http://127.0.0.1:{port}/server_info", server)
            yield Site(f"http://127.0.0.1:{port}", instance, lake, folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestStories:
    """In this order: each goes on with the lake of the one before."""

    def test_a_backfill_of_thirty_partitions_is_published(self, site):
        backfill = site.backfill(DAYS, 5)
        branch = f"dagster/backfill/{backfill}"
        site.until("the promotion", lambda: len(site.published()) == 30)
        assert site.status(backfill) == "COMPLETED_SUCCESS"
        assert site.rows() == site.rows(branch) == sorted((day, 5) for day in DAYS for _ in range(2))
        assert site.table().version == 2
        assert {event.metadata["lance/version"].value for event in site.published()} == {2}
        unpublished = [event for event in site.events("events") if "lance/branch" in event.metadata]
        assert {event.metadata["lance/published"].value for event in unpublished} == {False}
        site.until("downstream", lambda: site.events("woken"))
        assert len(site.events("woken")) == 1

    def test_a_failed_check_holds_it_up(self, site):
        version, woken = site.table().version, len(site.events("woken"))
        backfill = site.backfill(DAYS[:3], -1)
        branch = f"dagster/backfill/{backfill}"
        site.until("the end", lambda: site.status(backfill) in ("COMPLETED_FAILED", "COMPLETED_SUCCESS"))
        key = dg.AssetKey("events")

        def is_reported():
            found = site.instance.fetch_observations(key, limit=5).records
            return any(branch in record.asset_observation.metadata["lance/branches"].value for record in found)

        site.until("the report", is_reported)
        assert (site.table().version, len(site.published())) == (version, 30)
        assert len(site.events("woken")) == woken, site.when("woken", "events")
        assert site.rows(branch)[0] == ("d00", -1)
        assert site.rows()[0] == ("d00", 5)

    def test_a_canceled_one_is_discarded(self, site):
        version = site.table().version
        backfill = site.backfill(DAYS, 7)
        site.until("its beginning", lambda: site.status(backfill) != "REQUESTED" or site.instance.get_runs_count() > 0)
        site.ask(CANCEL, id=backfill)
        site.until("its end", lambda: site.status(backfill) in ("CANCELED", "COMPLETED_SUCCESS", "COMPLETED_FAILED"))
        if site.status(backfill) != "CANCELED":
            pytest.skip("it was faster than its cancellation")
        site.until("the discard", lambda: f"dagster/backfill/{backfill}" not in site.table().branches.list())
        assert site.table().version == version
        assert site.rows()[0] == ("d00", 5)

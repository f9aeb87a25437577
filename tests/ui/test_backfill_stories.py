"""Backfills on a branch with a real daemon and webserver: published, held up by a check, canceled; on disk and on S3."""

import json
from pathlib import Path

import dagster as dg
import pytest

import lance_core
from tests.ui.site import Site, dagster_site

DEFINITIONS = Path(__file__).with_name("branch_definitions.py")
DAYS = [f"d{number:02d}" for number in range(30)]


class Events(Site):
    """The same with the table of these stories."""

    def begin(self, days, n):
        return self.backfill("events", days, **{"lance/branch": "auto", "n": str(n)})

    def table(self):
        root, options = self.env["LANCE_TEST_ROOT"], json.loads(self.env.get("LANCE_TEST_STORAGE", "{}"))
        return lance_core.dataset(f"{root}/public/events.lance", storage_options=options or None)

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


@pytest.fixture(scope="module", params=["disk", "s3"])
def site(request, tmp_path_factory):
    env = []
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        env = [
            ("LANCE_TEST_ROOT", f"s3://{s3.new_bucket()}/lake"),
            ("LANCE_TEST_STORAGE", json.dumps(s3.storage_options)),
        ]
    with dagster_site(tmp_path_factory.mktemp("story"), DEFINITIONS, env=env, kind=Events) as site:
        yield site


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
class TestStories:
    """In this order: each goes on with the lake of the one before."""

    def test_a_backfill_of_thirty_partitions_is_published(self, site):
        backfill = site.begin(DAYS, 5)
        branch = f"dagster/backfill/{backfill}"
        site.until("the promotion", lambda: len(site.published()) == 30)
        assert site.backfill_status(backfill) == "COMPLETED_SUCCESS"
        assert site.rows() == site.rows(branch) == sorted((day, 5) for day in DAYS for _ in range(2))
        assert site.table().version == 2
        assert {event.metadata["lance/version"].value for event in site.published()} == {2}
        unpublished = [event for event in site.events("events") if "lance/branch" in event.metadata]
        assert {event.metadata["lance/published"].value for event in unpublished} == {False}
        site.until("downstream", lambda: site.events("woken"))
        assert len(site.events("woken")) == 1

    def test_a_failed_check_holds_it_up(self, site):
        version, woken = site.table().version, len(site.events("woken"))
        backfill = site.begin(DAYS[:3], -1)
        branch = f"dagster/backfill/{backfill}"
        site.until("the end", lambda: site.backfill_status(backfill) in ("COMPLETED_FAILED", "COMPLETED_SUCCESS"))
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
        backfill = site.begin(DAYS, 7)
        site.until(
            "its beginning", lambda: site.backfill_status(backfill) != "REQUESTED" or site.instance.get_runs_count() > 0
        )
        site.cancel(backfill)
        site.until(
            "its end", lambda: site.backfill_status(backfill) in ("CANCELED", "COMPLETED_SUCCESS", "COMPLETED_FAILED")
        )
        if site.backfill_status(backfill) != "CANCELED":
            pytest.skip("it was faster than its cancellation")
        site.until("the discard", lambda: f"dagster/backfill/{backfill}" not in site.table().branches.list())
        assert site.table().version == version
        assert site.rows()[0] == ("d00", 5)

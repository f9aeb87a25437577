"""The flights of the example, backfilled on a branch by a real daemon and webserver: published, held up, canceled."""

import os
import shutil
from pathlib import Path

import dagster as dg
import pytest

import lance_core
from tests.support.browser import CHROMIUM, browse
from tests.ui.site import Site, dagster_site

DEFINITIONS = Path(__file__).with_name("flights_definitions.py")
DAYS = [f"2013-01-{day:02d}" for day in range(1, 31)]
FLIGHTS, CARRIERS = (dg.AssetKey(["nyc", name]) for name in ("flights", "carriers"))


class Flights(Site):
    """The same with the example's tables."""

    def begin(self, days, **tags):
        return self.backfill("nyc/flights", days, **{"lance/branch": "auto", **tags})

    def table(self):
        return lance_core.dataset(str(self.lake / "nyc" / "flights.lance"))

    def rows(self, branch=None):
        table = self.table().checkout_version((branch, None)).to_table()
        return table.sort_by([(name, "ascending") for name in table.column_names])

    def events(self, key):
        records = self.instance.fetch_materializations(key, limit=500).records
        return [record.asset_materialization for record in records]

    def published(self):
        return [event for event in self.events(FLIGHTS) if "lance/promoted_from" in event.metadata]

    def reported(self, branch):
        records = self.instance.fetch_observations(FLIGHTS, limit=10).records
        return any(branch in record.asset_observation.metadata["lance/branches"].value for record in records)

    def ticks(self):
        """How often automation was evaluated."""
        (state,) = [one for one in self.instance.all_instigator_state() if one.instigator_name == "automation"]
        return len(self.instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1000))

    def state(self):
        """What production sees."""
        return self.table().version, len(self.published()), len(self.events(CARRIERS))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flights")
    with dagster_site(folder, DEFINITIONS, env=[("LANCE_EXAMPLE_HOME", str(folder))], kind=Flights) as site:
        yield site


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
class TestFlights:
    """In this order: each goes on with the lake of the one before."""

    def test_thirty_days_are_published(self, site):
        backfill = site.begin(DAYS)
        branch = f"dagster/backfill/{backfill}"
        site.until("the promotion", lambda: len(site.published()) == 30, 900)
        assert site.backfill_status(backfill) == "COMPLETED_SUCCESS"
        assert site.table().version == 2
        assert site.rows() == site.rows(branch)
        assert sorted({str(day) for day in site.rows()["date"].to_pylist()}) == DAYS
        written = [event for event in site.events(FLIGHTS) if "lance/branch" in event.metadata]
        assert {event.metadata["lance/published"].value for event in written} == {False}
        assert all(f"`{branch}` | main@1 | " in event.metadata["lance/table_log"].value for event in written)
        site.until("downstream", lambda: site.events(CARRIERS), 300)
        ticks = site.ticks()
        site.until("more ticks", lambda: site.ticks() > ticks + 2)
        assert len(site.events(CARRIERS)) == 1
        counted = lance_core.dataset(str(site.lake / "nyc" / "carriers.lance")).to_table()
        assert sum(counted["carrier_count"].to_pylist()) == site.table().count_rows()

    def test_the_pages(self, site):
        if CHROMIUM is None:
            pytest.skip("Chromium is missing")
        picture = site.folder / "branches.png"
        page = f"{site.url}/assets/nyc/flights?view=events"
        browse(page, site.folder / "profile", f"--screenshot={picture}", size="1800,640")
        assert picture.stat().st_size > 50_000
        if kept := os.environ.get("LANCE_PICTURES"):
            shutil.copy(picture, Path(kept) / "branches.png")  # the one that docs/backfills.md shows

    def test_a_failed_check_holds_them_up(self, site):
        before, rows = site.state(), site.rows()
        backfill = site.begin(DAYS[:3], fail="true")
        site.until("the end", lambda: site.backfill_status(backfill).startswith("COMPLETED"), 900)
        site.until("the report", lambda: site.reported(f"dagster/backfill/{backfill}"))
        assert site.state() == before
        assert site.rows() == rows
        assert f"dagster/backfill/{backfill}" in site.table().branches.list()

    def test_a_canceled_backfill_is_discarded(self, site):
        before = site.state()
        backfill = site.begin(DAYS)
        filters = dg.RunsFilter(tags={"dagster/backfill": backfill}, statuses=[dg.DagsterRunStatus.STARTED])
        site.until("its run", lambda: site.instance.get_runs(filters=filters))
        site.cancel(backfill)
        site.until(
            "its end",
            lambda: site.backfill_status(backfill) in ("CANCELED", "COMPLETED_SUCCESS", "COMPLETED_FAILED"),
            600,
        )
        assert site.backfill_status(backfill) == "CANCELED"
        site.until("the discard", lambda: f"dagster/backfill/{backfill}" not in site.table().branches.list())
        assert site.state() == before

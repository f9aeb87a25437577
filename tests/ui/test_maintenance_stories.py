"""Maintenance with a real daemon and webserver: by sensor and by schedule, with killed runs, beside a backfill in a pool."""

import itertools
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from tests import processes
from tests.ui.site import dagster_site

DEFINITIONS = Path(__file__).with_name("maintenance_definitions.py")
DAYS = [f"d{number}" for number in range(5)]
KEY = dg.AssetKey(["shop", "orders"])
POOLS = "concurrency: {pools: {default_limit: 1, granularity: op}}\n"
START_SENSOR = "mutation($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
STOP_SENSOR = "mutation($id: String!) { stopSensor(id: $id) { __typename } }"
STOP_SCHEDULE = "mutation($id: String!) { stopRunningSchedule(id: $id) { __typename } }"
START_SCHEDULE = "mutation($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) { __typename } }"
STATES = """query($s: RepositorySelector!) { repositoryOrError(repositorySelector: $s) { ... on Repository {
  schedules { name scheduleState { id status ticks(limit: 5) { status runIds } } }
  sensors { name sensorState { id status ticks(limit: 5) { status runIds } } }
} } }"""


class Story:
    """A site, and the table that is looked after."""

    def __init__(self, site, hold):
        self.site, self.hold = site, hold
        self.rows = []

    def table(self):
        return lance_core.dataset(str(self.site.lake / "shop" / "orders.lance"))

    def fill(self, fragments=5):
        """Small fragments, and one with many deleted rows."""
        uri = str(self.site.lake / "shop" / "orders.lance")
        start = len(self.rows)
        for number in range(start, start + fragments):
            rows = pa.table({"day": [f"x{number}"] * 10, "n": list(range(10))})
            table = lance_core.write_dataset(rows, uri, mode="append" if self.rows else "create")
            self.rows.append(number)
        table.delete("n >= 7")

    def found(self):
        return sorted(zip(*self.table().to_table().to_pydict().values(), strict=True))

    def expected(self):
        return sorted((f"x{number}", n) for number in self.rows for n in range(7))

    def runs(self):
        return self.site.instance.get_runs(dg.RunsFilter(job_name="lance_maintenance"))

    def states(self):
        found = self.site.ask(STATES, s=self.site.repository())["repositoryOrError"]
        (schedule,), (sensor,) = found["schedules"], found["sensors"]
        return schedule["scheduleState"], sensor["sensorState"]

    def start_sensor(self):
        selector = {**self.site.repository(), "sensorName": "lance_maintenance_sensor"}
        self.site.ask(START_SENSOR, s=selector)

    def stop_sensor(self):
        self.site.ask(STOP_SENSOR, id=self.states()[1]["id"])

    def start_schedule(self):
        selector = {**self.site.repository(), "scheduleName": "lance_maintenance_schedule"}
        self.site.ask(START_SCHEDULE, s=selector)

    def stop_schedule(self):
        """A tick under way writes the state that it began with: stop until that is over."""

        def is_stopped():
            state = self.states()[0]
            if state["status"] == "STOPPED" and "STARTED" not in [tick["status"] for tick in state["ticks"]]:
                return True
            answer = self.site.ask(STOP_SCHEDULE, id=state["id"])
            assert "Error" not in str(answer), answer
            return False

        self.site.until("the end of the schedule", is_stopped)

    def kill_at(self, place):
        """Wait until a run has stopped there, and kill its process; the run."""
        stopped = self.hold / "stopped"
        self.site.until(f"the stop at {place}", stopped.exists)
        process, run_id = stopped.read_text().split()
        os.kill(int(process), signal.SIGKILL)
        stopped.unlink()
        return run_id

    def is_small(self):
        table = self.table()
        return len(table.get_fragments()) == 1 and table.count_deleted_rows() == 0


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    folder = tmp_path_factory.mktemp("maintenance")
    hold = folder / "hold"
    hold.mkdir()
    with dagster_site(folder, DEFINITIONS, yaml=POOLS, env=[("LANCE_TEST_HOLD", str(hold))]) as site:
        yield Story(site, hold)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")
class TestStories:
    """In this order: each goes on with the lake of the one before."""

    def test_a_run_whose_death_nobody_saw_is_made_up_for(self, story):
        """It stays started for ever; the sensor waits for it while it may be alive, and no longer."""
        schedule, sensor = story.states()
        assert (schedule["status"], sensor["status"]) == ("STOPPED", "STOPPED")
        story.fill()
        (story.hold / "stop").write_text("rewrite")
        command = [sys.executable, "-m", "dagster", "job", "execute", "-f", DEFINITIONS, "-j", "lance_maintenance"]
        with processes.running(command, env=story.site.env, log=story.site.folder / "killed.log"):
            killed = story.kill_at("rewrite")
        story.start_sensor()
        story.site.until("a tick that waits", lambda: story.states()[1]["ticks"])
        assert [run.run_id for run in story.runs()] == [killed]
        (story.hold / "dead").write_text(killed)
        story.site.until("maintenance", story.is_small)
        assert story.found() == story.expected()
        assert story.site.status(killed) == "STARTED"
        again = story.runs()[0].run_id
        story.site.until_done(again)
        (record,) = story.site.instance.fetch_observations(KEY, limit=1).records
        metadata = record.asset_observation.metadata
        assert metadata["lance/maintenance"].value == "done"
        assert metadata["lance/fragments_before"].value == 5
        assert story.table().count_deleted_rows() == 0

    @pytest.mark.parametrize(
        "place",
        [
            "plan", "rewrite begins", "reserved", "commit", "materialize_deletions", "indexed", "refresh_indices",
            "clean_up begins", "report begins",
        ],
    )  # fmt: skip
    def test_killed_at(self, story, place):
        """The server of the code location reports to Dagster that the run failed, and the sensor asks again."""
        (story.hold / "stop").write_text(place)
        if place in ("indexed", "refresh_indices"):
            story.fill(1)
            story.table().create_scalar_index("n", "BTREE", replace=True)
        story.start_sensor()
        story.fill()
        killed = story.kill_at(place)
        story.site.until("the failure", lambda: story.site.status(killed) == "FAILURE")
        story.site.until("another run", lambda: story.runs()[0].run_id != killed and story.runs()[0].is_finished)
        assert story.is_small()
        assert story.found() == story.expected()
        table = story.table()
        table.cleanup_old_versions(timedelta(0), retain_versions=1, delete_unverified=True)
        folder = story.site.lake / "shop" / "orders.lance"
        left = {path.name for path in (folder / "data").iterdir()}
        assert left == {file.path for fragment in table.get_fragments() for file in fragment.metadata.files}
        for index in table.list_indices():
            assert table.stats.index_stats(index["name"])["num_unindexed_rows"] == 0
        left = {path.name for path in (folder / "_indices").glob("*") if any(path.iterdir())}
        assert left == {index["uuid"] for index in table.list_indices()}

    def test_the_schedule(self, story):
        """It is stopped until somebody starts it; a tick runs all tables, in an order of its own."""
        story.stop_sensor()
        story.site.until("the end of all runs", lambda: all(run.is_finished for run in story.runs()))
        story.fill()
        known = {run.run_id for run in story.runs()}
        story.start_schedule()

        def ticked():
            return [run for run in story.runs() if run.run_id not in known and run.tags.get("dagster/schedule_name")]

        run = story.site.until("a tick", ticked)[0]
        story.stop_schedule()
        story.site.until_done(run.run_id)
        assert run.tags["dagster/schedule_name"] == "lance_maintenance_schedule"
        assert "lance/order" in run.tags
        assert story.is_small()
        assert story.found() == story.expected()

    def test_a_backfill_by_the_api_in_a_pool_beside_maintenance(self, story):
        """One step of the pool at a time; maintenance that runs beside it gives way, and every partition is there once."""
        maintenance = story.site.launch("lance_maintenance", {"ops": {"plan": {"config": {"tables": ["shop/orders"]}}}})
        backfill = story.site.backfill("shop/orders", DAYS)
        ended = ("COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED")
        instance = story.site.instance
        story.site.until("the backfill", lambda: instance.get_backfill(backfill).status.value in ended)
        assert instance.get_backfill(backfill).status.value == "COMPLETED_SUCCESS"
        story.site.until_done(maintenance)
        runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill}))
        assert len(runs) == len(DAYS)
        spans = []
        for run in runs:
            (step,) = instance.get_run_step_stats(run.run_id, ["shop__orders"])  # its checks are in no pool
            spans.append((step.start_time, step.end_time))
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), spans
        assert instance.get_latest_materialization_event(KEY) is not None
        assert story.found() == sorted(story.expected() + [(day, n) for day in DAYS for n in range(10)])

    def test_each_step_in_a_process_of_its_own(self, story):
        """Dagster's default executor; the payloads are what steps can hand to each other."""
        story.fill()
        execution = {"config": {"multiprocess": {"max_concurrent": 2}}}
        run = story.site.launch("many_processes", {"execution": execution})
        story.site.until_done(run)
        assert story.is_small()

"""Maintenance as a job: tables become small and fast, rows stay, writers win, nothing downstream moves."""

import contextlib
import json
import pickle
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_core import times
from lance_core.errors import StoreError
from lance_core.maintenance.routine import steps
from lance_core.table.operations import CreateIndex
from lance_core.verbs.context.uncommitted_files import UncommittedFiles
from lance_dagster import (
    LanceIOManager,
    LanceMaintenancePolicy,
    LanceTableResource,
    build_maintenance_job,
    build_maintenance_schedule,
    build_maintenance_sensor,
)
from lance_dagster._context import runs as context_runs
from lance_dagster.health import policy as health_policy
from lance_dagster.maintenance.schedule import config_for
from tests.lance_dagster.lake import QUIET

NOW = timedelta(microseconds=1)


@dg.asset(key_prefix="nyc")
def flights() -> pa.Table:
    return pa.table({"n": [0, 1]})


@dg.asset(key_prefix="nyc", metadata={"lance/maintenance": {"target_rows_per_fragment": 2}})
def planes() -> pa.Table:
    return pa.table({"n": [0, 1]})


@dg.asset(ins={"flights": dg.AssetIn(["nyc", "flights"])}, automation_condition=dg.AutomationCondition.eager())
def late(flights: pa.Table) -> pa.Table:
    return flights


def fill(lake, name, fragments=6, rows=2):
    for i in range(fragments):
        table = pa.table({"n": list(range(i * rows, (i + 1) * rows))})
        lance_core.write_dataset(table, lake.uri(name), mode="append" if i else "create")
    return lake.table(name)


def run(lake, job, config=None, *, resources=None, tags=None, assets=()):
    """Run a maintenance job within a code location."""
    defs = dg.Definitions(
        assets=list(assets), jobs=[job], resources={"io_manager": lake.manager(), **(resources or {})}
    )
    return defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config={**QUIET, **(config or {})}, raise_on_error=False, tags=tags
    )


def observations(result):
    found = [
        e.asset_observation_data.asset_observation
        for e in result.all_events
        if e.event_type_value == "ASSET_OBSERVATION"
    ]
    return {one.asset_key.to_user_string(): {key: entry.value for key, entry in one.metadata.items()} for one in found}


def failures(result):
    return {
        event.step_key: event.event_specific_data.error.message for event in result.all_events if event.is_step_failure
    }


class TestOneTable:
    def test_small_fragments_become_one_in_one_commit(self, lake):
        table = fill(lake, "nyc/flights")
        result = run(lake, build_maintenance_job([flights]))
        assert result.success
        after = lake.table("nyc/flights")
        assert [after.version, len(after.get_fragments())] == [table.version + 2, 1]  # ReserveFragments, Rewrite
        assert lake.rows("nyc/flights") == [(n,) for n in range(12)]
        import lance

        assert sorted(lance.dataset(lake.uri("nyc/flights")).to_table()["n"].to_pylist()) == list(range(12))
        found = observations(result)["nyc/flights"]
        assert found["lance/maintenance"] == "done"
        assert (found["lance/fragments_before"], found["lance/fragments_after"]) == (6, 1)
        assert found["lance/rows_before"] == found["lance/rows_after"] == 12
        assert found["lance/bytes_before"] > found["lance/bytes_after"] > 0
        assert (found["lance/versions_before"], found["lance/versions_after"]) == (6, 8)
        assert found["lance/seconds"] > 0
        assert not result.get_asset_materialization_events()
        reserved, rewritten = lake.properties("nyc/flights")[-2:]
        assert reserved["dagster.run_id"] == rewritten["dagster.run_id"] == result.run_id
        assert reserved["dagster.maintenance"] == "true"
        assert not Path(lake.root, "_ops").exists()  # what its ops give each other goes elsewhere

    def test_a_second_run_makes_no_version(self, lake):
        fill(lake, "nyc/flights")
        job = build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW))
        run(lake, job)
        version = lake.table("nyc/flights").version
        result = run(lake, job)
        assert result.success
        assert lake.table("nyc/flights").version == version
        assert observations(result)["nyc/flights"]["lance/maintenance"] == "healthy"

    def test_deleted_rows_leave_the_files(self, lake):
        table = fill(lake, "nyc/flights", fragments=1, rows=100)
        table.delete("n < 50")
        result = run(lake, build_maintenance_job([flights]))
        assert result.success
        after = lake.table("nyc/flights")
        assert after.count_deleted_rows() == 0
        assert after.count_rows() == 50
        assert observations(result)["nyc/flights"]["lance/deleted_rows_before"] == 50

    def test_old_versions_go_and_tagged_ones_stay(self, lake):
        table = fill(lake, "nyc/flights")
        table.tags.create("keep", 2)
        result = run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW)))
        assert result.success
        after = lake.table("nyc/flights")
        assert [v["version"] for v in after.versions()] == [2, after.version]
        assert after.checkout_version("keep").count_rows() == 4
        # The version that reserved fragment ids is removed as well; it was not there before the run.
        assert observations(result)["nyc/flights"]["lance/versions_removed"] == 5

    def test_retain_versions_keeps_the_newest_ones(self, lake):
        fill(lake, "nyc/flights")
        run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=None, retain_versions=3)))
        assert len(lake.table("nyc/flights").versions()) == 3

    def test_nothing_is_removed_without_a_limit(self, lake):
        fill(lake, "nyc/flights")
        run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=None)))
        assert len(lake.table("nyc/flights").versions()) == 8

    def test_a_dry_run_writes_nothing(self, lake):
        table = fill(lake, "nyc/flights")
        for job, config in (
            (build_maintenance_job([flights], LanceMaintenancePolicy(dry_run=True)), {}),
            (build_maintenance_job([flights]), {"ops": {"plan": {"config": {"dry_run": True}}}}),
        ):
            result = run(lake, job, config)
            assert result.success
            assert lake.table("nyc/flights").version == table.version
            found = observations(result)["nyc/flights"]
            assert (found["lance/maintenance"], found["lance/tasks"]) == ("dry run", 1)

    def test_the_launchpad_changes_the_policy(self, lake):
        fill(lake, "nyc/flights")
        config = {
            "ops": {"plan": {"config": {"policy": {"target_rows_per_fragment": 4, "cleanup_older_than": "never"}}}}
        }
        run(lake, build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW)), config)
        assert [f.count_rows() for f in lake.table("nyc/flights").get_fragments()] == [4, 4, 4]
        assert len(lake.table("nyc/flights").versions()) == 8

    def test_indices_of_pylance_that_cannot_be_refreshed_are_reported_and_kept(self, lake):
        import lance

        fill(lake, "nyc/flights")
        lance.dataset(lake.uri("nyc/flights")).create_scalar_index("n", "BTREE")
        result = run(lake, build_maintenance_job([flights]))
        assert result.success
        found = observations(result)["nyc/flights"]
        assert found["lance/indices_refreshed"] + found["lance/indices_not_refreshed"] == 1
        assert lance.dataset(lake.uri("nyc/flights")).to_table(filter="n = 7")["n"].to_pylist() == [7]


class TestManyTables:
    def test_each_has_its_own_policy_and_absent_ones_are_passed_over(self, lake):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/planes")
        result = run(lake, build_maintenance_job([flights, planes, dg.AssetKey("nothing"), "nyc/none"]))
        assert result.success
        assert result.output_for_node("summarize") == {
            "done": ["nyc/flights"],
            "partly_done": {},
            "skipped": [],
            "healthy": ["nyc/planes"],  # fragments of two rows are large enough
            "dry_run": [],
            "absent": ["nothing", "nyc/none"],
            "left_alone": [],
            "failed": {},
            "put_off": {},
            "index_work": {},
        }

    def test_only_some(self, lake):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/boats")
        job = build_maintenance_job([flights, "nyc/boats"])
        result = run(lake, job, {"ops": {"plan": {"config": {"tables": ["nyc/boats"]}}}})
        assert list(observations(result)) == ["nyc/boats"]
        result = run(lake, job, {"ops": {"plan": {"config": {"tables": ["nyc/trains"]}}}})
        assert "nyc/trains: no table of this job" in failures(result)["plan"]

    @pytest.mark.parametrize("harm", ["data", "manifest"])
    def test_a_broken_table_fails_alone_and_is_named(self, lake, harm):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/broken")
        root = Path(lake.uri("nyc/broken"))
        if harm == "data":
            shutil.rmtree(root / "data")
        else:
            max(root.glob("_versions/*.manifest"), key=lambda p: p.stat().st_mtime_ns).write_bytes(b"nothing")
        result = run(lake, build_maintenance_job(["nyc/broken", flights]))
        assert not result.success
        assert len(lake.table("nyc/flights").get_fragments()) == 1
        assert list(observations(result)) == ["nyc/flights"]
        (report,) = [step for step in failures(result) if step.startswith("report[nyc__broken")]
        assert set(failures(result)) == {report, "summarize"}
        assert "nyc/broken" in failures(result)["summarize"]

    def test_a_whole_policy_takes_the_place_of_that_of_the_job(self, lake):
        own = LanceMaintenancePolicy(target_rows_per_fragment=4, cleanup_older_than=None)

        @dg.asset(key_prefix="nyc", metadata={"lance/maintenance": own})
        def boats() -> pa.Table:
            return pa.table({"n": [0, 1]})

        lake.run(boats)
        shutil.rmtree(lake.uri("nyc/boats"))
        fill(lake, "nyc/boats")
        job = build_maintenance_job([boats], LanceMaintenancePolicy(cleanup_older_than=NOW))
        assert run(lake, job, assets=[boats]).success
        assert [f.count_rows() for f in lake.table("nyc/boats").get_fragments()] == [4, 4, 4]
        assert len(lake.table("nyc/boats").versions()) > 1

    def test_a_table_that_is_to_be_left_alone(self, lake):
        fill(lake, "boats")
        alone = dg.AssetSpec("boats", metadata={"lance/maintenance": False})
        result = run(lake, build_maintenance_job([alone]))
        assert result.success
        assert lake.table("boats").version == 6

    def test_keys_are_found_where_the_definition_puts_them(self, lake):
        """A bare key is located like the asset: through the metadata of its definition, where the location has one."""
        placed = dg.AssetSpec("boats", metadata={"schema": "sea", "table": "ships"})
        fill(lake, "sea/ships")
        assert run(lake, build_maintenance_job([placed])).success
        assert len(lake.table("sea/ships").get_fragments()) == 1

    def test_a_table_resource_will_do_and_two_jobs_in_one_location(self, lake):
        fill(lake, "nyc/flights")
        one = build_maintenance_job([flights], name="one", io_manager_key="lance")
        two = build_maintenance_job([flights], name="two")
        defs = dg.Definitions(
            jobs=[one, two],
            resources={"lance": LanceTableResource(root_uri=lake.root), "io_manager": lake.manager()},
        )
        for name in ("one", "two"):
            assert defs.resolve_job_def(name).execute_in_process(instance=lake.instance, run_config=QUIET).success
        assert len(lake.table("nyc/flights").get_fragments()) == 1


class TestRaces:
    def test_a_writer_that_is_always_faster_wins_and_nothing_fails(self, lake, monkeypatch):
        fill(lake, "nyc/flights")
        real, calls = steps.rewrite, []

        def rewrite(dataset, task):
            done = real(dataset, task)
            calls.append(lake.table("nyc/flights").delete(f"n = {len(calls)}"))
            return done

        monkeypatch.setattr(steps, "rewrite", rewrite)
        result = run(lake, build_maintenance_job([flights]))
        assert result.success
        assert len(calls) >= steps.ATTEMPTS
        found = observations(result)["nyc/flights"]
        assert found["lance/maintenance"] == "skipped"
        assert found["lance/tasks_lost"] >= 1
        assert lake.rows("nyc/flights") == [(n,) for n in range(len(calls), 12)]

    def test_a_writer_that_is_faster_once_is_followed(self, lake, monkeypatch):
        fill(lake, "nyc/flights")
        real, calls = steps.rewrite, []

        def rewrite(dataset, task):
            done = real(dataset, task)
            if not calls:
                lake.table("nyc/flights").delete("n = 0")
            calls.append(task)
            return done

        monkeypatch.setattr(steps, "rewrite", rewrite)
        result = run(lake, build_maintenance_job([flights]))
        assert observations(result)["nyc/flights"]["lance/maintenance"] == "done"
        assert len(lake.table("nyc/flights").get_fragments()) == 1
        assert lake.rows("nyc/flights") == [(n,) for n in range(1, 12)]

    def test_appends_meanwhile_stay(self, lake, monkeypatch):
        fill(lake, "nyc/flights")
        real = steps.rewrite

        def rewrite(dataset, task):
            lake.table("nyc/flights").insert(pa.table({"n": [12]}))
            return real(dataset, task)

        monkeypatch.setattr(steps, "rewrite", rewrite)
        assert run(lake, build_maintenance_job([flights])).success
        assert lake.rows("nyc/flights") == [(n,) for n in range(13)]

    def test_a_rewrite_is_tried_again(self, lake, monkeypatch):
        fill(lake, "nyc/flights")
        real, calls = steps.rewrite, []

        def rewrite(dataset, task):
            calls.append(task)
            if len(calls) == 1:
                raise StoreError("not now")
            return real(dataset, task)

        monkeypatch.setattr(steps, "rewrite", rewrite)
        assert run(lake, build_maintenance_job([flights])).success
        assert len(calls) == 2

    @pytest.mark.parametrize("step", ["rewrite", "commit", "materialize_deletions", "clean_up"])
    @pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
    def test_a_run_that_ends_at_any_step_is_finished_by_the_next(self, lake, monkeypatch, step, when):
        fill(lake, "nyc/flights")
        job = build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW))
        real = getattr(steps, step)

        def dies(*arguments, **options):
            if when == "after":
                real(*arguments, **options)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(steps, step, dies)
            with contextlib.suppress(KeyboardInterrupt):
                assert not run(lake, job).success
        assert lake.rows("nyc/flights") == [(n,) for n in range(12)]
        assert run(lake, job).success
        assert lake.rows("nyc/flights") == [(n,) for n in range(12)]
        table = lake.table("nyc/flights")
        assert len(table.get_fragments()) == 1
        assert len(table.versions()) == 1
        table.cleanup_old_versions(timedelta(0), retain_versions=1, delete_unverified=True)
        assert len(list(Path(lake.uri("nyc/flights"), "data").iterdir())) == 1

    @pytest.mark.parametrize("when", ["before", "between files and commit", "after"])
    def test_a_run_that_ends_while_it_refreshes_an_index_is_finished_by_the_next(self, lake, monkeypatch, when):
        import lance

        fill(lake, "nyc/flights").create_scalar_index("n", "BTREE")
        lake.table("nyc/flights").insert(pa.table({"n": [12, 13]}))
        job = build_maintenance_job([flights], LanceMaintenancePolicy(cleanup_older_than=NOW))
        place = (UncommittedFiles, "commit") if when == "between files and commit" else (steps, "refresh_indices")
        real = getattr(*place)

        def dies(*arguments, **options):
            if place[0] is UncommittedFiles and not isinstance(arguments[1], CreateIndex):
                return real(*arguments, **options)
            if when == "after":
                real(*arguments, **options)
            monkeypatch.setattr(UncommittedFiles, "discard", lambda _files: None)  # a killed process does not tidy up
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(*place, dies)
            with contextlib.suppress(KeyboardInterrupt):
                assert not run(lake, job).success
        assert run(lake, job).success
        assert lake.rows("nyc/flights") == [(n,) for n in range(14)]
        table = lake.table("nyc/flights")
        assert table.stats.index_stats("n_idx")["num_unindexed_rows"] == 0
        assert len(table.versions()) == 1
        assert lance.dataset(lake.uri("nyc/flights")).to_table(filter="n = 13")["n"].to_pylist() == [13]
        table.cleanup_old_versions(timedelta(0), retain_versions=1, delete_unverified=True)
        kept = {path.name for path in Path(lake.uri("nyc/flights"), "_indices").iterdir() if any(path.iterdir())}
        assert kept == {index["uuid"] for index in table.list_indices()}


class TestDownstream:
    @pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
    def test_neither_data_versions_nor_automation_move(self, lake):
        assets = [flights, late]
        lake.run(*assets, default_load_type="pyarrow")
        for _ in range(3):
            lake.table("nyc/flights").insert(pa.table({"n": [1]}))
        defs = dg.Definitions(assets=assets)
        first = dg.evaluate_automation_conditions(defs, instance=lake.instance)
        before = lake.instance.get_latest_materialization_event(dg.AssetKey(["nyc", "flights"]))
        assert run(lake, build_maintenance_job(assets)).success
        assert len(lake.table("nyc/flights").get_fragments()) == 1
        after = lake.instance.get_latest_materialization_event(dg.AssetKey(["nyc", "flights"]))
        assert after.timestamp == before.timestamp
        second = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=first.cursor)
        assert second.total_requested == 0


class TestSchedule:
    def job(self, *names):
        return build_maintenance_job(list(names) or ["nyc/flights"])

    def evaluate(self, schedule, when=None, instance=None):
        return schedule.evaluate_tick(dg.build_schedule_context(instance=instance, scheduled_execution_time=when))

    def test_it_ships_stopped_and_runs_all_tables(self):
        schedule = build_maintenance_schedule(self.job(), cron_schedule="0 4 * * *")
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert schedule.cron_schedule == "0 4 * * *"
        (request,) = self.evaluate(schedule, datetime(2026, 1, 1, 4, tzinfo=UTC)).run_requests
        assert request.run_config == {}
        assert len(self.evaluate(schedule).run_requests) == 1  # by hand

    def test_a_tick_does_not_queue_behind_an_open_run_for_the_same_tables(self, tmp_path):
        job = self.job("nyc/flights", "nyc/boats")
        schedule, when = build_maintenance_schedule(job), datetime(2026, 1, 1, 3, tzinfo=UTC)
        with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
            some = config_for(["nyc/boats"])
            instance.create_run_for_job(job, run_config=some, status=dg.DagsterRunStatus.STARTED)
            assert self.evaluate(schedule, when, instance).run_requests  # the other table is not waited for
            whole = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
            tick = self.evaluate(schedule, when, instance)
            assert tick.run_requests == []
            assert tick.skip_message == f"run {whole.run_id} for the same tables has not ended"
            killed = build_maintenance_schedule(job, silent_after=timedelta(0))
            assert self.evaluate(killed, when, instance).run_requests
            instance.delete_run(whole.run_id)
            assert self.evaluate(schedule, when, instance).run_requests

    def test_jitter_gives_each_table_a_minute_of_its_own(self):
        names = [f"nyc/t{i}" for i in range(20)]
        schedule = build_maintenance_schedule(self.job(*names), "55 3 * * *", jitter=timedelta(minutes=9))
        assert len(schedule.cron_schedule) == 10
        assert schedule.cron_schedule[-1] == "4 4 * * *"
        asked = []
        with dg.instance_for_test() as instance:
            for minute in range(10):
                when = datetime(2026, 1, 1, 3, 55, tzinfo=UTC) + timedelta(minutes=minute)
                asked += self.asked(schedule, when, instance)
        assert sorted(asked) == sorted(names)

    def asked(self, schedule, when, instance):
        """The tables of a tick, whose run has begun and ended."""
        tables = []
        for request in self.evaluate(schedule, when, instance).run_requests:
            instance.create_run_for_job(
                schedule.job, run_config=request.run_config, tags=request.tags, status=dg.DagsterRunStatus.SUCCESS
            )
            tables += request.run_config["ops"]["plan"]["config"]["tables"]
        return tables

    @pytest.mark.parametrize("minutes", [(0,), (7, 8, 9), (0, 9), (3, 4, 9)])
    def test_jitter_makes_up_for_minutes_without_a_tick(self, minutes):
        """The clocks go forward at the first minute; or no daemon ran."""
        names = [f"nyc/t{i}" for i in range(20)]
        zone = {"execution_timezone": "Europe/Berlin"} if minutes == (0,) else {}
        cron = "45 2 * * *" if zone else "55 3 * * *"
        schedule = build_maintenance_schedule(self.job(*names), cron, jitter=timedelta(minutes=9), **zone)
        begin = datetime(2026, 3, 29, 1 if zone else 3, 0 if zone else 55, tzinfo=UTC)
        with dg.instance_for_test() as instance:
            asked = [
                name for minute in minutes for name in self.asked(schedule, begin + timedelta(minutes=minute), instance)
            ]
        assert sorted(asked) == sorted(names)

    def test_a_schedule_that_cannot_be_spread(self):
        for cron in ("*/5 * * * *", "² 3 * * *"):
            with pytest.raises(ValueError, match="fixed minute"):
                build_maintenance_schedule(self.job(), cron, jitter=timedelta(minutes=9))
        with pytest.raises(ValueError, match="another day"):
            build_maintenance_schedule(self.job(), "55 23 * * 1", jitter=timedelta(minutes=9))

    def test_another_job_is_rejected(self):
        @dg.op
        def nothing(): ...

        @dg.job
        def other():
            nothing()

        with pytest.raises(dg.DagsterInvalidDefinitionError, match="build_maintenance_job"):
            build_maintenance_schedule(other)


class TestSensor:
    @pytest.fixture
    def tick(self, lake):
        tables = [flights, "nyc/boats"]
        job = build_maintenance_job(tables)
        sensor = build_maintenance_sensor(job, tables, LanceMaintenancePolicy(max_versions=20))
        state = {"cursor": None}

        def evaluate():
            with dg.build_sensor_context(
                instance=lake.instance, cursor=state["cursor"], resources={"io_manager": lake.manager()}
            ) as context:
                result = sensor(context)
            if isinstance(result, dg.SkipReason):
                return []
            state["cursor"] = result.cursor
            return result.run_requests

        evaluate.job, evaluate.sensor, evaluate.state = job, sensor, state
        return evaluate

    def test_small_fragments_ask_for_a_run_once(self, lake, tick):
        assert tick.sensor.default_status is dg.DefaultSensorStatus.STOPPED
        assert tick() == []
        fill(lake, "nyc/flights", fragments=2)
        assert tick() == []
        fill(lake, "nyc/boats")
        (request,) = tick()
        assert request.run_config == {"ops": {"plan": {"config": {"tables": ["nyc/boats"]}}}}
        assert tick() == []
        assert run(lake, tick.job, dict(request.run_config), tags=request.tags).success
        assert tick() == []
        assert len(lake.table("nyc/boats").get_fragments()) == 1

    def test_the_reason_of_a_skip_names_healthy_tables_and_those_that_are_left_alone(self, lake):
        fill(lake, "nyc/flights", fragments=1)
        left = dg.AssetSpec(["nyc", "boats"], metadata={"lance/maintenance": False, "schema": "nyc", "table": "boats"})
        fill(lake, "nyc/boats")
        sensor = build_maintenance_sensor(build_maintenance_job([flights, left]), [flights, left])
        with dg.build_sensor_context(instance=lake.instance, resources={"io_manager": lake.manager()}) as context:
            reason = sensor(context).skip_message
        assert reason == "none of 1 tables needs maintenance; 1 more are excluded by their metadata or policy"

    def test_the_reason_of_a_skip_counts_tables_in_open_runs_and_those_that_cannot_be_read(self, lake):
        fill(lake, "nyc/flights", fragments=1)
        fill(lake, "nyc/boats")
        fill(lake, "nyc/torn")
        for manifest in Path(lake.uri("nyc/torn"), "_versions").iterdir():
            manifest.write_bytes(b"nothing")
        job = build_maintenance_job(root=True)
        sensor, cursor = build_maintenance_sensor(job, root=True), None
        with dg.build_sensor_context(instance=lake.instance, resources={"io_manager": lake.manager()}) as context:
            found = sensor(context)
            (request,), cursor = found.run_requests, found.cursor
        lake.instance.create_run_for_job(job, run_config=request.run_config, tags=request.tags)
        with dg.build_sensor_context(
            instance=lake.instance, resources={"io_manager": lake.manager()}, cursor=cursor
        ) as context:
            reason = sensor(context).skip_message
        assert reason == (
            "none of 1 tables needs maintenance; 1 more are in a run that has not ended; 1 more cannot be read, see the "
            "log of the tick"
        )

    def test_deleted_rows_ask_for_a_run(self, lake, tick):
        fill(lake, "nyc/flights", fragments=1, rows=10)
        assert tick() == []
        lake.table("nyc/flights").delete("n < 3")
        assert len(tick()) == 1

    def test_versions_since_the_last_time_ask_for_a_run(self, lake, tick):
        fill(lake, "nyc/flights", fragments=1)
        for i in range(20):
            lake.table("nyc/flights").update_config({"i": str(i)})
        (request,) = tick()
        run(lake, tick.job, dict(request.run_config), tags=request.tags)
        for i in range(15):
            lake.table("nyc/flights").update_config({"i": str(i)})
        assert tick() == []
        for i in range(10):
            lake.table("nyc/flights").update_config({"i": str(i)})
        assert len(tick()) == 1

    def test_a_table_that_an_open_run_works_on_waits(self, lake, tick):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/boats")
        tags = {"lance/tables": json.dumps(["nyc/boats"])}
        lake.instance.create_run_for_job(tick.job, tags=tags, status=dg.DagsterRunStatus.STARTED)
        (request,) = tick()
        assert request.run_config["ops"]["plan"]["config"]["tables"] == ["nyc/flights"]

    def report(self, lake, tick, request, status):
        """A run of a request, as the daemon makes it, with a status."""
        lake.instance.create_run_for_job(tick.job, tags=dict(request.tags), status=status)

    def test_a_run_that_failed_is_asked_for_again_without_a_new_version(self, lake, tick):
        fill(lake, "nyc/boats")
        (first,) = tick()
        self.report(lake, tick, first, dg.DagsterRunStatus.STARTED)
        assert tick() == []
        (run_id,) = [found.run_id for found in lake.instance.get_runs()]
        lake.instance.report_run_failed(lake.instance.get_run_by_id(run_id))
        (second,) = tick()
        assert second.run_config == first.run_config
        assert second.run_key != first.run_key  # Dagster makes one run of a key
        assert tick() == []

    def test_a_table_that_was_made_again_is_another_request(self, lake, tick):
        keys = set()
        for _ in range(2):
            fill(lake, "nyc/boats")
            tick.state["cursor"] = None
            keys.add(tick()[0].run_key)
            shutil.rmtree(lake.uri("nyc/boats"))
        assert len(keys) == 2

    def test_what_a_run_that_failed_left_is_asked_for_though_no_threshold_is_passed(self, lake, tick, monkeypatch):
        fill(lake, "nyc/boats")
        (request,) = tick()
        with monkeypatch.context() as patch:
            patch.setattr(steps, "clean_up", lambda *_arguments: 1 / 0)
            assert not run(lake, tick.job, dict(request.run_config), tags=request.tags).success
        assert len(lake.table("nyc/boats").get_fragments()) == 1
        (again,) = tick()
        assert run(lake, tick.job, dict(again.run_config), tags=again.tags).success
        assert tick() == []

    def test_one_that_fails_does_not_hold_up_the_others_of_its_run(self, lake, tick):
        """Those that the run reported are as if it had succeeded: the next time they are asked for at once."""
        fill(lake, "nyc/boats")
        for again in range(4):
            for number in range(6):
                mode = "append" if again or number else "create"
                lance_core.write_dataset(pa.table({"n": [number]}), lake.uri("nyc/flights"), mode=mode)
            (request,) = tick()
            assert "nyc/flights" in request.run_config["ops"]["plan"]["config"]["tables"]
            if not again:
                shutil.rmtree(Path(lake.uri("nyc/boats"), "data"))
            run(lake, tick.job, dict(request.run_config), tags=request.tags)
            assert len(lake.table("nyc/flights").get_fragments()) == 1

    def test_one_that_keeps_failing_is_asked_for_ever_less_often(self, lake, tick):
        fill(lake, "nyc/boats")
        for again in (1, 1, 0):  # the third would come an interval after the second
            found = tick()
            assert len(found) == again
            for request in found:
                self.report(lake, tick, request, dg.DagsterRunStatus.FAILURE)
        lake.table("nyc/boats").insert(pa.table({"n": [1]}))
        assert tick() == []

    def test_one_that_was_canceled_or_went_well_is_not_asked_for_again(self, lake, tick):
        fill(lake, "nyc/boats")
        for status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS):
            (request,) = tick()
            self.report(lake, tick, request, status)
            assert tick() == []
            lake.table("nyc/boats").insert(pa.table({"n": [1]}))

    def test_a_killed_run_does_not_keep_its_tables_for_ever(self, lake, tick, monkeypatch):
        """Dagster does not learn of a run whose process was killed: it stays started."""
        fill(lake, "nyc/boats")
        (request,) = tick()
        self.report(lake, tick, request, dg.DagsterRunStatus.STARTED)
        assert tick() == []
        monkeypatch.setattr(context_runs, "_now", lambda: datetime.now(UTC) + timedelta(minutes=59))
        assert tick() == []
        monkeypatch.setattr(context_runs, "_now", lambda: datetime.now(UTC) + timedelta(minutes=61))
        assert len(tick()) == 1

    def test_a_run_by_hand_works_on_the_tables_of_its_configuration(self, lake, tick):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/boats")
        config = {"ops": {"plan": {"config": {"tables": ["nyc/boats"]}}}}
        lake.instance.create_run_for_job(tick.job, run_config=config, status=dg.DagsterRunStatus.STARTED)
        (request,) = tick()
        assert request.run_config["ops"]["plan"]["config"]["tables"] == ["nyc/flights"]

    def test_the_cursor_of_an_earlier_release_is_understood(self, lake, tick):
        fill(lake, "nyc/boats")
        tick.state["cursor"] = json.dumps({"nyc/boats": 6})
        assert tick() == []
        tick.state["cursor"] = json.dumps({"nyc/boats": 5})
        assert len(tick()) == 1

    def test_a_broken_table_does_not_stop_the_others(self, lake, tick):
        fill(lake, "nyc/flights")
        fill(lake, "nyc/boats")
        for manifest in Path(lake.uri("nyc/boats"), "_versions").glob("*.manifest"):
            manifest.write_bytes(b"nothing")
        (request,) = tick()
        assert request.run_config["ops"]["plan"]["config"]["tables"] == ["nyc/flights"]

    def test_a_table_of_another_job_is_rejected(self):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="is not a table of the job"):
            build_maintenance_sensor(build_maintenance_job(["a/b"]), ["a/c"])


class TestPolicy:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"target_rows_per_fragment": 0}, {"max_bytes_per_file": -1}, {"materialize_deletions_threshold": 1.5},
            {"cleanup_older_than": "soon"}, {"cleanup_older_than": "9999999999y"}, {"cleanup_older_than": ""}, {"cleanup_older_than": timedelta(0)},
            {"retain_versions": 0}, {"refresh_indices": "yes"}, {"max_parallel_tasks": 0}, {"max_versions": 0},
        ],
    )  # fmt: skip
    def test_values_that_mean_nothing(self, wrong):
        with pytest.raises(ValueError):
            LanceMaintenancePolicy(**wrong)

    def test_ages(self):
        assert LanceMaintenancePolicy().age == timedelta(days=7)
        assert LanceMaintenancePolicy(cleanup_older_than="1h 30m").age == timedelta(minutes=90)
        assert LanceMaintenancePolicy(cleanup_older_than="never").age is None
        assert LanceMaintenancePolicy(cleanup_older_than=None).age is None
        policy = LanceMaintenancePolicy(cleanup_older_than=NOW)
        assert pickle.loads(pickle.dumps(policy)) == policy

    @pytest.mark.parametrize(
        "age", ["1M", "1m", "2 months", "1h 30m", "7d", "3weeks", "1y", "250ms", "1.5d", "2wks", "5µs"]
    )
    def test_ages_are_those_of_the_core(self, age):
        assert LanceMaintenancePolicy(cleanup_older_than=age).age == times.parse_duration(age)

    def test_units_of_ages_are_those_of_the_core(self):
        """A code location must not import the core, so that it has a table of its own."""
        assert health_policy._SECONDS == times.SECONDS

    @pytest.mark.parametrize("age", ["7D", "1H", "1.5.5h", "3 parsecs", "٣d"])
    def test_units_are_written_as_in_the_core(self, age):
        with pytest.raises(ValueError, match="is not a duration"):
            LanceMaintenancePolicy(cleanup_older_than=age)

    @pytest.mark.parametrize("wrong", [{"cleanup_older": "7d"}, {"retain_versions": -1}, "7d"])
    def test_metadata_that_means_nothing_fails_when_the_job_is_built(self, wrong):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="lance/maintenance"):
            build_maintenance_job([dg.AssetSpec("a", metadata={"lance/maintenance": wrong})])

    def test_an_engine_that_is_none(self):
        with pytest.raises(ValueError, match="engine"):
            build_maintenance_job(["a"], engine="dask")

    def test_a_resource_that_knows_no_tables(self, lake):
        result = run(lake, build_maintenance_job(["a"]), resources={"io_manager": dg.mem_io_manager})
        assert "has no Lance tables" in failures(result)["plan"] or not result.success

    def test_the_limit_of_parallel_rewrites_goes_to_the_executor(self, lake):
        fill(lake, "nyc/flights")
        job = build_maintenance_job([flights], LanceMaintenancePolicy(max_parallel_tasks=2))
        assert job.executor_def.name == "multiprocess"
        assert run(lake, job).success

    def test_the_io_manager_takes_an_asset_with_a_policy(self, lake):
        lake.run(planes)
        assert lake.table("nyc/planes").count_rows() == 2
        assert isinstance(lake.manager(), LanceIOManager)


def test_a_policy_gives_stable_row_ids_once(lake):
    table = fill(lake, "nyc/flights")
    policy = LanceMaintenancePolicy(stable_row_ids=True, cleanup_older_than=None)
    job = build_maintenance_job([flights], policy)
    assert run(lake, job, assets=[flights]).success
    migrated = lake.table("nyc/flights")
    assert migrated.has_stable_row_ids
    assert (len(migrated.get_fragments()), migrated.to_table()) == (1, table.to_table())
    assert run(lake, job, assets=[flights]).success
    assert lake.table("nyc/flights").version == migrated.version

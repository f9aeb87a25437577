"""What a run puts off is never called done: not in the summary, in Dagster, in the log, nor by check and command."""

import json
from pathlib import Path

import dagster as dg
import pytest

import lance_core
from lance_core.errors import CommitConflictError
from lance_core.maintenance.routine import run as step_run
from lance_core.maintenance.routine import steps
from lance_dagster import LanceMaintenancePolicy, build_maintenance_job, build_maintenance_sensor
from tests.lance_dagster.maintenance.test_budget import fill_wide, summary, with_budget
from tests.lance_dagster.maintenance.test_deletes import Requests, job, remote
from tests.lance_dagster.maintenance.test_lake import fill_foreign, fragments
from tests.lance_dagster.maintenance.test_log import TestOverdue, command, rows
from tests.lance_dagster.maintenance.test_maintenance import NOW, fill, flights, observations, run

assert remote
TABLE = "nyc/flights"
is_overdue = TestOverdue().check


def whole(lake, table=TABLE):
    """Outcome and reason of the newest row of a table."""
    found = [row for row in rows(lake) if row["table"] == table and row["step"] == "table"]
    return found[-1]["outcome"], found[-1]["reason"]


def runs(lake):
    (newest, *_) = json.loads(command(lake.root, "--json"))
    return {name: newest[name] for name in newest if name in ("done", "partly_done", "put_off", "healthy", "skipped")}


def up_after(monkeypatch, *begun):
    """Let the time of runs be up once these steps have begun."""
    seen = []
    for step in begun:
        real = getattr(steps, step)

        def work(*given, _real=real, _step=step):
            seen.append(_step)
            return _real(*given)

        monkeypatch.setattr(steps, step, work)
    for module in (step_run, steps):
        monkeypatch.setattr(module, "time_is_up", lambda deadline: deadline is not None and set(begun) <= set(seen))


def test_a_table_that_was_never_begun_is_put_off_everywhere(lake, monkeypatch):
    fill(lake, TABLE)
    job = build_maintenance_job([flights], budget={"max_duration": "1h"})
    up_after(monkeypatch)
    result = run(lake, job)
    reason = "max_duration: the time was up before 1 rewrites began"
    found = summary(result)
    assert (found["done"], found["partly_done"], found["put_off"]) == ([], {}, {TABLE: reason})
    seen = observations(result)[TABLE]
    assert (seen["lance/maintenance"], seen["lance/put_off"]) == ("put off", reason)
    assert whole(lake) == ("put off", reason)
    assert is_overdue(lake) == (False, "no run in the log has finished this table")
    assert runs(lake) == {"put_off": 1}
    monkeypatch.undo()
    assert summary(run(lake, job))["done"] == [TABLE]
    assert is_overdue(lake)[0]
    assert runs(lake) == {"done": 1}


def test_a_table_of_which_a_part_was_done_is_not_done(lake):
    fill(lake, TABLE, fragments=8, rows=100)
    size = lake.table(TABLE).total_bytes
    policy = LanceMaintenancePolicy(target_rows_per_fragment=400)
    result = run(lake, build_maintenance_job([flights], policy, budget={"max_bytes_rewritten": size // 2}))
    found = summary(result)
    assert (found["done"], list(found["partly_done"]), found["put_off"]) == ([], [TABLE], {})
    assert observations(result)[TABLE]["lance/maintenance"] == "partly done"
    assert whole(lake) == ("partly done", found["partly_done"][TABLE])
    assert not is_overdue(lake)[0]
    assert runs(lake) == {"partly_done": 1}


@pytest.mark.parametrize("is_dry", [True, False])
def test_a_dry_run_foresees_both(lake, is_dry):
    fill(lake, "nyc/part", fragments=8, rows=100)
    fill(lake, "nyc/none", fragments=8, rows=2000)
    policy = LanceMaintenancePolicy(target_rows_per_fragment=400)
    size = lake.table("nyc/part").total_bytes
    job = build_maintenance_job(
        root=True, policy=policy, policies={"nyc/none": {"target_rows_per_fragment": 10**6}},
        budget={"max_bytes_rewritten": size // 2},
    )  # fmt: skip
    found = summary(run(lake, job, {"ops": {"plan": {"config": {"dry_run": is_dry}}}}))
    assert (found["done"], list(found["partly_done"]), list(found["put_off"])) == ([], ["nyc/part"], ["nyc/none"])


def test_a_table_is_done_if_no_step_is_due_when_the_time_is_up(lake, monkeypatch):
    fill(lake, TABLE)
    job = build_maintenance_job([flights], budget={"max_duration": "1h"})
    up_after(monkeypatch, "commit")
    result = run(lake, job)
    assert summary(result)["done"] == [TABLE]
    assert whole(lake) == ("done", None)
    assert is_overdue(lake)[0]


@pytest.mark.parametrize("left", ["materialize_deletions", "refresh_indices", "clean_up"])
def test_a_step_that_is_left_is_named(lake, monkeypatch, left):
    table = fill(lake, TABLE)
    policy = LanceMaintenancePolicy(cleanup_older_than=NOW if left == "clean_up" else "7d")
    real = steps.commit

    def commit(*given, **options):
        """What becomes due during the run."""
        done = real(*given, **options)
        if left == "refresh_indices":
            table.checkout_latest()
            table.create_scalar_index("n", "BTREE")
            fill_foreign(lake, TABLE, pieces=1)
        if left == "materialize_deletions":
            lake.table(TABLE).delete("n < 6")
        return done

    monkeypatch.setattr(steps, "commit", commit)
    up_after(monkeypatch, "commit")
    result = run(lake, build_maintenance_job([flights], policy, budget={"max_duration": "1h"}))
    reason = f"max_duration: the time was up before {left} began"
    assert summary(result)["partly_done"] == {TABLE: reason}
    assert whole(lake) == ("partly done", reason)


def test_both_limits_are_reasons(lake, monkeypatch):
    fill(lake, TABLE, fragments=8, rows=100)
    size = lake.table(TABLE).total_bytes
    limits = {"max_bytes_rewritten": size // 2, "max_duration": "1h"}
    up_after(monkeypatch)
    job = build_maintenance_job([flights], LanceMaintenancePolicy(target_rows_per_fragment=400), budget=limits)
    reason = summary(run(lake, job))["put_off"][TABLE]
    assert "max_bytes_rewritten: 1 of 2 rewrites" in reason
    assert "max_duration: the time was up before 1 rewrites began" in reason


def test_files_that_could_not_be_deleted_are_left(remote, monkeypatch):
    Requests(monkeypatch).rejected = "data/"
    result = run(remote, job())
    assert summary(result)["done"] == []
    assert observations(result)[TABLE]["lance/maintenance"] in ("partly done", "put off")


def test_a_lost_race_is_named_in_the_log(lake, monkeypatch):
    fill(lake, TABLE)
    real, calls = steps.rewrite, []

    def rewrite(dataset, task):
        done = real(dataset, task)
        calls.append(lake.table(TABLE).delete(f"n = {len(calls)}"))
        return done

    monkeypatch.setattr(steps, "rewrite", rewrite)
    assert summary(run(lake, build_maintenance_job([flights])))["skipped"] == [TABLE]
    assert whole(lake) == ("skipped", "writers committed before 1 rewrites or indices")
    assert not is_overdue(lake)[0]


def test_rewrites_that_a_writer_made_void_are_no_part(lake, monkeypatch):
    fill(lake, TABLE)
    size, real, lost = lake.table(TABLE).total_bytes, steps.commit_what_fits, []

    def lose_once(*given, **options):
        if lost:
            return real(*given, **options)
        lost.append(lake.table(TABLE).update_config({"a": "b"}))
        raise CommitConflictError("lost")

    monkeypatch.setattr(steps, "commit_what_fits", lose_once)
    result = run(lake, build_maintenance_job([flights], budget={"max_bytes_rewritten": size}))
    assert list(summary(result)["put_off"]) == [TABLE]
    assert observations(result)[TABLE]["lance/maintenance"] == whole(lake)[0] == "put off"


def test_what_is_put_off_is_observed_and_repeated_only_if_it_changes(lake):
    fill_wide(lake, "a/large", 1000)
    fill_wide(lake, "b/small", 10)
    job = with_budget(max_tables=1)
    first = run(lake, job)
    assert {name: one["lance/maintenance"] for name, one in observations(first).items()} == {
        "a/large": "put off",
        "b/small": "done",
    }
    assert observations(first)["a/large"]["lance/put_off"] == "max_tables: 1 tables come first"
    tiny = build_maintenance_job(root=True, budget={"max_bytes_rewritten": 1})
    assert set(observations(run(lake, tiny))) == {"a/large"}
    assert not observations(run(lake, tiny))
    asked = run(lake, tiny, {"ops": {"plan": {"config": {"tables": ["a/large"]}}}})
    assert set(observations(asked)) == {"a/large"}


class TestSensor:
    """Until nothing is left the sensor asks for what runs put off."""

    @pytest.fixture
    def ask(self, lake):
        """A tick with the runs that it asks for; what they were asked for, and their summaries."""
        state = {}

        def tick(job, is_run=True):
            sensor = state.setdefault("sensor", build_maintenance_sensor(job, root=True))
            resources = {"io_manager": lake.manager()}
            with dg.build_sensor_context(
                instance=lake.instance, cursor=state.get("cursor"), resources=resources
            ) as context:
                result = sensor(context)
            if isinstance(result, dg.SkipReason):
                return None
            state["cursor"] = result.cursor
            for request in result.run_requests or ():
                assert request.run_key not in state.setdefault("keys", set())  # Dagster makes one run of a key
                state["keys"].add(request.run_key)
                done = run(lake, job, dict(request.run_config), tags=request.tags)
                assert done.success
                return request.run_config["ops"]["plan"]["config"]["tables"], done.output_for_node("summarize")
            return None

        tick.state = state
        return tick

    def test_it_asks_for_tables_until_all_are_done(self, lake, ask):
        paths = ["a/one", "b/two", "c/three"]
        for path in paths:
            fill_foreign(lake, path)
        job = build_maintenance_job(root=True, budget={"max_tables": 1})
        found = [ask(job) for _ in range(3)]
        assert [len(tables) for tables, _ in found] == [3, 2, 1]
        assert sorted(name for _, said in found for name in said["done"]) == paths
        assert [fragments(lake, path) for path in paths] == [1, 1, 1]
        assert ask(job) is None

    def test_it_asks_for_the_rest_of_a_table(self, lake, ask):
        fill(lake, "nyc/boats", fragments=12, rows=100)
        size = lake.table("nyc/boats").total_bytes
        policy = LanceMaintenancePolicy(target_rows_per_fragment=400)
        job = build_maintenance_job(root=True, policy=policy, budget={"max_bytes_rewritten": size * 2 // 5})
        for _ in range(2):
            assert list(ask(job)[1]["partly_done"]) == ["nyc/boats"]
        assert ask(job)[1]["done"] == ["nyc/boats"]
        assert ask(job) is None

    def test_what_never_fits_is_asked_for_ever_less_often(self, lake, ask):
        fill_foreign(lake, "a/one")
        job = build_maintenance_job(root=True, budget={"max_bytes_rewritten": 1})
        assert [ask(job) is None for _ in range(4)] == [False, False, True, True]
        fill_foreign(lake, "b/two")
        assert ask(job)[0] == ["b/two"]

    def test_a_table_that_lost_the_race_is_asked_for_again(self, lake, ask, monkeypatch):
        fill(lake, "nyc/boats")
        job = build_maintenance_job(root=True)
        with monkeypatch.context() as patch:
            patch.setattr(steps, "commit", lambda _dataset, outcome, *_given, **_options: outcome.plus(lost=1))
            assert ask(job)[1]["skipped"] == ["nyc/boats"]
        assert ask(job)[1]["done"] == ["nyc/boats"]

    def test_what_somebody_else_did_meanwhile_is_settled_though_another_table_fails(self, lake, ask):
        for path in ("a/one", "b/two"):
            fill_foreign(lake, path)
        job = build_maintenance_job(root=True)
        sensor = build_maintenance_sensor(job, root=True)
        resources = {"io_manager": lake.manager()}
        with dg.build_sensor_context(instance=lake.instance, resources=resources) as context:
            tick = sensor(context)
        lance_core.dataset(f"{lake.root}/a/one.lance").optimize.compact_files()
        for manifest in (Path(lake.root) / "b/two.lance/_versions").iterdir():
            manifest.write_bytes(b"nothing")
        (request,) = tick.run_requests
        assert not run(lake, job, dict(request.run_config), tags=request.tags).success
        with dg.build_sensor_context(instance=lake.instance, cursor=tick.cursor, resources=resources) as context:
            after = sensor(context)
        assert json.loads(after.cursor)["a/one"].get("failures", 0) == 0

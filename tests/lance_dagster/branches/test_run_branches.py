"""The branch of a run is a fact that is found through its root, whatever Dagster leaves out of re-executions."""

import time
from datetime import timedelta

import dagster as dg
import pytest

from tests.interop.namespaces import rest_service
from tests.lance_dagster.branches.deployment import Deployment

B1 = "dagster/backfill/b1"


@pytest.fixture
def deployment(tmp_path, monkeypatch, request):
    is_on_disk = getattr(request, "param", None) == "on disk"
    with Deployment(root=str(tmp_path / "lake"), monkeypatch=monkeypatch, is_on_disk=is_on_disk) as found:
        yield found


@pytest.mark.parametrize("policy", [("per_backfill",), ("from_tag", "lance/branch")])
@pytest.mark.parametrize("when", ["running", "ended"])
def test_a_re_execution_goes_on_with_the_branch_of_its_backfill(deployment, policy, when):
    """Dagster leaves out the tags of a backfill that has ended."""
    deployment.says(policy=policy, failing=["first:y"])
    deployment.backfill("first", "second", tags={"lance/branch": "auto"})
    deployment.tick(1 if when == "running" else 10)
    assert deployment.status() == ("REQUESTED" if when == "running" else "COMPLETED_FAILED")
    (failed,) = [run for run in deployment.runs(backfill="b1") if run.status is dg.DagsterRunStatus.FAILURE]
    again = deployment.says(failing=[]).re_execute(failed.run_id)
    assert ("dagster/backfill" in again.tags) is (when == "running")
    assert again.tags["lance/branch"] == B1
    deployment.tick()
    assert deployment.rows("first", B1) == {"x": 1, "y": 1, "z": 1}
    assert deployment.branches("first") == [B1]
    assert not deployment.rows("first")


class TestMainAsItWas:
    """Tables without the branch are read as they were when the root run began, also those that did not exist then."""

    @pytest.fixture
    def failed(self, deployment):
        """A run of `second` on a branch that failed because there was no table of `first`, which main has since."""
        deployment.says(policy=("per_run",))
        run = deployment.run("second", partition="x")
        assert "has no table" in deployment.errors(run)
        deployment.says(policy=("off",)).run("first", partition="x")
        deployment.says(policy=("per_run",))
        return run

    def test_a_table_that_did_not_exist(self, deployment, failed):
        again = deployment.re_execute(failed.run_id)
        assert again.status is dg.DagsterRunStatus.FAILURE
        assert "did not exist when the root run or the backfill began" in deployment.errors(again)
        assert "launch a new run" in deployment.errors(again)
        assert deployment.run("second", partition="x").status is dg.DagsterRunStatus.SUCCESS

    def test_a_later_version_of_a_machine_whose_clock_is_behind(self, deployment, monkeypatch):
        deployment.says(policy=("off",)).run("first", partition="x")
        deployment.says(policy=("per_run",), failing=["second"])
        run = deployment.run("second", partition="x")
        now = time.time_ns
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now() - 3600 * 10**9)
            deployment.says(policy=("off",), value=5, failing=[]).run("first", partition="x")
        again = deployment.says(policy=("per_run",)).re_execute(run.run_id)
        assert again.status is dg.DagsterRunStatus.SUCCESS
        assert deployment.rows("second", f"dagster/run/{run.run_id}") == {"x": 10}

    def test_a_version_that_was_cleaned_up(self, deployment, failed):
        deployment.says(policy=("off",), value=2).run("first", partition="x")
        deployment.table("first").cleanup_old_versions(timedelta(0))
        again = deployment.says(policy=("per_run",)).re_execute(failed.run_id)
        assert again.status is dg.DagsterRunStatus.FAILURE
        assert "was cleaned up; launch a new run" in deployment.errors(again)

    def test_a_version_that_was_cleaned_up_after_one_that_stays(self, deployment):
        """The older one has other rows than main had when the run began."""
        for value in (1, 2):
            deployment.says(policy=("off",), value=value).run("first", partition="x")
        deployment.says(policy=("per_run",), failing=["second"])
        run = deployment.run("second", partition="x")
        deployment.says(policy=("off",), value=3, failing=[]).run("first", partition="x")
        table = deployment.table("first")
        table.tags.create("keep", 1)
        table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        again = deployment.says(policy=("per_run",)).re_execute(run.run_id)
        assert again.status is dg.DagsterRunStatus.FAILURE
        assert "was cleaned up; launch a new run" in deployment.errors(again)

    @pytest.mark.parametrize("policy", ["off", "per_run"])
    def test_the_table_was_created_by_a_machine_whose_clock_is_ahead(self, deployment, monkeypatch, policy):
        deployment.says(policy=(policy,))
        now = time.time_ns
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: now() + 90 * 10**9)
            created = deployment.run("first", partition="x")
        if policy == "per_run":
            assert deployment.promote(f"dagster/run/{created.run_id}").success
        run = deployment.says(policy=("per_run",)).run("second", partition="x")
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert deployment.rows("second", f"dagster/run/{run.run_id}") == {"x": 10}


def failed_run(deployment, **tags):
    (failed,) = [run for run in deployment.runs(**tags) if run.status is dg.DagsterRunStatus.FAILURE]
    return failed


class TestReExecutions:
    @pytest.mark.parametrize("policy", [("per_backfill",), ("from_tag", "lance/branch"), ("per_run",)])
    def test_a_step_that_is_executed_again_by_itself(self, deployment, policy):
        """`dg.execute_job` passes no tags of the first run on; a check reads what the run wrote, and counts there."""
        deployment.run("first", partition="x")
        deployment.says(policy=policy, value=-1, failing=["positive"])
        deployment.backfill("first", keys=["x"], tags={"lance/branch": "auto"})
        deployment.tick()
        run = failed_run(deployment, backfill="b1")
        branch = f"dagster/run/{run.run_id}" if policy == ("per_run",) else B1
        again = deployment.says(failing=[]).re_execute_step(run.run_id, "first_positive")
        assert "dagster/backfill" not in again.tags
        assert again.tags["lance/branch"] == branch
        results = deployment.instance.get_records_for_run(
            again.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ).records
        assert [record.event_log_entry.dagster_event.asset_check_evaluation_data.passed for record in results] == [
            False
        ]
        assert not deployment.promote(branch).success
        assert deployment.rows("first") == {"x": 1}

    @pytest.mark.parametrize("strategy", ["ALL_STEPS", "FROM_FAILURE", "FROM_ASSET_FAILURE"])
    def test_a_run_of_its_own(self, deployment, strategy):
        deployment.says(policy=("from_tag", "lance/branch"), failing=["second"])
        run = deployment.run("first", "second", partition="x", tags={"lance/branch": "auto"})
        again = deployment.says(failing=[]).re_execute(run.run_id, strategy)
        branch = f"dagster/run/{run.run_id}"
        assert again.tags["lance/branch"] == branch
        assert (deployment.rows("first", branch), deployment.rows("second", branch)) == ({"x": 1}, {"x": 10})
        assert deployment.branches("second") == [branch]

    def test_another_branch_in_the_tag_of_a_re_execution(self, deployment):
        deployment.says(policy=("from_tag", "lance/branch"), failing=["second"])
        run = deployment.run("first", "second", partition="x", tags={"lance/branch": "fix"})
        deployment.says(failing=[])
        for name in ("other", "main"):
            again = deployment.re_execute(run.run_id, tags={"lance/branch": name})
            assert again.status is dg.DagsterRunStatus.FAILURE
            assert f"which was on fix, and its run tag lance/branch is {name}" in deployment.errors(again)
        assert deployment.rows("second") is None

    def test_another_environment(self, deployment, monkeypatch):
        """What was begun on staging does not end on production."""
        monkeypatch.setenv("LANCE_BRANCH", "main")
        deployment.says(policy=("env", "LANCE_BRANCH"))
        deployment.run("first", "second", partition="x")
        for before, after in (("staging", "main"), ("main", "staging"), ("staging", "next")):
            monkeypatch.setenv("LANCE_BRANCH", before)
            run = deployment.says(failing=["second"], value=7).run("first", "second", partition="y")
            monkeypatch.setenv("LANCE_BRANCH", after)
            again = deployment.says(failing=[]).re_execute(run.run_id)
            assert again.status is dg.DagsterRunStatus.FAILURE
            said = f"which was on {before}, and environment variable LANCE_BRANCH is {after}"
            assert said in deployment.errors(again)
            assert deployment.rows("second") == {"x": 10}
            monkeypatch.setenv("LANCE_BRANCH", before)
            assert deployment.re_execute(run.run_id).status is dg.DagsterRunStatus.SUCCESS
            if before == "main":
                deployment.table("second").delete("key = 'y'")

    @pytest.mark.parametrize("policy", [("per_backfill",), ("from_tag", "lance/branch")])
    def test_the_first_run_was_deleted_in_dagster(self, deployment, policy):
        deployment.says(policy=policy, failing=["second"])
        deployment.backfill("first", "second", keys=["x"], tags={"lance/branch": "auto"})
        deployment.tick()
        run = failed_run(deployment, backfill="b1")
        again = deployment.re_execute(run.run_id)
        deployment.instance.delete_run(run.run_id)
        last = deployment.says(failing=[]).re_execute(again.run_id, "ALL_STEPS")
        assert last.status is dg.DagsterRunStatus.FAILURE
        assert "of which Dagster has no record any more" in deployment.errors(last)
        assert deployment.rows("first") == {}


class TestStates:
    """What the sensor does about the branch of a backfill, by the newest that happened."""

    @pytest.mark.parametrize("deployment", ["in memory", "on disk"], indirect=True)
    def test_a_backfill_that_succeeded_when_it_was_re_executed(self, deployment):
        deployment.says(failing=["first:y"])
        deployment.backfill("first", "second")
        deployment.tick()
        assert (deployment.status(), deployment.sensor()) == (
            "COMPLETED_FAILED",
            ([], ["its backfill or run failed"]),
        )
        deployment.says(failing=[]).re_execute_backfill()
        assert deployment.sensor() == ([], [])
        deployment.tick()
        assert deployment.status("b2") == "COMPLETED_SUCCESS"
        assert deployment.sensor() == ([("lance_promote", B1)], [])
        assert deployment.promote(B1).success
        assert deployment.rows("second") == {"x": 10, "y": 10, "z": 10}

    def test_one_table_was_promoted_by_force(self, deployment):
        """Its failed check no longer counts, in the sensor as in the job."""
        deployment.says(value=-1)
        deployment.backfill("first", "second")
        deployment.tick()
        assert deployment.sensor() == ([], ["checks failed on it: first: positive"])
        assert deployment.promote(B1, tables=["first"], force=True).success
        assert deployment.sensor() == ([("lance_promote", B1)], [])
        assert deployment.promote(B1).success
        assert deployment.rows("second") == {"x": -10, "y": -10, "z": -10}
        assert deployment.sensor() == ([], [])

    def test_a_backfill_that_failed_again(self, deployment):
        deployment.says(failing=["first:y"])
        deployment.backfill("first", "second")
        deployment.tick()
        deployment.re_execute_backfill()
        deployment.tick()
        assert deployment.sensor() == ([], ["its backfill or run failed"])
        deployment.says(failing=[]).re_execute_backfill("b2", "b3")
        deployment.tick()
        assert deployment.sensor() == ([("lance_promote", B1)], [])

    def test_a_canceled_backfill_is_kept_until_somebody_decides(self, deployment):
        deployment.backfill("first", "second")
        deployment.launcher.holds = True
        deployment.tick(1)
        deployment.launcher.holds = False
        deployment.launcher.held = deployment.launcher.held[:1]
        deployment.launcher.execute()
        deployment.cancel_backfill()
        for run in deployment.runs(backfill="b1"):
            if not run.is_finished:
                deployment.instance.report_run_canceled(run)
        deployment.tick()
        assert deployment.status() == "CANCELED"
        assert deployment.sensor() == ([], ["its backfill or run was canceled"])
        assert deployment.sensor(on_cancel="discard") == ([("lance_discard", B1)], [])
        deployment.re_execute_backfill()
        assert deployment.sensor(on_cancel="discard") == ([], [])
        deployment.tick()
        assert deployment.sensor(on_cancel="discard") == ([("lance_promote", B1)], [])
        assert deployment.promote(B1).success
        assert deployment.rows("second") == {"x": 10, "y": 10, "z": 10}

    def test_a_run_that_is_re_executed_after_its_backfill(self, deployment):
        deployment.says(failing=["second:y"])
        deployment.backfill("first", "second")
        deployment.tick()
        run = failed_run(deployment, backfill="b1")
        deployment.launcher.holds = True
        deployment.re_execute(run.run_id)
        assert deployment.sensor(on_failure="discard") == ([], [])
        deployment.launcher.holds = False
        deployment.launcher.execute()
        assert deployment.sensor(on_failure="discard") == ([("lance_discard", B1)], [])

    def test_a_re_execution_that_failed_after_its_backfill_had_succeeded(self, deployment):
        deployment.backfill("first", "second")
        deployment.tick()
        assert deployment.sensor() == ([("lance_promote", B1)], [])
        run = deployment.runs(backfill="b1")[0]
        again = deployment.says(failing=["second"]).re_execute(run.run_id, "ALL_STEPS")
        assert deployment.sensor() == ([], ["its backfill or run failed"])
        deployment.says(failing=[]).re_execute(again.run_id)
        assert deployment.sensor() == ([("lance_promote", B1)], [])

    @pytest.mark.parametrize("policy", [("per_run",), ("per_backfill",)])
    def test_a_run_that_is_about_to_be_retried_has_not_ended(self, deployment, policy):
        deployment.says(policy=policy, failing=["second"])
        if policy == ("per_run",):
            branch = (
                "dagster/run/"
                + deployment.run("first", "second", partition="x", tags={"dagster/max_retries": "1"}).run_id
            )
        else:
            branch = B1
            deployment.backfill("first", "second", keys=["x"], tags={"dagster/max_retries": "1"})
            deployment.tick(2)
        (run,) = deployment.instance.get_runs()
        assert run.tags["dagster/will_retry"] == "true"
        assert deployment.sensor(on_failure="discard") == ([], [])
        deployment.says(failing=[])
        deployment.launcher.holds = True
        deployment.retry(run.run_id)
        assert deployment.sensor(on_failure="discard") == ([], [])
        deployment.launcher.holds = False
        deployment.launcher.execute()
        deployment.tick()
        assert deployment.sensor(on_failure="discard") == ([("lance_promote", branch)], [])

    def test_two_re_executions_at_a_time(self, deployment):
        deployment.says(policy=("per_run",), failing=["second"])
        run = deployment.run("first", "second", partition="x")
        deployment.says(failing=[])
        deployment.launcher.holds = True
        deployment.re_execute(run.run_id)
        late = deployment.launcher.held.pop()
        deployment.launcher.holds = False
        deployment.re_execute(run.run_id)
        assert deployment.sensor() == ([], [])
        deployment.launcher.held.append(late)
        deployment.launcher.execute()
        assert deployment.sensor() == ([("lance_promote", f"dagster/run/{run.run_id}")], [])


class TestDiscarded:
    """A re-execution whose branch was discarded fails and says so, unless it repeats all that was written to it."""

    @pytest.fixture
    def half(self, deployment):
        """A backfill of which one partition failed."""
        deployment.says(failing=["second:y"])
        deployment.backfill("first", "second")
        deployment.tick()
        assert deployment.discard(B1).success
        return deployment.says(failing=[])

    def test_from_failure(self, half):
        run = failed_run(half, backfill="b1")
        again = half.re_execute(run.run_id)
        assert again.status is dg.DagsterRunStatus.FAILURE
        assert f"branch {B1} was discarded" in half.errors(again)
        assert (half.branches("first"), half.branches("second")) == ([], [])

    def test_all_steps_of_one_of_several_runs(self, half):
        again = half.re_execute(failed_run(half, backfill="b1").run_id, "ALL_STEPS")
        assert again.status is dg.DagsterRunStatus.FAILURE
        assert "and this run does not repeat it" in half.errors(again)
        assert (half.branches("first"), half.branches("second")) == ([], [])

    def test_the_backfill_from_failure(self, half):
        half.re_execute_backfill()
        half.tick()
        assert half.status("b2") == "COMPLETED_FAILED"
        assert (half.branches("first"), half.branches("second")) == ([], [])

    def test_the_whole_backfill(self, half):
        half.re_execute_backfill(from_failure=False)
        half.tick()
        assert half.status("b2") == "COMPLETED_SUCCESS"
        assert half.sensor() == ([("lance_promote", B1)], [])
        assert half.promote(B1).success
        assert half.rows("second") == {"x": 10, "y": 10, "z": 10}

    def test_while_its_backfill_goes_on(self, deployment):
        deployment.launcher.holds = True
        deployment.backfill("first", "second")
        deployment.tick(1)
        first, *others = deployment.launcher.held
        deployment.launcher.holds, deployment.launcher.held = False, [first]
        deployment.launcher.execute()
        assert deployment.discard(B1).success
        deployment.launcher.held = others
        deployment.tick()
        assert deployment.status() == "COMPLETED_FAILED"
        assert deployment.branches("first") == []

    def test_all_steps_of_a_run_of_its_own(self, deployment):
        deployment.says(policy=("from_tag", "lance/branch"), failing=["second"])
        run = deployment.run("first", "second", partition="x", tags={"lance/branch": "fix"})
        deployment.discard("fix")
        deployment.says(failing=[])
        again = deployment.re_execute(run.run_id)
        assert "branch fix was discarded" in deployment.errors(again)
        assert deployment.re_execute(run.run_id, "ALL_STEPS").status is dg.DagsterRunStatus.SUCCESS
        assert deployment.rows("second", "fix") == {"x": 10}
        assert deployment.promote("fix").success
        assert deployment.rows("first") == {"x": 1}

    def test_in_a_namespace_of_others(self, tmp_path, monkeypatch):
        (tmp_path / "theirs").mkdir()
        with rest_service(tmp_path / "theirs") as service:
            lake = str(tmp_path / "lake")
            with Deployment(root=lake, monkeypatch=monkeypatch, namespace=service) as deployment:
                deployment.says(failing=["second:y"])
                deployment.backfill("first", "second")
                deployment.tick()
                assert deployment.discard(B1).success
                again = deployment.says(failing=[]).re_execute(
                    failed_run(deployment, backfill="b1").run_id, "ALL_STEPS"
                )
                assert again.status is dg.DagsterRunStatus.FAILURE
                assert "and this run does not repeat it" in deployment.errors(again)

    def test_a_run_that_wrote_nothing_has_begun_the_branch_again(self, deployment):
        deployment.says(policy=("off",)).run("first", partition="x")
        deployment.says(policy=("from_tag", "lance/branch"), value=5, failing=["second"])
        run = deployment.run("first", "second", partition="x", tags={"lance/branch": "fix"})
        deployment.discard("fix")
        deployment.table("first").ensure_branch("fix")
        again = deployment.says(failing=[]).re_execute(run.run_id)
        assert "branch fix was discarded" in deployment.errors(again)
        assert deployment.rows("first", "fix") == deployment.rows("first") == {"x": 1}

    def test_another_run_begins_a_named_branch_again(self, deployment):
        deployment.says(policy=("from_tag", "lance/branch"))
        deployment.run("first", "second", partition="x", tags={"lance/branch": "fix"})
        deployment.discard("fix")
        deployment.run("first", partition="y", tags={"lance/branch": "fix"})
        deployment.run("second", partition="y", tags={"lance/branch": "fix"})
        assert deployment.rows("second", "fix") == {"y": 10}

    def test_after_its_promotion(self, half_promoted):
        deployment, run = half_promoted
        again = deployment.re_execute(run.run_id, "ALL_STEPS")
        assert again.status is dg.DagsterRunStatus.SUCCESS
        assert deployment.rows("second", B1) == {"x": 10, "y": 70, "z": 10}

    @pytest.fixture(params=["by its job", "by hand"])
    def half_promoted(self, deployment, request):
        deployment.backfill("first", "second")
        deployment.tick()
        if request.param == "by its job":
            assert deployment.promote(B1).success
        else:
            for name in ("first", "second"):
                deployment.table(name).branches.promote(B1)
        assert deployment.discard(B1).success
        (run,) = [run for run in deployment.runs(backfill="b1") if run.tags["dagster/partition"] == "y"]
        return deployment.says(value=7), run

"""Promoting, discarding and sweeping branches by jobs and by a sensor."""

import json
import shutil
from datetime import datetime, timedelta
from itertools import islice
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_branch_jobs, build_branch_sensor, build_undo_job, lance_eager
from lance_dagster.branches import page as branch_page
from lance_dagster.branches import promotion
from lance_dagster.branches import sensor as branch_sensor
from lance_dagster.lineage.runs import lineage
from lance_dagster.undo.plan import CannotUndoError, plan_undo
from tests.lance_dagster.lake import QUIET, Lake, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
BACKFILL = {"lance/branch": "auto", "dagster/backfill": "b7"}
BRANCH = "dagster/backfill/b7"
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    keys = sorted(context.partition_keys)
    return pa.table({"day": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})


@dg.asset_check(asset=events, blocking=True)
def positive(context, events: pa.Table) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=min(events.column("n").to_pylist()) >= 0)


@dg.asset
def plain(context) -> pa.Table:
    return pa.table({"n": [int(context.run.tags.get("n", 0))]})


@pytest.fixture
def written(lake):
    """Two days on main, one of which and a third are on the branch of a backfill."""
    lake.run(events, span=("2024-01-01", "2024-01-02"))
    for day in ("2024-01-02", "2024-01-03"):
        lake.run(events, partition=day, tags={**BACKFILL, "n": "7"}, **TAGGED)
    return lake


def run(lake, job, *, tags=None, config=None, fails=False):
    defs = dg.Definitions(assets=[events, plain], jobs=[job], resources={"io_manager": lake.manager(**TAGGED)})
    run_config = {**QUIET, **({"ops": {f"{job.name}_op": {"config": config}}} if config else {})}
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags=tags, run_config=run_config, raise_on_error=False
    )
    assert result.success is not fails, errors(result)
    return result


def materializations(result):
    """Partition and metadata of each materialization."""
    found = [event.materialization for event in result.all_events if event.is_step_materialization]
    return {one.partition: {key: entry.value for key, entry in one.metadata.items()} for one in found}


class TestPromote:
    @pytest.mark.parametrize("how", ["tag", "configuration"])
    def test_one_version_and_a_materialization_per_partition(self, written, how):
        promote, _ = build_branch_jobs([events])
        given = {"tags": {"lance/branch": BRANCH}} if how == "tag" else {"config": {"branch": BRANCH}}
        result = run(written, promote, **given)
        assert written.rows("events") == [("2024-01-01", 0), ("2024-01-02", 7), ("2024-01-03", 7)]
        found = materializations(result)
        assert sorted(found) == ["2024-01-02", "2024-01-03"]
        metadata = found["2024-01-03"]
        assert (metadata["lance/version"], metadata["lance/promoted_from"]) == (2, BRANCH)
        assert " | 2 | " in metadata["lance/table_log"].partition("### Versions")[2].splitlines()[4]
        assert (metadata["lance/published"], metadata["dagster/row_count"]) == (True, 3)
        record = written.instance.get_latest_materialization_event(dg.AssetKey("events"))
        assert record.asset_materialization.tags["dagster/data_version"].endswith(":main:2")
        properties = written.properties("events")[-1]
        assert properties["promoted_from"] == BRANCH
        assert properties["dagster.backfill_id"] == "b7"

    def test_a_second_promotion_makes_no_second_version(self, written):
        promote, discard = build_branch_jobs([events])
        tags = {"lance/branch": BRANCH}
        run(written, promote, tags=tags)
        again = run(written, promote, tags=tags)
        run(written, discard, tags=tags)
        after = run(written, promote, tags=tags)
        assert written.table("events").version == 2
        for result in (again, after):
            assert materializations(result) == {}
        run(written, discard, tags=tags)

    def test_a_second_promotion_after_its_version_was_cleaned_up(self, written):
        """The branch itself knows that it was promoted, even if somebody deletes the tag that keeps the version."""
        promote, _ = build_branch_jobs([events])
        tags = {"lance/branch": BRANCH}
        run(written, promote, tags=tags)
        written.run(events, partition="2024-01-02", tags={"n": "9"})
        table = written.table("events")
        for tag in [name for name in table.tags.list() if name.startswith("promoted.")]:
            table.tags.delete(tag)
        table.cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
        assert 2 not in [one["version"] for one in table.versions()]
        assert materializations(run(written, promote, tags=tags)) == {}
        assert (written.table("events").version, written.rows("events")[1]) == (3, ("2024-01-02", 9))

    def test_the_pages_of_a_promotion(self, written, monkeypatch):
        """Links begin where the UI is, lead to the promoting run, and readers and columns are named as for a write."""
        columns = {"lance/column_lineage": {"n": "plain.n"}}

        @dg.asset(name="events", partitions_def=DAYS, metadata={"partition_expr": "day", **columns})
        def traced() -> None: ...

        @dg.asset(deps=[traced])
        def reader() -> None: ...

        promote, _ = build_branch_jobs([traced])
        manager = written.manager(ui_url="/dagster", **TAGGED)
        defs = dg.Definitions([traced, reader], jobs=[promote], resources={"io_manager": manager})
        job = defs.resolve_job_def("lance_promote")
        monkeypatch.setattr(
            dg.OpExecutionContext, "repository_def", defs.get_repository_def()
        )  # a server's runs have it
        result = job.execute_in_process(instance=written.instance, tags={"lance/branch": BRANCH}, run_config=QUIET)
        metadata = materializations(result)["2024-01-03"]
        link = f"[{result.run_id[:8]}](/dagster/runs/{result.run_id})"
        assert metadata["lance/table_log"].partition("### Versions")[2].splitlines()[4].startswith(f"| {link} | ")
        assert "### Consumers" in metadata["lance/table_log"]
        assert "| reader |" in metadata["lance/table_log"]
        assert list(metadata["dagster/column_lineage"].deps_by_column) == ["n"]

    def test_lineage_names_all_runs_of_a_promotion(self, written):
        """After the branch was deleted too; one of several writers cannot be taken back alone."""
        promote, discard = build_branch_jobs([events])
        head = written.table("events").checkout_version((BRANCH, None))
        writers = [made.transaction_properties["dagster.run_id"] for _, made in islice(head.history(), 2)]
        assert len(set(writers)) == 2
        done = run(written, promote, tags={"lance/branch": BRANCH})
        run(written, discard, tags={"lance/branch": BRANCH})
        for one in (*writers, done.run_id):
            (found,) = lineage([written.table("events")], run_id=one)
            assert (found["version"], found["run_id"]) == (2, done.run_id)
        with pytest.raises(CannotUndoError, match=f"to which 2 runs wrote; undo run {done.run_id}, which"):
            plan_undo(written.table("events"), writers[0])
        plan_undo(written.table("events"), done.run_id).commit()
        assert written.rows("events") == [("2024-01-01", 0), ("2024-01-02", 0)]

    def test_tables_without_the_branch_are_passed_over(self, written):
        written.run(plain)
        promote, _ = build_branch_jobs([plain, events, "no/table"])
        assert len(materializations(run(written, promote, tags={"lance/branch": BRANCH}))) == 2
        assert written.table("plain").version == 1
        said = errors(run(written, promote, tags={"lance/branch": "other"}, fails=True))
        assert "no table of this job has, or had, a branch other" in said
        assert "no branch is named" in errors(run(written, promote, fails=True))
        config = {"branch": BRANCH, "tables": ["nope"]}
        assert "no table of this job" in errors(run(written, promote, config=config, fails=True))

    def test_a_conflict_is_named_and_main_stays(self, written):
        written.run(events, partition="2024-01-03", tags={"n": "9"})
        promote, _ = build_branch_jobs([events])
        said = errors(run(written, promote, tags={"lance/branch": BRANCH}, fails=True))
        assert "filled '2024-01-03' as well" in said
        assert written.rows("events")[-1] == ("2024-01-03", 9)

    @pytest.mark.parametrize(
        ("gate", "said"),
        [
            ({"max_commit_drift": 0}, "max_commit_drift is 0"),
            ({"min_row_ratio": 2}, "less than min_row_ratio 2"),
            ({"max_row_ratio": 0.5}, "more than max_row_ratio 0.5"),
        ],
    )
    def test_gates(self, written, gate, said):
        lance_core.write_dataset(pa.table({"day": ["2024-01-31"], "n": [1]}), written.uri("events"), mode="append")
        promote, _ = build_branch_jobs([events], **gate)
        assert said in errors(run(written, promote, tags={"lance/branch": BRANCH}, fails=True))
        assert written.table("events").version == 2
        open_gates = {"max_commit_drift": 1, "min_row_ratio": 0.9, "max_row_ratio": 1.1}
        run(written, build_branch_jobs([events], **open_gates)[0], tags={"lance/branch": BRANCH})

    def test_the_gate_of_checks(self, lake):
        lake.run(events, partition="2024-01-01")
        promote, _ = build_branch_jobs([events], require_checks=True)
        for day, n, fails in (("2024-01-01", "5", False), ("2024-01-02", "-1", None)):
            lake.run(events, positive, partition=day, tags={**BACKFILL, "n": n}, fails=fails, **TAGGED)
        said = errors(run(lake, promote, tags={"lance/branch": BRANCH}, fails=True))
        assert "the check positive did not pass" in said
        lake.run(events, positive, partition="2024-01-02", tags={**BACKFILL, "n": "6"}, **TAGGED)
        run(lake, promote, tags={"lance/branch": BRANCH})
        assert lake.rows("events") == [("2024-01-01", 5), ("2024-01-02", 6)]

    def test_what_stays_on_the_branch_is_named(self, written):
        lance_core.dataset(f"{written.uri('events')}/tree/{BRANCH}").update_config({"mine": "1"})
        promote, _ = build_branch_jobs([events])
        metadata = materializations(run(written, promote, tags={"lance/branch": BRANCH}))["2024-01-03"]
        assert metadata["lance/left_behind"] == "configuration 'mine' (added)"

    @pytest.mark.parametrize("change", ["configuration", "table metadata", "schema metadata"])
    def test_a_branch_that_changed_settings_alone_is_named_with_the_remedy(self, lake, change):
        lake.run(events, partition="2024-01-01")
        on_branch = lake.table("events").create_branch("settings")
        if change == "configuration":
            on_branch.update_config({"mine": "1"})
        elif change == "table metadata":
            on_branch.update_metadata({"mine": "1"})
        else:
            on_branch.replace_schema_metadata({"mine": "1"})
        promote, discard = build_branch_jobs([events])
        said = errors(run(lake, promote, tags={"lance/branch": "settings"}, fails=True))
        assert f"only what a promotion does not apply: {change} 'mine' (added)" in said
        assert "discard the branch" in said
        run(lake, discard, tags={"lance/branch": "settings"})
        assert lake.table("events").branches.list() == {}

    def test_a_branch_without_changes_is_not_called_promoted(self, lake):
        lake.run(events, partition="2024-01-01")
        lake.table("events").create_branch("idle").create_scalar_index("n", "BTREE")
        promote, _ = build_branch_jobs([events])
        result = run(lake, promote, tags={"lance/branch": "idle"})
        assert materializations(result) == {}
        logged = [one.user_message for one in lake.instance.all_logs(result.run_id)]
        assert "events: branch idle has no change to promote" in logged
        assert not [one for one in logged if "was promoted before" in one]

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_branch_without_rows_reports_the_partitions_that_main_lacks(self, lake, exists):
        @dg.asset(name="events", partitions_def=DAYS, metadata={"partition_expr": "day"}, code_version="7")
        def nothing() -> pa.Table:
            return pa.table({"day": pa.array([], pa.string()), "n": pa.array([], pa.int64())})

        if exists:
            lake.run(events, partition="2024-01-01")
        for day in ("2024-01-01", "2024-01-02") if not exists else ("2024-01-02",):
            lake.run(nothing, partition=day, tags={"lance/branch": "work"}, **TAGGED)
        main = lake.table("events")
        promote, _ = build_branch_jobs([events])
        result = run(lake, promote, tags={"lance/branch": "work"})
        reported = materializations(result)
        assert sorted(reported) == (["2024-01-02"] if exists else ["2024-01-01", "2024-01-02"])
        entries = reported["2024-01-02"]
        assert (entries["lance/version"], entries["dagster/row_count"]) == (main.version, main.count_rows())
        assert (entries["dagster/partition_row_count"], entries["lance/promoted_from"]) == (0, "work")
        event = result.asset_materializations_for_node("lance_promote_op")[-1]
        assert event.tags["dagster/code_version"] == "7"
        assert lake.table("events").version == main.version
        assert materializations(run(lake, promote, tags={"lance/branch": "work"})) == {}

    def test_assets_of_one_table_fail_with_one_sentence(self, lake):
        def part(name):
            @dg.asset(
                name=name,
                metadata={"table": "shared", "lance/shared_table": True, "partition_expr": "day"},
                partitions_def=DAYS,
            )
            def made(context) -> pa.Table:
                return pa.table({"day": [context.partition_key], "n": [1]})

            return made

        assets = [part("one"), part("two")]
        lake.run(assets[0], partition="2024-01-01")
        lake.run(assets[0], partition="2024-01-01", tags=BACKFILL, **TAGGED)
        lake.run(assets[0], partition="2024-01-01")
        promote, _ = build_branch_jobs([*assets, events])
        said = errors(run(lake, promote, tags={"lance/branch": BRANCH}, fails=True))
        assert said.count("cannot be promoted") == 1
        assert "one, two: branch" in said

    def test_discard_promoted_deletes_the_branch_at_once(self, written):
        promote, _ = build_branch_jobs([events], discard_promoted=True)
        result = run(written, promote, tags={"lance/branch": BRANCH})
        assert written.table("events").branches.list() == {}
        assert len(materializations(result)) == 2


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
@pytest.mark.parametrize("condition", [lance_eager, dg.AutomationCondition.eager])
def test_downstream_is_woken_once_however_ticks_fall(lake, monkeypatch, condition):
    """Between the events of one promotion, too."""
    keys = ["a", "b", "c", "d", "e"]

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(keys), metadata={"partition_expr": "key"})
    def letters(context) -> pa.Table:
        return pa.table({"key": list(context.partition_keys)})

    @dg.asset(deps=[letters], automation_condition=condition())
    def woken() -> None: ...

    defs = dg.Definitions(assets=[letters, woken])
    ticks = []

    def tick():
        last = ticks[-1].cursor if ticks else None
        ticks.append(dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=last))
        if ticks[-1].total_requested:
            dg.materialize([woken], instance=lake.instance, run_config=QUIET)

    for tags in ({}, BACKFILL):
        lake.run(letters, span=("a", "e"), tags=tags, **TAGGED)
    tick()
    ticks = ticks[-1:]
    real = dg.OpExecutionContext.log_event

    def log_event(self, event):
        real(self, event)
        tick()

    with monkeypatch.context() as patch:
        patch.setattr(dg.OpExecutionContext, "log_event", log_event)
        run(lake, build_branch_jobs([letters])[0], tags={"lance/branch": BRANCH})
    tick()
    tick()
    assert sum(one.total_requested for one in ticks[1:]) == 1
    assert len(ticks) > len(keys)


class TestDiscard:
    def test_a_discard_leaves_no_trace(self, written):
        _, discard = build_branch_jobs([events])
        for _ in range(2):
            run(written, discard, tags={"lance/branch": BRANCH})
        table = written.table("events")
        assert (table.version, table.branches.list(), table.tags.list()) == (1, {}, {})

    def test_the_page_of_branches(self, written):
        written.run(plain, tags={"lance/branch": "mine"}, **TAGGED)
        written.run(events, partition="2024-01-09", tags={"lance/branch": "mine"}, **TAGGED)
        _, discard = build_branch_jobs([events])
        result = run(written, discard, tags={"lance/branch": "mine"})
        (seen,) = [e.asset_observation_data for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]
        metadata = seen.asset_observation.metadata
        assert metadata["lance/open_branches"].value == 1
        page = metadata["lance/branches"].value
        assert f"`{BRANCH}` | main@1 | 2 | 3 | 2 | 1 | 2024-01-02, 2024-01-03 | no failure" in page


def branches_of(metadata):
    """What the page of the table in the event of a write says of its branches."""
    return metadata["lance/table_log"].value.partition("### Branches\n\n")[2].partition("\n\n### ")[0]


class TestPages:
    def test_each_write_to_a_branch_shows_the_branches(self, lake):
        lake.run(events, partition="2024-01-01")
        for day, n in (("2024-01-02", "1"), ("2024-01-03", "-1"), ("2024-01-04", "1")):
            lake.run(events, positive, partition=day, tags={"lance/branch": "mine", "n": n}, fails=None, **TAGGED)
        lake.run(events, partition="2024-01-05", tags={"lance/branch": "other"}, **TAGGED)
        record = lake.instance.get_latest_materialization_event(dg.AssetKey("events"))
        metadata = record.asset_materialization.metadata
        assert metadata["lance/commit"].value["open_branches"] == 2
        page = branches_of(metadata)
        assert page.splitlines()[0] == "| branch | base | commits | rows | checks | age | state |"
        assert "| `mine` | main@1 | 3 | 4 | failed: positive | " in page
        assert "| `other` | main@1 | 1 | 2 | no failure | " in page

    def test_the_page_does_not_grow_with_the_runs_and_branches(self, lake, monkeypatch):
        monkeypatch.setattr(branch_page, "_MOST_RUNS", 1)
        monkeypatch.setattr(branch_page, "_MOST_BRANCHES", 2)
        lake.run(events, partition="2024-01-01")
        for name in ("c", "b", "a"):  # the newest is the first by name, too: branches of one second are in that order
            lake.table("events").create_branch(name)
        for day in ("2024-01-02", "2024-01-03"):
            result = lake.run(events, partition=day, tags={"lance/branch": "a"}, **TAGGED)
        metadata = result.asset_materializations_for_node("events")[0].metadata
        assert metadata["lance/commit"].value["open_branches"] == 3
        page = branches_of(metadata)
        assert "| `a` | main@1 | 2 | 3 | not looked up | " in page
        assert page.endswith("and 1 older ones")

    def test_a_branch_that_is_broken_does_not_hide_the_others(self, written):
        written.table("events").create_branch("broken")
        shutil.rmtree(f"{written.uri('events')}/tree/broken")
        result = run(written, build_branch_jobs([events])[0], tags={"lance/branch": BRANCH})
        (seen,) = [e.asset_observation_data for e in result.all_events if e.event_type_value == "ASSET_OBSERVATION"]
        page = seen.asset_observation.metadata["lance/branches"].value
        assert f"`{BRANCH}` | main@1 | 2 | 3 | 2 | 1 |" in page
        assert "cannot be read" in page


class TestSensor:
    def tick(self, lake, monkeypatch, status, cursor=None, **options):
        backfill = SimpleNamespace(status=SimpleNamespace(value=status)) if status else None
        monkeypatch.setattr(lake.instance, "get_backfill", lambda _: backfill)
        sensor = build_branch_sensor([events], build_branch_jobs([events]), **options)
        with dg.build_sensor_context(
            instance=lake.instance, resources={"io_manager": lake.manager()}, cursor=cursor
        ) as context:
            return sensor(context)

    def requests(self, result):
        return [(one.job_name, one.tags["lance/branch"]) for one in getattr(result, "run_requests", None) or []]

    def test_a_backfill_that_succeeded_is_promoted_once(self, written, monkeypatch):
        result = self.tick(written, monkeypatch, "COMPLETED_SUCCESS")
        assert self.requests(result) == [("lance_promote", BRANCH)]
        assert (
            result.run_requests[0].run_key
            == self.tick(written, monkeypatch, "COMPLETED_SUCCESS").run_requests[0].run_key
        )
        run(written, build_branch_jobs([events])[0], tags={"lance/branch": BRANCH})
        assert isinstance(self.tick(written, monkeypatch, "COMPLETED_SUCCESS"), dg.SkipReason)

    @pytest.mark.parametrize("status", ["COMPLETED_SUCCESS", "CANCELED", "COMPLETED_FAILED"])
    def test_a_branch_that_was_begun_again_is_another_request(self, lake, monkeypatch, status):
        """Dagster drops a request under a run key that it has seen, and the sensor drops a report that it has made."""
        requests, reports = set(), set()
        lake.run(events, partition="2024-01-01")
        for _ in range(2):
            lake.table("events").create_branch(BRANCH).delete("n = 0")
            result = self.tick(lake, monkeypatch, status, on_cancel="discard", require_checks=False)
            requests |= {request.run_key for request in result.run_requests}
            reports |= set(json.loads(result.cursor))
            lake.table("events").branches.discard(BRANCH)
        assert (len(requests), len(reports)) == ((0, 2) if status == "COMPLETED_FAILED" else (2, 0))

    @pytest.mark.parametrize("status", ["REQUESTED", "CANCELING", "FAILING", None])
    def test_a_running_backfill_is_left_alone(self, written, monkeypatch, status):
        result = self.tick(written, monkeypatch, status, ttl=timedelta(hours=1))
        assert isinstance(result, dg.SkipReason)

    def test_a_failed_backfill_is_reported_once(self, written, monkeypatch):
        result = self.tick(written, monkeypatch, "COMPLETED_FAILED")
        assert self.requests(result) == []
        (event,) = result.asset_events
        assert event.metadata["lance/branch_state"].value == "its backfill or run failed"
        assert BRANCH in event.metadata["lance/branches"].value
        again = self.tick(written, monkeypatch, "COMPLETED_FAILED", cursor=result.cursor)
        assert isinstance(again, dg.SkipReason)
        discarding = self.tick(written, monkeypatch, "COMPLETED_FAILED", on_failure="discard")
        assert self.requests(discarding) == [("lance_discard", BRANCH)]

    def test_a_canceled_backfill_is_reported(self, written, monkeypatch):
        kept = self.tick(written, monkeypatch, "CANCELED")
        assert (self.requests(kept), len(kept.asset_events)) == ([], 1)
        discarded = self.tick(written, monkeypatch, "CANCELED", on_cancel="discard")
        assert self.requests(discarded) == [("lance_discard", BRANCH)]
        assert discarded.run_requests[0].tags["lance/branch_state"] == "its backfill or run was canceled"

    def test_a_failed_check_stops_the_promotion(self, written, monkeypatch):
        written.run(events, positive, partition="2024-01-04", tags={**BACKFILL, "n": "-1"}, fails=None, **TAGGED)
        result = self.tick(written, monkeypatch, "COMPLETED_SUCCESS")
        assert self.requests(result) == []
        assert result.asset_events[0].metadata["lance/branch_state"].value.endswith("events: positive")
        free = self.tick(written, monkeypatch, "COMPLETED_SUCCESS", require_checks=False)
        assert self.requests(free) == [("lance_promote", BRANCH)]

    def test_a_branch_that_is_idle_for_too_long_is_discarded(self, written, monkeypatch):
        assert self.requests(self.tick(written, monkeypatch, None, ttl=timedelta(0))) == [("lance_discard", BRANCH)]
        assert isinstance(self.tick(written, monkeypatch, "REQUESTED", ttl=timedelta(0)), dg.SkipReason)

    def test_a_promoted_branch_goes_after_a_week(self, written, monkeypatch):
        run(written, build_branch_jobs([events])[0], tags={"lance/branch": BRANCH})
        assert [name.partition(".")[0] for name in written.table("events").tags.list()] == ["fork", "promoted"]
        assert isinstance(self.tick(written, monkeypatch, "COMPLETED_SUCCESS"), dg.SkipReason)
        later = branch_sensor.datetime.now(branch_sensor.UTC) + timedelta(days=8)
        monkeypatch.setattr(
            branch_sensor, "datetime", SimpleNamespace(now=lambda _: later, fromtimestamp=datetime.fromtimestamp)
        )
        assert self.requests(self.tick(written, monkeypatch, "COMPLETED_SUCCESS")) == [("lance_discard", BRANCH)]
        kept = self.tick(written, monkeypatch, "COMPLETED_SUCCESS", promoted_ttl=None)
        assert isinstance(kept, dg.SkipReason)
        run(written, build_branch_jobs([events])[1], tags={"lance/branch": BRANCH})
        assert (written.table("events").tags.list(), written.table("events").branches.list()) == ({}, {})

    def test_branches_of_runs(self, lake, monkeypatch):
        good = lake.run(events, partition="2024-01-01", branching=BranchPolicy.per_run())
        result = self.tick(lake, monkeypatch, None)
        assert self.requests(result) == [("lance_promote", f"dagster/run/{good.run_id}")]
        held = self.tick(lake, monkeypatch, None, auto_promote=False)
        assert (self.requests(held), len(held.asset_events)) == ([], 1)

    @pytest.mark.filterwarnings("ignore:.*`owners`")  # Dagster's own, about a parameter that it passes itself
    def test_in_a_code_location(self, lake):
        jobs = build_branch_jobs([events], max_commit_drift=7)
        sensor = build_branch_sensor([events], jobs, name="mine")
        defs = dg.Definitions(assets=[events], jobs=jobs, sensors=[sensor], resources={"io_manager": lake.manager()})
        assert {"lance_promote", "lance_discard"} <= {job.name for job in defs.resolve_all_job_defs()}
        with pytest.raises(ValueError, match="must be one of"):
            build_branch_sensor([events], jobs, on_failure="nope")


@pytest.mark.parametrize("force", [False, True])
def test_no_table_is_promoted_if_one_of_them_conflicts(lake, force):
    """What was derived from rows of the branch is not published without them."""
    lake.run(events, partition="2024-01-01")
    lake.run(plain)
    branch = {"lance/branch": "fix", "n": "2"}
    lake.run(events, partition="2024-01-01", tags=branch, **TAGGED)
    lake.run(plain, tags=branch, **TAGGED)
    lake.run(events, partition="2024-01-01", tags={"n": "3"})
    before = {name: lake.table(name).version for name in ("events", "plain")}
    promote, _ = build_branch_jobs([plain, events])
    result = run(lake, promote, config={"branch": "fix", "force": force}, fails=True)
    assert "main of all its tables is unchanged: events: branch 'fix' cannot be promoted" in errors(result)
    assert {name: lake.table(name).version for name in before} == before
    assert lake.rows("plain") == [(0,)]


def test_a_table_that_others_change_during_the_promotion_is_named_with_the_remedy(lake, monkeypatch):
    lake.run(plain)
    lake.run(events, partition="2024-01-01")
    branch = {"lance/branch": "fix", "n": "2"}
    lake.run(plain, tags=branch, **TAGGED)
    lake.run(events, partition="2024-01-01", tags=branch, **TAGGED)

    def nobody_else_yet(*args):
        real(*args)
        lake.run(events, partition="2024-01-01", tags={"n": "3"})

    real = promotion.reject_conflicts
    monkeypatch.setattr(promotion, "reject_conflicts", nobody_else_yet)
    promote, _ = build_branch_jobs([plain, events])
    result = run(lake, promote, config={"branch": "fix"}, fails=True)
    assert f"Others were promoted: undo run {result.run_id} before you discard the branch" in errors(result)
    assert lake.rows("plain") == [(2,)]
    monkeypatch.undo()
    run(lake, build_undo_job([plain, events]), config={"run_id": result.run_id})
    assert lake.rows("plain") == [(0,)]


def test_on_object_storage(s3):
    with dg.DagsterInstance.ephemeral() as instance:
        lake = Lake(root=f"s3://{s3.new_bucket()}/lake", instance=instance, storage_options=s3.storage_options)
        for day in ("2024-01-01", "2024-01-02"):
            lake.run(events, partition=day, tags={**BACKFILL, "n": "7"}, **TAGGED)
        assert lake.rows("events") == []
        promote, discard = build_branch_jobs([events])
        for job in (promote, discard, promote):
            run(lake, job, tags={"lance/branch": BRANCH})
        assert lake.rows("events") == [("2024-01-01", 7), ("2024-01-02", 7)]
        assert (lake.table("events").version, lake.table("events").branches.list()) == (2, {})


@pytest.mark.parametrize("later", [False, True], ids=["restored", "reversed"])
def test_a_branch_whose_promotion_was_undone_restarts(lake, later):
    promote, _ = build_branch_jobs([events])
    lake.run(events, partition="2024-01-01")
    undone = lake.run(events, partition="2024-01-03", tags=BACKFILL, **TAGGED).run_id
    if later:
        lake.run(events, partition="2024-01-04", tags=BACKFILL, **TAGGED)
    promoted = run(lake, promote, tags={"lance/branch": BRANCH})
    branch = lake.table("events").checkout_version((BRANCH, None))
    if later:  # the promotion holds the writes of two runs, and is undone as one
        plan_undo(branch, undone).commit()
        undone = promoted.run_id
    run(lake, build_undo_job([events]), tags={"lance/undo_run": undone})
    branch = branch.checkout_version((BRANCH, None))
    assert branch.read_transaction(branch.version).operation.name == ("Update" if later else "Restore")
    assert lake.rows("events") == [("2024-01-01", 0)]
    mended = lake.run(events, partition="2024-01-03", tags={**BACKFILL, "n": "9"}, **TAGGED)
    (event,) = mended.asset_materializations_for_node("events")
    assert event.metadata["dagster/partition_row_count"].value == 1
    assert event.metadata["lance/branch"].value == BRANCH
    said = materializations(run(lake, promote, tags={"lance/branch": BRANCH}))
    assert {key: one["dagster/partition_row_count"] for key, one in said.items()} == {"2024-01-03": 1}
    assert lake.rows("events") == [("2024-01-01", 0), ("2024-01-03", 9)]


def test_a_promoted_branch_restarts_unless_rows_were_added_to_it(lake):
    lake.run(events, partition="2024-01-01")
    lake.run(events, partition="2024-01-03", tags=BACKFILL, **TAGGED)
    for is_spent in (True, False):
        lake.table("events").branches.promote(BRANCH)
        main = lake.table("events")
        branch = main.checkout_version((BRANCH, None))
        if is_spent:
            branch.create_scalar_index("n", "BTREE")
        else:
            branch.insert(branch.to_table())
        fork = main.branches.list()[BRANCH]["parent_version"]
        found = main.ensure_branch(BRANCH, renew_promoted=True)
        assert main.branches.list()[BRANCH]["parent_version"] == (main.version if is_spent else fork)
        assert (found.version == branch.version) is not is_spent
        found.insert(found.to_table())

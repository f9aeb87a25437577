"""Which of several runs wins that overwrite the same rows: by the start of their steps, their commits and their creation.

A run `during` another is created, begins and commits while the body of the other's step computes.
"""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import lance
import pyarrow as pa
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

import lance_core
from lance_dagster import BranchPolicy
from lance_dagster._context import step_start
from lance_dagster.io_manager.manager import LanceTableIOManager
from tests.lance_dagster.lake import QUIET, errors

PARTS = dg.StaticPartitionsDefinition(["a", "b"])
NOTHING = timedelta(0)


def rows(value, part="a"):
    return pa.table({"p": [part], "n": [value]})


class Runs:
    """Runs of one asset, whose bodies call what a test gives them before they return their value."""

    def __init__(self, lake, *, partitioned=False, retries=0, **config):
        self.lake = lake
        self.during = {}
        self.config = config
        runs = self

        @dg.asset(
            partitions_def=PARTS if partitioned else None,
            metadata={"partition_expr": "p"},
            retry_policy=dg.RetryPolicy(max_retries=retries),
        )
        def events(context) -> pa.Table:
            value = int(context.run.tags["value"])
            runs.during.pop(value, lambda: None)()
            return rows(value + context.retry_number, context.partition_key if partitioned else "a")

        self.asset = events

    def run(self, value, *, during=None, partition=None, of=None, fails=False, tags=None):
        """A run that writes a value; `of` is the run that it re-executes."""
        if during is not None:
            self.during[value] = during
        again = {} if of is None else {"dagster/root_run_id": of, "dagster/parent_run_id": of}
        tags = {"value": str(value), **again, **(tags or {})}
        return self.lake.run(self.asset, partition=partition, tags=tags, fails=fails, **self.config)

    def queue(self, value, partition=None):
        """A run that is created, and begins when the result is called."""
        jobs = [dg.define_asset_job("queued", executor_def=dg.in_process_executor)]
        defs = dg.Definitions([self.asset], jobs=jobs, resources={"io_manager": self.lake.manager(**self.config)})
        job = defs.resolve_job_def("queued")
        tags = {"value": str(value)} | ({"dagster/partition": partition} if partition else {})
        queued = self.lake.instance.create_run_for_job(job, tags=tags, run_config=QUIET)
        return lambda: execute_run(InMemoryJob(job), queued, self.lake.instance, raise_on_error=True)

    def values(self):
        return [n for _, n in self.lake.rows("events")]


def cleans(lake):
    lance.write_dataset(pa.table({"p": ["z"], "n": [0]}), lake.uri("events"), mode="append")
    lance.dataset(lake.uri("events")).cleanup_old_versions(NOTHING, delete_unverified=True)


@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("exists", [False, True])
class TestTwoRuns:
    @pytest.fixture
    def runs(self, lake, exists, partition):
        runs = Runs(lake, partitioned=partition is not None)
        if exists:
            runs.run(0, partition=partition)
        return runs

    @pytest.mark.variants(2)
    @pytest.mark.parametrize("cleaned", [False, True])
    def test_a_run_that_was_created_later_and_has_committed_meanwhile_wins(self, runs, partition, cleaned):
        later = []

        def during():
            later.append(runs.run(2, partition=partition))
            if cleaned:
                cleans(runs.lake)

        earlier = runs.run(1, during=during, partition=partition, fails=True)
        said = errors(earlier)
        assert "SupersededError" in said
        assert f"was committed by run {later[0].run_id}" in said
        assert [n for n in runs.values() if n] == [2]
        runs.run(3, partition=partition)
        assert 3 in runs.values()

    def test_a_run_that_begins_after_the_commit_wins(self, runs, partition):
        queued = runs.queue(1, partition=partition)
        runs.run(2, partition=partition)
        queued()
        assert runs.values() == [1]

    def test_a_later_run_takes_the_place_of_an_earlier_one_that_commits_first(self, runs, partition):
        queued = runs.queue(1, partition=partition)
        runs.run(2, during=queued, partition=partition)
        assert runs.values() == [2]


def test_runs_of_other_partitions_do_not_wait_for_each_other(lake):
    runs = Runs(lake, partitioned=True)
    runs.run(1, during=lambda: runs.run(2, partition="b"), partition="a")
    assert runs.values() == [1, 2]


def test_a_step_that_begins_after_the_commit_although_its_run_began_before(lake):
    runs = Runs(lake)
    later = {}

    @dg.asset
    def first() -> None:
        later["run"] = runs.run(2)

    @dg.asset(deps=[first], name="events", metadata={"partition_expr": "p"})
    def second() -> pa.Table:
        return rows(1)

    lake.run(first, second)
    assert runs.values() == [1]


def test_a_retry_of_a_step_has_begun_with_its_first_attempt(lake):
    runs = Runs(lake, retries=2)
    superseded = runs.run(10, during=lambda: runs.run(2), fails=True)
    assert "SupersededError" in errors(superseded)
    assert runs.values() == [2]
    runs.run(20)
    assert runs.values() == [20]


def test_a_retry_in_another_process_has_begun_with_the_first_attempt(lake, monkeypatch):
    """A process of its own has nothing that the first attempt remembered."""
    runs = Runs(lake, retries=1)

    def fails_after_the_later_run():
        runs.run(2)
        raise RuntimeError("lost")

    remember = LanceTableIOManager.remember_begin

    def forgets(self, outputs):
        self._begun.clear()
        remember(self, outputs)

    monkeypatch.setattr(LanceTableIOManager, "remember_begin", forgets)
    assert "SupersededError" in errors(runs.run(10, during=fails_after_the_later_run, fails=True))
    assert runs.values() == [2]


@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_an_attempt_that_was_given_up_writes_late(lake, partition, cleaned, mode):
    runs = Runs(lake, partitioned=partition is not None, write_mode=mode)
    runs.run(0, partition=partition)

    def during():
        given_up = lake.instance.get_runs()[0]
        lake.instance.report_run_failed(given_up)
        runs.run(2, partition=partition, of=given_up.run_id)
        if cleaned:
            cleans(lake)

    late = runs.run(1, during=during, partition=partition, fails=None)
    assert "SupersededError" in errors(late)
    assert [n for n in runs.values() if n] == [2]


def test_on_a_branch(lake):
    runs = Runs(lake, branching=BranchPolicy.from_tag())
    branch = {"lance/branch": "b"}
    runs.run(0)
    late = runs.run(1, during=lambda: runs.run(2, tags=branch), tags=branch, fails=True)
    assert "SupersededError" in errors(late)
    runs.run(5, during=lambda: runs.run(6), tags=branch)
    table = lake.table("events")
    assert runs.values() == [6]
    assert table.checkout_version(("b", None)).to_table()["n"].to_pylist() == [5]
    table.branches.discard("b")
    runs.run(7, tags=branch)
    table.branches.promote("b")
    runs.run(8, tags=branch)
    assert table.checkout_version(("b", None)).to_table()["n"].to_pylist() == [8]


def test_a_table_that_cannot_be_read_as_the_step_starts_fails_the_step(lake):
    runs = Runs(lake)
    runs.run(0)
    for file in Path(lake.uri("events"), "_versions").iterdir():
        file.write_bytes(b"torn")
    called = []
    failed = runs.run(1, during=lambda: called.append(1), fails=True)
    assert "CorruptFileError" in errors(failed)
    assert not called


class TestDagsterDoesNotShowTheStep:
    """Writes then count as begun before all others, and the log of the run names the version of Dagster."""

    @pytest.fixture
    def runs(self, lake, monkeypatch):
        monkeypatch.setattr(step_start, "_starting_step", lambda _step_key: None)
        return Runs(lake, retries=1)

    def warnings(self, runs, result):
        said = [entry.user_message for entry in runs.lake.instance.all_logs(result.run_id)]
        return [one for one in said if f"Dagster {dg.__version__} does not show" in one]

    def test_a_run_that_was_created_later_still_wins(self, runs):
        earlier = runs.run(1, during=lambda: runs.run(2), fails=True)
        assert "SupersededError" in errors(earlier)
        assert runs.values() == [2]
        assert len(self.warnings(runs, earlier)) >= 1

    def test_runs_after_one_another(self, runs):
        for value in (1, 2):
            assert len(self.warnings(runs, runs.run(value))) == 1
        assert runs.values() == [2]

    def test_no_rows_are_lost_where_a_run_waited(self, runs):
        queued = runs.queue(1)
        runs.run(2)
        with pytest.raises(Exception, match="was committed by"):
            queued()
        assert runs.values() == [2]
        runs.run(3)
        assert runs.values() == [3]


class TestOthersWriteWhileTheStepRuns:
    """An overwrite replaces what they wrote to its partitions, and the log names the versions and the writers."""

    def run(self, lake, meanwhile, *, partitioned=True, write_mode="overwrite"):
        """Run d1 once, and again while `meanwhile` is called; returns the log's warnings of the second run."""

        @dg.asset(
            partitions_def=dg.StaticPartitionsDefinition(["d1", "d2"]) if partitioned else None,
            metadata={"lance/write_mode": write_mode, **({"partition_expr": "d"} if partitioned else {})},
        )
        def events(context) -> pa.Table:
            if "meanwhile" in context.run.tags:
                meanwhile(lake.uri("events"))
            return pa.table({"d": ["d1"], "n": [1]})

        partition = "d1" if partitioned else None
        lake.run(events, partition=partition)
        result = lake.run(events, partition=partition, tags={"meanwhile": ""})
        logs = lake.instance.all_logs(result.run_id)
        return [entry.user_message for entry in logs if not entry.is_dagster_event and entry.level >= 30]

    @pytest.mark.parametrize("partitioned", [True, False])
    @pytest.mark.parametrize(
        "write",
        [
            lambda uri: lance_core.dataset(uri).insert(pa.table({"d": ["d1"], "n": [99]})),
            lambda uri: lance.dataset(uri).insert(pa.table({"d": ["d1"], "n": [99]})),
            lambda uri: lance_core.dataset(uri).update({"n": "99"}, where="d = 'd1'"),
        ],
        ids=["lance_core", "pylance", "update"],
    )
    def test_their_rows_are_named(self, lake, write, partitioned):
        (warning,) = self.run(lake, write, partitioned=partitioned)
        assert "version 2 was committed while the step ran, by a writer that is not a run of Dagster" in warning
        assert "1 rows that it wrote were replaced in version 3" in warning

    @pytest.mark.parametrize(
        "write",
        [
            lambda uri: lance_core.dataset(uri).insert(pa.table({"d": ["d2"], "n": [99]})),
            lambda uri: lance_core.dataset(uri).delete("d = 'd1'"),
            lambda uri: lance_core.dataset(uri).delete("n = 99"),
            lambda uri: lance_core.dataset(uri).create_scalar_index("n", "BTREE"),
            lambda uri: lance_core.dataset(uri).update_config({"mine": "1"}),
        ],
        ids=["another partition", "delete", "delete of nothing", "index", "settings"],
    )
    def test_nothing_of_theirs_was_replaced(self, lake, write):
        assert self.run(lake, write) == []

    def test_an_append_replaces_nothing(self, lake):
        def write(uri):
            lance_core.dataset(uri).insert(pa.table({"d": ["d1"], "n": [99]}))

        assert self.run(lake, write, write_mode="append") == []
        assert len(lake.rows("events")) == 3


def test_a_range_the_wrong_way_round_is_named(lake):
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-10")

    @dg.asset(partitions_def=days, metadata={"partition_expr": "d"})
    def events(context) -> pa.Table:
        return pa.table({"d": pa.array(list(context.partition_keys), pa.string())})

    message = errors(lake.run(events, span=("2024-01-06", "2024-01-04"), fails=True))
    assert "asset events has partitions, and its run has none" in message
    assert "no partition lies in the range from '2024-01-06' to '2024-01-04'" in message


def test_a_later_run_on_a_branch_that_was_promoted_and_began_again_meanwhile_wins(lake):
    """The new branch counts its versions from its fork, as low as those that the old one had."""
    runs = Runs(lake, branching=BranchPolicy.from_tag("lance/branch"))
    trial = {"lance/branch": "trial"}
    for value in (1, 2, 3):
        runs.run(value, tags=trial)

    def meanwhile():
        lake.table("events").branches.promote("trial")
        runs.run(5, tags=trial)

    late = runs.run(4, tags=trial, during=meanwhile, fails=True)
    assert "SupersededError" in errors(late)
    head = lake.table("events").checkout_version(("trial", None))
    assert head.to_table()["n"].to_pylist() == [5]

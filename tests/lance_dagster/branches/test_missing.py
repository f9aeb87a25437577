"""What only a branch has is missing for `lance_eager`, as if it had never been materialized."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy, build_branch_jobs, lance_eager
from tests.lance_dagster.lake import QUIET

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}
ON_BRANCH = {"tags": {"lance/branch": "b"}, **TAGGED}
KEYS = dg.DynamicPartitionsDefinition(name="keys")


@dg.asset(partitions_def=KEYS, metadata={"partition_expr": "key"})
def letters(context) -> pa.Table:
    return pa.table({"key": list(context.partition_keys)})


@dg.asset
def other() -> pa.Table:
    return pa.table({"n": [1]})


class Ticks:
    """Ticks of automation over `letters`, `other` and an asset downstream of both."""

    def __init__(self, lake, condition):
        @dg.asset(partitions_def=KEYS, deps=[letters, other], automation_condition=condition)
        def woken() -> None: ...

        self.lake, self.last = lake, None
        self.jobs = build_branch_jobs([letters])
        self.defs = dg.Definitions(assets=[letters, other, woken])
        self.key = woken.key

    def tick(self):
        """The partitions of the downstream asset that a tick requests."""
        self.last = dg.evaluate_automation_conditions(
            self.defs, instance=self.lake.instance, cursor=None if self.last is None else self.last.cursor
        )
        return self.last.get_requested_partitions(self.key)

    def run_job(self, job):
        defs = dg.Definitions(assets=[letters], jobs=self.jobs, resources={"io_manager": self.lake.manager(**TAGGED)})
        done = defs.resolve_job_def(job.name).execute_in_process(
            instance=self.lake.instance, tags={"lance/branch": "b"}, run_config=QUIET
        )
        assert done.success


@pytest.fixture
def ticks(lake):
    lake.instance.add_dynamic_partitions("keys", ["a"])
    return Ticks(lake, lance_eager())


@pytest.mark.parametrize("end", ["open", "discarded"])
def test_a_dependency_that_only_a_branch_has(lake, ticks, end):
    lake.run(other)
    assert ticks.tick() == set()  # `letters` is missing
    lake.run(letters, partition="a", **ON_BRANCH)
    assert ticks.tick() == set()
    if end == "discarded":
        ticks.run_job(ticks.jobs[1])
        assert ticks.tick() == set()
    lake.run(other)
    assert ticks.tick() == set()
    lake.run(letters, partition="a", **TAGGED)
    assert ticks.tick() == {"a"}


def test_a_dependency_is_there_once_its_branch_is_promoted(lake, ticks):
    lake.run(other)
    ticks.tick()
    lake.run(letters, partition="a", **ON_BRANCH)
    assert ticks.tick() == set()
    ticks.run_job(ticks.jobs[0])
    assert ticks.tick() == {"a"}


def test_a_partition_that_a_branch_gets_between_two_ticks(lake, ticks):
    lake.run(other)
    ticks.tick()
    lake.instance.add_dynamic_partitions("keys", ["b"])
    lake.run(letters, partition="b", **ON_BRANCH)
    assert ticks.tick() == set()
    lake.run(other)
    assert ticks.tick() == set()


def test_a_partition_that_main_has_stays_there_when_a_branch_writes_it(lake, ticks):
    lake.run(letters, partition="a")
    lake.run(other)
    ticks.tick()
    lake.run(letters, partition="a", **ON_BRANCH)
    assert ticks.tick() == set()
    lake.run(other)
    assert ticks.tick() == {"a"}


@pytest.mark.parametrize("condition", [dg.AutomationCondition.eager, lance_eager])
def test_a_dependency_is_there_after_an_event_that_is_no_update(lake, condition):
    @dg.observable_source_asset
    def observed(): ...

    @dg.asset(deps=[other, observed], automation_condition=condition())
    def late() -> None: ...

    defs = dg.Definitions(assets=[other, late, observed])
    cursor, requested = None, []
    for step in (
        lambda: None,
        lambda: lake.run(other),
        lambda: lake.instance.report_runless_asset_event(dg.AssetObservation("observed")),
        lambda: None,
    ):
        step()
        tick = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=cursor)
        cursor = tick.cursor
        requested.append(tick.total_requested)
    assert (requested[:2], sum(requested)) == ([0, 0], 1)


def test_missing_dependencies_can_be_allowed(lake):
    lake.instance.add_dynamic_partitions("keys", ["a"])
    ticks = Ticks(lake, lance_eager(allow_missing_deps=True))
    ticks.tick()
    lake.run(letters, partition="a", **ON_BRANCH)
    lake.run(other)
    assert ticks.tick() == {"a"}


def test_a_partition_of_its_own_that_only_a_branch_has_is_requested(lake, ticks):
    """The write to the branch does not settle that main lacks it."""

    @dg.asset(partitions_def=KEYS, metadata={"partition_expr": "key"})
    def woken(context) -> pa.Table:
        return pa.table({"key": list(context.partition_keys)})

    lake.run(other)
    assert ticks.tick() == set()
    lake.run(woken, partition="a", **ON_BRANCH)
    assert ticks.tick() == set()
    lake.run(letters, partition="a")
    assert ticks.tick() == {"a"}


def test_the_first_event_of_an_instance_is_about_a_branch(lake):
    lake.instance.add_dynamic_partitions("keys", ["a"])

    @dg.asset(partitions_def=KEYS, deps=[letters], automation_condition=lance_eager())
    def woken() -> None: ...

    defs, turns, cursor = dg.Definitions(assets=[letters, woken]), [], None
    for tags in (None, ON_BRANCH, TAGGED):
        if tags is not None:
            lake.run(letters, partition="a", **tags)
        result = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=cursor)
        turns.append(result.get_requested_partitions(woken.key))
        cursor = result.cursor
    assert turns == [set(), set(), {"a"}]

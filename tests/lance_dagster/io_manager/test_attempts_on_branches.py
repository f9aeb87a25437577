"""Retries of runs whose branch was promoted by hand, or whose table a branch has begun."""

from datetime import timedelta

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy
from tests.lance_dagster.lake import errors

POLICY = {"branching": BranchPolicy.per_run()}
NOTHING = timedelta(0)


class Runs:
    """Runs of an asset and a step after it, which can fail."""

    def __init__(self, lake, mode):
        self.lake = lake
        self.config = {"write_mode": mode, **POLICY}
        metadata = {"lance/merge_on": "n"} if mode == "merge" else {}

        @dg.asset(metadata=metadata)
        def events(context) -> pa.Table:
            if "fails before" in context.run.tags:
                raise RuntimeError("before the output")
            return pa.table({"n": [int(context.run.tags["n"])]})

        @dg.asset(deps=[events])
        def after(context) -> None:
            if "fails" in context.run.tags:
                raise RuntimeError("later step")

        self.assets = [events, after]

    def run(self, n, *, of=None, fails=False, tags=None, **config):
        tags = {"n": str(n), **(tags or {})}
        tags |= {"fails": ""} if fails is True else {"fails before": ""} if fails == "before" else {}
        tags |= {} if of is None else {"dagster/root_run_id": of.run_id, "dagster/parent_run_id": of.run_id}
        return self.lake.run(
            *self.assets, tags=tags, fails=None if fails is None else bool(fails), **self.config | config
        )

    def branch(self, run):
        return f"dagster/run/{run.run_id}"

    def values(self, branch=None):
        table = self.lake.table("events").checkout_version((branch, None))
        return sorted(table.to_table()["n"].to_pylist())


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("mode", ["append", "merge", "overwrite"])
def test_a_run_whose_branch_was_promoted_by_hand_is_re_executed(lake, mode, exists):
    runs = Runs(lake, mode)
    if exists:
        runs.run(0, branching=BranchPolicy.off())
    kept = [0] if exists and mode != "overwrite" else []
    failed = runs.run(1, fails=True)
    lake.table("events").branches.promote(runs.branch(failed))
    assert runs.values() == [*kept, 1]
    again = runs.run(1 if mode == "merge" else 2, of=failed)
    if mode != "merge":
        assert runs.values() == [*kept, 1]
        assert runs.values(runs.branch(failed)) == [*kept, 2]
        (event,) = again.asset_materializations_for_node("events")
        assert event.metadata["lance/rows_written"].value == 1
    lake.table("events").branches.promote(runs.branch(failed))
    assert runs.values() == [*kept, 1 if mode == "merge" else 2]


@pytest.mark.parametrize("stable", [False, True])
def test_of_two_attempts_that_were_promoted_at_once_the_failed_one_is_replaced(lake, stable):
    runs = Runs(lake, "append")
    runs.config["stable_row_ids"] = stable
    first = runs.run(1)
    runs.run(2, of=first, fails=True)
    assert runs.values(runs.branch(first)) == [1, 2]
    lake.table("events").branches.promote(runs.branch(first))
    runs.run(3, of=first)
    assert runs.values(runs.branch(first)) == [1, 3]
    lake.table("events").branches.promote(runs.branch(first))
    assert runs.values() == [1, 3]


@pytest.mark.parametrize("stable", [False, True])
def test_keys_that_only_a_promoted_attempt_had_are_not_left_silently(lake, stable):
    runs = Runs(lake, "merge")
    runs.config["stable_row_ids"] = stable
    first = runs.run(1)
    runs.run(2, of=first, fails=True)
    lake.table("events").branches.promote(runs.branch(first))
    again = runs.run(1, of=first, fails=None)
    assert "merged 1 keys that this attempt lacks" in errors(again)
    assert runs.values() == [1, 2]


def test_a_merge_after_its_branch_has_begun_again_twice(lake):
    """The attempt is a version of main from before the fork."""
    runs = Runs(lake, "merge")
    runs.config["branching"] = BranchPolicy.from_tag("lance/branch")
    work = {"lance/branch": "work"}
    first = runs.run(1, fails=True, tags=work)
    lake.table("events").branches.promote("work")
    runs.run(2, tags=work)
    lake.table("events").branches.promote("work")
    lacking = runs.run(3, of=first, tags=work, fails=None)
    assert "merged 1 keys that this attempt lacks" in errors(lacking)
    runs.run(1, of=first, tags=work)
    assert runs.values("work") == [1, 2]


@pytest.mark.parametrize("committed", [False, True])
def test_a_table_that_begins_with_a_branch_is_cleaned_up(lake, committed):
    runs = Runs(lake, "append")
    first = runs.run(1)
    lake.table("events").branches.promote(runs.branch(first))
    lake.table("events").branches.discard(runs.branch(first))
    off = {"branching": BranchPolicy.off()}
    failed = runs.run(2, fails=True if committed else "before", **off)
    table = lake.table("events")
    table.cleanup_old_versions(retain_versions=1)
    assert len(lake.table("events").versions()) == 1
    again = runs.run(3, of=failed, **off)
    assert "EarlierAttemptError" not in errors(again)
    assert runs.values() == [1, 3]


def test_a_branch_begins_the_table_of_a_failed_run(lake):
    """The version that began the table is cleaned up, and no run has committed to main."""
    runs = Runs(lake, "append")
    off = {"branching": BranchPolicy.off()}
    failed = runs.run(1, fails="before", **off)
    branch = runs.branch(runs.run(2))
    lake.table("events").branches.discard(branch)
    lance.write_dataset(pa.table({"n": [3]}), lake.uri("events"), mode="append")
    lake.table("events").cleanup_old_versions(retain_versions=1)
    assert [version["version"] for version in lake.table("events").versions()] == [2]
    runs.run(4, of=failed, **off)
    assert runs.values() == [3, 4]


def test_partitions_of_mode_error_whose_branch_was_promoted_are_written_again(lake):
    parts = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=parts, metadata={"partition_expr": "p"})
    def events(context):
        yield dg.Output(pa.table({"p": [context.partition_key], "n": [int(context.run.tags["n"])]}))
        if "fails" in context.run.tags:
            raise RuntimeError("after the write")

    config = {"partition": "a", "write_mode": "error", **POLICY}
    failed = lake.run(events, tags={"n": "1", "fails": ""}, fails=True, **config)
    branch = f"dagster/run/{failed.run_id}"
    lake.table("events").branches.promote(branch)
    tags = {"n": "2", "dagster/root_run_id": failed.run_id, "dagster/parent_run_id": failed.run_id}
    lake.run(events, tags=tags, **config)
    lake.table("events").branches.promote(branch)
    assert lake.rows("events") == [("a", 2)]
    rejected = lake.run(events, tags={"n": "3"}, fails=True, **{**config, "branching": BranchPolicy.off()})
    assert "DatasetExistsError" in errors(rejected)

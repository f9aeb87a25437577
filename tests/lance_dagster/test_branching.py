"""Runs that write to a branch of their tables, and what they read."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy
from tests.lance_dagster.lake import errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    keys = sorted(context.partition_keys)
    return pa.table({"day": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})


def branch(lake, name, table="events"):
    return lake.table(table).checkout_version((name, None))


def rows(dataset):
    return sorted(tuple(row.values()) for row in dataset.to_table().to_pylist())


def event(result, node="events"):
    return result.asset_materializations_for_node(node)[0].metadata


class TestWhichBranch:
    @pytest.mark.parametrize(
        ("policy", "tags", "name"),
        [
            (BranchPolicy.off(), {"lance/branch": "x"}, None),
            (BranchPolicy.per_run(), {}, "dagster/run/{run}"),
            (BranchPolicy.per_backfill(), {}, None),
            (BranchPolicy.per_backfill(), {"dagster/backfill": "b7"}, "dagster/backfill/b7"),
            (
                BranchPolicy.per_backfill(),
                {"dagster/backfill": "b8", "dagster/root_backfill_id": "b7"},
                "dagster/backfill/b7",
            ),
            (BranchPolicy.from_tag("lance/branch"), {}, None),
            (BranchPolicy.from_tag("lance/branch"), {"lance/branch": "main"}, None),
            (BranchPolicy.from_tag(), {"lance/branch": "feat/a"}, "feat/a"),
            (BranchPolicy.from_tag("mine"), {"mine": "feat/a"}, "feat/a"),
            (BranchPolicy.from_tag("lance/branch"), {"lance/branch": "auto"}, "dagster/run/{run}"),
            (
                BranchPolicy.from_tag("lance/branch"),
                {"lance/branch": "auto", "dagster/backfill": "b7"},
                "dagster/backfill/b7",
            ),
            (BranchPolicy.env("MY_BRANCH"), {}, "from-env"),
            (BranchPolicy.env("NOT_SET"), {}, None),
        ],
    )
    def test_the_policy_says(self, lake, monkeypatch, policy, tags, name):
        monkeypatch.setenv("MY_BRANCH", "from-env")
        lake.run(events, partition="2024-01-01")
        result = lake.run(events, partition="2024-01-01", tags={"n": "5", **tags}, branching=policy)
        branches = [] if name is None else [name.format(run=result.run_id)]
        assert list(lake.table("events").branches.list()) == branches
        assert rows(lake.table("events")) == [("2024-01-01", 0 if branches else 5)]
        for one in branches:
            assert rows(branch(lake, one)) == [("2024-01-01", 5)]
            assert lake.instance.get_run_by_id(result.run_id).tags["lance/branch"] == one
            assert event(result)["lance/branch"].value == one
            assert event(result)["lance/published"].value is False
            assert event(result)["lance/base_version"].value == 1

    @pytest.mark.parametrize("name", ["ä", "a//b", "a b", "x.lock", "../up"])
    def test_names_that_cannot_be(self, lake, name):
        result = lake.run(events, partition="2024-01-01", tags={"lance/branch": name}, fails=True, **TAGGED)
        assert f"run tag lance/branch: no branch can be called {name!r}" in errors(result)

    def test_configuration_as_a_code_location_gives_it(self, lake):
        defs = dg.Definitions(assets=[events], resources={"io_manager": lake.manager(**TAGGED)})
        job = defs.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(partition_key="2024-01-01", tags={"lance/branch": "x"}, instance=lake.instance)
        assert result.success
        assert rows(branch(lake, "x")) == [("2024-01-01", 0)]


class TestTables:
    def test_a_table_that_is_not_there_begins_empty(self, lake):
        for day in ("2024-01-01", "2024-01-02"):
            lake.run(events, partition=day, tags={"lance/branch": "x"}, **TAGGED)
        assert (lake.table("events").version, rows(lake.table("events"))) == (1, [])
        assert [day for day, _ in rows(branch(lake, "x"))] == ["2024-01-01", "2024-01-02"]
        assert lake.table("events").branches.promote("x").version == 2
        assert len(rows(lake.table("events"))) == 2

    @pytest.mark.parametrize("mode", ["overwrite", "append", "error", "create_only"])
    def test_of_one_that_is_written_as_a_whole(self, lake, mode):
        @dg.asset
        def whole() -> pa.Table:
            return pa.table({"a": [1, 2]})

        lake.run(whole, tags={"lance/branch": "x"}, write_mode=mode, table_config={"k": "v"}, **TAGGED)
        assert rows(branch(lake, "x", "whole")) == [(1,), (2,)]
        lake.table("whole").branches.promote("x")
        assert rows(lake.table("whole")) == [(1,), (2,)]
        assert lake.table("whole").config()["k"] == "v"

    def test_configuration_of_a_table_is_left_to_main(self, lake):
        lake.run(events, partition="2024-01-01")
        lake.run(events, partition="2024-01-01", tags={"lance/branch": "x"}, table_config={"k": "v"}, **TAGGED)
        assert branch(lake, "x").config() == {}

    def test_a_retry_writes_once(self, lake):
        tries = []

        @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
        def flaky(context):
            tries.append(context.retry_number)
            yield dg.Output(pa.table({"a": [1]}))
            if len(tries) == 1:
                raise dg.RetryRequested(max_retries=1)

        lake.run(flaky, tags={"lance/branch": "x"}, write_mode="append", **TAGGED)
        assert rows(branch(lake, "x", "flaky")) == [(1,)]


class TestReading:
    def test_the_branch_where_there_is_one_else_main_as_it_was(self, lake):
        got = []

        @dg.asset
        def names() -> pa.Table:
            return pa.table({"name": ["old"]})

        @dg.asset(partitions_def=DAYS)
        def reader(context, events: pa.Table, names: pa.Table) -> None:
            got.append((events.column("n").to_pylist(), names.column("name").to_pylist()))
            lance_core.write_dataset(pa.table({"name": ["new"]}), lake.uri("names"), mode="append")

        everything = [events, names, reader]
        day = {"partition": "2024-01-01"}
        lake.run(names)
        lake.run(events, **day)
        tags = {"lance/branch": "x", "n": "7"}
        lake.run(events, tags=tags, **day, **TAGGED)
        lake.run(*everything, select=[reader], tags=tags, **day, **TAGGED)
        lake.run(*everything, select=[reader], **day, **TAGGED)
        assert got == [([7], ["old"]), ([0], ["old", "new"])]
        assert list(lake.table("names").branches.list()) == []

    def test_the_partitions_that_the_branch_did_not_write_are_those_of_the_fork(self, lake):
        got = []

        @dg.asset(partitions_def=DAYS)
        def reader(events: pa.Table) -> None:
            got.extend(events.column("n").to_pylist())

        lake.run(events, partition="2024-01-01")
        lake.run(events, partition="2024-01-02", tags={"lance/branch": "x", "n": "7"}, **TAGGED)
        lake.run(events, partition="2024-01-01", tags={"n": "9"})
        lake.run(
            events, reader, select=[reader], span=("2024-01-01", "2024-01-02"), tags={"lance/branch": "x"}, **TAGGED
        )
        assert got == [0, 7]

    def test_checks_look_at_the_branch(self, lake):
        seen = []

        @dg.asset_check(asset=events)
        def sound(events: pa.Table) -> dg.AssetCheckResult:
            seen.append(events.column("n").to_pylist())
            return dg.AssetCheckResult(passed=True)

        lake.run(events, partition="2024-01-01")
        lake.run(events, sound, partition="2024-01-01", tags={"lance/branch": "auto", "n": "7"}, **TAGGED)
        assert seen == [[7]]

    def test_versions_of_branches_are_none_of_main(self, lake):
        """`read="materialized"` looks for the version in Dagster's last event."""
        got = []

        @dg.asset
        def one(context) -> pa.Table:
            return pa.table({"n": [int(context.run.tags.get("n", 0))]})

        @dg.asset
        def reader(one: pa.Table) -> None:
            got.append(one.column("n").to_pylist())

        lake.run(one)
        for n in ("1", "2", "3"):
            lake.run(one, tags={"lance/branch": "x", "n": n}, **TAGGED)
        lake.run(one, reader, select=[reader], read="materialized", **TAGGED)
        assert got == [[0]]

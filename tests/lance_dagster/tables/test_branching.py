"""Runs that write to a branch of their tables, and what they read."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import lance_core
from lance_dagster import (
    BranchPolicy,
    LanceTableResource,
    build_audited_job,
    build_lance_drift_check,
    build_lance_health_checks,
    build_lance_integrity_checks,
    build_lance_primary_key_check,
)
from lance_dagster._context.steps import RunFacts
from lance_dagster.tables.branch_policy import tag_run_with_branch
from tests.lance_dagster.lake import QUIET, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
KEYS = ("primary_key", "drift", "integrity")
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
    @pytest.mark.variants(4)
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
            (BranchPolicy.env("PRODUCTION"), {}, None),
        ],
    )
    def test_the_policy_says(self, lake, monkeypatch, policy, tags, name):
        monkeypatch.setenv("MY_BRANCH", "from-env")
        monkeypatch.setenv("PRODUCTION", "main")
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
            assert event(result)["lance/commit"].value["base_version"] == 1

    @pytest.mark.parametrize("name", ["ä", "a//b", "a b", "x.lock", "../up"])
    def test_names_that_cannot_be(self, lake, name):
        result = lake.run(events, partition="2024-01-01", tags={"lance/branch": name}, fails=True, **TAGGED)
        assert f"run tag lance/branch: no branch can be called {name!r}" in errors(result)

    @pytest.mark.parametrize("value", ["MAIN", "Main", " main ", "main ", "AUTO", " auto"])
    def test_what_is_easily_taken_for_another_word_is_rejected(self, monkeypatch, value):
        monkeypatch.setenv("MY_BRANCH", value)
        for policy, tags in ((BranchPolicy.env("MY_BRANCH"), {}), (BranchPolicy.from_tag(), {"lance/branch": value})):
            with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"MY_BRANCH: .* write|lance/branch: .* write"):
                tag_run_with_branch(policy, RunFacts(run_id="r", root_run_id="r", tags=tags))

    @pytest.mark.parametrize("value", [None, "", " "])
    def test_production_is_asked_for_by_name(self, lake, monkeypatch, value):
        monkeypatch.delenv("MY_BRANCH", raising=False)
        if value is not None:
            monkeypatch.setenv("MY_BRANCH", value)
        lake.run(events, partition="2024-01-01")
        policy = BranchPolicy.env("MY_BRANCH")
        said = errors(lake.run(events, partition="2024-01-01", tags={"n": "5"}, branching=policy, fails=True))
        assert f"environment variable MY_BRANCH is {'not set' if value is None else 'empty'}" in said
        assert "or for production to main" in said
        empty = lake.run(events, partition="2024-01-01", tags={"n": "5", "lance/branch": " "}, fails=True, **TAGGED)
        assert "run tag lance/branch is empty" in errors(empty)
        assert (lake.table("events").version, rows(lake.table("events"))) == (1, [("2024-01-01", 0)])

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
    def test_a_table_that_is_written_as_a_whole_begins_empty(self, lake, mode):
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
        assert "k" not in branch(lake, "x").config()

    def test_a_retry_writes_once(self, lake):
        attempts = []

        @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
        def flaky(context):
            attempts.append(context.retry_number)
            yield dg.Output(pa.table({"a": [1]}))
            if len(attempts) == 1:
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

    def test_checks_of_tables_look_at_the_branch(self, lake):
        """And only in runs that are on it: main has a duplicate, a version of somebody else's, and fewer rows."""
        lake.run(events, partition="2024-01-01")
        fork = lake.table("events").version
        lake.run(events, partition="2024-01-01", tags={"lance/branch": "x"}, **TAGGED)
        lake.table("events").insert(pa.table({"day": ["2024-01-01"], "n": [1]}))
        lake.table("events").create_branch("fresh", fork)
        checks = [
            build_lance_primary_key_check(events, ["day"]),
            build_lance_drift_check(events),
            *build_lance_integrity_checks(events),
            *build_lance_health_checks(events),
        ]

        def passed(name):
            selection = dg.AssetSelection.checks_for_assets(events)
            tags = {} if name is None else {"lance/branch": name}
            result = lake.run(events, *checks, select=selection, tags=tags, fails=None, **TAGGED)
            evaluations = {one.check_name: one for one in result.get_asset_check_evaluations()}
            assert len(evaluations) == 7
            return evaluations["lance_versions"].metadata["lance/version"].value, [
                evaluations[f"lance_{key}"].passed for key in KEYS
            ]

        assert passed("x") == (branch(lake, "x").version, [True, True, True])
        assert passed("fresh") == (fork, [True, True, True])
        assert passed(None) == (lake.table("events").version, [False, False, True])

    def test_an_audited_job_publishes_nothing_that_such_a_check_rejects(self, lake):
        @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
        def twice(context) -> pa.Table:
            keys = sorted(context.partition_keys)
            return pa.table({"day": keys * int(context.run.tags["n"])})

        check = build_lance_primary_key_check(twice, ["day"], blocking=True)
        job = build_audited_job([twice, check], name="audited")
        defs = dg.Definitions([twice], asset_checks=[check], jobs=[job], resources={"io_manager": lake.manager()})
        for n, good in (("1", True), ("2", False)):
            result = defs.resolve_job_def("audited").execute_in_process(
                partition_key="2024-01-01",
                tags={"n": n},
                instance=lake.instance,
                run_config=QUIET,
                raise_on_error=False,
            )
            assert result.success is good
        assert lake.rows("twice") == [("2024-01-01",)]

    def test_what_the_resource_opens(self, lake):
        """The same as inputs, if the IO manager of the step, or the resource itself, has a policy."""
        got = []

        @dg.asset
        def names() -> pa.Table:
            return pa.table({"name": ["old"]})

        @dg.asset(partitions_def=DAYS)
        def reader(tables: LanceTableResource) -> None:
            keys = ("public/events", events.key, ["events"])
            got.extend(tables.open(key).to_table()["n"].to_pylist() for key in keys)
            assert tables.open("public/events", branch="main").branch is None
            assert tables.open("public/events", branch="x").branch == "x"
            assert tables.open("public/events", version=1).branch is None
            got.append(tables.open(names).to_table()["name"].to_pylist())
            lance_core.write_dataset(pa.table({"name": ["new"]}), lake.uri("names"), mode="append")

        tables, day, tags = LanceTableResource(root_uri=lake.root), {"partition": "2024-01-01"}, {"lance/branch": "x"}
        lake.run(names)
        lake.run(events, **day)
        lake.run(events, tags={"n": "7", **tags}, **day, **TAGGED)
        on_branch, on_main = [*[[7]] * 3, ["old"]], [*[[0]] * 3, ["old", "new"]]
        lake.run(reader, tags=tags, resources={"tables": tables}, **day, **TAGGED)
        assert got == on_branch
        got.clear()
        lake.run(reader, resources={"tables": tables}, **day, **TAGGED)
        assert got == on_main
        got.clear()
        own = LanceTableResource(root_uri=lake.root, branching=BranchPolicy.from_tag())
        lake.run(reader, tags=tags, resources={"tables": own, "io_manager": dg.mem_io_manager}, **day)
        assert got == [*[[7]] * 3, ["old", "new", "new"]]
        assert tables.open("public/events").branch is None

    def test_versions_of_branches_do_not_count_as_versions_of_main(self, lake):
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


ON_BRANCH = {"tags": {"lance/branch": "b"}, "branching": BranchPolicy.from_tag("lance/branch")}


class TestTablesThatABranchBegins:
    """A rejected first write to a branch leaves no table, or one that takes the columns of the next write."""

    @staticmethod
    def asset(value, kind=pa.Table, **metadata):
        @dg.asset(
            name="t", metadata={"partition_expr": "p", **metadata}, partitions_def=dg.StaticPartitionsDefinition(["a"])
        )
        def t() -> kind:
            return value() if callable(value) else value

        return t

    @pytest.mark.parametrize("kind", ["arrow", "pandas", "polars", "dataset"])
    @pytest.mark.parametrize(
        ("rows", "metadata", "message"),
        [
            ({"p": [], "n": []}, {}, "of type null"),
            ({"p": ["z"], "n": [1]}, {}, "are outside"),
            (
                {"p": pa.array([], pa.string()), "n": pa.array([], pa.int64())},
                {"lance/empty_output": "error"},
                "no rows",
            ),
            ({"p": ["a", "a"], "n": [1, 1]}, {"lance/write_mode": "merge", "lance/merge_on": "n"}, "several rows"),
        ],
    )
    def test_a_rejected_write_leaves_nothing(self, lake, tmp_path, kind, rows, metadata, message):
        table = pa.table(rows)
        if message == "of type null" and kind != "arrow":
            table = table.cast(pa.schema({"p": pa.float64(), "n": pa.float64()}))
            message = "does not go with"
        value = {
            "arrow": lambda: table,
            "pandas": table.to_pandas,
            "polars": lambda: pytest.importorskip("polars").from_arrow(table),
            "dataset": lambda: pads.dataset(table),
        }[kind]
        kinds = {"arrow": pa.Table, "dataset": pads.Dataset}
        asset = self.asset(value, kinds.get(kind, object), **metadata)
        assert message in errors(lake.run(asset, partition="a", fails=True, **ON_BRANCH))
        assert not Path(lake.root).exists()

    def test_nothing_is_made_for_an_output_that_is_skipped(self, lake):
        empty = pa.table({"p": pa.array([], pa.string())})
        lake.run(self.asset(empty), partition="a", empty_output="skip", **ON_BRANCH)
        assert not Path(lake.root).exists()

    @pytest.mark.parametrize("on_branch", [False, True])
    @pytest.mark.parametrize("mode", ["overwrite", "append", "error"])
    def test_what_a_rejected_stream_leaves_takes_other_columns(self, lake, on_branch, mode):
        wrong = pa.table({"p": ["z"], "n": ["typo"]})
        stream = self.asset(wrong.to_reader, pa.RecordBatchReader, **{"lance/write_mode": mode})
        assert "are outside" in errors(lake.run(stream, partition="a", fails=True, **ON_BRANCH))
        right = self.asset(pa.table({"p": ["a"], "n": [1]}), **{"lance/write_mode": mode})
        lake.run(right, partition="a", **(ON_BRANCH if on_branch else {}))
        if on_branch:
            assert lake.rows("t") == []
            lake.table("t").branches.promote("b")
        assert lake.rows("t") == [("a", 1)]

    def test_what_another_run_is_about_to_write_to_stays(self, lake):
        first, second = pa.table({"p": ["a"], "n": [1]}), pa.table({"p": ["a"], "n": ["x"]})

        def rows():
            assert "CastRejectedError" in errors(lake.run(self.asset(second), partition="a", fails=True, **ON_BRANCH))
            yield from first.to_batches()

        stream = self.asset(lambda: pa.RecordBatchReader.from_batches(first.schema, rows()), pa.RecordBatchReader)
        lake.run(stream, partition="a", **ON_BRANCH)
        assert lake.table("t").checkout_version(("b", None)).to_table() == first

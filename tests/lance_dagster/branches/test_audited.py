"""Write to a branch, audit it, publish it, and only then report to Dagster."""

from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from lance_core.errors import StoreError
from lance_dagster import BranchPolicy, build_audited_job, build_branch_jobs, build_maintenance_job, lance_eager
from lance_dagster.events import reporting
from lance_dagster.io_manager.manager import LanceTableIOManager
from tests.lance_dagster.lake import QUIET, RANGE_END, RANGE_START, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    keys = sorted(context.partition_keys)
    return pa.table({"day": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})


SEEN = []


@dg.asset_check(asset=events, blocking=True)
def positive(context, events: pa.Table) -> dg.AssetCheckResult:
    SEEN.append(sorted(zip(*events.to_pydict().values(), strict=True)))
    return dg.AssetCheckResult(passed=min(events.column("n").to_pylist()) >= 0)


@dg.asset(partitions_def=DAYS, deps=[events], automation_condition=dg.AutomationCondition.eager())
def late() -> None: ...


@dg.asset(partitions_def=DAYS, deps=[events], automation_condition=lance_eager())
def later() -> None: ...


def location(lake, job, *, assets=(events,), checks=(positive,), **resources):
    return dg.Definitions(
        assets=list(assets),
        asset_checks=list(checks),
        jobs=[job],
        resources={"io_manager": lake.manager(), **resources},
    )


def run(lake, *, partition=None, span=None, n="0", fails=False, job=None, **more):
    job = job or build_audited_job([events, positive], name="audited")
    tags = {"n": n}
    if span is not None:
        tags |= {"dagster/asset_partition_range_start": span[0], "dagster/asset_partition_range_end": span[1]}
    result = (
        location(lake, job, **more)
        .resolve_job_def(job.name)
        .execute_in_process(
            instance=lake.instance, partition_key=partition, tags=tags, run_config=QUIET, raise_on_error=False
        )
    )
    assert result.success is not fails, errors(result)
    return result


def reported(lake, key="events"):
    records = lake.instance.fetch_materializations(dg.AssetKey(key), limit=100).records
    return [
        (record.asset_materialization.partition, record.asset_materialization.metadata["lance/version"].value)
        for record in reversed(records)
    ]


def test_what_passed_is_published_and_reported_with_mains_version(lake):
    SEEN.clear()
    run(lake, partition="2024-01-01", n="5")
    assert lake.rows("events") == [("2024-01-01", 5)]
    assert SEEN == [[("2024-01-01", 5)]]
    assert reported(lake) == [("2024-01-01", 2)]
    result = run(lake, span=("2024-01-01", "2024-01-02"), n="6")
    assert lake.rows("events") == [("2024-01-01", 6), ("2024-01-02", 6)]
    assert reported(lake) == [("2024-01-01", 2), ("2024-01-01", 3), ("2024-01-02", 3)]
    assert lake.table("events").branches.list() == {}
    assert lake.properties("events")[-1]["promoted_from"] == f"dagster/run/{result.run_id}"


def test_what_the_ops_of_our_jobs_give_each_other_stays_out_of_the_lake(lake, monkeypatch):
    """These outputs are small plain records. Dagster gives the IO manager the outputs of all other ops."""
    got = []
    real = LanceTableIOManager.handle_output
    monkeypatch.setattr(LanceTableIOManager, "handle_output", lambda *a: got.append(a[1].has_asset_key) or real(*a))
    run(lake, partition="2024-01-01")
    lake.run(
        events, partition="2024-01-02", tags={"lance/branch": "x"}, branching=BranchPolicy.from_tag("lance/branch")
    )
    assert got == [True, True]
    promote, discard = build_branch_jobs([events])
    for job, tags in (
        (build_maintenance_job([events]), {}),
        *((one, {"lance/branch": "x"}) for one in (promote, discard)),
    ):
        made = location(lake, job).resolve_job_def(job.name)
        assert made.execute_in_process(instance=lake.instance, run_config=QUIET, tags=tags).success
    assert got == [True, True]
    assert not Path(lake.root, "_ops").exists()


def test_a_failed_check_leaves_main_and_events_alone(lake):
    run(lake, partition="2024-01-01", n="5")
    before, version = reported(lake), lake.table("events").version
    result = run(lake, partition="2024-01-01", n="-1", fails=True)
    assert (reported(lake), lake.table("events").version) == (before, version)
    assert lake.rows("events") == [("2024-01-01", 5)]
    branch = lake.table("events").checkout_version((f"dagster/run/{result.run_id}", None))
    assert branch.to_table().to_pylist() == [{"day": "2024-01-01", "n": -1}]
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_downstream_is_woken_by_the_publication_alone(lake):
    job = build_audited_job([events, positive], name="audited")
    defs = location(lake, job, assets=(events, late, later))
    run(lake, partition="2024-01-31", n="1")
    first = dg.evaluate_automation_conditions(defs, instance=lake.instance)
    run(lake, partition="2024-01-31", n="-1", fails=True, assets=(events, late, later))
    second = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=first.cursor)
    assert second.total_requested == 0
    run(lake, partition="2024-01-31", n="2", assets=(events, late, later))
    third = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=second.cursor)
    assert third.total_requested == 2
    fourth = dg.evaluate_automation_conditions(defs, instance=lake.instance, cursor=third.cursor)
    assert fourth.total_requested == 0


def test_a_publication_that_dies_is_finished_by_another_attempt(lake, monkeypatch):
    real = reporting.build_materializations

    def dying(*args, **options):
        raise StoreError("the process dies")

    monkeypatch.setattr(reporting, "build_materializations", dying)
    failed = run(lake, partition="2024-01-01", n="5", fails=True)
    assert (lake.rows("events"), reported(lake)) == ([("2024-01-01", 5)], [])
    monkeypatch.setattr(reporting, "build_materializations", real)
    job = build_audited_job([events, positive], name="audited")
    again = (
        location(lake, job)
        .resolve_job_def("audited")
        .execute_in_process(
            instance=lake.instance,
            partition_key="2024-01-01",
            tags={"dagster/root_run_id": failed.run_id, "dagster/parent_run_id": failed.run_id},
            run_config=QUIET,
        )
    )
    assert again.success, errors(again)
    assert reported(lake) == [("2024-01-01", 3)]
    assert lake.table("events").branches.list() == {}


def test_without_partitions_and_with_several_tables(lake):
    @dg.asset(check_specs=[dg.AssetCheckSpec("fine", asset="one", blocking=True)])
    def one():
        yield dg.Output(pa.table({"a": [1]}))
        yield dg.AssetCheckResult(passed=True)

    @dg.asset
    def two(one: pa.Table) -> pa.Table:
        return pa.table({"b": one.column("a")})

    job = build_audited_job([one, two], name="both", keep_branch=True)
    result = run(lake, job=job, assets=(one, two), checks=())
    assert (lake.rows("one"), lake.rows("two")) == ([(1,)], [(1,)])
    assert (reported(lake, "one"), reported(lake, "two")) == ([(None, 2)], [(None, 2)])
    assert list(lake.table("two").branches.list()) == [f"dagster/run/{result.run_id}"]


def test_no_table_is_published_if_one_of_them_conflicts(lake):
    @dg.asset
    def one(context) -> pa.Table:
        return pa.table({"a": [int(context.run.tags["n"])]})

    @dg.asset
    def two(one: pa.Table) -> pa.Table:
        return pa.table({"b": one.column("a")})

    @dg.asset_check(asset=two, blocking=True)
    def fine(context, two: pa.Table) -> dg.AssetCheckResult:
        if context.run.tags["n"] == "2":  # while the branch is audited, somebody else changes main
            lake.table("two").update({"b": "7"})
        return dg.AssetCheckResult(passed=True)

    job = build_audited_job([one, two, fine], name="both", allow_unaudited=True)
    run(lake, n="1", job=job, assets=(one, two), checks=(fine,))
    result = run(lake, n="2", job=job, assets=(one, two), checks=(fine,), fails=True)
    assert "main of all its tables is unchanged: two: branch" in errors(result)
    assert (lake.rows("one"), lake.rows("two")) == ([(1,)], [(7,)])
    assert (reported(lake, "one"), reported(lake, "two")) == ([(None, 2)], [(None, 2)])


def test_an_asset_that_reads_another(lake):
    """The partitions of the run, as main has them."""

    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def doubled(events: pa.Table) -> pa.Table:
        return events.set_column(1, "n", [[2 * n for n in events["n"].to_pylist()]])

    lake.run(events, span=("2024-01-01", "2024-01-02"), tags={"n": "4"})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"job twice: .* upstream="):
        build_audited_job([doubled], name="twice")
    job = build_audited_job([doubled], name="twice", upstream=[events], allow_unaudited=True)
    run(lake, job=job, partition="2024-01-02", assets=(events, doubled))
    assert lake.rows("doubled") == [("2024-01-02", 8)]
    assert reported(lake, "doubled") == [("2024-01-02", 2)]


def test_checks_of_the_code_location_belong_to_it(lake):
    run(lake, partition="2024-01-01", n="5")
    job = build_audited_job([events], name="audited")
    result = run(lake, job=job, partition="2024-01-01", n="-1", fails=True)
    assert [check.check_name for check in result.get_asset_check_evaluations()] == ["positive"]
    assert lake.rows("events") == [("2024-01-01", 5)]
    run(lake, job=job, partition="2024-01-01", n="6")
    assert lake.rows("events") == [("2024-01-01", 6)]


@dg.asset_check(asset=events)
def not_blocking() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False)


@pytest.mark.parametrize("checks", [(), (not_blocking,)])
def test_without_a_blocking_check_it_is_rejected(lake, checks):
    with pytest.raises(dg.DagsterInvalidDefinitionError) as caught:
        location(lake, build_audited_job([events], name="audited"), checks=checks).resolve_job_def("audited")
    said = f"{caught.value} {caught.value.__cause__}"
    assert "job audited: no check of events is blocking" in said
    assert "allow_unaudited=True" in said
    job = build_audited_job([events], name="audited", allow_unaudited=True)
    run(lake, job=job, partition="2024-01-01", n="-1", checks=checks)
    assert lake.rows("events") == [("2024-01-01", -1)]


def test_what_is_rejected(lake):
    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a"]))
    def other(): ...

    for given, said in (([], "at least one asset"), ([positive], "at least one asset"), ([events, "x"], "made of")):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=said):
            build_audited_job(given, name="bad")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"resources=\{'lake'"):
        build_audited_job([events], name="bad", io_manager_key="lake")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="different partitions"):
        build_audited_job([events, other], name="bad")


def test_nothing_is_published_if_a_table_has_lost_the_branch(lake):
    """As where the branch was discarded between the run and its re-execution."""

    @dg.asset
    def one() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset(deps=[one])
    def another(context) -> pa.Table:
        lake.table("one").branches.discard(f"dagster/run/{context.run.run_id}")
        return pa.table({"n": [2]})

    resources = {"io_manager": lake.manager()}
    job = build_audited_job([another, one], name="both", allow_unaudited=True, resources=resources)
    defs = dg.Definitions([one, another], jobs=[job], resources=resources)
    result = defs.resolve_job_def("both").execute_in_process(instance=lake.instance, raise_on_error=False)
    assert "the table of one has no branch" in errors(result)
    assert (lake.rows("one"), lake.rows("another")) == ([], [])


class TestOutputsLeftOut:
    """Of days without rows: Dagster skips what would read an output that is not there, and the rest is published."""

    def job(self, partitions=None):
        named = {} if partitions is None else {"partitions_def": partitions, "metadata": {"partition_expr": "day"}}

        def rows(context):
            days = sorted(context.partition_keys) if partitions else ["-"]
            return pa.table({"day": days, "n": [int(context.run.tags["n"])] * len(days)})

        @dg.asset(**named)
        def orders(context) -> pa.Table:
            return rows(context)

        @dg.asset(output_required=False, **named)
        def refunds(context):
            if "refunds" in context.run.tags:
                yield dg.Output(rows(context))

        @dg.asset(**named)
        def net(orders: pa.Table, refunds: pa.Table) -> pa.Table:
            return orders

        @dg.asset_check(asset=orders, blocking=True)
        def ordered(orders: pa.Table) -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=min(orders["n"].to_pylist()) > 0)

        @dg.asset_check(asset=refunds, blocking=True)
        def refunded(refunds: pa.Table) -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=min(refunds["n"].to_pylist()) > 0)

        assets, checks = (orders, refunds, net), (ordered, refunded)
        job = build_audited_job([*assets, *checks], name="shop")
        return dg.Definitions(assets, asset_checks=checks, jobs=[job, *build_branch_jobs(assets)])

    def run(self, lake, defs, job="shop", *, parent=None, step=None, tags=None, **selection):
        tags = {"n": "0", **(tags or {})}
        if parent is not None:
            tags |= {"dagster/root_run_id": parent, "dagster/parent_run_id": parent}
        if step is not None:
            selection["op_selection"] = [step]
        defs = dg.Definitions.merge(defs, dg.Definitions(resources={"io_manager": lake.manager()}))
        return defs.resolve_job_def(job).execute_in_process(
            instance=lake.instance, tags=tags, run_config=QUIET, raise_on_error=False, **selection
        )

    def test_the_others_are_published(self, lake):
        defs = self.job()
        first = self.run(lake, defs, tags={"n": "1", "refunds": "1"})
        assert first.success, errors(first)
        second = self.run(lake, defs, tags={"n": "2"})
        assert second.success, errors(second)
        alone = self.run(lake, defs, step="shop_publish", parent=second.run_id)
        assert alone.success, errors(alone)
        assert [lake.rows(name) for name in ("orders", "refunds", "net")] == [[("-", 2)], [("-", 1)], [("-", 1)]]
        assert [len(reported(lake, name)) for name in ("orders", "refunds", "net")] == [2, 1, 1]
        assert not lake.table("orders").branches.list()

    def test_of_a_partitioned_table(self, lake):
        defs = self.job(DAYS)
        span = {RANGE_START: "2024-01-01", RANGE_END: "2024-01-02"}
        result = self.run(lake, defs, tags={"n": "1", "refunds": "1"}, partition_key="2024-01-02")
        assert result.success, errors(result)
        assert self.run(lake, defs, tags={"n": "2", **span}).success
        assert lake.rows("orders") == [("2024-01-01", 2), ("2024-01-02", 2)]
        assert lake.rows("refunds") == lake.rows("net") == [("2024-01-02", 1)]
        assert reported(lake, "refunds") == [("2024-01-02", 2)]

    def test_a_check_that_fails_keeps_them_unpublished(self, lake):
        defs = self.job()
        failed = self.run(lake, defs, tags={"n": "-1"})
        assert not failed.success
        alone = self.run(lake, defs, step="shop_publish", parent=failed.run_id)
        assert "orders: the check ordered did not pass" in errors(alone)
        assert (lake.rows("orders"), reported(lake, "orders")) == ([], [])
        branch = {"lance/branch": f"dagster/run/{failed.run_id}"}
        assert "the check ordered did not pass" in errors(self.run(lake, defs, "lance_promote", tags=branch))
        assert self.run(lake, defs, "lance_promote", tags={**branch, "lance/force": "true"}).success
        assert lake.rows("orders") == [("-", -1)]

    def test_of_all_assets(self, lake):
        @dg.asset(output_required=False)
        def refunds():
            yield from ()

        job = build_audited_job([refunds], name="shop", allow_unaudited=True)
        result = self.run(lake, dg.Definitions([refunds], jobs=[job]))
        assert result.success
        assert reported(lake, "refunds") == []

    def test_what_was_written_is_lost(self, lake):
        @dg.asset(output_required=False)
        def refunds():
            yield dg.Output(pa.table({"n": [1]}))

        @dg.asset(deps=[refunds])
        def orders(context) -> pa.Table:
            lake.table("refunds").branches.discard(f"dagster/run/{context.run.run_id}")
            return pa.table({"n": [1]})

        job = build_audited_job([orders, refunds], name="shop", allow_unaudited=True)
        result = self.run(lake, dg.Definitions([orders, refunds], jobs=[job]))
        assert "the table of refunds has no branch" in errors(result)
        assert lake.rows("orders") == []

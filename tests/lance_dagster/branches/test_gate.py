"""The gate of a promotion: each blocking check passed on the rows that are published, whatever ran when and where."""

from datetime import timedelta

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import (
    BranchPolicy,
    LanceTableResource,
    build_audited_job,
    build_branch_jobs,
    build_branch_sensor,
    build_lance_primary_key_check,
)
from lance_dagster._context import check_log
from lance_dagster.branches.gate import REST, ChangedRows, CheckResult, check_problems
from tests.lance_dagster.lake import QUIET, Lake, errors

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
ONE, TWO, THREE = "2024-01-01", "2024-01-02", "2024-01-03"
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def events(context) -> pa.Table:
    keys = sorted(context.partition_keys)
    return pa.table({"day": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})


@dg.asset_check(asset=events, blocking=True)
def positive(context, events: pa.Table) -> dg.AssetCheckResult:
    if context.run.tags.get("crash"):
        raise RuntimeError("out of memory")
    return dg.AssetCheckResult(passed=min(events.column("n").to_pylist()) >= 0)


@dg.asset_check(asset=events)
def small(events: pa.Table) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=max(events.column("n").to_pylist()) < 100)


@dg.asset
def plain(context) -> pa.Table:
    return pa.table({"n": [int(context.run.tags.get("n", 0))]})


@dg.asset_check(asset=plain, blocking=True)
def plain_positive(context, plain: pa.Table) -> dg.AssetCheckResult:
    if context.run.tags.get("crash"):
        raise RuntimeError("out of memory")
    return dg.AssetCheckResult(passed=min(plain.column("n").to_pylist()) >= 0)


def on_branch(lake, *definitions, n=0, branch="work", fails=False, policy=None, **options):
    tags = {"lance/branch": branch, "n": str(n), **options.pop("tags", {})}
    return lake.run(*definitions, tags=tags, fails=fails, **(policy or TAGGED), **options)


def promote(lake, monkeypatch, *, assets, checks, branch="work", fails=False, resources=None, **tags):
    """Run the job that promotes, as a code location with these checks runs it."""
    job, _ = build_branch_jobs(assets)
    resources = {"io_manager": lake.manager(**TAGGED), **(resources or {})}
    defs = dg.Definitions(assets=assets, asset_checks=checks, jobs=[job], resources=resources)
    with monkeypatch.context() as patch:
        patch.setattr(dg.OpExecutionContext, "repository_def", defs.get_repository_def())
        result = defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance, tags={"lance/branch": branch, **tags}, run_config=QUIET, raise_on_error=False
        )
    assert result.success is not fails, errors(result)
    return errors(result)


@pytest.fixture
def gate(lake, monkeypatch):
    def run(*, fails=False, **tags):
        return promote(lake, monkeypatch, assets=[events], checks=[positive, small], fails=fails, **tags)

    return run


def test_a_check_that_passed_on_what_is_published(lake, gate):
    on_branch(lake, events, positive, partition=ONE, n=5)
    gate()
    assert lake.rows("events") == [(ONE, 5)]


def test_a_check_that_crashed_is_no_pass(lake, gate):
    run = on_branch(lake, events, positive, partition=ONE, n=-5, tags={"crash": "1"}, fails=True)
    said = gate(fails=True)
    version = lake.table("events").checkout_version(("work", None)).version
    assert f"events: the check positive has not passed on version {version} (partition {ONE})" in said
    assert "it has given no result on the branch; launch the check in a run with the tag lance/branch: work" in said
    assert f"or re-execute it in run {run.run_id}" in said
    assert lake.rows("events") == []


def test_a_check_that_never_ran_is_no_pass(lake, gate):
    on_branch(lake, events, partition=ONE)
    assert "the check positive has not passed" in gate(fails=True)
    on_branch(lake, positive, events, select=dg.AssetSelection.checks_for_assets(events))
    gate()


class TestInProcess:
    """A job that `execute_in_process` runs does not know its code location."""

    def run(self, lake, job, fails=False, **tags):
        write = dg.define_asset_job("write", selection=dg.AssetSelection.assets("plain").without_checks())
        jobs = [*build_branch_jobs([plain]), write]
        defs = dg.Definitions(
            [plain], asset_checks=[plain_positive], jobs=jobs, resources={"io_manager": lake.manager(**TAGGED)}
        )
        result = defs.resolve_job_def(job).execute_in_process(
            instance=lake.instance, tags={"lance/branch": "work", **tags}, run_config=QUIET, raise_on_error=False
        )
        assert result.success is not fails, errors(result)
        return errors(result)

    def test_a_check_that_never_ran_is_no_pass(self, lake):
        self.run(lake, "write", n="-5")
        lake.table("plain").checkout_version(("work", None)).cleanup_old_versions(timedelta(0))
        assert "plain: the check plain_positive has not passed" in self.run(lake, "lance_promote", fails=True)
        assert lake.rows("plain") == []
        on_branch(lake, plain_positive, plain, select=dg.AssetSelection.checks_for_assets(plain), fails=True)
        self.run(lake, "write", n="5")
        on_branch(lake, plain_positive, plain, select=dg.AssetSelection.checks_for_assets(plain))
        self.run(lake, "lance_promote")
        assert lake.rows("plain") == [(5,)]

    def test_a_branch_whose_commits_name_no_checks_is_rejected(self, lake):
        lance_core.write_dataset(pa.table({"n": [1]}), lake.uri("plain"))
        lake.table("plain").create_branch("work").insert(pa.table({"n": [-5]}))
        said = self.run(lake, "lance_promote", fails=True)
        assert "plain: it is not known which blocking checks it has" in said
        assert "run the job of a code location that defines plain" in said
        assert "lance/force: true" in said
        self.run(lake, "lance_promote", **{"lance/force": "true"})
        assert lake.rows("plain") == [(-5,), (1,)]

    def test_a_repository_of_the_job_alone_knows_no_checks(self, lake, monkeypatch):
        """As `dg.execute_job` makes it of a function that returns the job."""
        self.run(lake, "write", n="-5")
        alone = dg.Definitions(jobs=build_branch_jobs([plain]), resources={"io_manager": lake.manager(**TAGGED)})
        monkeypatch.setattr(dg.OpExecutionContext, "repository_def", alone.get_repository_def())
        assert "plain: the check plain_positive has not passed" in self.run(lake, "lance_promote", fails=True)


def test_a_later_commit_needs_a_later_result(lake, gate):
    on_branch(lake, events, positive, partition=ONE)
    on_branch(lake, events, partition=TWO, n=-1)
    assert f"(partition {TWO}): it last read version 2, in run" in gate(fails=True)
    assert lake.rows("events") == []


def test_a_write_of_no_rows_over_none_leaves_the_result(lake, monkeypatch):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "lance/empty_output": "write"})
    def quiet() -> pa.Table:
        return pa.table({"day": pa.array([], pa.string())})

    @dg.asset_check(asset=quiet, blocking=True)
    def seen(quiet: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    assets = {"assets": [quiet], "checks": [seen]}
    on_branch(lake, quiet, partition=ONE)
    assert f"version 2 (partition {ONE}): it has given no result" in promote(lake, monkeypatch, fails=True, **assets)
    on_branch(lake, quiet, seen, partition=ONE)
    on_branch(lake, quiet, partition=ONE)
    promote(lake, monkeypatch, **assets)


def test_a_write_of_no_rows_to_a_further_partition_leaves_a_result_about_all_rows(lake, monkeypatch):
    @dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day", "lance/empty_output": "write"})
    def quiet(context) -> pa.Table:
        return pa.table({"day": [context.partition_key]}).slice(context.partition_key != ONE)

    @dg.asset_check(asset=quiet, blocking=True)
    def seen(quiet: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    on_branch(lake, quiet, seen, partition=ONE)
    on_branch(lake, quiet, partition=TWO)
    promote(lake, monkeypatch, assets=[quiet], checks=[seen])
    assert lake.rows("quiet") == [(ONE,)]


@pytest.mark.filterwarnings("ignore:Specifying a partitions_def:dagster.PreviewWarning")
def test_a_branch_remembers_what_versions_changed_that_were_cleaned_up(lake, monkeypatch):
    @dg.asset_check(asset=events, blocking=True, partitions_def=DAYS)
    def of_day(events: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=events.num_rows > 0)

    gate = {"assets": [events], "checks": [of_day]}
    on_branch(lake, events, of_day, partition=ONE)
    on_branch(lake, events, partition=TWO)
    on_branch(lake, events, of_day, partition=THREE)
    lake.table("events").checkout_version(("work", None)).cleanup_old_versions(timedelta(0))
    assert f"version 4 (partition {TWO}): it last read version 4, in run" in promote(
        lake, monkeypatch, fails=True, **gate
    )
    on_branch(lake, events, of_day, partition=TWO)
    promote(lake, monkeypatch, **gate)
    assert lake.rows("events") == [(day, 0) for day in (ONE, TWO, THREE)]
    published = [event.asset_materialization for event in lake.instance.fetch_materializations(events.key, 3).records]
    assert {event.partition for event in published} == {ONE, TWO, THREE}
    assert all("lance/promoted_from" in event.metadata for event in published)


def test_versions_of_the_branch_that_another_library_cleaned_up(lake, monkeypatch):
    """Their checks may have passed, but nothing records which partitions the promotion would publish."""
    for day in (ONE, TWO):
        on_branch(lake, events, partition=day)
    branch = lake.table("events").checkout_version(("work", None))
    lance.dataset(lake.table("events").uri).checkout_version(("work", None)).cleanup_old_versions(timedelta(0))
    assert [version["version"] for version in branch.versions()] == [branch.version]
    said = promote(lake, monkeypatch, fails=True, assets=[events], checks=[])
    assert f"version {branch.version - 1} of the branch was cleaned up by another library" in said
    assert lake.rows("events") == []
    promote(lake, monkeypatch, assets=[events], checks=[], **{"lance/force": "true"})
    assert lake.rows("events") == [(ONE, 0), (TWO, 0)]
    (event,) = (record.asset_materialization for record in lake.instance.fetch_materializations(events.key, 1).records)
    assert "was cleaned up by another library" in event.metadata["lance/forced"].value


def test_a_result_about_main_is_no_pass(lake, gate):
    lake.run(events, partition=ONE)
    on_branch(lake, events, partition=ONE, n=-1)
    checks = {"select": dg.AssetSelection.checks_for_assets(events)}
    lake.run(events, positive, **checks)
    assert "has given no result on the branch" in gate(fails=True)
    lake.run(events, positive, tags={"lance/branch": "work"}, **checks)  # the tag alone does not lead to the branch
    assert "what it read in run" in gate(fails=True)
    on_branch(lake, events, positive, fails=True, **checks)
    assert "did not pass on version" in gate(fails=True)


def test_maintenance_of_the_branch_keeps_the_results(lake, gate):
    for day in (ONE, TWO):
        on_branch(lake, events, positive, partition=day)
    branch = lake.table("events").checkout_version(("work", None))
    before = branch.version
    branch.optimize.compact_files()
    branch.create_scalar_index("n", "BTREE")
    assert branch.version > before
    gate()
    assert len(lake.rows("events")) == 2


def test_rows_of_others_on_the_branch_need_a_result_too(lake, gate):
    on_branch(lake, events, positive, partition=ONE)
    branch = lake.table("events").checkout_version(("work", None))
    branch.insert(pa.table({"day": [TWO], "n": [-7]}))
    assert "the check positive has not passed on version 3: it last read version 2" in gate(fails=True)


def test_clocks_do_not_count(lake, gate, monkeypatch):
    """The branch was created by a machine whose clock is ahead of that of the instance, or behind it."""
    import time

    for ahead in (3600, -3600):
        branch = f"work{ahead}"
        with monkeypatch.context() as patch:
            real = time.time
            patch.setattr("lance_core.verbs.refs.branches.time.time", lambda real=real, by=ahead: real() + by)
            on_branch(lake, events, partition=THREE, branch=branch)
        on_branch(lake, events, positive, partition=ONE, n=-5, branch=branch, fails=True)
        said = gate(fails=True, **{"lance/branch": branch})
        assert "the check positive did not pass" in said
    assert lake.rows("events") == []


def test_of_results_about_equal_rows_the_later_run_decides(lake, monkeypatch):
    """The clock of its machine is behind that of the machine of the earlier run."""
    import time

    @dg.asset_check(asset=plain, blocking=True)
    def chosen(context, plain: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed="fail" not in context.run.tags)

    on_branch(lake, plain, chosen)
    with monkeypatch.context() as patch:
        for name, second in (("time", 1), ("time_ns", 10**9)):
            real = getattr(time, name)
            patch.setattr(time, name, lambda real=real, second=second: real() - 3600 * second)
        checks = dg.AssetSelection.checks_for_assets(plain)
        on_branch(lake, plain, chosen, select=checks, tags={"fail": "1"}, fails=True)
    said = promote(lake, monkeypatch, assets=[plain], checks=[chosen], fails=True)
    assert "the check chosen did not pass on version 2" in said


def test_a_failure_on_an_earlier_branch_of_the_same_name_does_not_count(lake, gate):
    on_branch(lake, events, positive, partition=ONE, n=-5, fails=True)
    lake.table("events").branches.discard("work")
    on_branch(lake, events, partition=TWO)
    assert "has given no result" in gate(fails=True)
    on_branch(lake, events, positive, partition=TWO)
    gate()
    assert lake.rows("events") == [(TWO, 0)]


@pytest.mark.parametrize("later", [{"span": (ONE, THREE)}, {"partition": ONE}, {"partition": TWO}])
def test_a_newer_result_overrules_whatever_partitions_its_run_had(lake, gate, later):
    """The check has no partitions: each of its results is about all rows."""
    on_branch(lake, events, positive, partition=ONE, n=-1, fails=True)
    on_branch(lake, events, partition=ONE, n=1)
    assert "did not pass" in gate(fails=True)
    on_branch(lake, events, positive, n=2, **later)
    gate()
    assert (ONE, -1) not in lake.rows("events")


def test_results_by_partition(lake, gate, monkeypatch):
    unique = build_lance_primary_key_check(events, ["n"], blocking=True)

    def run(**options):
        return promote(lake, monkeypatch, assets=[events], checks=[unique], **options)

    on_branch(lake, events, unique, partition=ONE)
    on_branch(lake, events, unique, span=(TWO, THREE), fails=True)  # both days have the same value
    said = run(fails=True)
    assert f"did not pass on version 3 (partition {TWO}, {THREE})" in said
    on_branch(lake, events, unique, partition=TWO, n=1)
    assert f"did not pass on version 3 (partition {THREE})" in run(fails=True)
    on_branch(lake, events, partition=THREE, n=2)
    assert f"has not passed on version 5 (partition {THREE})" in run(fails=True)
    on_branch(lake, events, unique, partition=THREE, n=2)
    run()


def test_failures_of_checks_that_do_not_block(lake, gate):
    on_branch(lake, events, positive, small, partition=ONE, n=500)
    assert "the check small did not pass" in gate(fails=True)
    on_branch(lake, events, positive, small, partition=ONE, n=5)
    gate()
    assert lake.rows("events") == [(ONE, 5)]


def test_a_failure_that_only_warns_passes(lake, monkeypatch):
    @dg.asset_check(asset=plain, blocking=True)
    def warns(plain: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN)

    on_branch(lake, plain, warns)
    promote(lake, monkeypatch, assets=[plain], checks=[warns])
    assert lake.rows("plain") == [(0,)]


def test_force_names_what_it_ignores(lake, gate):
    on_branch(lake, events, partition=ONE)
    gate(**{"lance/force": "true"})
    (record,) = lake.instance.fetch_materializations(dg.AssetKey("events"), limit=1).records
    said = record.asset_materialization.metadata["lance/forced"].value
    assert said.startswith("events: the check positive has not passed on version 2")


def test_rows_that_come_between_the_gate_and_the_promotion(lake, gate, monkeypatch):
    from lance_dagster.branches import promotion

    on_branch(lake, events, positive, partition=ONE)
    real = promotion.publish

    def others_first(main, branch, **options):
        main.checkout_version((branch, None)).insert(pa.table({"day": [TWO], "n": [-7]}))
        return real(main, branch, **options)

    monkeypatch.setattr(promotion, "publish", others_first)
    assert "was to be promoted as it was at version 2" in gate(fails=True)
    assert lake.rows("events") == []


def test_a_promoted_branch_that_is_created_again_between_the_gate_and_the_promotion(lake, gate, monkeypatch):
    from lance_dagster.branches import promotion

    on_branch(lake, events, positive, partition=ONE)
    gate()
    real = promotion.publish

    def branch_again(main, branch, **options):
        on_branch(lake, events, partition=TWO, n=-7)
        return real(main.checkout_version((None, None)), branch, **options)

    monkeypatch.setattr(promotion, "publish", branch_again)
    assert "was deleted and created again since it was looked at" in gate(fails=True)
    assert lake.rows("events") == [(ONE, 0)]


def test_a_branch_that_is_created_between_the_gate_and_the_promotion(lake, gate, monkeypatch):
    from lance_dagster.branches import promotion

    lake.run(events, partition=ONE)
    real = promotion.publish

    def branch_first(main, branch, **options):
        on_branch(lake, events, partition=TWO, n=-7)
        return real(main.checkout_version((None, None)), branch, **options)

    monkeypatch.setattr(promotion, "publish", branch_first)
    gate(fails=True)
    assert lake.rows("events") == [(ONE, 0)]


def test_an_asset_of_a_branch_that_the_job_does_not_name(lake, monkeypatch):
    """One commit of the table publishes its rows as well."""

    def part(name):
        metadata = {"table": "shared", "lance/shared_table": True, "partition_expr": "name"}

        @dg.asset(name=name, metadata=metadata, partitions_def=dg.StaticPartitionsDefinition([name]))
        def made() -> pa.Table:
            return pa.table({"name": [name]})

        return made

    one, two = part("one"), part("two")

    @dg.asset_check(asset=two, blocking=True)
    def audited(two: pa.Table) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    on_branch(lake, one, partition="one")
    on_branch(lake, two, partition="two")
    job, _ = build_branch_jobs([one])
    defs = dg.Definitions([one, two], asset_checks=[audited], jobs=[job], resources={"io_manager": lake.manager()})
    monkeypatch.setattr(dg.OpExecutionContext, "repository_def", defs.get_repository_def())

    def run():
        return defs.resolve_job_def(job.name).execute_in_process(
            instance=lake.instance, tags={"lance/branch": "work"}, run_config=QUIET, raise_on_error=False
        )

    assert "two: the check audited has not passed" in errors(run())
    on_branch(lake, two, audited, partition="two")
    on_branch(lake, one, partition="one")  # the rows of another asset, which its checks are not about
    assert run().success


class TestWhatChecksRead:
    def test_by_the_resource(self, lake, monkeypatch):
        @dg.asset_check(asset=plain, blocking=True)
        def opened(context, lance: LanceTableResource) -> dg.AssetCheckResult:
            pinned = {} if "pin" not in context.run.tags else {"version": 2, "branch": "work"}
            return dg.AssetCheckResult(passed=lance.open("plain", **pinned).count_rows() == 1)

        resources = {"lance": LanceTableResource(root_uri=lake.root)}
        on_branch(lake, plain, opened, tags={"pin": "1"}, resources=resources)
        run = {"assets": [plain], "checks": [opened], "resources": resources}
        assert "what it read in run" in promote(lake, monkeypatch, fails=True, **run)
        on_branch(lake, plain, opened, resources=resources)
        promote(lake, monkeypatch, **run)

    @pytest.mark.parametrize("first", ["result", "output"])
    def test_in_the_body_of_the_asset(self, lake, monkeypatch, first):
        @dg.asset(check_specs=[dg.AssetCheckSpec("fine", asset="checked", blocking=True)])
        def checked(context):
            events = [dg.AssetCheckResult(passed=True), dg.Output(pa.table({"n": [1]}))]
            yield from events if first == "result" else reversed(events)

        on_branch(lake, checked)
        branch = lake.table("checked").checkout_version(("work", None))
        branch.insert(pa.table({"n": [2]}))
        assert "it last read version 2" in promote(lake, monkeypatch, assets=[checked], checks=[], fails=True)
        on_branch(lake, checked)
        promote(lake, monkeypatch, assets=[checked], checks=[])
        assert lake.rows("checked") == [(1,)]

    def test_of_the_attempt_that_gave_the_result(self, lake, monkeypatch):
        """The first attempt of the step passed, and died after its write; the second one gave no result."""
        seen = []

        @dg.asset(
            check_specs=[dg.AssetCheckSpec("fine", asset="checked", blocking=True)],
            retry_policy=dg.RetryPolicy(max_retries=1),
        )
        def checked():
            seen.append(1)
            if len(seen) == 1:
                yield dg.AssetCheckResult(passed=True)
            yield dg.Output(pa.table({"n": [len(seen)]}))
            raise RuntimeError("killed")

        on_branch(lake, checked, fails=True)
        assert len(seen) == 2
        said = promote(lake, monkeypatch, assets=[checked], checks=[], fails=True)
        assert "the check fine has not passed on version 3: it last read version 2" in said

    def test_on_a_file_based_instance(self, tmp_path, monkeypatch):
        """Its storage numbers the events of each run from 1."""
        (tmp_path / "home").mkdir()
        with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
            lake = Lake(root=str(tmp_path / "lake"), instance=instance)
            on_branch(lake, plain, plain_positive, n=-1, fails=True)
            said = promote(lake, monkeypatch, assets=[plain], checks=[plain_positive], fails=True)
            assert "did not pass on version 2" in said
            for n in (-2, 3):
                on_branch(lake, plain, plain_positive, n=n, fails=n < 0)
            promote(lake, monkeypatch, assets=[plain], checks=[plain_positive])
            assert lake.rows("plain") == [(3,)]


@pytest.mark.filterwarnings("ignore:.*`owners`")  # Dagster's own, about a parameter that it passes itself
class TestSensor:
    def tick(self, lake, check=plain_positive, cursor=None, **options):
        jobs = build_branch_jobs([plain])
        sensor = build_branch_sensor([plain], jobs, **options)
        manager = lake.manager(branching=BranchPolicy.per_run())
        defs = dg.Definitions(
            [plain], asset_checks=[check], jobs=jobs, sensors=[sensor], resources={"io_manager": manager}
        )
        with dg.build_sensor_context(
            instance=lake.instance, resources={"io_manager": manager}, definitions=defs, cursor=cursor
        ) as context:
            return sensor(context)

    def test_a_missing_result_is_reported_and_never_discarded(self, lake):
        policy = {"branching": BranchPolicy.per_run()}
        on_branch(lake, plain, policy=policy)
        result = self.tick(lake, on_failure="discard")
        assert result.run_requests == []
        (event,) = result.asset_events
        said = event.metadata["lance/branch_state"].value
        assert said == "blocking checks have not passed on it as it is: plain: plain_positive"

    def test_a_branch_whose_checks_passed_is_promoted(self, lake):
        on_branch(lake, plain, plain_positive, policy={"branching": BranchPolicy.per_run()})
        (request,) = self.tick(lake).run_requests
        assert request.job_name == "lance_promote"

    def test_a_newer_result_of_a_check_is_another_request(self, lake):
        """The job may have rejected the branch for an older one."""

        @dg.asset_check(asset=plain, blocking=True)
        def tagged(context, plain: pa.Table) -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed="bad" not in context.run.tags)

        policy = {"branching": BranchPolicy.per_run()}
        first = on_branch(lake, plain, tagged, policy=policy)
        again = {"dagster/root_run_id": first.run_id, "dagster/parent_run_id": first.run_id}

        def check(**tags):
            select = dg.AssetSelection.checks_for_assets(plain)
            on_branch(lake, plain, tagged, policy=policy, select=select, fails=None, tags={**again, **tags})

        def key():
            (request,) = self.tick(lake, tagged).run_requests
            assert request.job_name == "lance_promote"
            return request.run_key

        before = key()
        check(bad="1")
        reported = self.tick(lake, tagged)
        assert not reported.run_requests
        assert isinstance(self.tick(lake, tagged, cursor=reported.cursor), dg.SkipReason)
        check()
        assert key() == key() != before

    def test_another_state_of_the_same_version_is_another_report(self, lake):
        policy = {"branching": BranchPolicy.per_run()}
        run = on_branch(lake, plain, policy=policy)
        waiting = self.tick(lake, auto_promote=False)
        again = {"dagster/root_run_id": run.run_id, "dagster/parent_run_id": run.run_id}
        select = dg.AssetSelection.checks_for_assets(plain)
        on_branch(lake, plain, plain_positive, policy=policy, select=select, tags=again)
        (event,) = self.tick(lake, auto_promote=False, cursor=waiting.cursor).asset_events
        assert event.metadata["lance/branch_state"].value == "it is ready to be promoted"


class TestAuditedJob:
    def run(self, lake, step=None, parent=None, **tags):
        job = build_audited_job([plain, plain_positive], name="audited")
        defs = dg.Definitions(
            [plain], asset_checks=[plain_positive], jobs=[job], resources={"io_manager": lake.manager()}
        )
        made = defs.resolve_job_def("audited")
        if parent is not None:
            tags |= {"dagster/root_run_id": parent, "dagster/parent_run_id": parent}
        return made.execute_in_process(
            instance=lake.instance,
            tags=tags,
            run_config=QUIET,
            raise_on_error=False,
            **({} if step is None else {"asset_selection": [dg.AssetKey(step)]}),
        )

    def test_the_last_step_alone_publishes_nothing_that_was_not_audited(self, lake):
        failed = self.run(lake, n="-1")
        again = self.run(lake, step="audited_publish", parent=failed.run_id)
        assert "plain: the check plain_positive did not pass on version 2" in errors(again)
        assert lake.rows("plain") == []
        assert self.run(lake, parent=failed.run_id, n="4").success
        assert lake.rows("plain") == [(4,)]

    def test_after_a_crash(self, lake):
        crashed = self.run(lake, crash="1")
        again = self.run(lake, step="audited_publish", parent=crashed.run_id)
        assert "plain: the check plain_positive has not passed on version 2: it has given no result" in errors(again)


class TestFunction:
    """The pure function, without runs."""

    def result(self, order, passed, version, partitions=None):
        return CheckResult(
            check="c", order=(order, 0), run_id=f"r{order}", passed=passed, version=version, partitions=partitions
        )

    def problems(self, rows, *results, blocking=("c",)):
        return [
            (one.check, None if one.result is None else one.result.run_id, one.partitions)
            for one in check_problems(rows, blocking, results)
        ]

    def test_no_change_needs_no_result(self):
        assert self.problems(ChangedRows(changed={})) == []

    def test_order_is_by_version_first(self):
        rows = ChangedRows(changed={REST: 3})
        late = self.result(2, passed=False, version=2)
        assert self.problems(rows, self.result(1, passed=True, version=3), late) == []
        assert self.problems(rows, self.result(1, passed=True, version=2), late) == [("c", "r2", ())]

    def test_of_equal_rows_the_newer_result_decides(self):
        rows = ChangedRows(changed={REST: 3})
        good, bad = self.result(1, passed=True, version=3), self.result(2, passed=False, version=3)
        assert self.problems(rows, good, bad) == [("c", "r2", ())]
        assert self.problems(rows, bad, self.result(3, passed=True, version=3)) == []

    def test_a_failure_stands_until_its_rows_are_replaced(self):
        bad = self.result(1, passed=False, version=2, partitions={"a"})
        appended = ChangedRows(changed={"a": 3})
        assert self.problems(appended, bad, blocking=()) == [("c", "r1", ("a",))]
        replaced = ChangedRows(changed={"a": 3}, replaced={"a": 3})
        assert self.problems(replaced, bad, blocking=()) == []
        assert self.problems(replaced, bad) == [("c", None, ("a",))]
        overwritten = ChangedRows(changed={REST: 4}, table_replaced=4)
        assert self.problems(overwritten, bad, blocking=()) == []

    def test_a_result_of_all_rows_is_one_of_each_partition(self):
        rows = ChangedRows(changed={"a": 2, "b": 3})
        assert self.problems(rows, self.result(1, passed=True, version=2)) == [("c", None, ("b",))]
        assert self.problems(rows, self.result(1, passed=True, version=3)) == []
        both = [self.result(1, passed=True, version=2, partitions={"a"}), self.result(2, True, 3, {"b"})]
        assert self.problems(rows, *both) == []

    def test_rows_without_a_known_partition_need_a_result_of_all_rows(self):
        rows = ChangedRows(changed={REST: 2})
        assert self.problems(rows, self.result(1, True, 2, {"a"})) == [("c", None, ())]

    def test_what_was_read_without_a_record(self):
        rows = ChangedRows(changed={REST: 2})
        unknown = self.result(2, passed=True, version=None)
        assert self.problems(rows, unknown) == [("c", None, ())]
        bad = self.result(1, passed=False, version=None)
        assert self.problems(rows, bad, blocking=()) == [("c", "r1", ())]
        assert self.problems(rows, bad, unknown, blocking=()) == []
        assert self.problems(rows, bad, self.result(3, passed=True, version=2)) == []
        assert self.problems(rows, self.result(0, passed=True, version=2), bad) == [("c", "r1", ())]


def test_records_stand_on_no_asset(lake):
    """They are in the log of the run, and neither observations nor materializations."""
    result = on_branch(lake, events, positive, partition=ONE)
    log = check_log.read_check_log(lake.instance, result.run_id)
    assert [one["version"] for reads in log.reads.values() for one in reads] == [2]
    assert not lake.instance.fetch_observations(dg.AssetKey("events"), limit=1).records
    on_main = lake.run(events, positive, partition=ONE)
    assert check_log.read_check_log(lake.instance, on_main.run_id).reads == {}
    assert lance_core.dataset(lake.uri("events")).count_rows() == 1

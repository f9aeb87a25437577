"""Events of promotions, audited jobs, discards and undos name the code and the inputs that the rows were made from."""

from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from lance_dagster import BranchPolicy, LanceIOManager, build_audited_job, build_branch_jobs, build_undo_job
from tests.lance_dagster.lake import QUIET, errors

PARTS = dg.StaticPartitionsDefinition(["a", "b"])
TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}
WORK = {"tags": {"lance/branch": "work"}, **TAGGED}


def assets_of(code="1", *, partitioned=False):
    """An asset of another storage, one in a table, and one that is made from both."""
    options = {"partitions_def": PARTS, "metadata": {"partition_expr": "part"}} if partitioned else {}

    @dg.asset
    def outside() -> None: ...

    @dg.asset(**options)
    def base(context) -> pa.Table:
        return pa.table({"part": [context.partition_key if partitioned else "a"]})

    @dg.asset(code_version=code, deps=[outside], **options)
    def made(base: pa.Table) -> pa.Table:
        return base

    return outside, base, made


class EventlessManager(LanceIOManager):
    """Fails after each commit of an asset, so that there is no event."""

    def create_io_manager(self, context):
        manager = super().create_io_manager(context)
        handle = manager.handle_output

        def handle_output(context, value):
            handle(context, value)
            if context.asset_key == dg.AssetKey("made"):
                raise RuntimeError("after the commit")

        manager.handle_output = handle_output
        return manager


def stale_causes(lake, assets, partition=None):
    """Why Dagster shows the asset `made` as out of sync."""
    graph = dg.Definitions(list(assets)).get_repository_def().asset_graph
    resolver = CachingStaleStatusResolver(lake.instance, graph, LoadingContextForTest(lake.instance))
    return [cause.reason for cause in resolver.get_stale_causes(dg.AssetKey("made"), partition)]


def run_job(lake, job, assets, **options):
    manager = lake.manager(**TAGGED)
    defs = dg.Definitions(list(assets), jobs=[job], resources={"io_manager": manager})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, run_config={**QUIET, **options.pop("config", {})}, raise_on_error=False, **options
    )
    assert result.success, errors(result)
    return result


def promote(lake, assets, branch="work"):
    return run_job(lake, build_branch_jobs(assets[1:])[0], assets, tags={"lance/branch": branch})


@pytest.mark.parametrize("partition", [None, "a"])
def test_a_promotion(lake, partition):
    assets = assets_of("1", partitioned=partition is not None)
    lake.run(*assets, partition=partition, **WORK)
    promote(lake, assets)
    assert stale_causes(lake, assets, partition) == []
    newer = assets_of("2", partitioned=partition is not None)
    assert stale_causes(lake, newer, partition) == ["has a new code version"]
    lake.run(*assets, select=[assets[1]], partition=partition, **TAGGED)
    assert stale_causes(lake, assets, partition) == ["has a new dependency materialization"] or stale_causes(
        lake, assets, partition
    ) == ["has a new dependency data version"]


def test_a_promotion_of_rows_that_were_made_from_older_rows_of_the_branch(lake):
    outside, base, made = assets_of()
    lake.run(outside, base, made, **WORK)
    lake.run(outside, base, made, select=[base], **WORK)
    promote(lake, (outside, base, made))
    assert stale_causes(lake, (outside, base, made)) != []


def test_a_promotion_of_rows_beside_a_commit_that_changed_none(lake):
    assets = assets_of(partitioned=True)

    @dg.asset(name="base", partitions_def=PARTS, metadata={"partition_expr": "part"})
    def without_rows() -> pa.Table:
        return pa.table({"part": pa.array([], pa.string())})

    lake.run(*assets, partition="a", **WORK)
    lake.run(without_rows, partition="b", **WORK)
    promote(lake, assets)
    assert stale_causes(lake, assets, "a") == []


def test_a_promotion_of_rows_that_were_made_from_a_promoted_branch_after_maintenance(lake):
    assets = outside, base, made = assets_of(partitioned=True)
    for part in ("a", "b"):
        lake.run(outside, base, made, select=[base], partition=part, **WORK)
    promote(lake, assets)
    lake.table("base").checkout_version(("work", None)).optimize.compact_files()
    lake.table("base").checkout_version(("work", None)).cleanup_old_versions(timedelta(0))
    lake.run(outside, base, made, select=[made], partition="a", **WORK)
    promote(lake, assets)
    event = lake.instance.get_latest_materialization_event(dg.AssetKey("made")).asset_materialization
    assert event.tags["dagster/input_data_version/base"].endswith(f":main:{lake.table('base').version}")


def test_a_promotion_of_rows_from_main(lake):
    assets = outside, base, made = assets_of()
    lake.run(outside, base, select=[outside, base], **TAGGED)
    lake.run(*assets, select=[made], **WORK)
    promote(lake, assets)
    assert stale_causes(lake, assets) == []
    lake.run(*assets, select=[outside], **TAGGED)
    assert len(stale_causes(lake, assets)) == 1


@pytest.mark.variants(2)
@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_audited_job(lake, partition, order):
    def job(assets):
        outside, *stored = assets
        return build_audited_job(stored[::order], name="audited", upstream=[outside], allow_unaudited=True)

    assets = assets_of("1", partitioned=partition is not None)
    lake.run(*assets, select=[assets[0]])
    manager = lake.manager()

    def run(assets):
        resources = {"io_manager": manager}
        defs = dg.Definitions(list(assets), jobs=[job(assets)], resources=resources)
        result = defs.resolve_job_def("audited").execute_in_process(
            instance=lake.instance, run_config=QUIET, partition_key=partition, raise_on_error=False
        )
        assert result.success, errors(result)

    run(assets)
    assert stale_causes(lake, assets, partition) == []
    newer = assets_of("2", partitioned=partition is not None)
    assert stale_causes(lake, newer, partition) == ["has a new code version"]
    run(newer)
    assert stale_causes(lake, newer, partition) == []
    lake.run(*newer, select=[newer[0]])
    assert len(stale_causes(lake, newer, partition)) == 1


@pytest.mark.parametrize("partition", [None, "a"])
def test_an_undo(lake, partition):
    """The rows of the older code are there again."""
    older, newer = (assets_of(code, partitioned=partition is not None) for code in ("1", "2"))
    lake.run(*older, partition=partition)
    undone = lake.run(*newer, select=[newer[2]], partition=partition)
    assert stale_causes(lake, newer, partition) == []
    run_job(lake, build_undo_job(newer[1:]), newer, tags={"lance/undo_run": undone.run_id})
    assert stale_causes(lake, newer, partition) == ["has a new code version"]
    assert stale_causes(lake, older, partition) == []


def test_the_undo_of_a_write_without_rows_keeps_the_data_version(lake):
    @dg.asset(partitions_def=PARTS, metadata={"partition_expr": "part"})
    def rare(context) -> pa.Table:
        return pa.table({"part": [context.partition_key]}).slice(context.partition_key == "b")

    def data_version():
        event = lake.instance.get_latest_materialization_event(rare.key).asset_materialization
        return event.partition, event.tags["dagster/data_version"]

    lake.run(rare, partition="a")
    empty = lake.run(rare, partition="b")
    before = data_version()
    run_job(lake, build_undo_job([rare]), [rare], tags={"lance/undo_run": empty.run_id})
    assert lake.table("rare").version == 3
    assert data_version() == before


def test_a_discard(lake):
    older, newer = assets_of("1"), assets_of("2")
    lake.run(*older, **TAGGED)
    lake.run(*newer, select=[newer[2]], **WORK)
    run_job(lake, build_branch_jobs(newer[1:])[1], newer, tags={"lance/branch": "work"})
    assert stale_causes(lake, newer) == ["has a new code version"]
    assert stale_causes(lake, older) == []


@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("is_base_on_branch", [True, False])
def test_a_promotion_of_a_commit_without_an_event(lake, partition, is_base_on_branch):
    assets = assets_of("1", partitioned=partition is not None)
    lake.run(*assets, select=[assets[0]])
    if not is_base_on_branch:
        lake.run(*assets, select=[assets[1]], partition=partition, **TAGGED)
    lake.run(
        *assets,
        select=list(assets[1 if is_base_on_branch else 2 :]),
        partition=partition,
        fails=True,
        tags=WORK["tags"],
        resources={"io_manager": EventlessManager(root_uri=lake.root, **TAGGED)},
    )
    promote(lake, assets)
    # What was not loaded is not in the commit, and the mark errs on the safe side.
    assert stale_causes(lake, assets, partition) == ["has a new dependency on outside"]
    newer = assets_of("2", partitioned=partition is not None)
    assert "has a new code version" in stale_causes(lake, newer, partition)
    lake.run(*assets, select=[assets[1]], partition=partition, **TAGGED)
    assert any(
        why.startswith("has a new dependency ") and "outside" not in why
        for why in stale_causes(lake, assets, partition)
    )


@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("is_first_on_branch", [True, False])
def test_an_undo_on_a_branch(lake, partition, is_first_on_branch):
    """The newest event of the branch names the code of the rows that are there again."""
    older, newer = (assets_of(code, partitioned=partition is not None) for code in ("1", "2"))
    lake.run(*older, partition=partition, **(WORK if is_first_on_branch else TAGGED))
    if not is_first_on_branch:
        lake.run(*newer, select=[newer[1]], partition=partition, **WORK)
    undone = lake.run(*newer, select=[newer[2]], partition=partition, **WORK)
    run_job(lake, build_undo_job(newer[1:]), newer, tags={"lance/undo_run": undone.run_id})
    assert "has a new code version" in stale_causes(lake, newer, partition)
    assert "has a new code version" not in stale_causes(lake, older, partition)

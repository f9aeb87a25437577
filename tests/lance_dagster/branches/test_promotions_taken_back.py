"""The promotion job after an undo of its promotion: it fails with the version that undid it, and discards nothing."""

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, LanceIOManager, build_branch_jobs


@pytest.mark.parametrize("is_discarded", [False, True])
def test_promotion_after_an_undo_fails(tmp_path, is_discarded):
    rows = [1]

    @dg.asset
    def orders() -> pa.Table:
        return pa.table({"id": range(rows[0])})

    io_manager = LanceIOManager(root_uri=str(tmp_path), branching=BranchPolicy.from_tag("lance/branch"))
    jobs = build_branch_jobs([orders])
    defs = dg.Definitions([orders], jobs=jobs, resources={"io_manager": io_manager})
    instance, tags = dg.DagsterInstance.ephemeral(), {"lance/branch": "trial"}

    def run(job, **arguments):
        arguments |= {"instance": instance, "raise_on_error": False}
        return defs.resolve_job_def(job).execute_in_process(**arguments)

    assets = defs.resolve_implicit_global_asset_job_def()
    assets.execute_in_process(instance=instance)
    rows[0] = 3
    assets.execute_in_process(instance=instance, tags=tags)
    assert run("lance_promote", tags=tags).success
    (table,) = tmp_path.rglob("*.lance/_versions")
    main = lance_core.dataset(table.parent)
    lance_core.dataset(main.uri, version=main.version - 1).restore()
    if is_discarded:
        main.branches.discard("trial")
    again = run("lance_promote", tags=tags)
    assert not again.success
    (failure,) = [event for event in again.all_node_events if event.is_step_failure]
    assert f"taken back by version {main.version + 1}" in failure.step_failure_data.error.to_string()
    assert list(main.branches.list()) == ([] if is_discarded else ["trial"])

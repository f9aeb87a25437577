"""Two first runs of an asset on branches, which began before there was a table: one of them is promoted."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy, build_branch_jobs
from tests.lance_dagster.lake import QUIET, errors

TAGGED = {"branching": BranchPolicy.from_tag("lance/branch")}


@dg.asset
def plain(context) -> pa.Table:
    return pa.table({"n": [int(context.run.tags["n"])]})


def promote(lake, branch):
    job, _ = build_branch_jobs([plain])
    defs = dg.Definitions([plain], jobs=[job], resources={"io_manager": lake.manager(**TAGGED)})
    return defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags={"lance/branch": branch}, run_config=QUIET, raise_on_error=False
    )


def test_one_of_two_first_runs_is_promoted(lake):
    for n, branch in ((1, "one"), (2, "two")):
        lake.run(plain, tags={"lance/branch": branch, "n": str(n)}, **TAGGED)
    assert promote(lake, "one").success
    said = errors(promote(lake, "two"))
    assert "branch 'two' cannot be promoted" in said
    assert "has rows of others" in said
    assert lake.rows("plain") == [(1,)]


@pytest.mark.parametrize("mode", ["overwrite", "error", "create_only"])
def test_a_first_run_on_main_meanwhile(lake, mode):
    lake.run(plain, tags={"lance/branch": "one", "n": "1"}, write_mode=mode, **TAGGED)
    lake.run(plain, tags={"n": "2"}, **TAGGED)
    assert "branch 'one' cannot be promoted" in errors(promote(lake, "one"))
    assert lake.rows("plain") == [(2,)]


def test_first_runs_that_append_are_both_promoted(lake):
    for n, branch in ((1, "one"), (2, "two")):
        lake.run(plain, tags={"lance/branch": branch, "n": str(n)}, write_mode="append", **TAGGED)
    for branch in ("one", "two"):
        assert promote(lake, branch).success
    assert lake.rows("plain") == [(1,), (2,)]

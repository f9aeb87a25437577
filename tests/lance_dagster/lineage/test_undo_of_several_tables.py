"""The undo of a run that wrote several tables: all of them or none, whatever was cleaned up."""

import dagster as dg
import lance
import pyarrow as pa
import pytest

from lance_dagster import BranchPolicy, build_undo_job
from tests.lance_dagster.lake import QUIET, errors
from tests.support.undo_command import command

NAMES = ("boats", "trains")


def assets(mode, partitioned):
    parts = dg.StaticPartitionsDefinition(["a", "b"]) if partitioned else None

    def make(name):
        @dg.asset(name=name, partitions_def=parts, metadata={"partition_expr": "p", "lance/write_mode": mode})
        def one() -> pa.Table:
            return pa.table({"p": ["a"], "n": [5]})

        return one

    return [make(name) for name in NAMES]


def undo(lake, made, run, **options):
    job = build_undo_job(made)
    defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
    return defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags={"lance/undo_run": run}, run_config=QUIET, raise_on_error=False, **options
    )


def versions(lake):
    return [lake.table(name).version for name in NAMES]


@pytest.mark.variants(3)
@pytest.mark.parametrize("partition", [None, "a"])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("by", ["command", "job", "job without a record"])
def test_a_version_of_the_run_was_cleaned_up(lake, mode, partition, by):
    made = assets(mode, partition is not None)
    lake.run(*made, partition=partition)
    run = lake.run(*made, partition=partition).run_id
    lake.table("trains").insert(pa.table({"p": ["b"], "n": [6]}))
    if by == "job without a record":
        keys = [key for key in lake.table("trains").config() if "idempotency" in key]

        lance.dataset(lake.uri("trains")).update_config(dict.fromkeys(keys))
    lake.table("trains").cleanup_old_versions(retain_versions=1)
    before = versions(lake)
    if by == "command":
        said = command("undo", lake.root, "--run", run, "--yes", fails=1)
    else:
        result = undo(lake, made, run)
        assert not result.success
        said = errors(result)
        assert "nothing was undone" in said
    assert "version 2" in said
    assert "was cleaned up" in said
    assert versions(lake) == before


def test_an_undo_that_was_made_before_its_versions_were_cleaned_up(lake):
    made = assets("append", False)
    lake.run(*made)
    run = lake.run(*made).run_id
    assert undo(lake, made, run).success
    lake.table("trains").cleanup_old_versions(retain_versions=1)
    before = versions(lake)
    assert undo(lake, made, run).success
    assert versions(lake) == before == [3, 3]


def test_a_branch_that_was_promoted_and_discarded(lake):
    made = assets("append", False)
    lake.run(*made)
    run = lake.run(*made, branching=BranchPolicy.from_tag(), tags={"lance/branch": "b"}).run_id
    for name in NAMES:
        lake.table(name).branches.promote("b")
        lake.table(name).branches.discard("b")
    result = undo(lake, made, run)
    assert result.success, errors(result)
    assert [len(lake.rows(name)) for name in NAMES] == [1, 1]

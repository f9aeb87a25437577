"""A backfill of a column on a branch, its promotion, and the undo of a run that set columns."""

import dagster as dg

import lance_core
from lance_dagster import BranchPolicy, build_undo_job
from tests.lance_dagster.io_manager.test_column_assets import (
    assert_vectors,
    cells,
    embeddings_asset,
    images_asset,
)
from tests.lance_dagster.lake import QUIET, errors

ON_BRANCH = {"tags": {"lance/branch": "vectors"}, "branching": BranchPolicy.from_tag()}


def test_a_backfill_on_a_branch_is_promoted(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    for day in ("2024-01-01", "2024-01-02"):
        lake.run(images, embeddings, select=[embeddings], partition=day, **ON_BRANCH)
    assert set(cells(lake).values()) == {None}
    lake.run(images, partition="2024-01-03")
    main = lake.table("images")
    main.branches.promote("vectors")
    assert_vectors(lake, "2024-01-01", "2024-01-02")
    assert lance_core.dataset(lake.uri("images")).count_rows() == 150


def test_a_branch_that_was_forked_without_the_column_is_rejected(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, partition="2024-01-01")
    lake.run(images, partition="2024-01-01", **ON_BRANCH)
    found = errors(lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", fails=True, **ON_BRANCH))
    assert "was forked before the table had the columns ['vector']" in found


def undo(lake, run_id, fails=False):
    job = build_undo_job([images_asset(), embeddings_asset()])
    defs = dg.Definitions(jobs=[job], resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def("lance_undo").execute_in_process(
        instance=lake.instance, tags={"lance/undo_run": run_id}, run_config=QUIET, raise_on_error=not fails
    )
    assert result.success is not fails
    return result


def test_the_undo_of_a_run_restores_the_cells(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition="2024-01-01")
    before = cells(lake)
    other = embeddings_asset(lambda _, t: t.append_column("vector", [[[0.0] * 8] * len(t)]))
    run = lake.run(images, other, select=[other], partition="2024-01-01")
    assert cells(lake) != before
    undo(lake, run.run_id)
    assert cells(lake) == before
    again = lake.run(images, other, select=[other], partition="2024-01-01")
    lake.run(images, partition="2024-01-02")
    undo(lake, again.run_id)
    assert {i: value for i, value in cells(lake).items() if i in before} == before


def test_the_undo_of_the_run_that_added_the_column_says_why_not(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, partition="2024-01-01")
    run = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    lake.run(images, partition="2024-01-02")
    assert "which is more than rows" in errors(undo(lake, run.run_id, fails=True))

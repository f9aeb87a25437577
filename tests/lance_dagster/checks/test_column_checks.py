"""Checks of assets that own columns of a shared table: before their first run, on a branch, and after an undo."""

import dagster as dg
import pyarrow as pa
import pytest

from lance_dagster import (
    BranchPolicy,
    build_branch_jobs,
    build_lance_drift_check,
    build_lance_missing_values_checks,
    build_undo_job,
)
from tests.lance_dagster.lake import QUIET, errors

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
def images(context) -> pa.Table:
    first = 0 if context.partition_key == "mon" else 100
    return pa.table({"id": [first, first + 1], "day": [context.partition_key] * 2})


def column(name):
    owns = {"lance/write_mode": "columns", "lance/table": "images", "lance/key": "id"}
    reads = {"images": dg.AssetIn(metadata={"columns": ["id"]})}

    @dg.asset(name=name, partitions_def=DAYS, ins=reads, metadata={"partition_expr": "day", **owns})
    def made(context, images: pa.Table) -> pa.Table:
        return images.append_column(name, pa.array([f"{name} by {context.run_id}"] * images.num_rows))

    return made


@pytest.fixture
def assets():
    return [images, column("captions"), column("labels"), column("emb")]


@pytest.fixture
def launch(lake, assets):
    """Run assets or a job; gives the run's id."""

    def launch(what, partition=None, **tags):
        jobs = [*build_branch_jobs(assets), build_undo_job(assets)]
        manager = lake.manager(branching=BranchPolicy.from_tag())
        defs = dg.Definitions(assets, jobs=jobs, resources={"io_manager": manager})
        is_job = isinstance(what, str)
        job = defs.resolve_job_def(what) if is_job else defs.resolve_implicit_global_asset_job_def()
        chosen = {} if is_job else {"asset_selection": [one.key for one in what]}
        result = job.execute_in_process(
            instance=lake.instance,
            run_config=QUIET,
            partition_key=partition,
            tags={f"lance/{key}": value for key, value in tags.items()},
            raise_on_error=False,
            **chosen,
        )
        assert result.success, errors(result)
        return result.run_id

    return launch


def results(lake, assets, checks, *, fails=False):
    """What each check says, by asset."""
    selection = dg.AssetSelection.checks(*checks)
    done = lake.run(*assets, *checks, select=selection, fails=fails, branching=BranchPolicy.from_tag())
    return {one.asset_key.to_user_string(): (one.passed, one.description) for one in done.get_asset_check_evaluations()}


@pytest.mark.parametrize("undone", [["labels"], ["labels", "emb"]])
def test_assets_that_an_undone_run_did_not_write_have_no_drift(lake, assets, launch, undone):
    for day in ("mon", "tue"):
        launch(assets, day)
    run = launch([one for one in assets if one.key.to_user_string() in undone], "mon")
    launch("lance_undo", undo_run=run)
    found = results(lake, assets, [build_lance_drift_check(one) for one in assets])
    assert found == {one.key.to_user_string(): (True, "Dagster wrote the newest rows") for one in assets}
    version = lake.table("images").version
    assert lake.properties("images")[-1]["dagster.asset_key"] == ('["emb", "labels"]' if len(undone) > 1 else "labels")
    for name in undone:
        newest = lake.instance.get_latest_materialization_event(dg.AssetKey(name)).asset_materialization
        assert newest.metadata["lance/version"].value == version


def test_columns_that_no_run_has_set_on_main_are_not_missed_yet(lake, assets, launch):
    checks = build_lance_missing_values_checks(assets[1:])
    launch([images], "mon")
    names = ("captions", "emb", "labels")
    yet = {name: (True, f"asset {name} has set no columns of the table yet") for name in names}
    assert results(lake, assets, checks) == yet
    lake.table("images").create_branch("backfill")
    launch([assets[1]], "mon", branch="backfill")
    assert results(lake, assets, checks) == yet
    launch("lance_promote", branch="backfill")
    launch([images], "tue")
    found = results(lake, assets, checks)
    assert found == yet | {"captions": (True, "all rows have values")}
    launch([assets[1]], "tue")
    lake.table("images").drop_columns(["captions"])
    said = "asset captions owns no columns of the table now: materialize it again"
    assert results(lake, assets, checks) == yet | {"captions": (False, said)}


def test_the_check_of_missing_values_is_for_owners_of_columns(lake, launch):
    (check,) = build_lance_missing_values_checks([images])
    launch([images], "mon")
    result = lake.run(images, check, select=dg.AssetSelection.checks(check), fails=True)
    assert "asset images owns no column of" in errors(result)


def test_what_a_run_on_a_branch_prepares_on_main_is_no_drift(lake, assets, launch):
    launch([images], "mon")
    launch([assets[1]], "mon", branch="backfill")
    table = lake.table("images")
    assert (table.version, table.schema.names) == (2, ["id", "day", "captions"])
    checks = [build_lance_drift_check(one) for one in assets]
    found = results(lake, assets, checks)
    assert found == {one.key.to_user_string(): (True, "Dagster wrote the newest rows") for one in assets}
    table.insert({"id": [7], "day": ["mon"], "captions": ["by hand"]})
    found = results(lake, assets, checks)
    assert set(found.values()) == {(False, "versions that Dagster did not write: 3 (Append)")}
    launch("lance_promote", branch="backfill")
    assert lake.table("images").to_table(filter="id = 0")["captions"].null_count == 0


def test_a_table_that_a_run_on_a_branch_begins_has_no_drift(lake, launch):
    launch([images], "mon", branch="new")
    assert lake.table("images").count_rows() == 0
    (passed, _) = results(lake, [images], [build_lance_drift_check(images)])["images"]
    assert passed

"""Several assets in one table: promotion and undo report the asset that wrote, and branches never hide main."""

from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_branch_jobs, build_undo_job
from tests.lance_dagster.lake import QUIET, errors

SHARED = {"table": "shared", "lance/write_mode": "append", "lance/shared_table": True}
PARTS = dg.StaticPartitionsDefinition(["x", "y"])


def sharing(partitioned):
    options = {"metadata": SHARED | {"partition_expr": "part"}, "partitions_def": PARTS} if partitioned else {}

    def make(name, rows):
        @dg.asset(**{"name": name, "metadata": SHARED} | options)
        def one(context) -> pa.Table:
            part = context.partition_key if partitioned else "none"
            return pa.table({"who": [name] * rows, "part": [part] * rows})

        return one

    return [make("s1", 1), make("s2", 3)]


@pytest.fixture
def launch(lake):
    """Run an asset or a job of a code location; gives the run and its materializations by asset and partition."""

    def launch(assets, what, **options):
        jobs = [*build_branch_jobs(assets), build_undo_job(assets)]
        manager = lake.manager(branching=BranchPolicy.from_tag())
        defs = dg.Definitions(assets, jobs=jobs, resources={"io_manager": manager})
        if what.startswith("lance_"):
            job = defs.resolve_job_def(what)
        else:
            job = defs.resolve_implicit_global_asset_job_def()
            options["asset_selection"] = [dg.AssetKey(what)]
        result = job.execute_in_process(instance=lake.instance, run_config=QUIET, raise_on_error=False, **options)
        assert result.success, errors(result)
        events = [event.materialization for event in result.all_events if event.is_step_materialization]
        values = {
            (one.asset_key.to_user_string(), one.partition): {key: entry.value for key, entry in one.metadata.items()}
            for one in events
        }
        return result, values

    return launch


@pytest.mark.parametrize("partition", [None, "y"])
def test_promotion_and_undo_report_the_asset_that_wrote(lake, launch, partition):
    assets = sharing(partition is not None)
    other, on = {"partition_key": "x" if partition else None}, {"partition_key": partition}
    launch(assets, "s1", **other)
    run, _ = launch(assets, "s2", tags={"lance/branch": "b"}, **on)
    _, events = launch(assets, "lance_promote", tags={"lance/branch": "b"})
    assert {key: one["lance/rows_written"] for key, one in events.items()} == {("s2", partition): 3}
    assert launch(assets, "lance_promote", tags={"lance/branch": "b"})[1] == {}
    launch(assets, "s1", **other)
    _, events = launch(assets, "lance_undo", tags={"lance/undo_run": run.run_id})
    assert {key: (one["dagster/row_count"], one["lance/version"]) for key, one in events.items()} == {
        ("s2", partition): (2, 4)
    }
    assert {one["lance/undid_run"] for one in events.values()} == {run.run_id}
    assert lake.table("shared").count_rows() == 2
    assert launch(assets, "lance_undo", tags={"lance/undo_run": run.run_id})[1] == {}


def test_the_other_assets_of_the_table_report_its_rows(lake, launch):
    def observed(result):
        found = [
            event.asset_observation_data.asset_observation for event in result.all_events if event.is_asset_observation
        ]
        return [
            (
                one.asset_key.to_user_string(),
                one.metadata["dagster/row_count"].value,
                one.metadata["lance/version"].value,
            )
            for one in found
            if "dagster/row_count" in one.metadata
        ]

    assets = sharing(partitioned=False)
    launch(assets, "s1")
    run, _ = launch(assets, "s2", tags={"lance/branch": "b"})
    assert observed(launch(assets, "lance_promote", tags={"lance/branch": "b"})[0]) == [("s1", 4, 2)]
    assert observed(launch(assets, "lance_promote", tags={"lance/branch": "b"})[0]) == []
    assert observed(launch(assets, "lance_undo", tags={"lance/undo_run": run.run_id})[0]) == [("s1", 1, 3)]
    assert observed(launch(assets, "lance_undo", tags={"lance/undo_run": run.run_id})[0]) == []


def test_a_branch_that_both_have_written_to(lake, launch):
    assets = sharing(partitioned=True)
    launch(assets, "s1", partition_key="x")
    for name, part in (("s1", "x"), ("s2", "y")):
        launch(assets, name, partition_key=part, tags={"lance/branch": "b"})
    _, events = launch(assets, "lance_promote", tags={"lance/branch": "b"})
    assert {key: one["dagster/partition_row_count"] for key, one in events.items()} == {("s1", "x"): 2, ("s2", "y"): 3}


def test_the_undo_of_a_promoted_run_reports_main_as_the_newest(lake, launch):
    @dg.asset(metadata={"lance/write_mode": "append"})
    def a() -> pa.Table:
        return pa.table({"n": [1, 2]})

    launch([a], "a")
    run, _ = launch([a], "a", tags={"lance/branch": "b"})
    launch([a], "a")
    launch([a], "lance_promote", tags={"lance/branch": "b"})
    launch([a], "lance_undo", tags={"lance/undo_run": run.run_id})
    event = lake.instance.get_latest_materialization_event(a.key).asset_materialization
    assert event.metadata["dagster/row_count"].value == lake.table("a").count_rows() == 4
    assert "lance/branch" not in event.metadata


def plain(name, *values, **metadata):
    @dg.asset(name=name, metadata={"table": "shared", "lance/shared_table": True, **metadata})
    def one() -> pa.Table:
        return pa.table({"who": [name] * len(values), "n": list(values)})

    return one


class TestOverwriteOfAllRows:
    """An asset without partitions overwrites the whole table, with the rows of the others."""

    def test_of_another_asset_that_has_written(self, lake):
        lake.run(plain("a", 1, **{"lance/write_mode": "append"}))
        lake.run(plain("b", 2, **{"lance/write_mode": "append"}))
        for _ in range(22):
            lake.table("shared").update_config({"k": "v"})
        said = errors(lake.run(plain("a", 3), fails=True))
        assert "shared with asset b (lance/shared_table), and write_mode overwrite replaces all its rows" in said
        assert "Set lance/write_mode to append or merge, or give the asset partitions" in said
        assert lake.rows("shared") == [("a", 1), ("b", 2)]

    def test_of_another_asset_of_the_code_location(self, lake):
        both = [plain("a", 1), plain("b", 2, **{"lance/write_mode": "append"})]
        said = errors(lake.run(*both, select=[both[0]], fails=True))
        assert "shared with asset b" in said
        lake.run(*both, select=[both[1]])
        assert lake.rows("shared") == [("b", 2)]

    def test_after_a_renaming_as_the_message_says(self, lake):
        lake.run(plain("old", 1))
        said = errors(lake.run(plain("new", 2), fails=True))
        remedy = said.partition("delete its rows first: ")[2].partition("\n")[0]
        eval(remedy.strip(), {"lance_core": lance_core})
        for n in (2, 3):
            lake.run(plain("new", n))
            assert lake.rows("shared") == [("new", n)]

    def test_an_asset_that_is_alone_overwrites(self, lake):
        for n in (1, 4):
            lake.run(plain("a", n))
        assert lake.rows("shared") == [("a", 4)]


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("has_gap", [True, False])
def test_an_overwrite_where_the_writers_were_cleaned_up(lake, is_shared, has_gap):
    """Another code location may have written rows: only rows that one write filled as a whole are known to be its own."""
    metadata = {"lance/shared_table": True, "table": "t", "schema": "s"}

    @dg.asset(metadata=metadata)
    def own() -> pa.Table:
        return pa.table({"n": [1]})

    @dg.asset(metadata={**metadata, "lance/write_mode": "append"})
    def other() -> pa.Table:
        return pa.table({"n": [2]})

    for asset in (own, other if is_shared else own):
        lake.run(asset)
        if has_gap and asset is own and not lake.table("s/t").tags.list():
            lake.table("s/t").tags.create("keep", 1)
    lake.table("s/t").update_config({"mine": "1"})
    lake.table("s/t").cleanup_old_versions(timedelta(0), error_if_tagged_old_versions=False)
    assert [version["version"] for version in lake.table("s/t").versions()] == ([1, 3] if has_gap else [3])
    result = lake.run(own, fails=is_shared)
    if is_shared:
        assert "which assets wrote the rows of" in errors(result)
    assert lake.rows("s/t") == ([(1,), (2,)] if is_shared else [(1,)])


def test_an_overwrite_of_partitions_with_rows_of_another_asset(lake):
    def make(name, mode):
        @dg.asset(
            name=name,
            partitions_def=PARTS,
            metadata={**SHARED, "lance/write_mode": mode, "partition_expr": "part"},
        )
        def writer(context) -> pa.Table:
            return pa.table({"who": [name] * len(context.partition_keys), "part": context.partition_keys})

        return writer

    lake.run(make("a", "overwrite"), partition="x")
    lake.run(make("b", "append"), partition="y")
    said = errors(lake.run(make("a", "overwrite"), span=("x", "y"), fails=True))
    assert "asset b has written to the run's partitions" in said
    lake.run(make("a", "overwrite"), partition="x")
    assert lake.rows("shared") == [("a", "x"), ("b", "y")]
    lake.table("shared").delete("part = 'y'")  # as after a renaming
    for _ in range(2):
        lake.run(make("a", "overwrite"), partition="y")
    assert lake.rows("shared") == [("a", "x"), ("a", "y")]

"""The events of a promotion have the entries that events of the same runs on main have."""

import json

import dagster as dg
import lance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_undo_job
from lance_dagster.events.reporting import read_recorded_states
from tests.lance_dagster.lake import Lake
from tests.support.column_assets import embeddings_asset, images_asset, promoted

ON_BRANCH = {"tags": {"lance/branch": "work"}, "branching": BranchPolicy.from_tag()}
EQUAL = (
    "rows_written", "rows_inserted", "rows_updated", "rows_deleted", "rows_nulled", "columns", "columns_added",
    "column_schema", "changes", "changes_inserted", "changes_updated", "changes_deleted", "casts", "row_count",
    "partition_row_count",
)  # fmt: skip
PARTS = dg.StaticPartitionsDefinition(["x", "y"])


@pytest.fixture
def other(tmp_path):
    """A second lake, whose runs write to main."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield Lake(root=str(tmp_path / "other"), instance=instance)


def said(entries):
    """The entries that must be equal, wherever they stand."""
    flat = {key.rpartition("/")[2]: value for key, value in entries.items()}
    flat |= {key: value for key, value in flat.pop("commit", {}).items() if key not in flat}
    return {key: plain(flat[key]) for key in EQUAL if key in flat}


def plain(value):
    return json.dumps(value, sort_keys=True) if isinstance(value, list) else str(value)


def on_main(result, asset, partition=None):
    """The entries of an asset's event in a run."""
    made = [one.materialization for one in result.all_events if one.is_step_materialization]
    (found,) = [one for one in made if one.asset_key == asset.key and one.partition == partition]
    return said({key: value.value for key, value in found.metadata.items()})


def assert_equal(lake, other, assets, asset, *, partition=None, expected):
    """Run an asset on a branch that is promoted, and on main of another lake; compare the events."""
    select = {"select": [asset], "partition": partition}
    lake.run(*assets, **select, **ON_BRANCH)
    made, _ = promoted(lake, "work", *assets)
    direct = on_main(other.run(*assets, **select), asset, partition)
    found = said(made[asset.key.to_user_string(), partition])
    assert found == direct
    assert expected.items() <= found.items()


def test_events_of_columns(lake, other):
    images, embeddings = images_asset(), embeddings_asset()
    for one in (lake, other):
        one.run(images, partition="2024-01-01")
        one.run(images, partition="2024-01-02")
        one.run(images, embeddings, select=[embeddings], partition="2024-01-02")
    expected = {"rows_written": "50", "rows_updated": "50", "columns": '["vector"]'}
    assert_equal(lake, other, [images, embeddings], embeddings, partition="2024-01-01", expected=expected)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_events_of_a_merge(lake, other, is_partitioned):
    metadata = {"lance/write_mode": "merge", "lance/merge_on": "id", "partition_expr": "part"}
    if not is_partitioned:
        del metadata["partition_expr"]

    @dg.asset(metadata=metadata, partitions_def=PARTS if is_partitioned else None)
    def people(context) -> pa.Table:
        ids = [1, 2] if "lance/branch" not in context.run.tags and not context.run.tags.get("again") else [2, 3, 4]
        return pa.table({"id": ids, "part": ["x"] * len(ids)})

    partition = "x" if is_partitioned else None
    for one in (lake, other):
        one.run(people, partition=partition)
    lake.run(people, partition=partition, **ON_BRANCH)
    made, _ = promoted(lake, "work", people)
    direct = on_main(other.run(people, partition=partition, tags={"again": "1"}), people, partition)
    found = said(made["people", partition])
    for key in ("rows_inserted", "rows_updated", "row_count", "column_schema"):
        assert found[key] == direct[key]
    assert (found["rows_inserted"], found["rows_updated"]) == ("2", "1")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_events_of_rows(lake, other, mode):
    @dg.asset(metadata={"lance/write_mode": mode, "partition_expr": "part"}, partitions_def=PARTS)
    def people(context) -> pa.Table:
        return pa.table({"id": [1, 2, 3], "part": [context.partition_key] * 3})

    for one in (lake, other):
        one.run(people, partition="x")
    assert_equal(lake, other, [people], people, partition="x", expected={})


def test_events_of_changes(lake, other):
    @dg.asset(metadata={"lance/stable_row_ids": True})
    def people() -> pa.Table:
        return pa.table({"id": [1, 2, 3]})

    @dg.asset(
        ins={"people": dg.AssetIn(metadata={"lance/changes": "since_last_run"})},
        metadata={"lance/write_mode": "append"},
    )
    def counted(people: pa.Table) -> pa.Table:
        return people.select(["id"])

    for one in (lake, other):
        one.run(people, counted)
        one.table("people").insert(pa.table({"id": [4]}))
    assert_equal(lake, other, [people, counted], counted, expected={"changes_inserted": "1"})


def test_events_of_several_runs_have_the_numbers_of_the_commit(lake):
    @dg.asset(metadata={"lance/write_mode": "append", "partition_expr": "part"}, partitions_def=PARTS)
    def people(context) -> pa.Table:
        return pa.table({"id": [1, 2, 3], "part": [context.partition_key] * 3})

    lake.run(people, partition="x")
    for _ in range(2):
        lake.run(people, partition="x", **ON_BRANCH)
    made, _ = promoted(lake, "work", people)
    entries = made["people", "x"]
    assert (entries["lance/rows_written"], entries["dagster/partition_row_count"]) == (6, 9)


def undo(lake, asset, run_id):
    defs = dg.Definitions([asset], jobs=[build_undo_job([asset])], resources={"io_manager": lake.manager()})
    return defs.resolve_job_def("lance_undo").execute_in_process(
        instance=lake.instance, tags={"lance/undo_run": run_id}, raise_on_error=False
    )


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("change", ["insert", "delete", "update"])
def test_partitions_that_others_changed_on_the_branch_have_events(lake, library, change):
    """Of a fragment with rows of three partitions one is changed; its undo has events of the same partitions."""
    parts = dg.StaticPartitionsDefinition(["x", "y", "z"])

    @dg.asset(metadata={"partition_expr": "part"}, partitions_def=parts)
    def people(context) -> pa.Table:
        keys = list(context.partition_keys)
        return pa.table({"part": keys, "n": [int(context.run.tags.get("n", 0))] * len(keys)})

    def states():
        found = read_recorded_states(lake.instance, people.key, ["x", "y", "z"], None)
        return {partition: state.version for partition, state in found.items()}

    lake.run(people, span=("x", "z"))
    lake.table("people").optimize.compact_files()
    begin = states()
    lake.run(people, partition="x", **{**ON_BRANCH, "tags": {"lance/branch": "work", "n": "1"}})
    table = library.dataset(lake.uri("people")).checkout_version(("work", None))
    if change == "insert":
        table.insert(pa.table({"part": ["y"], "n": pa.array([7])}))
    elif change == "delete":
        table.delete("part = 'y'")
    else:
        table.update({"n": "7"}, where="part = 'y'")
    assert states() == begin
    made, _ = promoted(lake, "work", people)
    assert set(made) == {("people", "x"), ("people", "y")}
    entries = made["people", "y"]
    rows = {"insert": 2, "delete": 0, "update": 1}[change]
    assert (entries["dagster/partition_row_count"], entries["lance/foreign_branch_versions"]) == (rows, "5")
    promotion = lake.table("people").version
    assert states() == {"x": promotion, "y": promotion, "z": begin["z"]}
    assert undo(lake, people, lake.properties("people")[-1]["dagster.promotion_run_id"]).success
    assert lake.rows("people") == [("x", 0), ("y", 0), ("z", 0)]
    assert states() == {"x": promotion + 1, "y": promotion + 1, "z": begin["z"]}


def test_a_promotion_of_changes_of_others_is_not_undone_below_later_writes(lake):
    """A later run may have replaced rows of any partition that the others changed."""

    @dg.asset(metadata={"partition_expr": "part"}, partitions_def=dg.StaticPartitionsDefinition(["x", "y", "z"]))
    def people(context) -> pa.Table:
        return pa.table({"part": [context.partition_key], "n": [int(context.run.tags.get("n", 0))]})

    for key in "xyz":
        lake.run(people, partition=key)
    lake.run(people, partition="x", **{**ON_BRANCH, "tags": {"lance/branch": "work", "n": "1"}})
    lake.table("people").checkout_version(("work", None)).insert(pa.table({"part": ["y"], "n": pa.array([7])}))
    promoted(lake, "work", people)
    run_id = lake.properties("people")[-1]["dagster.promotion_run_id"]
    lake.run(people, partition="z")
    before = lake.rows("people")
    undone = undo(lake, people, run_id)
    assert not undone.success
    (failure,) = [event.event_specific_data.error for event in undone.all_events if event.is_step_failure]
    assert "it promoted changes of others, perhaps to any partition; undo the later runs first" in str(failure)
    assert lake.rows("people") == before

"""A backfill of a column on a branch, its promotion, and the undo of a run that set columns."""

import json
from pathlib import Path

import dagster as dg
import lance as pylance
import pyarrow as pa
import pytest

import lance_core
from lance_dagster import BranchPolicy, build_undo_job
from lance_dagster.lineage.history import owner_of
from tests.lance_dagster.lake import QUIET, errors
from tests.support.column_assets import assert_vectors, cells, day_of, embeddings_asset, ids_of, images_asset, promoted

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


def test_rows_and_two_new_columns_on_a_fresh_branch(lake):
    """Materialized together, where main has no table, and later where it has one with the partition's rows."""
    images, embeddings, labels = images_asset(), embeddings_asset(), labels_asset()
    lake.run(images, embeddings, labels, partition="2024-01-01", **ON_BRANCH)
    main = lake.table("images")
    assert (main.count_rows(), main.schema.names) == (0, ["id", "day", "blob"])
    version = main.version
    done = main.branches.promote("vectors")
    assert (done.version, done.columns_added) == (version + 1, ("vector", "label"))
    assert_vectors(lake, "2024-01-01")
    assert pylance_cells(lake, "label") == dict.fromkeys(ids_of("2024-01-01"), "x")
    assert sorted(owner_of(lake.table("images")).assets) == ["embeddings", "images", "labels"]
    again = {**ON_BRANCH, "tags": {"lance/branch": "again"}}
    scores = embeddings_asset(lambda _, t: t.append_column("score", [t["id"]]), name="scores")
    lake.run(images, embeddings, scores, partition="2024-01-01", **again)
    lake.run(images, partition="2024-01-02")
    lake.table("images").branches.promote("again")
    assert_vectors(lake, "2024-01-01")
    known = {i: i if i in ids_of("2024-01-01") else None for i in cells(lake)}
    assert pylance_cells(lake, "score") == known
    assert pylance_cells(lake, "label") == dict.fromkeys(known)  # the rows are new
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-02")
    assert_vectors(lake, "2024-01-01", "2024-01-02")


def test_a_promotion_materializes_the_assets_that_wrote_to_the_branch(lake):
    images, embeddings, labels = images_asset(), embeddings_asset(), labels_asset()
    lake.run(images, partition="2024-01-01")
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", **ON_BRANCH)
    made, observed = promoted(lake, "vectors", images, embeddings, labels)
    assert list(made) == [("embeddings", "2024-01-01")]
    assert observed >= {"images", "labels"}
    again, _ = promoted(lake, "vectors", images, embeddings, labels)
    assert again == {}
    on = {**ON_BRANCH, "tags": {"lance/branch": "words"}}
    lake.run(images, labels, select=[labels], partition="2024-01-01", **on)
    made, observed = promoted(lake, "words", images, embeddings, labels)
    assert list(made) == [("labels", "2024-01-01")]
    assert observed >= {"images", "embeddings"}


def test_a_promotion_reports_the_operation_that_it_made(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, partition="2024-01-01")
    lake.run(images, partition="2024-01-02", **ON_BRANCH)
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", **ON_BRANCH)
    made, _ = promoted(lake, "vectors", images, embeddings, labels_asset())
    assert {key: entries["lance/commit"]["operation"] for key, entries in made.items()} == {
        ("images", "2024-01-02"): "Merge",
        ("embeddings", "2024-01-01"): "Merge",
    }
    table = lake.table("images")
    assert table.read_transaction(table.version).operation.name == "Merge"


def test_a_column_of_a_branch_that_was_forked_for_rows(lake):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, partition="2024-01-01")
    lake.run(images, partition="2024-01-02", **ON_BRANCH)
    run = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01", **ON_BRANCH)
    lake.table("images").branches.promote("vectors")
    assert_vectors(lake, "2024-01-01")
    assert sorted(owner_of(lake.table("images")).assets) == ["embeddings", "images"]
    found = errors(undo(lake, run.run_id, fails=True))
    assert "is the promotion of a branch to which 2 runs wrote" in found


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


def labels_asset(value="x"):
    return embeddings_asset(lambda _, t: t.append_column("label", [[value] * len(t)]), name="labels")


def doubled_vectors():
    return embeddings_asset(lambda _, t: t.append_column("vector", [[[0.0] * 8] * len(t)]))


def pylance_cells(lake, name):
    rows = pylance.dataset(lake.uri("images")).to_table(columns=["id", name]).to_pylist()
    return {row["id"]: row[name] for row in rows}


STABLE = pytest.mark.parametrize("stable", [False, True])


def images_of(stable):
    return images_asset(**({"lance/stable_row_ids": True} if stable else {}))


@STABLE
def test_the_undo_of_columns_leaves_those_of_another_asset(lake, stable):
    """Others have set other columns of the partition, have appended to it, and have deleted rows of it."""
    images, embeddings = images_of(stable), embeddings_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    for day in ("2024-01-01", "2024-01-02"):
        lake.run(images, embeddings, select=[embeddings], partition=day)
    before = cells(lake)
    run = lake.run(images, doubled_vectors(), select=[doubled_vectors()], partition="2024-01-01")
    lake.run(images, labels_asset(), select=[labels_asset()], span=("2024-01-01", "2024-01-02"))
    table = lake.table("images")
    table.delete("id = 1003")
    table.insert(pa.table({"id": [5], "day": pa.array([day_of("2024-01-01")])}))
    files = {path.name for path in (Path(lake.uri("images")) / "data").iterdir()}
    undo(lake, run.run_id)
    assert {path.name for path in (Path(lake.uri("images")) / "data").iterdir()} == files
    expected = {i: value for i, value in before.items() if i != 1003} | {5: None}
    assert cells(lake) == pylance_cells(lake, "vector") == expected
    assert pylance_cells(lake, "label") == {i: None if i == 5 else "x" for i in expected}
    made = lake.properties("images")[-1]
    assert json.loads(made["dagster.columns"]) == ["vector"]
    assert made["dagster.asset_key"] == "embeddings"
    if stable:
        table = lake.table("images")
        found = table.delta(table.version - 1).get_updated_rows().read_all()["id"].to_pylist()
        assert sorted(found) == [i for i in ids_of("2024-01-01") if i != 1003]


@STABLE
def test_the_undo_of_two_columns_of_one_partition_in_any_order(lake, stable):
    images, embeddings, labels = images_of(stable), embeddings_asset(), labels_asset()
    lake.run(images, embeddings, labels, partition="2024-01-01")
    before = lake.table("images").to_table().to_pylist()
    first = lake.run(images, doubled_vectors(), select=[doubled_vectors()], partition="2024-01-01")
    second = lake.run(images, labels_asset("y"), select=[labels_asset("y")], partition="2024-01-01")
    undo(lake, first.run_id)
    assert pylance_cells(lake, "label") == dict.fromkeys(ids_of("2024-01-01"), "y")
    undo(lake, second.run_id)
    assert lake.table("images").to_table().to_pylist() == before


@pytest.mark.parametrize(("days", "lost"), [(1, ["vector_idx"]), (2, None)])
def test_the_undo_of_columns_names_the_indices_without_rows(lake, days, lost):
    images, embeddings = images_asset(), embeddings_asset()
    for day in ["2024-01-01", "2024-01-02"][:days]:
        lake.run(images, embeddings, partition=day)
    run = lake.run(images, doubled_vectors(), select=[doubled_vectors()], partition="2024-01-01")
    table = pylance.dataset(lake.uri("images"))
    table.create_index("vector", "IVF_FLAT", num_partitions=1)
    table.create_scalar_index("id", "BTREE")
    result = undo(lake, run.run_id)
    metadata = lake.instance.get_latest_materialization_event(embeddings.key).asset_materialization.metadata
    assert metadata["lance/commit"].value.get("indices_lost") == lost
    warnings = [each.user_message for each in lake.instance.all_logs(result.run_id) if each.level == 30]
    assert [f"so that indices {lost[0]} cover no row" in each for each in warnings] == [True] if lost else not warnings
    covered = {index.name: index.num_rows_indexed for index in lake.table("images").describe_indices()}
    assert not covered.get("vector_idx") if lost else covered["vector_idx"]
    assert covered["id_idx"] == lake.table("images").count_rows()


def test_the_undo_of_the_run_that_added_the_column_drops_it(lake):
    images, embeddings, labels = images_asset(), embeddings_asset(), labels_asset()
    lake.run(images, partition="2024-01-01")
    run = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    lake.run(images, labels, select=[labels], partition="2024-01-01")
    undo(lake, run.run_id)
    assert lake.table("images").schema.names == ["id", "day", "blob", "label"]
    assert pylance_cells(lake, "label") == dict.fromkeys(ids_of("2024-01-01"), "x")
    lake.run(images, partition="2024-01-02")
    lake.run(images, embeddings, select=[embeddings], span=("2024-01-01", "2024-01-02"))
    assert_vectors(lake, "2024-01-01", "2024-01-02")


@STABLE
def test_a_column_that_another_partition_has_meanwhile_stays(lake, stable):
    images, embeddings = images_of(stable), embeddings_asset()
    lake.run(images, span=("2024-01-01", "2024-01-02"))
    run = lake.run(images, embeddings, select=[embeddings], partition="2024-01-01")
    lake.run(images, embeddings, select=[embeddings], partition="2024-01-02")
    undo(lake, run.run_id)
    assert_vectors(lake, "2024-01-02")
    if stable:
        table = lake.table("images")
        found = table.delta(table.version - 1).get_updated_rows().read_all()["id"].to_pylist()
        assert sorted(found) == ids_of("2024-01-01")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda lake, images: lake.run(
                images, embeddings_asset(), select=[embeddings_asset()], partition="2024-01-01"
            ),
            "changed since",
        ),
        (lambda lake, images: lake.run(images, partition="2024-01-01"), "changed since"),
        (lambda lake, _: lake.table("images").drop_columns(["vector"]), "have changed"),
        (lambda lake, _: lake.table("images").update({"vector": "vector"}, "id = 1004"), "may have moved rows"),
    ],
)
def test_an_undo_of_columns_that_is_not_exact_is_rejected(lake, change, message):
    images, embeddings = images_asset(), embeddings_asset()
    lake.run(images, embeddings, partition="2024-01-01")
    run = lake.run(images, doubled_vectors(), select=[doubled_vectors()], partition="2024-01-01")
    change(lake, images)
    version = lake.table("images").version
    assert message in errors(undo(lake, run.run_id, fails=True))
    assert lake.table("images").version == version


def both_columns():
    """An asset that sets the column that it has, and adds another one."""
    return embeddings_asset(
        lambda _, t: t.append_column("vector", [[[0.0] * 8] * len(t)]).append_column("norm", [[0.5] * len(t)])
    )


@STABLE
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_undo_of_a_run_that_set_a_column_and_added_another(lake, stable, elsewhere):
    """Its cells are as they were, and the column goes, or is null where another partition has it."""
    images, embeddings = images_of(stable), embeddings_asset()
    lake.run(images, embeddings, span=("2024-01-01", "2024-01-02"))
    before = lake.table("images").to_table().sort_by("id").to_pylist()
    run = lake.run(images, both_columns(), select=[both_columns()], partition="2024-01-01")
    if elsewhere:
        lake.run(images, both_columns(), select=[both_columns()], partition="2024-01-02")
    lake.table("images").insert({"id": [5], "day": pa.array([day_of("2024-01-03")])})
    undo(lake, run.run_id)
    read = pylance.dataset(lake.uri("images"))
    read.validate()
    assert read.schema.names == ["id", "day", "blob", "vector", *(["norm"] if elsewhere else [])]
    table = lake.table("images")
    days = ("2024-01-01",) if elsewhere else ("2024-01-01", "2024-01-02")
    known = {i for day in days for i in ids_of(day)}
    found = [row for row in table.to_table().sort_by("id").to_pylist() if row["id"] in known]
    assert all(row.pop("norm", None) is None for row in found)
    assert found == [row for row in before if row["id"] in known]
    assert read.to_table().sort_by("id").to_pylist() == table.to_table().sort_by("id").to_pylist()
    assert json.loads(lake.properties("images")[-1]["dagster.columns"]) == ["norm", "vector"]
    if stable:
        changed = table.delta(table.version - 1).get_updated_rows().read_all()["id"].to_pylist()
        assert sorted(changed) == ids_of("2024-01-01")
    lake.run(images, both_columns(), select=[both_columns()], partition="2024-01-01")
    assert set(pylance_cells(lake, "norm").values()) == {0.5, None}

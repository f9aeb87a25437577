"""A promotion brings the indices of main: search finds the rows of the branch as a comparison with all rows would."""

from dataclasses import replace
from pathlib import Path

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_core.errors import StoreError
from lance_core.maintenance.search import cover
from lance_dagster import BranchPolicy, build_branch_jobs
from tests.lance_dagster.lake import QUIET, Lake, errors

pytestmark = pytest.mark.usefixtures("local_children")

DIMENSIONS = 8
POLICY = {"branching": BranchPolicy.from_tag("lance/branch")}
BRANCH = {"lance/branch": "work"}
INDICES = {"embedding": "IVF_FLAT", "body": "FTS", "id": "BTREE"}


def rows(first, count):
    vectors = np.random.default_rng(first).random((count, DIMENSIONS), np.float32)
    return pa.table({
        "id": range(first, first + count),
        "body": [f"word{number} of all" for number in range(first, first + count)],
        "embedding": pa.FixedSizeListArray.from_arrays(vectors.ravel(), DIMENSIONS),
    })  # fmt: skip


@dg.asset(metadata={"lance/write_mode": "append"})
def notes(context) -> pa.Table:
    return rows(int(context.run.tags.get("first", 0)), int(context.run.tags.get("count", 300)))


@dg.asset(metadata={"lance/write_mode": "append", "lance/maintenance": {"require_search": True}})
def strict(context) -> pa.Table:
    return rows(int(context.run.tags.get("first", 0)), int(context.run.tags.get("count", 300)))


def promote(lake: Lake, asset=notes, *, fails=False):
    job, _ = build_branch_jobs([asset])
    defs = dg.Definitions(assets=[asset], jobs=[job], resources={"io_manager": lake.manager(**POLICY)})
    result = defs.resolve_job_def(job.name).execute_in_process(
        instance=lake.instance, tags=BRANCH, run_config=QUIET, raise_on_error=False
    )
    assert result.success is not fails, errors(result)
    return result


@pytest.fixture
def indexed(lake):
    """A table of 300 rows with three indices, and a branch with 30 more."""
    lake.run(notes)
    table = lance_core.dataset(f"{lake.root}/public/notes.lance")
    maintenance.maintain(table, maintenance.MaintenancePolicy(indices=INDICES))
    lake.run(notes, tags={**BRANCH, "first": "300", "count": "30"}, **POLICY)
    return lake, f"{lake.root}/public/notes.lance"


def unindexed(uri):
    return {index.name: 1 - index.covered for index in maintenance.describe_index_health(lance_core.dataset(uri))}


def test_search_finds_the_rows_of_a_branch(indexed):
    lake, uri = indexed
    before = lance_core.dataset(uri)
    before.insert(rows(500, 5))  # main moves
    result = promote(lake)
    (event,) = [event.materialization for event in result.all_events if event.is_step_materialization]
    latest = lance_core.dataset(uri)
    assert latest.version == event.metadata["lance/version"].value + 2 == before.version + 3
    assert set(event.metadata["lance/indices_covered"].value.split(", ")) == {"embedding_idx", "body_idx", "id_idx"}
    assert unindexed(uri) == {"embedding_idx": 0.0, "body_idx": 0.0, "id_idx": 0.0}
    table = lance.dataset(uri)
    for number in (3, 310, 329, 502):
        found = table.to_table(columns=["id"], full_text_query=f"word{number}", fast_search=True)
        assert found["id"].to_pylist() == [number]
        query = table.to_table(columns=["embedding"], filter=f"id = {number}")["embedding"][0].values.to_numpy()
        nearest = {"column": "embedding", "q": query, "k": 5, "nprobes": 50}
        near = table.to_table(columns=["id"], nearest=nearest, fast_search=True)["id"].to_pylist()
        exact = table.to_table(columns=["id"], nearest={**nearest, "use_index": False})["id"].to_pylist()
        assert near == exact


def test_rows_that_were_set_again_are_found_by_their_new_words(indexed):
    lake, uri = indexed
    branch = lance_core.dataset(uri).checkout_version(("work", None))
    branch.update({"body": "'changed ' || body", "id": "id + 1000"}, "id < 20")
    branch.update({"body": "'renamed'"}, "id = 25")
    promote(lake)
    table = lance.dataset(uri)
    for word, ids in (("word25", []), ("renamed", [25]), ("word3", [1003]), ("word310", [310])):
        assert table.to_table(columns=["id"], full_text_query=word, fast_search=True)["id"].to_pylist() == ids
    for library in (lance, lance_core):
        assert library.dataset(uri).to_table(columns=["id"], filter="id = 3").num_rows == 0
        assert library.dataset(uri).to_table(columns=["id"], filter="id = 1003").num_rows == 1
    assert set(unindexed(uri).values()) == {0.0}


def test_an_index_that_a_promotion_drops_is_named(lake):
    @dg.asset(name="notes", metadata={"lance/write_mode": "overwrite"})
    def replaced() -> pa.Table:
        return rows(1000, 300)

    lake.run(notes)
    table = lance_core.dataset(f"{lake.root}/public/notes.lance")
    maintenance.maintain(table, maintenance.MaintenancePolicy(indices={"embedding": "IVF_FLAT"}))
    lake.run(replaced, tags=BRANCH, **POLICY)
    result = promote(lake, replaced)
    assert lance.dataset(table.uri).describe_indices() == []
    (event,) = [each.materialization for each in result.all_events if each.is_step_materialization]
    assert event.metadata["lance/indices_not_covered"].value == "embedding_idx"


def test_a_promotion_again_makes_no_version(indexed):
    lake, uri = indexed
    promote(lake)
    table = lance_core.dataset(uri)
    table.drop_index("embedding_idx")
    promote(lake)
    with dg.DagsterInstance.ephemeral() as instance:  # which does not know of the first event
        result = promote(replace(lake, instance=instance))
    assert lance_core.dataset(uri).version == table.version
    (event,) = [each.materialization for each in result.all_events if each.is_step_materialization]
    assert "lance/indices_not_covered" not in event.metadata  # the promotion did not drop the index


def test_an_index_that_was_not_covered_is_covered_by_the_next_promotion(indexed, monkeypatch):
    """The process of the first one ends between its two commits."""
    lake, uri = indexed

    def end(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(maintenance, "cover_rows", end)
    job, _ = build_branch_jobs([notes])
    defs = dg.Definitions(assets=[notes], jobs=[job], resources={"io_manager": lake.manager(**POLICY)})
    with pytest.raises((KeyboardInterrupt, dg.DagsterExecutionInterruptedError)):
        defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, tags=BRANCH, run_config=QUIET)
    assert set(unindexed(uri).values()) != {0.0}
    monkeypatch.undo()
    promote(lake)
    assert set(unindexed(uri).values()) == {0.0}


def test_one_corrupt_index_costs_itself(indexed):
    lake, uri = indexed
    (index,) = (each for each in lance_core.dataset(uri).list_indices() if each["name"] == "embedding_idx")
    for file in Path(uri, "_indices", str(index["uuid"])).iterdir():
        file.write_bytes(b"broken")
    result = promote(lake)
    (event,) = [event.materialization for event in result.all_events if event.is_step_materialization]
    assert event.metadata["lance/indices_not_covered"].value == "embedding_idx"
    left = unindexed(uri)
    assert left.pop("embedding_idx") > 0
    assert set(left.values()) == {0.0}


def test_a_failure_of_the_storage_after_the_commit_is_reported_with_it(indexed, monkeypatch):
    """The branch is promoted: the run must not say that it was not."""
    lake, uri = indexed

    def fail(*_, **__):
        raise StoreError("the storage does not answer")

    monkeypatch.setattr(maintenance, "cover_rows", fail)
    result = promote(lake)
    (event,) = [event.materialization for event in result.all_events if event.is_step_materialization]
    assert event.metadata["lance/indices_not_covered"].value == "body_idx, embedding_idx, id_idx"
    assert event.metadata["lance/version"].value == lance_core.dataset(uri).version


def test_a_zone_map_that_fails_beside_others_is_named(indexed, monkeypatch):
    _, uri = indexed
    table = lance_core.dataset(uri)
    table.create_scalar_index("id", "ZONEMAP", name="zones")
    table.insert(rows(700, 5))

    def fail(*_, **__):
        raise StoreError("the storage does not answer")

    monkeypatch.setattr(cover, "optimize_indices", fail)
    coverage = maintenance.cover_rows(table)
    assert set(coverage.covered) == {"embedding_idx", "body_idx"}
    assert set(coverage.problems) == {"id_idx", "zones"}


def test_without_pylance_scalar_indices_are_covered(indexed, monkeypatch):
    lake, _ = indexed
    monkeypatch.setattr(cover, "find_pylance", lambda: None)
    result = promote(lake)
    (event,) = [event.materialization for event in result.all_events if event.is_step_materialization]
    assert event.metadata["lance/indices_covered"].value == "id_idx"
    assert event.metadata["lance/indices_not_covered"].value == "body_idx, embedding_idx"


def test_search_is_required(lake, monkeypatch):
    lake.run(strict)
    uri = f"{lake.root}/public/strict.lance"
    maintenance.maintain(lance_core.dataset(uri), maintenance.MaintenancePolicy(indices=INDICES))
    lake.run(strict, tags={**BRANCH, "first": "300", "count": "30"}, **POLICY)
    version = lance_core.dataset(uri).version
    monkeypatch.setattr(cover, "find_pylance", lambda: None)
    assert "pip install 'lance-dagster[search]'" in errors(promote(lake, strict, fails=True))
    assert lance_core.dataset(uri).version == version

"""Indices whose entries follow the fragment reuse index: graphs that pylance cannot search, and stable row ids."""

from datetime import timedelta

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, cover_rows, describe_index_health, maintain
from lance_core.table.reuse import DEFER_KEY

pytestmark = pytest.mark.usefixtures("local_children")

VECTORS = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
WORDS = {"body": {"kind": "FTS", "stem": False}}


def write(place, **options):
    rows = {
        "id": range(600),
        "body": [f"word{i} topic{i % 7}" for i in range(600)],
        "v": pa.FixedSizeListArray.from_arrays(VECTORS.ravel(), 16),
    }
    return lance_core.write_dataset(pa.table(rows), place, max_rows_per_file=100, **options)


def check(table, *, words=True):
    """Search finds each row once, by its vector and by its words."""
    theirs = pylance.dataset(table.uri)
    kept = sorted(theirs.to_table(columns=["id"])["id"].to_pylist())
    nearest = {"column": "v", "q": VECTORS[5], "k": 1000, "nprobes": 10, "ef": 2000, "refine_factor": 1}
    hits = theirs.to_table(columns=["id", "_distance"], nearest=nearest).to_pylist()
    assert sorted(hit["id"] for hit in hits) == kept
    for hit in hits:
        assert hit["_distance"] == pytest.approx(((VECTORS[hit["id"]] - VECTORS[5]) ** 2).sum(), rel=1e-3)
    if not words:
        return
    hits = theirs.to_table(columns=["id", "_score"], full_text_query="topic3", limit=1000)
    assert sorted(hits["id"].to_pylist()) == [i for i in kept if i % 7 == 3]


@pytest.fixture(params=["IVF_HNSW_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ"])
def policy(request):
    return MaintenancePolicy(indices={"v": {"kind": request.param, "num_partitions": 2}, **WORDS})


def break_graph(table, policy):
    """A compaction by this library lets pylance's next one record moves, which leave out what was deleted meanwhile."""
    maintain(table, MaintenancePolicy(indices=policy.indices, target_rows_per_fragment=100))
    maintain(table, policy)
    check(table)
    pylance.dataset(table.uri).delete("id % 9 = 1")
    pylance.dataset(table.uri).optimize.compact_files()
    with pytest.raises(Exception, match="HNSW graph"):
        check(table)
    table.checkout_latest()


@pytest.mark.variants(1)
def test_maintenance_builds_broken_graphs_again(tmp_path, policy):
    table = write(tmp_path / "t.lance")
    break_graph(table, policy)
    assert {index.name: index.covered for index in describe_index_health(table)} == {"v_idx": 0.0, "body_idx": 1.0}
    report = maintain(table, policy)
    assert [each["action"] for each in report.indices] == ["rebuild", "measure"]
    assert "pylance cannot search it" in report.indices[0]["reason"]
    check(table)
    assert maintain(table, policy).outcome == "healthy"


@pytest.mark.variants(1)
def test_broken_graphs_that_nobody_declares_are_trained_again(tmp_path, policy):
    table = write(tmp_path / "t.lance")
    break_graph(table, policy)
    assert maintain(table, MaintenancePolicy()).done["indices_refreshed"] == 1
    check(table)
    assert maintain(table, MaintenancePolicy()).outcome == "healthy"


@pytest.mark.variants(1)
def test_rows_are_covered_where_a_graph_is_broken(tmp_path, policy):
    table = write(tmp_path / "t.lance")
    break_graph(table, policy)
    assert cover_rows(table).covered == ("v_idx",)
    check(table)
    assert cover_rows(table).covered == ()


@pytest.mark.variants(2)
@pytest.mark.parametrize("lance", [lance_core, pylance])
@pytest.mark.parametrize("changed", [200, 500])
def test_graphs_have_entries_of_fragments_whose_vectors_were_set_again(tmp_path, changed, lance):
    """The index covers such a fragment no more, be it the last one; its graph has the entries of all its rows."""
    policy = MaintenancePolicy(indices={"v": {"kind": "IVF_HNSW_SQ", "num_partitions": 2}, **WORDS})
    table = write(tmp_path / "t.lance")
    maintain(table, MaintenancePolicy(indices=policy.indices, target_rows_per_fragment=100))
    table.update_config({DEFER_KEY: "true"})
    vectors = pa.FixedSizeListArray.from_arrays(VECTORS[changed : changed + 1].ravel(), 16)
    table.write_columns(pa.table({"id": [changed], "v": vectors}), "id", missing="keep")
    table.delete(f"id > {changed} AND id < {changed + 40}")
    lance.dataset(table.uri).optimize.compact_files(target_rows_per_fragment=100)
    cover_rows(table)
    check(table)


@pytest.mark.variants(1)
def test_graphs_of_rows_that_are_all_there_stay(tmp_path, policy):
    table = write(tmp_path / "t.lance")
    table.delete("id % 9 = 1")
    maintain(table, MaintenancePolicy(indices=policy.indices, target_rows_per_fragment=100))
    maintain(table, policy)
    check(table)
    assert maintain(table, policy).outcome == "healthy"


@pytest.mark.variants(2)
@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize(
    ("kind", "words"), [("IVF_FLAT", "FTS"), ("IVF_HNSW_SQ", "FTS"), ("IVF_PQ", "NGRAM"), ("IVF_RQ", "NGRAM")]
)
def test_a_table_gets_stable_row_ids_after_its_moves_were_recorded(tmp_path, kind, words, is_declared):
    table = write(tmp_path / "t.lance")
    indices = {"v": {"kind": kind, "num_partitions": 2}, "body": words, "id": "BTREE"}
    maintain(table, MaintenancePolicy(indices=indices, target_rows_per_fragment=100))
    table.delete("id % 9 = 1 AND id < 300")
    table.optimize.compact_files()
    declared = {"indices": indices} if is_declared else {}
    report = maintain(table, MaintenancePolicy(stable_row_ids=True, **declared))
    assert (report.outcome, report.done["row_ids_migrated"]) == ("done", 1)
    assert table.has_stable_row_ids
    check(table, words=words == "FTS")
    contains = "contains(body, 'topic3')"
    assert pylance.dataset(table.uri).count_rows(contains) == table.count_rows(contains)
    assert maintain(table, MaintenancePolicy(**declared)).outcome == "healthy"


def test_indices_that_cannot_be_built_again_cost_the_row_ids_alone(tmp_path):
    table = write(tmp_path / "t.lance")
    indices = {"v": {"kind": "IVF_FLAT", "num_partitions": 2}}
    maintain(table, MaintenancePolicy(indices=indices, target_rows_per_fragment=100))
    table.optimize.compact_files()
    table.insert(table.to_table(limit=10))
    report = maintain(table, MaintenancePolicy(stable_row_ids=True, index_timeout=timedelta(milliseconds=1)))
    assert report.outcome == "partly done"
    assert "index 'v_idx': to rebuild it failed: it took longer" in report.reason
    assert "cannot be rebuilt here: ['v_idx']" in report.reason
    assert not table.has_stable_row_ids
    assert maintain(table, MaintenancePolicy(stable_row_ids=True)).done["row_ids_migrated"] == 1
    assert table.has_stable_row_ids

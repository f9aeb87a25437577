"""Vector and full-text search after maintenance jobs: indices cover what they covered, and with pylance all rows."""

import sys

import dagster as dg
import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_dagster import LanceMaintenancePolicy, build_maintenance_job
from tests.lance_dagster.lake import QUIET

pytestmark = pytest.mark.usefixtures("local_children")

POLICY = LanceMaintenancePolicy(cleanup_older_than=None)


def rows(start, count=300):
    vectors = np.random.default_rng(start).random((count, 4), np.float32)
    return pa.table({
        "id": range(start, start + count),
        "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 4),
        "text": [f"word{i % 5} here" for i in range(count)],
    })  # fmt: skip


@dg.asset
def docs() -> None: ...


@pytest.fixture
def uri(lake):
    uri = lake.uri("docs")
    for i in range(6):
        lance.write_dataset(rows(i * 300), uri, mode="append" if i else "create")
    dataset = lance.dataset(uri)
    dataset.create_index("vector", "IVF_FLAT", num_partitions=2, name="v")
    dataset.create_scalar_index("text", "INVERTED", name="t")
    return uri


def maintain(lake, policy=POLICY):
    job = build_maintenance_job([docs], policy)
    defs = dg.Definitions(assets=[docs], jobs=[job], resources={"io_manager": lake.manager()})
    result = defs.resolve_job_def(job.name).execute_in_process(instance=lake.instance, run_config=QUIET)
    assert result.success
    return result


def unindexed(uri):
    return {name: lance.dataset(uri).stats.index_stats(name)["num_unindexed_rows"] for name in ("v", "t")}


def check(uri):
    dataset = lance.dataset(uri)
    words = dataset.to_table(columns=["id"], full_text_query="word3", limit=10_000).num_rows
    assert words == dataset.count_rows("text = 'word3 here'")
    table = dataset.to_table(columns=["id", "vector"])
    query = np.full(4, 0.5, np.float32)
    order = np.argsort(((np.stack(table["vector"].to_numpy(zero_copy_only=False)) - query) ** 2).sum(axis=1))
    found = dataset.to_table(columns=["id"], nearest={"column": "vector", "q": query, "k": 10, "nprobes": 2})
    assert found["id"].to_pylist() == np.array(table["id"])[order[:10]].tolist()


def without_pylance(monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)


@pytest.mark.parametrize("installed", [True, False])
def test_a_job_takes_no_search_away(lake, uri, monkeypatch, installed):
    with monkeypatch.context() as patch:
        if not installed:
            without_pylance(patch)
        maintain(lake)
    assert len(lake.table("docs").get_fragments()) == 1
    assert unindexed(uri) == {"v": 0, "t": 0}
    check(uri)


def test_with_pylance_indices_are_extended_and_without_it_rows_are_counted(lake, uri, monkeypatch):
    lance.write_dataset(rows(9000, 100), uri, mode="append")
    with monkeypatch.context() as patch:
        without_pylance(patch)
        result = maintain(lake)
        assert unindexed(uri) == {"v": 100, "t": 100}
        (event,) = result.get_asset_observation_events()
        entries = event.asset_observation_data.asset_observation.metadata
        assert entries["lance/index_unindexed_fraction"].value == pytest.approx(100 / 1900)
        assert entries["lance/indices_not_refreshed"].value == 2
    maintain(lake)
    assert unindexed(uri) == {"v": 0, "t": 0}
    check(uri)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("indices", ["t", "vt"])
def test_one_run_merges_what_an_index_covers_with_what_it_missed(lake, indices, stable):
    uri = lake.uri("docs")
    for i in range(6):
        lance.write_dataset(rows(i * 300), uri, mode="append", enable_stable_row_ids=stable)
    lance.dataset(uri).create_scalar_index("text", "INVERTED", name="t")
    if "v" in indices:
        lance.dataset(uri).create_index("vector", "IVF_FLAT", num_partitions=2, name="v")
    for i in range(3):
        lance.write_dataset(rows(9000 + i * 100, 100), uri, mode="append")
    lance.dataset(uri).delete("id % 7 = 0")
    expected = lance.dataset(uri).count_rows()
    first = maintain(lake)
    table = lake.table("docs")
    found = {index.name: index.num_rows_indexed for index in table.describe_indices() if index.name in ("t", "v")}
    assert found == dict.fromkeys(indices, expected)
    # pylance adds a segment to an index of vectors, unless it joins partitions; no fragment can be in two segments.
    assert len(table.get_fragments()) <= len(indices)
    words = lance.dataset(uri).to_table(columns=["id"], full_text_query="word3", limit=10_000).num_rows
    assert words == table.count_rows("text = 'word3 here'")
    if "v" in indices:
        check(uri)
    (event,) = first.get_asset_observation_events()
    entries = event.asset_observation_data.asset_observation.metadata
    assert entries["lance/maintenance"].value == "done"
    assert entries["lance/indices_refreshed"].value == len(indices)
    maintain(lake)
    assert lance.dataset(uri).version == table.version

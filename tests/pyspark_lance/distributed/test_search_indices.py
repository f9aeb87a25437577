"""Declared indices of vectors and text, built in parts on executors; pylance searches and extends them."""

import os
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import IndexBuilder, MaintenancePolicy, describe_index_health, maintain
from lance_core.maintenance.search import parts
from lance_core.maintenance.search.parts import divide
from pyspark_lance import executor_index_builder

ROWS, DIMENSIONS = 24_000, 8
KEPT = {"cleanup_older_than": None, "target_rows_per_fragment": 6_000}


def notes(start=0, count=ROWS):
    values = np.random.default_rng(start).random((count, DIMENSIONS), np.float32)
    words = [f"note{i} of topic{i % 9}" for i in range(start, start + count)]
    vectors = pa.FixedSizeListArray.from_arrays(values.ravel(), DIMENSIONS)
    return pa.table({"id": range(start, start + count), "v": vectors, "t": words})


@pytest.fixture
def table(tmp_path):
    return lance_core.write_dataset(notes(), str(tmp_path / "t.lance"), max_rows_per_file=6_000)


def segments(table):
    """The fragments of the segments, by index."""
    indices = lance.dataset(table.uri).describe_indices()
    return {index.name: sorted(sorted(part.fragment_ids) for part in index.segments) for index in indices}


def count_folders(table):
    return len([*Path(table.uri, "_indices").iterdir()])


def search(table, vector, **settings):
    nearest = {"column": "v", "q": vector, "k": 10, "nprobes": 100, "refine_factor": 10, **settings}
    return lance.dataset(table.uri).to_table(columns=["id"], nearest=nearest)["id"].to_pylist()


def brute_force(table, vector):
    rows = lance_core.dataset(table.uri).to_table(columns=["id", "v"])
    values = np.stack(rows["v"].combine_chunks().flatten().to_numpy().reshape(-1, DIMENSIONS))
    return [rows["id"][i].as_py() for i in np.argsort(((values - vector) ** 2).sum(axis=1))[:10]]


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
def test_vectors(spark, table, kind):
    declaration = {"kind": kind, "num_partitions": 4} | ({"num_sub_vectors": 4} if kind == "IVF_PQ" else {})
    policy = MaintenancePolicy(indices={"v": declaration}, **KEPT)
    report = maintain(table, policy, index_builder=executor_index_builder(spark))
    assert not report.index_problems
    assert report.done["indices_built"] == 1
    fragments = [[0, 1, 2, 3]] if kind == "IVF_HNSW_SQ" else [[0, 1], [2, 3]]
    assert segments(table) == {"v_idx": fragments}
    assert count_folders(table) == len(fragments)
    query = np.full(DIMENSIONS, 0.4, np.float32)
    if kind == "IVF_FLAT":
        assert search(table, query) == brute_force(table, query)
    else:
        assert len({*search(table, query)} & {*brute_force(table, query)}) >= 9
    # The parts share their training: maintenance extends them, and pylance merges them.
    lance_core.write_dataset(notes(ROWS, 500), table.uri, mode="append")
    assert maintain(table, policy).done["indices_refreshed"] == 1
    lance.dataset(table.uri).optimize.optimize_indices(num_indices_to_merge=10)
    assert segments(table) == {"v_idx": [[0, 1, 2, 3, 4]]}
    assert len({*search(table, query)} & {*brute_force(table, query)}) >= 9


def test_words(spark, table):
    policy = MaintenancePolicy(indices={"t": "FTS"}, **KEPT)
    report = maintain(table, policy, index_builder=executor_index_builder(spark))
    assert report.done["indices_built"] == 1
    assert segments(table) == {"t_idx": [[0, 1, 2, 3]]}
    assert count_folders(table) == 1
    for number in (3, ROWS - 1):
        hits = lance.dataset(table.uri).to_table(columns=["id"], full_text_query=f"note{number}")
        assert hits["id"].to_pylist() == [number]
    (health,) = describe_index_health(table)
    assert health.recall["value"] == 1.0


def test_a_part_that_fails_leaves_no_folder(spark, table):
    policy = MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"}, index_memory=1000, **KEPT)
    report = maintain(table, policy, index_builder=executor_index_builder(spark))
    (problem,) = report.index_problems
    assert "index_memory" in problem
    assert "v_idx" in problem
    assert [*segments(table)] == ["id_idx"]
    assert count_folders(table) == 1


def test_hosts_without_pylance_are_named_before_a_build(table):
    counts = []

    def run(task, count, _timeout_s):
        counts.append(count)
        return [("worker-7", None), task(0)]

    policy = MaintenancePolicy(indices={"v": "IVF_FLAT"}, **KEPT)
    report = maintain(table, policy, index_builder=IndexBuilder(run=run, parallelism=2))
    assert "not installed on the executors at worker-7:" in report.index_problems[0]
    assert (counts, segments(table)) == ([2], {})


def test_an_error_of_spark_costs_the_index_alone(table):
    def run(_task, _count, _timeout_s):
        raise RuntimeError("Job aborted: ExecutorLostFailure")

    policy = MaintenancePolicy(indices={"v": "IVF_FLAT", "id": "BTREE"}, **KEPT)
    report = maintain(table, policy, index_builder=IndexBuilder(run=run, parallelism=2))
    (problem,) = report.index_problems
    assert "ExecutorLostFailure" in problem
    assert [*segments(table)] == ["id_idx"]


class KilledWorker:
    """A task that freezes or ends the worker of Spark in which it runs."""

    def __init__(self, way):
        self.way = way

    def __call__(self, _number):
        if self.way == "freeze":
            time.sleep(3600)
        os._exit(9)


@pytest.mark.parametrize(
    ("way", "reason"), [("freeze", "has not ended the job within 3 s"), ("exit", "a Python worker of Spark ended")]
)
def test_a_worker_that_answers_no_more_costs_the_index_alone(spark, table, monkeypatch, way, reason):
    monkeypatch.setattr(parts, "_LONGEST_START_S", 2)
    builder = executor_index_builder(spark)

    def run(_task, count, timeout_s):
        return builder.run(KilledWorker(way), count, timeout_s)

    policy = MaintenancePolicy(indices={"v": "IVF_SQ", "id": "BTREE"}, index_timeout=1, **KEPT)
    report = maintain(table, policy, index_builder=IndexBuilder(run=run, parallelism=2))
    (problem,) = report.index_problems
    assert reason in problem
    assert [*segments(table)] == ["id_idx"]


def test_parts_are_large_enough():
    request = {"kind": "FTS", "uuid": "0" * 36, "fragment_ids": [0, 1, 2]}
    assert [part["fragment_ids"] for part in divide(request, {0: 9_000, 1: 9_000, 2: 1_000}, 8)] == [[0, 1, 2]]
    assert [part["fragment_ids"] for part in divide(request, {0: 10_000, 1: 2_000, 2: 30_000}, 8)] == [[0, 1], [2]]
    assert [part["fragment_ids"] for part in divide({**request, "kind": "IVF_SQ"}, {0: 90_000, 1: 90_000}, 8)] == [
        [0, 1, 2]
    ]

"""Random lives of a table with declared indices, with pylance writing beside: no row is missed, no stale one found."""

import random

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import MaintenancePolicy, describe_index_health, maintain

DIMENSIONS = 8
KINDS = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT")


def rows(start, count):
    values = np.random.default_rng(start).random((count, DIMENSIONS), np.float32)
    ids = range(start, start + count)
    return pa.table({
        "id": ids,
        "v": pa.FixedSizeListArray.from_arrays(values.ravel(), DIMENSIONS),
        "t": [f"word{i} common{i % 7}" for i in ids],
    })  # fmt: skip


class Life:
    """A table and the next rows for it; each operation is by one of the libraries."""

    def __init__(self, uri, kind, stable, chance):
        self.uri, self.kind, self.stable, self.chance, self.next = uri, kind, stable, chance, 400
        lance_core.write_dataset(rows(0, 400), uri, enable_stable_row_ids=stable)

    def any_library(self):
        return self.chance.choice([lance_core, pylance])

    def append(self):
        self.any_library().write_dataset(rows(self.next, self.chance.choice([1, 5, 30, 200])), self.uri, mode="append")
        self.next += 1000

    def update(self):
        rest = self.chance.randrange(7)
        where = f"id % 7 = {rest} and id % 5 = 1"
        self.any_library().dataset(self.uri).update({"t": f"'changed{rest}'"}, where=where)

    def delete(self):
        where = f"id % 11 = {self.chance.randrange(11)} and id % 3 = 1"
        self.any_library().dataset(self.uri).delete(where)

    def set_vectors(self):
        table = lance_core.dataset(self.uri)
        ids = table.to_table(columns=["id"])["id"]
        table.write_columns(rows(self.next + 1, len(ids)).set_column(0, "id", ids).drop_columns(["t"]), "id")

    def optimize(self):
        name = self.chance.choice(["v_idx", "t_idx"])
        merged = self.chance.choice([0, 1, 10])
        if name == "v_idx" or not self.stable:  # pylance finds old words of rows with stable ids
            pylance.dataset(self.uri).optimize.optimize_indices(index_names=[name], num_indices_to_merge=merged)

    def compact(self):
        if self.stable or "HNSW" not in self.kind:  # pylance cannot search a graph after it
            pylance.dataset(self.uri).optimize.compact_files(target_rows_per_fragment=500)

    def check(self):
        table = pylance.dataset(self.uri)
        everything = table.to_table(columns=["id", "v", "t"])
        ids = np.asarray(everything["id"])
        vectors = np.stack(everything["v"].to_numpy(zero_copy_only=False)).astype(np.float64)
        for query in np.random.default_rng(self.next).random((3, DIMENSIONS), np.float32):
            distances = dict(zip(ids.tolist(), ((vectors - query) ** 2).sum(axis=1), strict=True))
            nearest = {"column": "v", "q": query, "k": 10, "nprobes": 100, "refine_factor": 20}
            hits = table.to_table(columns=["id", "_distance"], nearest=nearest).to_pylist()
            assert all(abs(distances[hit["id"]] - hit["_distance"]) < 1e-4 for hit in hits)
            missed = set(sorted(distances, key=distances.get)[:10]) - {hit["id"] for hit in hits}
            assert len(missed) <= (0 if self.kind == "IVF_FLAT" else 2)
        words = [text.split() for text in everything["t"].to_pylist()]
        for word in {*self.chance.choice(words), "changed1", "common3", "common5"}:
            query = {"query": word, "columns": ["t"]}
            hits = table.to_table(columns=["id"], full_text_query=query, limit=10**6)["id"].to_pylist()
            assert sorted(hits) == sorted(i for i, own in zip(ids.tolist(), words, strict=True) if word in own)


@pytest.mark.slow
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_searches_hold_through_a_random_life(tmp_path, kind, stable):
    life = Life(str(tmp_path / "t.lance"), kind, stable, random.Random(f"{kind} {stable}"))
    policy = MaintenancePolicy(indices={"v": kind, "t": "FTS", "id": "BTREE"}, retain_versions=5)
    maintain(lance_core.dataset(life.uri), policy)
    operations = [*(life.append,) * 3, life.update, life.delete, life.optimize, life.compact, life.set_vectors]
    for _ in range(12):
        for operation in life.chance.choices(operations, k=life.chance.randrange(1, 5)):
            operation()
        life.check()
        report = maintain(lance_core.dataset(life.uri), policy)
        assert report.outcome in ("done", "healthy"), report.reason
        life.check()
        states = describe_index_health(lance_core.dataset(life.uri))
        assert all(state.covered == 1.0 and state.failure is None for state in states)

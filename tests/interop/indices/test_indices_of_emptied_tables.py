"""Indices of every kind on a table that has lost all of its rows: each verb on the column goes on working."""

import lance
import pyarrow as pa
import pytest

import lance_core

ROWS = pa.table({
    "a": pa.array(range(10), pa.int64()),
    "s": [str(i) for i in range(10)],
    "tags": [[f"t{i % 3}"] for i in range(10)],
})  # fmt: skip


def by_delete(dataset):
    dataset.delete("true")


def by_pylance(dataset):
    lance.dataset(dataset.uri).delete("true")


def by_two_deletions(dataset):
    dataset.delete("a < 5")
    dataset.optimize.compact_files()
    dataset.delete("a >= 5")


def upsert(dataset):
    merge = dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
    assert merge.execute(ROWS)["num_inserted_rows"] == 10


VERBS = {
    "filter": lambda dataset: dataset.to_table(filter="a > 3 OR s = '3'"),
    "count": lambda dataset: dataset.count_rows("a = 3"),
    "plan": lambda dataset: dataset.scanner(filter="s > '2'").explain_plan(),
    "delete": lambda dataset: dataset.delete("a > 3"),
    "update": lambda dataset: dataset.update({"s": "'x'"}, where="a = 3 AND s = '3'"),
    "upsert": upsert,
    "compact": lambda dataset: dataset.optimize.compact_files(),
    "optimize": lambda dataset: dataset.optimize.optimize_indices(),
    "retrain": lambda dataset: dataset.optimize.optimize_indices(retrain=True),
    "statistics": lambda dataset: dataset.stats.index_stats("index"),
}


@pytest.mark.variants(13)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("empty", [by_delete, by_pylance, by_two_deletions], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    ("column", "kind"),
    [("a", "ZONEMAP"), ("s", "ZONEMAP"), ("a", "BLOOMFILTER"), ("a", "BTREE"), ("a", "BITMAP"), ("tags", "LABEL_LIST")],
)
def test_every_verb_works_beside_an_index_of_no_rows(tmp_path, column, kind, empty, stable):
    uri = str(tmp_path / "t.lance")
    dataset = lance_core.write_dataset(ROWS, uri, enable_stable_row_ids=stable)
    dataset.create_scalar_index(column, kind, name="index")
    empty(dataset)
    emptied = lance_core.dataset(uri)
    for name, verb in VERBS.items():
        verb(emptied)
        emptied.checkout_latest()
        if name == "upsert":
            assert sorted(emptied.to_table(filter="a >= 0").column("a").to_pylist()) == list(range(10))
            emptied.delete("true")


def test_a_verb_after_rows_came_back_sees_them(tmp_path):
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t.lance")
    dataset.create_scalar_index("a", "ZONEMAP")
    dataset.delete("true")
    dataset.insert(ROWS)
    assert dataset.delete("a > 6")["num_deleted_rows"] == 3
    assert lance.dataset(dataset.uri).count_rows("a <= 6") == 7

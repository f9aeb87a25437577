"""Merges whose source also deletes: one version, with the rows that pylance's delete and merge give in two."""

import random

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError


def rows(ids, n):
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([n] * len(ids), pa.int64())})


def contents(dataset):
    return sorted(map(tuple, (row.values() for row in dataset.to_table().to_pylist())))


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_inserts_updates_and_deletes_in_one_version(tmp_path, seed, stable):
    rng = random.Random(seed)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    for uri in (one, two):
        lance.write_dataset(rows(range(20), 0), uri, max_rows_per_file=7, enable_stable_row_ids=stable)
    ids = rng.sample(range(30), 12)
    deletes = np.array([rng.random() < 0.5 for _ in ids])
    dataset = lance_core.dataset(one)
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    stats = merge.source_deletes(deletes.tolist()).execute(rows(ids, 5))
    theirs = lance.dataset(two)
    deleted = [i for i, is_deleted in zip(ids, deletes, strict=True) if is_deleted]
    kept = [i for i in ids if i not in deleted]
    theirs.delete(f"id in ({', '.join(map(str, deleted)) or -1})")
    done = theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(kept, 5))
    assert contents(lance.dataset(one)) == contents(theirs)
    assert dataset.version == 2
    assert stats == {**done, "num_deleted_rows": sum(i < 20 for i in deleted)}
    if stable:
        feed = dataset.delta(1).get_changes().read_all().to_pylist()
        assert {row["id"] for row in feed if row["_change_type"] == "delete"} == {i for i in deleted if i < 20}


def test_values_that_do_not_fit_the_source(tmp_path):
    dataset = lance_core.write_dataset(rows([1, 2], 0), str(tmp_path / "t"))
    merge = dataset.merge_insert("id").when_matched_update_all()
    with pytest.raises(InvalidInputError, match="has 1 values, and the source has 2 rows"):
        merge.source_deletes([True]).execute(rows([1, 2], 0))
    with pytest.raises(InvalidInputError, match="rewrite_columns cannot express"):
        merge.source_deletes([True, True]).write_mode("rewrite_columns").execute(rows([1, 2], 0))
    assert dataset.latest_version == 1

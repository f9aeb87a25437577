"""Merges whose source also deletes: one version, with the rows that pylance's delete and merge give in two."""

import random

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core import Equals, Slice, Slices
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
    with pytest.raises(InvalidInputError, match="has 1 values, but the source has 2 rows"):
        merge.source_deletes([True]).execute(rows([1, 2], 0))
    with pytest.raises(InvalidInputError, match="rewrite_columns cannot express"):
        merge.source_deletes([True, True]).write_mode("rewrite_columns").execute(rows([1, 2], 0))
    assert dataset.latest_version == 1


def test_rows_outside_of_the_slices_are_not_deleted(tmp_path):
    dataset = lance_core.write_dataset({"id": [1, 2, 3], "day": [1, 2, 2]}, str(tmp_path / "t"))
    slices = Slices([Slice(name="2", conditions={"day": Equals(2)})])
    source = pa.table({"id": [1, 2], "day": [2, 2]})

    def merged(*deletes):
        return dataset.merge_insert("id").source_deletes(deletes).within(slices).execute(source)

    with pytest.raises(InvalidInputError, match="the key id = 1 is in the table in a row with day = 1"):
        merged(True, True)
    assert lance.dataset(dataset.uri).version == 1
    assert merged(False, True)["num_deleted_rows"] == 1
    assert lance.dataset(dataset.uri).to_table().to_pydict() == {"id": [1, 3], "day": [1, 2]}


def test_a_key_twice_of_which_one_row_deletes(tmp_path):
    dataset = lance_core.write_dataset(rows([1, 2], 0), str(tmp_path / "t"))
    merge = dataset.merge_insert("id").source_deletes([False, True, False, False])
    with pytest.raises(InvalidInputError, match=r"multiple source rows match the same target row on \(id = 1\)"):
        merge.execute(rows([1, 1, 2, 2], 5))
    assert lance.dataset(dataset.uri).version == 1

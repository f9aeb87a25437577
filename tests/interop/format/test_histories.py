"""Histories that either library makes are taken for what they are: each version was made from the one before it."""

import importlib

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.relation import Relation, relation
from lance_core.commit.versions import list_versions, load_manifest, load_transaction
from lance_core.maintenance.verify.files import find_history_problems
from lance_core.store import open_store


def rows(start, count):
    return pa.table({"k": pa.array(range(start, start + count), pa.int64()), "v": [0] * count, "s": ["x"] * count})


def merge(dataset):
    merged = dataset.merge_insert("k").when_matched_update_all().when_not_matched_insert_all()
    merged.execute(rows(38, 6))


def merge_part(dataset):
    dataset.merge_insert("k").when_matched_update_all().execute(
        pa.table({"k": pa.array([3, 4], pa.int64()), "v": [7, 7]})
    )


VERBS = {
    "append": lambda ds: ds.insert(rows(40, 20)),
    "append two": lambda ds: ds.insert(rows(60, 20), max_rows_per_file=10),
    "delete": lambda ds: ds.delete("k % 10 = 3"),
    "delete fragments": lambda ds: ds.delete("k < 10"),
    "delete nothing": lambda ds: ds.delete("k < 0"),
    "update": lambda ds: ds.update({"v": "v + 1"}, where="k % 10 = 4"),
    "merge": merge,
    "merge part": merge_part,
    "index": lambda ds: ds.create_scalar_index("k", "BTREE", replace=True),
    "other index": lambda ds: ds.create_scalar_index("v", "ZONEMAP", replace=True),
    "optimize index": lambda ds: ds.optimize.optimize_indices(),
    "compact": lambda ds: ds.optimize.compact_files(),
    "add": lambda ds: ds.add_columns({"w": "v + 1"}),
    "rename": lambda ds: ds.alter_columns({"path": "w", "name": "u"}),
    "cast": lambda ds: ds.alter_columns({"path": "u", "data_type": pa.int32()}),
    "drop": lambda ds: ds.drop_columns(["u"]),
    "drop index": lambda ds: ds.drop_index("v_idx"),
    "config": lambda ds: ds.update_config({"a": "b"}),
    "metadata": lambda ds: ds.update_metadata({"a": "b"}),
    "append again": lambda ds: ds.insert(rows(100, 20)),
    "restore": lambda ds: ds.checkout_version(3).restore(),
    "append after": lambda ds: ds.insert(rows(200, 20)),
}


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("turn", ["ours", "theirs", "mixed"])
def test_no_version_looks_foreign(tmp_path, stable, turn):
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(0, 40), uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    libraries = {"ours": ["lance_core"], "theirs": ["lance"], "mixed": ["lance", "lance_core"]}[turn]
    for number, verb in enumerate(VERBS):
        VERBS[verb](importlib.import_module(libraries[number % len(libraries)]).dataset(uri))
    store = open_store(uri)
    found = {version: load_manifest(store, version) for version in list_versions(store)}
    for version in range(2, max(found) + 1):
        made_by = load_transaction(store, found[version])
        kind = relation(found[version - 1], found[version], made_by)
        assert kind is not Relation.CONTRADICTS, (version, made_by.operation)
    assert list(find_history_problems(store)) == []
    assert lance_core.dataset(uri).count_rows() == lance.dataset(uri).count_rows()

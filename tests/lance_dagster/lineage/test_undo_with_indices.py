"""Undo of runs whose rows have indices: every search finds the rows that return, and no others."""

import lance as pylance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.maintenance import cover_rows
from lance_dagster.undo.plan import plan_undo

pytestmark = pytest.mark.usefixtures("local_children")

KINDS = {
    "words": "FTS",
    "tree": "BTREE",
    "bits": "BITMAP",
    "grams": "NGRAM",
    "labels": "LABEL_LIST",
    "zones": "ZONEMAP",
    "bloom": "BLOOMFILTER",
}


def rows(keys, text):
    vectors = np.random.default_rng([len(text), *keys[:2]]).normal(size=(len(keys), 8)).astype(np.float32)
    data = {"key": pa.array(keys, pa.int64()), "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 8)}
    data |= {name: pa.array([text] * len(keys)) for name in KINDS}
    return pa.table({**data, "labels": pa.array([[text]] * len(keys))})


def build(uri):
    table = pylance.dataset(uri)
    for column, kind in KINDS.items():
        table.create_scalar_index(column, kind, replace=True)
    table.create_index("vector", "IVF_FLAT", num_partitions=2, replace=True)


WORK = {
    "nothing": lance_core.dataset,
    "cover": lambda uri: cover_rows(lance_core.dataset(uri)),
    "build": build,
    "pylance merges": lambda uri: pylance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=1),
    "merge": lambda uri: lance_core.dataset(uri).optimize.optimize_indices(num_indices_to_merge=9),
}


def check_searches(uri, when):
    theirs, ours = pylance.dataset(uri), lance_core.dataset(uri)
    table = ours.to_table()
    for text in ("old", "newer", "third"):
        expected = sorted(table.filter(pa.compute.equal(table["tree"], text))["key"].to_pylist())
        conditions = [f"{column} = '{text}'" for column in ("tree", "bits", "zones", "bloom")]
        conditions += [f"contains(grams, '{text}')", f"array_has_any(labels, ['{text}'])"]
        queries = [{"filter": condition} for condition in conditions]
        words = {"full_text_query": pylance.query.MatchQuery(text, "words"), "limit": 999}
        for library, query in [
            *((library, query) for query in queries for library in (theirs, ours)),
            (theirs, {**words, "disable_scoring_autoprojection": True}),
        ]:
            keys = sorted(library.to_table(columns=["key"], **query)["key"].to_pylist())
            assert keys == expected, (when, type(library).__module__, query, len(keys), len(expected))
    vector = np.asarray(table["vector"][0].as_py(), np.float32)
    nearest = {"column": "vector", "q": vector, "k": 999, "nprobes": 99}
    hits = theirs.to_table(columns=["key", "vector", "_distance"], nearest=nearest)
    assert sorted(hits["key"].to_pylist()) == sorted(table["key"].to_pylist()), when
    distances = ((np.array(hits["vector"].to_pylist(), np.float32) - vector) ** 2).sum(axis=1)
    assert np.allclose(hits["_distance"].to_numpy(), distances, atol=1e-3), when


def write_of_run(uri, how, keys):
    """A run replaces the fragment with some keys, or removes or merges its rows."""
    table, properties = lance_core.dataset(uri), {"dagster.run_id": "run"}
    if how == "replace":
        new = lance_core.write_fragments(rows([key + 1000 for key in keys], "newer"), uri)
        operation = lance_core.LanceOperation.Update(removed_fragment_ids=[keys[0] // 50], new_fragments=new)
        transaction = lance_core.Transaction(table.version, operation, transaction_properties=properties)
        lance_core.LanceDataset.commit(table, transaction)
        return
    branch = table.create_branch("run")
    if how == "remove":
        branch.delete(f"key >= {keys[0]} and key <= {keys[-1]}")
    else:
        branch.merge_insert("key").when_matched_update_all().execute(rows(keys, "newer"))
    table.branches.promote("run", tag=False, transaction_properties=properties)


@pytest.mark.variants(7)
@pytest.mark.parametrize("fragment", [0, 1])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("how", ["replace", "remove", "upsert"])
@pytest.mark.parametrize("is_stable", [True, False], ids=["stable", "addresses"])
def test_rows_that_return_are_found(tmp_path, is_stable, how, work, fragment):
    uri, keys = str(tmp_path / "t.lance"), list(range(50 * fragment, 50 * fragment + 50))
    lance_core.write_dataset(
        rows(list(range(100)), "old"), uri, max_rows_per_file=50, enable_stable_row_ids=is_stable
    ).insert(rows(list(range(200, 230)), "third"))
    build(uri)
    write_of_run(uri, how, keys)
    lance_core.dataset(uri).insert(rows(list(range(300, 330)), "third"))
    WORK[work](uri)
    undo = plan_undo(lance_core.dataset(uri), "run")
    assert isinstance(undo.operation, lance_core.LanceOperation.Update)
    undo.commit()
    check_searches(uri, "undone")
    assert not cover_rows(lance_core.dataset(uri)).problems
    check_searches(uri, "covered")


def set_in_place(table, values):
    fragment, fields = table.get_fragments()[0].update_columns(values, "key", "key")
    operation = pylance.LanceOperation.Update(
        updated_fragments=[fragment], fields_modified=fields, update_mode="rewrite_columns"
    )
    pylance.LanceDataset.commit(table, operation, read_version=table.version)


EXTENSIONS = {
    "nothing": lance_core.dataset,
    "pylance": lambda uri: pylance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0),
    "cover": lambda uri: cover_rows(lance_core.dataset(uri)),
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("how", ["upsert", "in place"])
@pytest.mark.parametrize("ids", ["stable", "migrated", "addresses"])
def test_rows_that_were_set_again_and_return_lose_their_old_words(tmp_path, ids, how, extension):
    uri = str(tmp_path / "t.lance")
    table = lance_core.write_dataset(rows([*range(100)], "old"), uri, enable_stable_row_ids=ids == "stable")
    build(uri)
    if ids == "migrated":
        table.migrate_to_stable_row_ids()
    if how == "upsert":
        pylance.dataset(uri).merge_insert("key").when_matched_update_all().execute(rows([*range(50)], "newer"))
    else:
        set_in_place(pylance.dataset(uri), rows([*range(50)], "newer").drop_columns(["vector"]))
    EXTENSIONS[extension](uri)
    table = lance_core.dataset(uri)
    (last,) = [each.fragment_id for each in table.get_fragments()][-1:]
    operation = lance_core.LanceOperation.Update(removed_fragment_ids=[last], new_fragments=[])
    run = lance_core.Transaction(table.version, operation, transaction_properties={"dagster.run_id": "run"})
    lance_core.LanceDataset.commit(table, run)
    lance_core.dataset(uri).insert(rows([*range(300, 330)], "third"))
    plan_undo(lance_core.dataset(uri), "run").commit()
    assert not cover_rows(lance_core.dataset(uri)).problems
    check_searches(uri, "covered")


@pytest.mark.parametrize("library", [pylance, lance_core], ids=["pylance", "lance_core"])
@pytest.mark.parametrize("change", ["cast", "drop"])
def test_fragments_with_columns_of_earlier_types_return(tmp_path, change, library):
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(pa.table({"key": range(9), "v": range(9), "w": range(9)}), uri, max_rows_per_file=3)
    table = library.dataset(uri)
    if change == "cast":
        table.alter_columns({"path": "v", "data_type": pa.int32()})
    else:
        table.drop_columns(["v"])
        table.add_columns({"v": "key"})
    table = lance_core.dataset(uri)
    expected = table.to_table()
    operation = lance_core.LanceOperation.Update(removed_fragment_ids=[1], new_fragments=[])
    run = lance_core.Transaction(table.version, operation, transaction_properties={"dagster.run_id": "run"})
    lance_core.LanceDataset.commit(table, run)
    lance_core.dataset(uri).delete("key = 0")
    plan_undo(lance_core.dataset(uri), "run").commit()
    table = lance_core.dataset(uri)
    assert table.to_table().sort_by("key") == expected.slice(1)
    assert pylance.dataset(uri).to_table().sort_by("key") == expected.slice(1)
    table.optimize.compact_files()
    assert lance_core.dataset(uri).to_table().sort_by("key") == expected.slice(1)

"""After any maintenance an index covers the rows that it covered before, and finds what a look at all rows finds."""

from dataclasses import replace

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core._proto import table_pb2
from lance_core.errors import NotFoundError
from lance_core.maintenance import Compaction, ExpectedVersions, commit_what_fits
from lance_core.maintenance.compaction.coverage import split_to_keep_coverage
from lance_core.maintenance.compaction.plan import FragmentFacts
from lance_core.table.index import FRAGMENT_REUSE_INDEX

DIMENSIONS, WORDS = 4, 7
SEARCHES = ["IVF_FLAT", "INVERTED", "NGRAM"]
SCALARS = ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER", "LABEL_LIST"]
COLUMNS = {"IVF_FLAT": "vector", "INVERTED": "text", "NGRAM": "text", "LABEL_LIST": "tags"}


def rows(start, count):
    ids = np.arange(start, start + count)
    vectors = np.random.default_rng(start).random((count, DIMENSIONS), np.float32)
    return pa.table({
        "id": ids,
        "p": ids % 5,
        "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), DIMENSIONS),
        "text": [f"word{i % WORDS} and more" for i in ids],
        "tags": [[f"t{i % 3}", "all"] for i in ids],
    })  # fmt: skip


def make(path, kinds, fragments=6, count=50, stable=False):
    uri = str(path)
    for i in range(fragments):
        lance_core.write_dataset(
            rows(i * count, count), uri, mode="append" if i else "create", enable_stable_row_ids=stable
        )
    dataset = lance.dataset(uri)
    for kind in kinds:
        if kind == "IVF_FLAT":
            dataset.create_index("vector", kind, num_partitions=2, name=kind)
        else:
            dataset.create_scalar_index(COLUMNS.get(kind, "p"), kind, name=kind)
    return uri


def unindexed(uri):
    """Rows outside of each index, by pylance and by us."""
    theirs, ours = lance.dataset(uri), lance_core.dataset(uri)
    names = [one.name for one in ours.describe_indices() if not one.name.startswith("__")]
    found = {name: theirs.stats.index_stats(name)["num_unindexed_rows"] for name in names}
    assert {name: ours.stats.index_stats(name)["num_unindexed_rows"] for name in names} == found
    return found


def check(uri):
    """Searches by index against all rows of the table, read to memory without any."""
    dataset = lance.dataset(uri)
    table = dataset.to_table(columns=["id", "p", "vector", "text", "tags"])
    ids, vectors = np.array(table["id"]), np.stack(table["vector"].to_numpy(zero_copy_only=False))
    for query in np.random.default_rng(1).random((3, DIMENSIONS), np.float32):
        order = np.argsort(((vectors - query) ** 2).sum(axis=1))
        nearest = {"column": "vector", "q": query, "k": 12, "nprobes": 2}
        for one in (dataset, lance_core.dataset(uri)):
            found = one.to_table(columns=["id"], nearest=nearest)["id"].to_pylist()
            assert found == ids[order[:12]].tolist()
    names = {index["name"] for index in dataset.list_indices()}
    if "INVERTED" in names:
        for word in range(WORDS):
            found = dataset.to_table(columns=["id"], full_text_query=f"word{word}", limit=10_000)["id"].to_pylist()
            assert sorted(found) == sorted(ids[ids % WORDS == word].tolist())
    wanted = {
        "p = 3": ids % 5 == 3,
        "p > 1 AND p < 4": (ids % 5 > 1) & (ids % 5 < 4),
        "contains(text, 'word2 a')": ids % WORDS == 2,
        "array_has_any(tags, ['t1'])": ids % 3 == 1,
    }
    for condition, mask in wanted.items():
        for one in (dataset, lance_core.dataset(uri)):
            assert sorted(one.to_table(columns=["id"], filter=condition)["id"].to_pylist()) == sorted(
                ids[mask].tolist()
            )


def compact(uri):
    lance_core.dataset(uri).optimize.compact_files()


def compact_half(uri):
    lance_core.dataset(uri).optimize.compact_files(target_rows_per_fragment=100)


def compact_twice(uri):
    compact_half(uri)
    lance_core.write_dataset(rows(5000, 20), uri, mode="append")
    lance.dataset(uri).optimize.optimize_indices()
    compact(uri)


def materialize_deletions(uri):
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 4 = 1")
    dataset.optimize.compact_files(deletions_only=True)


def late_deletions(uri):
    dataset = lance_core.dataset(uri)
    dataset.delete("id % 10 = 1")
    tasks = Compaction.plan(dataset).tasks
    results = [task.execute(dataset) for task in tasks]
    lance_core.dataset(uri).delete("id % 10 = 2")
    metrics = commit_what_fits(dataset, results, {}, keep_up=True)
    assert (metrics.fragments_added > 0, metrics.tasks_skipped) == (True, 0)


def between_commits_of_pylance(uri):
    compact_half(uri)
    lance.dataset(uri).delete("id = 7")  # which renames the fragments in all bitmaps
    compact(uri)
    lance.dataset(uri).delete("id = 8")


def pylance_compacts_later(uri):
    compact_half(uri)
    lance.dataset(uri).optimize.compact_files()


VERBS = [compact, compact_half, compact_twice, materialize_deletions, late_deletions, between_commits_of_pylance,
         pylance_compacts_later]  # fmt: skip


@pytest.mark.variants(4)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_an_index_covers_what_it_covered(tmp_path, verb, stable):
    uri = make(tmp_path / "t.lance", SEARCHES + SCALARS, stable=stable)
    check(uri)
    assert set(unindexed(uri).values()) == {0}
    verb(uri)
    check(uri)
    if verb is not pylance_compacts_later:  # it leaves zone maps and Bloom filters behind
        assert {name: count for name, count in unindexed(uri).items() if count} == {}
    lance.dataset(uri).optimize.optimize_indices()
    check(uri)
    assert lance_core.dataset(uri).version == lance.dataset(uri).version


def test_moves_are_forgotten_once_no_index_needs_them(tmp_path):
    uri = make(tmp_path / "t.lance", ["IVF_FLAT", "BTREE"], fragments=8)
    compact_half(uri)
    compact(uri)
    assert lance_core.dataset(uri).stats.index_stats("__lance_frag_reuse")["num_versions"] == 2
    lance.dataset(uri).create_index("vector", "IVF_FLAT", num_partitions=2, name="IVF_FLAT", replace=True)
    for i in range(2):
        lance_core.write_dataset(rows(1000 + 30 * i, 30), uri, mode="append")
    lance.dataset(uri).optimize.optimize_indices()
    compact(uri)
    assert lance_core.dataset(uri).stats.index_stats("__lance_frag_reuse")["num_versions"] == 1
    check(uri)
    lance.dataset(uri).drop_index("IVF_FLAT")
    lance_core.dataset(uri).optimize.optimize_indices()
    assert {one.name for one in lance_core.dataset(uri).describe_indices()} == {"BTREE"}
    check(uri)


@pytest.mark.parametrize("kind", ["INVERTED", "NGRAM"])
def test_an_index_on_words_keeps_pylance_from_rewriting_it_after_moves(tmp_path, kind):
    """pylance finds no row any more when it rewrites the index of a table whose rows had moved before."""
    uri = make(tmp_path / "t.lance", [])
    lance.dataset(uri).create_scalar_index("text", kind, name=kind)
    compact(uri)
    assert lance_core.dataset(uri).config()["lance.compaction.defer_index_remap"] == "true"
    table = lance.dataset(uri)
    (text,) = table.to_table(columns=["text"], limit=1)["text"].to_pylist()
    table.delete("id % 10 = 5")
    table.optimize.compact_files()
    search = {"filter": f"contains(text, '{text}')"} if kind == "NGRAM" else {"full_text_query": text.split()[0]}
    assert text in lance.dataset(uri).to_table(columns=["text"], **search)["text"].to_pylist()
    uri = make(tmp_path / "u.lance", ["IVF_FLAT", "BTREE"])
    compact(uri)
    assert "lance.compaction.defer_index_remap" not in lance_core.dataset(uri).config()


def test_a_table_with_scalar_indices_alone_records_no_moves(tmp_path):
    uri = make(tmp_path / "t.lance", SCALARS)
    compact(uri)
    assert {one.name for one in lance_core.dataset(uri).describe_indices()} == set(SCALARS)


@pytest.mark.parametrize("kind", SCALARS)
def test_with_stable_row_ids_only_indices_of_other_kinds_divide_a_compaction(tmp_path, kind):
    uri = make(tmp_path / "t.lance", [kind], fragments=2, stable=True)
    lance_core.write_dataset(rows(100, 50), uri, mode="append")
    lance.dataset(uri).create_scalar_index("text", "INVERTED", name="INVERTED")
    lance_core.write_dataset(rows(150, 50), uri, mode="append")
    lance_core.write_dataset(rows(200, 50), uri, mode="append")
    table = lance_core.dataset(uri)
    assert [task.fragment_ids for task in Compaction.plan(table, {}).tasks] == [[0, 1, 2], [3, 4]]
    table.optimize.compact_files()
    assert not Compaction.plan(table, {}).tasks
    assert unindexed(uri) == {kind: 0, "INVERTED": 100}
    check(uri)


def test_each_index_that_is_listed_can_be_optimized(tmp_path):
    """The fragment reuse index of deferred compactions is listed as well."""
    table = lance_core.write_dataset(pa.table({"id": range(20)}), tmp_path / "t", max_rows_per_file=4)
    table.create_scalar_index("id", "BTREE")
    table.optimize.compact_files(defer_index_remap=True)
    names = {
        library: [one.name for one in library.dataset(tmp_path / "t").describe_indices()]
        for library in (lance, lance_core)
    }
    assert [sorted(found) for found in names.values()] == [["__lance_frag_reuse", "id_idx"]] * 2
    expected = ExpectedVersions(table)
    for library in (lance, lance_core):
        library.dataset(tmp_path / "t").optimize.optimize_indices(index_names=["__lance_frag_reuse"])
    assert expected.optimize_index("__lance_frag_reuse")
    with pytest.raises(NotFoundError, match="__lance_other"):
        lance_core.dataset(tmp_path / "t").optimize.optimize_indices(index_names=["__lance_other"])
    lance_core.dataset(tmp_path / "t").optimize.optimize_indices(index_names=names[lance_core])
    for library in (lance, lance_core):
        assert library.dataset(tmp_path / "t").to_table(filter="id = 7")["id"].to_pylist() == [7]


CHANGES = {
    "delete": lambda table: table.delete("id = 7"),
    "update": lambda table: table.update({"p": "id % 5"}, where="id < 20"),
    "merge": lambda table: table.merge_insert("id").when_matched_update_all().execute(rows(0, 10)),
    "columns": lambda table: table.add_columns({"further": "id + 1"}),
    "values": lambda table: table.write_columns(rows(900, 80).set_column(0, "id", [range(80)]).select(["id", "vector"]),
                                                on="id", missing="keep"),
}  # fmt: skip


@pytest.mark.variants(3)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_moved_rows_keeps_the_indices(tmp_path, change):
    """The bitmaps of indices have the fragments from before the moves."""
    uri = make(tmp_path / "t.lance", ["IVF_FLAT", "INVERTED"])
    compact_half(uri)
    for later in (compact_half, compact):
        CHANGES[change](lance_core.dataset(uri))
        assert {"IVF_FLAT", "INVERTED"} <= {index["name"] for index in lance.dataset(uri).list_indices()}
        check(uri)
        later(uri)
        check(uri)
        if change == "columns":
            lance_core.dataset(uri).drop_columns(["further"])


@pytest.mark.parametrize("kind", ["INVERTED", "NGRAM"])
def test_words_that_are_written_in_place_of_moved_rows(tmp_path, kind):
    uri = make(tmp_path / "t.lance", [kind])
    compact_half(uri)
    words = pa.table({"id": range(80), "text": ["zebra words"] * 80})
    lance_core.dataset(uri).write_columns(words, on="id", missing="keep")
    search = {"full_text_query": "zebra"} if kind == "INVERTED" else {"filter": "contains(text, 'zebra')"}
    for library in (lance, lance_core) if kind == "NGRAM" else (lance,):
        assert sorted(library.dataset(uri).to_table(["id"], **search)["id"].to_pylist()) == list(range(80))


@pytest.mark.parametrize("kind", ["IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"])
def test_a_graph_keeps_the_rows_that_it_has(tmp_path, kind, caplog):
    """pylance cannot search a graph of which recorded moves removed rows; moves alone are followed."""
    uri = make(tmp_path / "t.lance", [])
    options = {"num_sub_vectors": 2} if kind == "IVF_HNSW_PQ" else {}
    lance.dataset(uri).create_index("vector", kind, num_partitions=1, name="graph", **options)
    lance_core.write_dataset(rows(300, 10), uri, mode="append")
    query = lance.dataset(uri).to_table().column("vector")[7].values.to_numpy()

    def search():
        nearest = {"column": "vector", "q": query, "k": 3}
        return lance.dataset(uri).to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_pylist()

    before = search()
    lance_core.dataset(uri).optimize.compact_files(target_rows_per_fragment=150)
    assert search() == before
    assert len(lance_core.dataset(uri).fragment_ids()) == 3
    lance_core.dataset(uri).delete("id < 7")
    lance_core.dataset(uri).optimize.compact_files()
    assert "groups of fragments are not compacted, as the indices graph would no longer cover them" in caplog.text
    after = [row for row in before if row >= 7]
    assert search() == after
    report = lance_core.dataset(uri).erase_rows("id = 20", delete_unverified=True)
    assert [(obstacle.kind, obstacle.path) for obstacle in report.obstacles] == [("index", "graph")]
    assert search() == after
    assert lance_core.dataset(uri).erase_rows("id = 20", delete_unverified=True, drop_indices=True).proven
    assert search() == [row for row in after if row != 20]


def test_fragments_to_which_rows_moved_stay_where_moves_are_recorded_in_a_file(tmp_path, caplog):
    uri = make(tmp_path / "t.lance", ["IVF_FLAT"])
    compact_half(uri)
    snapshot = lance_core.dataset(uri).snapshot
    manifest = snapshot.manifest
    in_file = table_pb2.FragmentReuseIndexDetails(
        external=table_pb2.FragmentReuseIndexDetails.ExternalFile(path="details.binpb")
    ).SerializeToString()
    indices = [
        replace(index, details=in_file) if index.name == FRAGMENT_REUSE_INDEX else index for index in manifest.indices
    ]
    snapshot = snapshot.with_manifest(replace(manifest, indices=tuple(indices)))
    plan = [[FragmentFacts(position=0, fragment_id=min(manifest.fragments.ids), physical_rows=100, deleted_rows=0)]]
    assert split_to_keep_coverage(snapshot, plan) == []
    assert "as the indices IVF_FLAT would no longer cover them" in caplog.text

"""Compactions: rows, row ids, versions and indices are the same afterwards, through either library."""

import inspect
import pickle

import lance
import lance.fragment
import lance.optimize
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.dataset import DatasetOptimizer as PylanceOptimizer

import lance_core
import lance_core.fragment
from lance_core.dataset.maintenance import CleanupSelectors, DatasetOptimizer
from lance_core.errors import InvalidInputError, RetryableConflictError, UnsupportedError
from lance_core.maintenance import compact
from lance_core.optimize import Compaction, CompactionTask, RewriteResult
from tests.interop.shapes import rows, write

MODES = ["reencode", "try_binary_copy"]


def same(path, expected, columns=None):
    """Both libraries read these rows in this order."""
    theirs = lance.dataset(path).to_table(columns=columns)
    assert theirs.equals(expected)
    assert lance_core.dataset(path).to_table(columns=columns).equals(expected)
    lance.dataset(path).validate()


@pytest.mark.variants(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("library", [lance, lance_core], ids=lambda library: library.__name__)
def test_rows_stay_the_same(tmp_path, library, version, mode):
    path = str(tmp_path / "t")
    dataset = write(path, [1500, 2000, 10, 700], library=library, version=version)
    dataset.delete("id % 9 = 4 AND id > 1600")
    expected = dataset.to_table()
    metrics = compact(lance_core.dataset(path), {"compaction_mode": mode})
    assert (metrics.fragments_removed, metrics.fragments_added) == (4, 1)
    assert lance.dataset(path).count_rows() == expected.num_rows
    same(path, expected)
    (fragment,) = lance.dataset(path).get_fragments()
    (file,) = fragment.metadata.files
    assert fragment.metadata.deletion_file is None
    assert (file.file_major_version, file.file_minor_version) == tuple(map(int, version.split(".")))
    assert file.file_size_bytes == (tmp_path / "t" / "data" / file.path).stat().st_size


@pytest.mark.parametrize("mode", MODES)
def test_pylance_takes_filters_and_appends_afterwards(tmp_path, mode):
    path = str(tmp_path / "t")
    dataset = write(path, [900, 900, 900])
    dataset.delete("id >= 100 AND id < 220")
    compact(lance_core.dataset(path), {"compaction_mode": mode})
    dataset = lance.dataset(path)
    assert dataset.take([0, 150, 2000], columns=["id", "text"]).column("id").to_pylist() == [0, 270, 2120]
    assert dataset.to_table(filter="id IN (99, 100, 219, 220)", columns=["id"]).column("id").to_pylist() == [99, 220]
    lance.write_dataset(rows(5000, 10), path, mode="append")
    dataset = lance.dataset(path)
    dataset.optimize.compact_files()
    assert dataset.count_rows() == 2700 - 120 + 10
    assert lance_core.dataset(path).to_table(columns=["id"]).num_rows == 2590


@pytest.mark.parametrize("mode", MODES)
def test_output_is_cut_evenly(tmp_path, mode):
    path = str(tmp_path / "t")
    expected = write(path, [1000, 1000, 1000]).to_table()
    compact(lance_core.dataset(path), {"target_rows_per_fragment": 1400, "compaction_mode": mode})
    assert [fragment.count_rows() for fragment in lance.dataset(path).get_fragments()] == [1500, 1500]
    same(path, expected)


def test_an_empty_plan_changes_nothing(tmp_path):
    path = str(tmp_path / "t")
    write(path, [10])
    dataset = lance_core.dataset(path)
    metrics = compact(dataset)
    assert (metrics.fragments_removed, dataset.version, lance.dataset(path).version) == (0, 1, 1)
    assert Compaction.commit(dataset, []) == metrics
    assert lance.dataset(path).version == 1


def test_a_compaction_makes_two_versions_and_pylance_knows_them(tmp_path):
    path = str(tmp_path / "t")
    write(path, [10, 10])
    dataset = lance_core.dataset(path)
    compact(dataset, transaction_properties={"who": "me"})
    assert dataset.version == 4
    kinds = [type(lance.dataset(path).read_transaction(v).operation).__name__ for v in (3, 4)]
    assert kinds[1] == "Rewrite"
    assert dataset.read_transaction(4).transaction_properties == {"who": "me"}


def test_tasks_and_results_travel_and_any_subset_is_committed(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [100, 100, 100, 100]).to_table()
    dataset = lance_core.dataset(path)
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 200})
    first, second = plan.tasks
    assert pickle.loads(pickle.dumps(first)) == first
    assert CompactionTask.from_json(first.json()).json() == first.json()
    result = first.execute(dataset)
    assert pickle.loads(pickle.dumps(result)) == result == RewriteResult.from_json(result.json())
    assert dataset.latest_version == 4
    later = pickle.loads(pickle.dumps(second)).execute(lance_core.dataset(path))
    Compaction.commit(dataset, [later])
    assert sorted(f.fragment_id for f in lance.dataset(path).get_fragments()) == [0, 1, 4]
    Compaction.commit(dataset, [result])
    assert sorted(f.fragment_id for f in lance.dataset(path).get_fragments()) == [4, 5]
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)
    with pytest.raises(RetryableConflictError):
        Compaction.commit(dataset, [result])


def test_pylance_runs_our_tasks_and_commits_our_results_and_the_other_way_round(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [100, 100, 100, 100])
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 150")
    expected = dataset.to_table()
    ours = lance_core.dataset(path)
    plan = Compaction.plan(ours, {"target_rows_per_fragment": 200})
    assert plan.num_tasks() == 1
    by_pylance = lance.optimize.CompactionTask.from_json(plan.tasks[0].json()).execute(dataset)
    Compaction.commit(ours, [RewriteResult.from_json(by_pylance.json())])
    same(path, expected)

    write_more = lance.write_dataset(rows(1000, 50), path, mode="append")
    write_more = lance.write_dataset(rows(1050, 50), path, mode="append")
    write_more.optimize.optimize_indices()
    expected = write_more.to_table()
    theirs = lance.optimize.Compaction.plan(write_more, {})
    results = [CompactionTask.from_json(t.json()).execute(lance_core.dataset(path)) for t in theirs.tasks]
    assert results[0].row_addrs is not None
    lance.optimize.Compaction.commit(write_more, [lance.optimize.RewriteResult.from_json(r.json()) for r in results])
    same(path, expected)
    indexed = lance.dataset(path)
    plan_text = indexed.scanner(filter="id = 1060").explain_plan()
    assert "ScalarIndexQuery" in plan_text
    assert indexed.to_table(filter="id IN (5, 150, 1060)", columns=["id"]).column("id").to_pylist() == [5, 1060]


@pytest.mark.parametrize("mode", MODES)
def test_stable_row_ids_and_versions_are_kept(tmp_path, mode):
    path = str(tmp_path / "t")
    dataset = write(path, [300, 300, 300], enable_stable_row_ids=True)
    dataset.update({"text": "'new'"}, where="id % 5 = 1")
    dataset.delete("id % 4 = 1")
    columns = ["id", "text", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    expected = lance.dataset(path).to_table(columns=columns).sort_by("id")
    compact(lance_core.dataset(path), {"compaction_mode": mode, "target_rows_per_fragment": 400})
    dataset = lance.dataset(path)
    assert len(dataset.get_fragments()) == 1
    assert dataset.to_table(columns=columns).sort_by("id").equals(expected)
    lance.write_dataset(rows(2000, 10), path, mode="append")
    ids = lance.dataset(path).to_table(columns=["_rowid"]).column(0).to_pylist()
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
def test_indices_of_pylance_stay_correct(tmp_path, kind, stable):
    path = str(tmp_path / "t")
    dataset = write(path, [200, 200, 200, 200], enable_stable_row_ids=stable)
    dataset.create_scalar_index("id", kind)
    dataset = lance.write_dataset(rows(5000, 100), path, mode="append")
    dataset.delete("id % 10 = 7")
    compact(lance_core.dataset(path), {"target_rows_per_fragment": 500})
    dataset = lance.dataset(path)
    found = dataset.to_table(filter="id IN (3, 7, 207, 208, 799, 5001, 5007)", columns=["id"])
    assert sorted(found.column("id").to_pylist()) == [3, 208, 799, 5001]
    assert dataset.count_rows(filter="id < 400") == 360
    dataset.optimize.optimize_indices()
    assert lance.dataset(path).count_rows(filter="id < 400") == 360
    compact(lance_core.dataset(path))
    assert lance.dataset(path).count_rows(filter="id < 400") == 360


def test_the_fragment_reuse_index_is_read_and_kept(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [100, 100, 100, 100])
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 42")
    dataset.optimize.compact_files(target_rows_per_fragment=200, defer_index_remap=True)
    lance.write_dataset(rows(1000, 100), path, mode="append")
    ours = lance_core.dataset(path)
    expected = lance.optimize.Compaction.plan(lance.dataset(path), {})
    plan = Compaction.plan(ours, {})
    assert [[f.id for f in t.fragments] for t in plan.tasks] == [[f.id for f in t.fragments] for t in expected.tasks]
    compact(ours)
    dataset = lance.dataset(path)
    assert "__lance_frag_reuse" in {index["name"] for index in dataset.list_indices()}
    found = dataset.to_table(filter="id IN (41, 42, 43, 350, 1050)", columns=["id"]).column("id").to_pylist()
    assert sorted(found) == [41, 43, 350, 1050]


@pytest.mark.parametrize("first", [lance, lance_core], ids=lambda library: library.__name__)
@pytest.mark.parametrize("second", [lance, lance_core], ids=lambda library: library.__name__)
def test_concurrent_compactions_add_up_in_the_fragment_reuse_index(tmp_path, first, second):
    """As the specification says; pylance wants the later one to be done again, and this library not."""
    path = str(tmp_path / "t")
    write(path, [100, 100, 100, 100]).create_scalar_index("id", "BTREE")
    options = {"target_rows_per_fragment": 200, "defer_index_remap": True}
    halves = []
    for library, half in ((first, 0), (second, 1)):
        dataset, tasks = library.dataset(path), library.optimize.Compaction
        results = [task.execute(dataset) for task in tasks.plan(dataset, options).tasks]
        assert len(results) == 2
        halves.append((tasks, dataset, [results[half]]))
    halves[0][0].commit(*halves[0][1:], options)
    if second is lance:
        with pytest.raises(OSError, match="replaces the fragment reuse index"):
            halves[1][0].commit(*halves[1][1:], options)
        lance.dataset(path).optimize.compact_files(**options)
    else:
        halves[1][0].commit(*halves[1][1:], options)
    for library in (lance, lance_core):
        dataset = library.dataset(path)
        assert len(dataset.get_fragments()) == 2
        assert dataset.stats.index_stats("__lance_frag_reuse") == {"num_versions": 2}
        assert dataset.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
        found = dataset.to_table(filter="id IN (5, 105, 205, 305)", columns=["id"])["id"].to_pylist()
        assert sorted(found) == [5, 105, 205, 305]
    lance.dataset(path).validate()


def test_deletions_only_rewrites_each_fragment_over_the_threshold_alone(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [100, 100, 100, 100])
    dataset.delete("id < 30 OR (id >= 100 AND id < 105) OR (id >= 300 AND id < 311)")
    expected = dataset.to_table().sort_by("id")
    ours = lance_core.dataset(path)
    metrics = ours.optimize.compact_files(deletions_only=True)
    assert (metrics.fragments_removed, metrics.fragments_added) == (2, 2)
    fragments = lance.dataset(path).get_fragments()
    assert [(f.fragment_id, f.count_rows(), f.num_deletions) for f in fragments] == [
        (1, 95, 5), (2, 100, 0), (4, 70, 0), (5, 89, 0),
    ]  # fmt: skip
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)
    ours.optimize.compact_files(deletions_only=True, materialize_deletions_threshold=0)
    assert ours.count_deleted_rows() == 0
    assert len(lance.dataset(path).get_fragments()) == 4


def test_partitions_are_never_mixed(tmp_path):
    path = str(tmp_path / "t")
    for round_number in range(4):
        for day in range(3):
            part = pa.table({"day": pa.array([day] * 20), "n": range(round_number * 20, round_number * 20 + 20)})
            lance.write_dataset(part, path, mode="append")
    mixed = pa.table({"day": [0, 1], "n": [1000, 1001]})
    lance.write_dataset(mixed, path, mode="append")
    lance.dataset(path).update_config({"lance.compaction.partition_by": "day"})
    ours = lance_core.dataset(path)
    expected = ours.to_table().sort_by([("day", "ascending"), ("n", "ascending")])
    metrics = ours.optimize.compact_files()
    assert (metrics.fragments_removed, metrics.fragments_added) == (12, 3)
    per_fragment = [
        set(f.to_table(columns=["day"]).column("day").to_pylist()) for f in lance.dataset(path).get_fragments()
    ]
    assert sorted(map(sorted, per_fragment)) == [[0], [0, 1], [1], [2]]
    assert lance.dataset(path).to_table().sort_by([("day", "ascending"), ("n", "ascending")]).equals(expected)
    with pytest.raises(InvalidInputError, match="no column 'week'"):
        ours.optimize.compact_files(partition_by=["week"])


def test_partition_replacement_stays_free_of_conflicts(tmp_path):
    path = str(tmp_path / "t")
    for _ in range(2):
        for day in range(2):
            lance_core.write_dataset(pa.table({"day": [day] * 5, "n": range(5)}), path, mode="append")
    dataset = lance_core.dataset(path)
    results = [task.execute(dataset) for task in Compaction.plan(dataset, {"partition_by": ["day"]}).tasks]
    assert len(results) == 2
    slices = lance_core.Slices((lance_core.Slice(name="d0", conditions={"day": lance_core.Equals(0)}),))
    new = pa.table({"day": [0], "n": [99]})
    written = lance_core.write_fragments(new, path, dataset_schema=dataset.lance_schema_bytes)
    lance_core.commit_fragments(path, written, new.schema, mode="replace", slices=slices)
    with pytest.raises(RetryableConflictError):
        Compaction.commit(dataset, results)
    dataset = lance_core.dataset(path)
    of_day_1 = [r for r in results if r.original_records[0].id % 2 == 1]
    Compaction.commit(dataset, of_day_1)
    rows_left = sorted(map(tuple, (r.values() for r in lance.dataset(path).to_table().to_pylist())))
    assert rows_left == sorted([(0, 99)] + [(1, n) for n in range(5)] * 2)


@pytest.mark.parametrize("when", ["planned", "executed"])
def test_a_delete_in_a_rewritten_group_is_a_retryable_conflict_and_no_damage(tmp_path, when):
    path = str(tmp_path / "t")
    write(path, [100, 100, 100, 100])
    dataset = lance_core.dataset(path)
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 200})
    if when == "planned":
        lance.dataset(path).delete("id = 5")
    results = [task.execute(dataset) for task in plan.tasks]
    if when == "executed":
        lance.dataset(path).delete("id = 5")
    lance.write_dataset(rows(1000, 7), path, mode="append")
    expected = lance.dataset(path).to_table().sort_by("id")
    with pytest.raises(RetryableConflictError):
        Compaction.commit(dataset, results)
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)
    Compaction.commit(dataset, results[1:])
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)
    assert lance.dataset(path).count_rows() == 406
    compact(dataset)
    assert len(lance.dataset(path).get_fragments()) == 1
    assert lance.dataset(path).to_table().sort_by("id").equals(expected)


def test_all_tasks_that_were_lost_are_counted(tmp_path):
    path = str(tmp_path / "t")
    write(path, [10] * 6)
    dataset = lance_core.dataset(path)

    def progress(done, total):
        if done == total:
            lance_core.dataset(path).update({"id": "id + 100"}, write_mode="rewrite_columns")

    metrics = compact(dataset, {"target_rows_per_fragment": 20}, progress=progress, retries=1)
    assert (metrics.fragments_removed, metrics.tasks_skipped) == (0, 3)


def test_compacting_leaves_out_what_was_changed_meanwhile(tmp_path):
    path = str(tmp_path / "t")
    write(path, [100, 100, 100, 100])
    dataset = lance_core.dataset(path)
    deleted = []

    def progress(done, total):
        if not deleted:
            lance.dataset(path).delete("id = 5")
            deleted.append((done, total))

    metrics = compact(dataset, {"target_rows_per_fragment": 200}, progress=progress)
    assert deleted == [(200, 400)]
    assert (metrics.fragments_removed, metrics.tasks_skipped) == (2, 1)
    assert lance.dataset(path).count_rows() == 399
    referenced = {file.path for f in lance.dataset(path).get_fragments() for file in f.metadata.files}
    names = {file.name for file in (tmp_path / "t" / "data").iterdir()}
    assert referenced <= names
    assert len(names) == 4 + 1


def test_concurrent_compactions_of_the_same_fragments(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [100, 100]).to_table()
    dataset = lance_core.dataset(path)
    results = [task.execute(dataset) for task in Compaction.plan(dataset).tasks]
    lance.dataset(path).optimize.compact_files()
    with pytest.raises(RetryableConflictError):
        Compaction.commit(dataset, results)
    same(path, expected)


def test_columns_added_later_and_dropped_ones(tmp_path):
    path = str(tmp_path / "t")
    write(path, [50, 50])
    dataset = lance.dataset(path)
    dataset.add_columns({"twice": "id * 2"})
    dataset.drop_columns(["raw", "nothing"])
    dataset.add_columns(pa.schema([pa.field("later", pa.string())]))
    lance.write_dataset(dataset.to_table().slice(0, 20), path, mode="append")
    dataset = lance.dataset(path)
    expected = dataset.to_table()
    for mode in MODES:
        copy = str(tmp_path / mode)
        lance.dataset(path).deep_clone(copy, lance.dataset(path).version)
        compact(lance_core.dataset(copy), {"compaction_mode": mode})
        same(copy, expected)
        (fragment,) = lance.dataset(copy).get_fragments()
        assert len(fragment.metadata.files) == 1


def test_all_rows_of_a_fragment_deleted_by_a_deletion_file(tmp_path):
    """A rebased delete can leave a fragment none of whose rows is alive."""
    path = str(tmp_path / "t")
    write(path, [20, 20, 20])
    dataset = lance.dataset(path)
    dataset.delete("id < 20 AND id != 3")
    fragment = dataset.get_fragments()[0]
    compact(lance_core.dataset(path), {"target_rows_per_fragment": 20})
    assert fragment.fragment_id == 0
    assert lance.dataset(path).count_rows() == 41


@pytest.mark.parametrize("first", ["ours", "pylance"])
def test_deferred_remapping_keeps_indices_covering(tmp_path, first):
    path = str(tmp_path / "t")
    dataset = write(path, [100, 100, 100, 100])
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("word", "BITMAP")
    dataset.delete("id % 10 = 3")
    for round_number, target in enumerate((150, 1000, 5000)):
        options = {"target_rows_per_fragment": target, "defer_index_remap": True}
        if (first == "ours") == (round_number % 2 == 0):
            lance_core.dataset(path).optimize.compact_files(**options)
        else:
            lance.dataset(path).optimize.compact_files(**options)
        dataset = lance.dataset(path)
        live = {fragment.fragment_id for fragment in dataset.get_fragments()}
        if round_number < 2:
            covered = {i["name"]: set(i["fragment_ids"]) for i in dataset.list_indices()}
            assert covered["id_idx"] == covered["word_idx"] == live
        assert "ScalarIndexQuery" in dataset.scanner(filter="id = 204").explain_plan()
        found = dataset.to_table(filter="id IN (4, 13, 204, 399, 1005)", columns=["id"]).column("id").to_pylist()
        assert sorted(found) == [4, 204, 399] + [1005] * (round_number == 2)
        scanned = dataset.scanner(filter="word = 'word 4'", columns=["id"], use_scalar_index=False).to_table()
        assert dataset.to_table(filter="word = 'word 4'", columns=["id"]).sort_by("id").equals(scanned.sort_by("id"))
        lance.write_dataset(rows(1000, 50), path, mode="append") if round_number == 1 else None
    lance.dataset(path).optimize.optimize_indices()
    assert lance.dataset(path).count_rows(filter="id < 200") == 180
    assert lance_core.dataset(path).count_rows() == 360 + 50


def test_deferred_remapping_in_steps(tmp_path):
    path = str(tmp_path / "t")
    dataset = write(path, [100, 100, 100, 100])
    dataset.create_scalar_index("id", "BTREE")
    options = {"target_rows_per_fragment": 200, "defer_index_remap": True}
    ours = lance_core.dataset(path)
    results = [task.execute(ours) for task in Compaction.plan(ours, options).tasks]
    for result in results:
        Compaction.commit(ours, [result], options)
    dataset = lance.dataset(path)
    covered = {index["name"]: set(index["fragment_ids"]) for index in dataset.list_indices()}
    assert covered["id_idx"] == {fragment.fragment_id for fragment in dataset.get_fragments()}
    assert dataset.to_table(filter="id IN (5, 305)", columns=["id"]).num_rows == 2


def test_deferred_remapping_is_rejected_with_stable_row_ids(tmp_path):
    write(str(tmp_path / "t"), [5, 5], enable_stable_row_ids=True)
    with pytest.raises(UnsupportedError, match="defer_index_remap"):
        lance_core.dataset(tmp_path / "t").optimize.compact_files(defer_index_remap=True)


def test_tasks_run_in_processes(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [100, 100, 100, 100]).to_table()
    seen = []
    metrics = compact(
        lance_core.dataset(path),
        {"target_rows_per_fragment": 200, "num_threads": 2},
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (metrics.fragments_removed, metrics.fragments_added) == (4, 2)
    assert seen == [(200, 400), (400, 400)]
    same(path, expected)


@pytest.mark.parametrize("workers", [None, 2])
def test_a_task_that_fails_does_not_lose_the_others(tmp_path, workers):
    path = str(tmp_path / "t")
    write(path, [100, 100, 100, 100])
    dataset = lance_core.dataset(path)
    victim = lance.dataset(path).get_fragments()[0].metadata.files[0].path
    hidden = tmp_path / "hidden"
    (tmp_path / "t" / "data" / victim).rename(hidden)
    options = {"target_rows_per_fragment": 200, "num_threads": workers}
    with pytest.raises(FileNotFoundError, match=victim):
        compact(dataset, options)
    hidden.rename(tmp_path / "t" / "data" / victim)
    dataset = lance.dataset(path)
    assert sorted(f.fragment_id for f in dataset.get_fragments()) == [0, 1, 4]
    assert dataset.to_table(columns=["id"]).column("id").to_pylist() == list(range(400))


def test_compaction_of_a_branch_and_of_a_clone_writes_only_there(tmp_path):
    path = str(tmp_path / "t")
    expected = write(path, [50, 50]).to_table()
    main = lance.dataset(path)
    main.create_branch("work")
    main.shallow_clone(str(tmp_path / "clone"), main.version)
    before = sorted(p.name for p in (tmp_path / "t" / "data").iterdir())
    for place in (tmp_path / "t" / "tree" / "work", tmp_path / "clone"):
        compact(lance_core.dataset(place))
        assert lance.dataset(str(place)).to_table().equals(expected)
        assert len(lance.dataset(str(place)).get_fragments()) == 1
        assert len(list((place / "data").iterdir())) == 1
    assert sorted(p.name for p in (tmp_path / "t" / "data").iterdir()) == before
    assert lance.dataset(path).version == 2


def test_filters_of_pyarrow_after_compaction(tmp_path):
    path = str(tmp_path / "t")
    write(path, [500, 500])
    compact(lance_core.dataset(path))
    found = lance_core.dataset(path).to_table(filter=pc.field("id") >= 990, columns=["id"])
    assert found.column("id").to_pylist() == list(range(990, 1000))


def test_version_0_1(tmp_path):
    path = str(tmp_path / "t")
    for start in range(0, 300, 100):
        part = pa.table(
            {
                "id": range(start, start + 100),
                "word": pa.array([f"w{i % 3}" for i in range(100)]),
                "kind": pa.array(["u", "v"] * 50).dictionary_encode(),
                "numbers": pa.array([list(range(i % 4)) for i in range(100)], pa.list_(pa.int32())),
            }
        )
        lance.write_dataset(part, path, mode="append", data_storage_version="legacy")
    lance.dataset(path).delete("id % 7 = 3")
    expected = lance.dataset(path).to_table()
    with pytest.raises(InvalidInputError, match="binary copy is not supported"):
        compact(lance_core.dataset(path), {"compaction_mode": "force_binary_copy"})
    metrics = compact(lance_core.dataset(path))
    assert (metrics.fragments_removed, metrics.fragments_added) == (3, 1)
    same(path, expected)
    assert lance.dataset(path).data_storage_version == "0.1"
    with pytest.raises(UnsupportedError, match="V1 and V2 storage versions cannot be mixed"):
        compact(lance_core.dataset(path), {"data_storage_version": "2.2"})


def test_blobs_are_kept(tmp_path):
    path = str(tmp_path / "t")
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    for start in range(2):
        values = [None if i == 3 else bytes([start, i]) * i * 100 for i in range(10)]
        table = pa.table([pa.array(values, pa.large_binary())], schema=pa.schema([field]))
        lance.write_dataset(table, path, mode="append", data_storage_version="2.1")
    before = [blob.readall() for blob in lance.dataset(path).take_blobs("blob", indices=[0, 5, 9, 15, 19])]
    compact(lance_core.dataset(path))
    assert len(lance.dataset(path).get_fragments()) == 1
    after = [blob.readall() for blob in lance.dataset(path).take_blobs("blob", indices=[0, 5, 9, 15, 19])]
    assert after == before


def test_arguments_are_pylances_and_ours_come_last():
    own, other = (
        list(inspect.signature(kind.compact_files).parameters) for kind in (DatasetOptimizer, PylanceOptimizer)
    )
    ours = {"target_bytes_per_fragment", "deletions_only", "partition_by", "repair_pages", "transaction_properties",
            "progress"}  # fmt: skip
    assert own[: len(other)] == other
    assert set(own[len(other) :]) == ours
    for verb in ("cleanup_old_versions", "explain_cleanup_old_versions"):
        own, other = (
            inspect.signature(getattr(kind, verb)).parameters for kind in (lance_core.LanceDataset, lance.LanceDataset)
        )
        assert set(own) - {"selectors"} | set(CleanupSelectors.__annotations__) == {*other, "in_use", "age_from"}
        positional = [name for name in own if own[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        assert positional == [name for name in other if other[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]


def test_files_end_at_the_bytes_at_which_pylances_end(tmp_path):
    table = pa.table({"a": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2**22)), 1024)})  # 8 KiB a row
    cuts = []
    for library in (lance, lance_core):
        for most in (2_000_000, 10_000_000):
            path = str(tmp_path / f"{library.__name__}{most}")
            dataset = library.write_dataset(table, path, max_rows_per_file=128)
            options = {"target_rows_per_fragment": 100 * 1024, "max_bytes_per_file": most, "batch_size": 128}
            dataset.optimize.compact_files(materialize_deletions=False, **options)
            cuts.append([fragment.count_rows() for fragment in dataset.get_fragments()])
    assert cuts[:2] == cuts[2:]
    assert 1 < len(cuts[1]) < len(cuts[0]) < 32
    assert lance.dataset(path).to_table().equals(table)


def test_fragments_end_at_the_bytes_at_which_pylances_end(tmp_path):
    batches = [pa.record_batch({"a": [f"{i:07d}" * 146 for i in range(n, n + 8192)]}) for n in (0, 8192, 16384)]
    cuts = []
    for library in (lance.fragment, lance_core.fragment):
        for most in (1024, 100_000_000):
            reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
            written = library.write_fragments(reader, tmp_path / library.__name__, max_bytes_per_file=most)
            cuts.append([fragment.physical_rows for fragment in written])
    assert cuts[:2] == cuts[2:] == [[8192] * 3, [8192 * 3]]

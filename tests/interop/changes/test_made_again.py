"""Work that was planned for a table is neither read from nor committed to one that was made again at its URI.

Its fragments have the same ids, and its versions the same numbers.
"""

import pickle
import shutil

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import IncompatibleConflictError, NotFoundError
from lance_core.maintenance import Compaction

LIBRARIES = pytest.mark.parametrize("library", [lance, lance_core], ids=["pylance", "lance_core"])
STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


def make(uri, library, stable, start=0):
    """A table of three versions and three fragments."""
    for number in range(3):
        rows = pa.table({"id": range(start + 4 * number, start + 4 * number + 4)})
        library.write_dataset(rows, uri, mode="append" if number else "create", enable_stable_row_ids=stable)
    return lance_core.dataset(uri)


@pytest.fixture
def tables(tmp_path, library, stable):
    """A table, and a function that makes another one at its URI."""
    uri = str(tmp_path / "t")

    def again():
        shutil.rmtree(uri)
        return make(uri, library, stable, start=100)

    return make(uri, library, stable), again


def assert_untouched(dataset):
    found = lance.dataset(dataset.uri)
    assert (found.version, found.to_table()["id"].to_pylist()) == (3, list(range(100, 112)))


@LIBRARIES
@STABLE
class TestMadeAgain:
    def test_results_of_a_compaction(self, tables):
        dataset, again = tables
        plan = Compaction.plan(dataset, {"target_rows_per_fragment": 1000})
        results = [task.execute(dataset) for task in plan.tasks]
        now = again()
        with pytest.raises(IncompatibleConflictError, match="fragment 0 has none of the data files"):
            Compaction.commit(now, results)
        assert_untouched(now)

    def test_tasks_of_a_compaction(self, tables):
        dataset, again = tables
        (task,) = Compaction.plan(dataset, {"target_rows_per_fragment": 1000}).tasks
        now = again()
        with pytest.raises((IncompatibleConflictError, NotFoundError)):
            task.execute(now)
        assert_untouched(now)

    def test_segments_of_an_index(self, tables, tmp_path):
        dataset, again = tables
        segments = [dataset.create_index_uncommitted("id", "BTREE", fragment_ids=[part]) for part in range(3)]
        shutil.copytree(f"{dataset.uri}/_indices", tmp_path / "kept")
        now = again()
        shutil.copytree(tmp_path / "kept", f"{dataset.uri}/_indices", dirs_exist_ok=True)
        for part in (segments[0], pickle.loads(pickle.dumps(segments[0]))):
            with pytest.raises(IncompatibleConflictError, match="version 3 is younger than segment"):
                now.commit_existing_index_segments("id_idx", "id", [part])
            with pytest.raises(IncompatibleConflictError, match="version 3 is younger than segment"):
                now.merge_existing_index_segments([part])
        assert_untouched(now)

    def test_merged_segments_of_an_index(self, tables, tmp_path):
        dataset, again = tables
        merged = dataset.merge_existing_index_segments(
            [dataset.create_index_uncommitted("id", "BTREE", fragment_ids=[part]) for part in range(3)]
        )
        now = again()
        now.insert({"id": [112]})
        with pytest.raises(IncompatibleConflictError, match="version 3 is younger than segment"):
            now.commit_existing_index_segments("id_idx", "id", [merged])
        assert lance.dataset(now.uri).version == 4

    def test_tasks_of_a_feed_of_changes(self, tables):
        dataset, again = tables
        dataset.delete("id = 1")
        tasks = dataset.delta(1).plan().tasks
        assert {task.change_type for task in tasks} == {"delete", "insert"}
        now = again()
        now.delete("id = 101")
        for task in tasks:
            with pytest.raises(IncompatibleConflictError, match="dropped and made again"):
                next(pickle.loads(pickle.dumps(task)).to_batches(now))

    @pytest.mark.parametrize("operation", ["Delete", "Update"])
    def test_fragments_of_an_operation(self, tables, operation):
        dataset, again = tables
        fragment = dataset.get_fragment(0).delete("id = 1")
        change = getattr(lance_core.LanceOperation, operation)
        given = {"Delete": {"predicate": "id = 1", "deleted_fragment_ids": []}, "Update": {"new_fragments": []}}
        now = again()
        with pytest.raises(IncompatibleConflictError, match="fragment 0 has none of the data files"):
            lance_core.LanceDataset.commit(
                now.uri, change(updated_fragments=[fragment], **given[operation]), read_version=3
            )
        assert_untouched(now)

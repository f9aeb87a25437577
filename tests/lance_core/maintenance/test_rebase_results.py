"""Results of rewrites in a later version: only those stay that the version can take as if they were planned in it."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance
from lance_core.errors import RetryableConflictError


def grown(uri, *, stable=False):
    for piece in range(4):
        rows = pa.table({"n": range(piece * 10, piece * 10 + 10), "s": [f"word{piece}"] * 10})
        lance.write_dataset(rows, uri, mode="append", enable_stable_row_ids=stable)
    return lance_core.dataset(uri)


def rewritten(table):
    options = {"target_rows_per_fragment": 20}
    return [task.execute(table) for task in maintenance.Compaction.plan(table, options).tasks]


@pytest.mark.parametrize("stable", [False, True])
def test_an_index_that_was_extended_meanwhile_is_no_conflict(tmp_path, stable):
    uri = str(tmp_path / "t")
    grown(uri, stable=stable)
    lance.dataset(uri).create_scalar_index("s", "INVERTED")
    table = grown(uri, stable=stable)
    whole = {"target_rows_per_fragment": 1000}
    expected = maintenance.ExpectedVersions(table)
    expected.extend_by_pylance("s_idx")
    (task,) = maintenance.Compaction.plan(expected.dataset, whole).tasks
    assert len(maintenance.Compaction.plan(table, whole).tasks) == 2  # the index covers the first four
    result = maintenance.CompactionTask.of(task.records, table.version, task.options).execute(table)
    assert maintenance.rebase_results(table, [result]) == []
    result = maintenance.CompactionTask.of(task.records, table.version, task.options).execute(table)
    lance.dataset(uri).optimize.optimize_indices()
    table.checkout_latest()
    maintenance.commit_what_fits(table, maintenance.rebase_results(table, [result]), {})
    found = lance.dataset(uri)
    assert len(found.get_fragments()) == 1
    assert found.stats.index_stats("s_idx")["num_unindexed_rows"] == 0
    words = found.to_table(full_text_query="word2", limit=100)["n"].to_pylist()
    assert sorted(words) == sorted([*range(20, 30), *range(20, 30)])


def test_what_a_writer_changed_is_left_out_and_its_files_are_deleted(tmp_path):
    table = grown(str(tmp_path / "t"))
    results = rewritten(table)
    before = set(Path(tmp_path, "t/data").iterdir())
    lance.dataset(table.uri).delete("n = 3")
    table.checkout_latest()
    kept = maintenance.rebase_results(table, results)
    assert [[one.id for one in result.original_fragments] for result in kept] == [[2, 3]]
    assert [result.read_version for result in kept] == [table.version]
    assert len(before - set(Path(tmp_path, "t/data").iterdir())) == 1
    maintenance.commit_what_fits(table, kept, {})
    assert sorted(lance.dataset(table.uri).to_table()["n"].to_pylist()) == [n for n in range(40) if n != 3]


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "BLOOMFILTER"])
def test_segments_that_are_only_expected_are_not_read(tmp_path, kind):
    """A dry run extends an index twice, if a compaction extends it as well; warnings are errors in tests."""
    table = grown(str(tmp_path / "t"))
    table.create_scalar_index("n", kind)
    table = grown(table.uri)
    expected = maintenance.ExpectedVersions(table)
    expected.compact(maintenance.Compaction.plan(table, {"target_rows_per_fragment": 20}).tasks[:1])
    assert expected.optimize_index("n_idx")
    before = expected.dataset.version
    assert expected.optimize_index("n_idx")
    assert expected.dataset.version == before


def test_results_that_were_all_overtaken_make_no_version(tmp_path):
    uri = str(tmp_path / "t")
    first, second = grown(uri), lance_core.dataset(uri)
    results, overtaken = rewritten(first), rewritten(second)
    maintenance.commit_what_fits(first, results, {})
    used = {Path(file.path).name for one in first.get_fragments() for file in one.metadata.files}
    with pytest.raises(RetryableConflictError, match=r"changed the fragments of all 2 tasks; plan them again"):
        maintenance.commit_what_fits(second, overtaken, {})
    assert second.version == first.version == lance.dataset(uri).version
    new = {file.path for result in overtaken for record in result.new_records for file in record.files}
    assert not new & {path.name for path in Path(uri, "data").iterdir()}
    assert used <= {path.name for path in Path(uri, "data").iterdir()}

"""Dry runs of maintenance: the cleanup that is expected is the one that follows."""

import pyarrow as pa
import pytest

import lance_core
from lance_core import maintenance


def built(uri, *, stable):
    """A table with a history: deleted rows, a reader of changes that holds an old version, a tag and a branch."""
    for number in range(4):
        table = lance_core.write_dataset(
            pa.table({"id": [number, -number]}), uri, mode="append", enable_stable_row_ids=stable
        )
        if number == 1:
            table.readers.hold("report")
    table.create_branch("b")
    table.tags.create("third", 3)
    table.delete("id = -3")
    return table


@pytest.mark.parametrize("retained", [1, 2, 5])
@pytest.mark.parametrize("stable", [True, False], ids=["stable-row-ids", "addresses"])
def test_what_a_cleanup_after_a_compaction_removes(tmp_path, stable, retained):
    table = built(tmp_path / "t", stable=stable)
    table.create_scalar_index("id", "BTREE")
    table.insert(pa.table({"id": [7]}))
    selectors = maintenance.Selectors(retain_versions=retained, error_if_tagged=False, counted_until=table.version)
    before = len(table.versions())
    expected = maintenance.ExpectedVersions(table)
    options = {"materialize_deletions_threshold": 0.0}
    expected.compact(maintenance.Compaction.plan(table, options).tasks)
    stats = expected.explain_cleanup(selectors)

    table.optimize.compact_files(**options)
    assert expected.dataset.version == table.version
    assert maintenance.cleanup_old_versions(table, selectors) == stats
    assert len(table.versions()) == expected.num_versions(before)

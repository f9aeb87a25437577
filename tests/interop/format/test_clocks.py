"""Clocks of writers differ: the order of versions is that of their numbers."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit import loop
from lance_core.maintenance.verify.files import verify

HOURS_NS = 3600 * 10**9
ROWS = pa.table({"k": [10], "v": [0]})


@pytest.fixture
def uri(tmp_path, monkeypatch):
    """A table whose last version was written by a clock that is two hours ahead."""
    uri = str(tmp_path / "t.lance")
    lance_core.write_dataset(pa.table({"k": [1, 2, 3], "v": [1, 2, 3]}), uri)
    with monkeypatch.context() as patch:
        now = loop.time.time_ns()
        patch.setattr(loop.time, "time_ns", lambda: now + 2 * HOURS_NS)
        lance_core.dataset(uri).insert(pa.table({"k": [4], "v": [4]}))
    return uri


CHANGES = {
    "append": lambda table: table.insert(ROWS),
    "update": lambda table: table.update({"v": "v + 1"}, "k = 4"),
    "delete": lambda table: table.delete("k = 2"),
    "merge": lambda table: (
        table.merge_insert("k").when_matched_update_all().when_not_matched_insert_all().execute(ROWS)
    ),
}


@pytest.mark.parametrize("library", [lance_core, lance])
@pytest.mark.parametrize("change", CHANGES)
def test_a_version_by_a_slower_clock_is_no_fault(uri, library, change):
    CHANGES[change](library.dataset(uri))
    assert verify(lance_core.dataset(uri)) == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_rebased_over_versions_by_another_clock(uri, change):
    opened = lance_core.dataset(uri)
    lance_core.dataset(uri).update_config({"a": "1"})
    CHANGES[change](opened)
    assert verify(lance_core.dataset(uri)) == []


def test_versions_by_another_clock_around_a_removed_one(uri):
    lance_core.dataset(uri).insert(ROWS)
    lance_core.dataset(uri).insert(ROWS)
    lance_core.dataset(uri).cleanup_old_versions(versions=[3], delete_unverified=True)
    assert verify(lance_core.dataset(uri)) == []

"""Erasures and cleanups that are killed at any of their changes of the disk are finished by the same call."""

import datetime as dt
import os
import shutil

import lance
import pyarrow as pa
import pytest

import lance_core
from tests.faults.faulty_store import Killed

_CHANGES = ("rename", "replace", "link", "unlink", "rmdir")


class Process:
    """Counts changes of the disk, and dies before one of them: none happens after that."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch

    def run(self, call, dies_at=None):
        self.changes = 0
        with self.monkeypatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self.changing(getattr(os, name), dies_at))
            try:
                call()
            except Killed:
                return False
        return True

    def changing(self, real, dies_at):
        def change(*args, **kwargs):
            self.changes += 1
            if dies_at is not None and self.changes >= dies_at:
                raise Killed
            return real(*args, **kwargs)

        return change


@pytest.fixture
def table(tmp_path):
    """A table with history: indices, deleted rows, a tag and a branch, which shares files; and a copy of all of it."""
    uri = tmp_path / "t"
    rows = pa.table({"id": range(12), "k": [number % 3 for number in range(12)]})
    lance_core.write_dataset(rows.slice(0, 6), uri, max_rows_per_file=3)
    lance_core.write_dataset(rows.slice(6, 3), uri, mode="append")
    dataset = lance_core.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("k", "BITMAP")
    dataset.delete("id = 4")
    lance_core.write_dataset(rows.slice(9, 3), uri, mode="append")
    dataset = lance_core.dataset(uri)
    dataset.tags.create("tagged", 2)
    branch = dataset.create_branch("b")
    branch.insert(pa.table({"id": [20, 21], "k": [0, 1]}))
    branch.delete("id = 1")
    shutil.copytree(uri, tmp_path / "as it was")
    return uri


def restore(uri):
    shutil.rmtree(uri)
    shutil.copytree(uri.parent / "as it was", uri)


def erase(uri):
    return lance_core.dataset(uri).erase_rows("id = 7", retag=True, release_branches=True, delete_unverified=True)


def clean_up(uri):
    return lance_core.dataset(uri).cleanup_old_versions(
        dt.timedelta(0), error_if_tagged_old_versions=False, delete_unverified=True
    )


def ids_of(uri, branch="main"):
    return sorted(lance_core.dataset(uri).checkout_version((branch, None)).to_table()["id"].to_pylist())


def readable_versions(uri):
    """The versions of main, all of which pylance reads."""
    numbers = [one["version"] for one in lance.dataset(uri).versions()]
    for number in numbers:
        lance.dataset(uri, version=number).to_table()
    return numbers


def list_files(table):
    """All files, without claims: that of a run that was killed counts for a day."""
    return sorted(str(path) for path in table.rglob("*") if path.is_file() and path.parent.name != "claims")


def points(changes):
    """Where to die: before each of the last changes, among which versions lose their files, and before some others."""
    return sorted({*range(changes - 9, changes + 1), *range(1, changes, changes // 4)})


def test_an_erasure_that_was_killed_is_finished_by_the_next_one(table, monkeypatch):
    process = Process(monkeypatch)
    assert process.run(lambda: erase(table))
    kept = readable_versions(table)
    for point in points(process.changes):
        restore(table)
        assert not process.run(lambda: erase(table), point)
        report = erase(table)
        assert report.proven, (point, report.obstacles, report.remaining)
        assert ids_of(table) == [0, 1, 2, 3, 5, 6, 8, 9, 10, 11]
        assert ids_of(table, "b") == [0, 2, 3, 5, 6, 8, 9, 10, 11, 20, 21]
        assert len(readable_versions(table)) <= len(kept) + 1


def test_a_cleanup_that_was_killed_is_finished_by_the_next_one(table, monkeypatch):
    process = Process(monkeypatch)
    assert process.run(lambda: clean_up(table))
    files = list_files(table)
    for point in points(process.changes):
        restore(table)
        assert not process.run(lambda: clean_up(table), point)
        clean_up(table)
        assert list_files(table) == files
        readable_versions(table)

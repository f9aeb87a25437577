"""Files of failed Spark tasks, some of which come while they are deleted."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import lance_core
from pyspark_lance.writing import orphan_files


@pytest.fixture
def table(tmp_path):
    lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t.lance")
    return tmp_path / "t.lance"


def late(monkeypatch, table: Path, job: str, *, comes: range) -> list[int]:
    """A worker of a failed task writes a file during each pause of the deletion; returns the list of the pauses."""
    pauses: list[int] = []

    def pause(_seconds: float) -> None:
        pauses.append(len(pauses))
        if pauses[-1] in comes:
            (table / "data" / f"{job}-0-0-{pauses[-1]}.lance").write_bytes(b"late")

    monkeypatch.setattr(orphan_files, "time", SimpleNamespace(sleep=pause))
    return pauses


def others(table: Path, job: str) -> list[str]:
    return [path.name for path in (table / "data").iterdir() if path.name.startswith(job)]


def test_late_files_of_failed_tasks_are_deleted(table, monkeypatch):
    job = uuid.uuid4().hex
    pauses = late(monkeypatch, table, job, comes=range(2, 5))
    orphan_files.delete_orphan_files(str(table), job, (), None, failed=True)
    assert others(table, job) == []
    assert len(pauses) > 5
    assert lance_core.dataset(table).to_table().num_rows == 1


def test_no_wait_if_all_tasks_reported(table, monkeypatch):
    job = uuid.uuid4().hex
    pauses = late(monkeypatch, table, job, comes=range(9))
    (table / "data" / f"{job}-0-0-a.lance").write_bytes(b"left")
    orphan_files.delete_orphan_files(str(table), job, (), None)
    assert (others(table, job), pauses) == ([], [])


@pytest.mark.parametrize(("attempt", "waits"), [(0, False), (1, True), (12, True)])
def test_late_files_of_a_replaced_attempt_are_deleted(table, monkeypatch, attempt, waits):
    job = uuid.uuid4().hex
    kept = lance_core.write_fragments(pa.table({"id": [2]}), table)[0]
    name = f"{job}-0-{attempt}-kept.lance"
    (table / "data" / kept.files[0].path).rename(table / "data" / name)
    kept.files[0].path = name
    pauses = late(monkeypatch, table, job, comes=range(2, 3))
    orphan_files.delete_orphan_files(str(table), job, [kept], None)
    assert others(table, job) == [name]
    assert bool(pauses) == waits


def test_the_wait_for_late_files_ends(table, monkeypatch):
    job = uuid.uuid4().hex
    pauses = late(monkeypatch, table, job, comes=range(10**6))
    orphan_files.delete_orphan_files(str(table), job, (), None, failed=True)
    assert len(pauses) == orphan_files._MOST_POLLS

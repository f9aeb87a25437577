import itertools
import os
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import StoreError
from lance_core.progress import FragmentWriteProgress

ROWS = 60
PER_FILE = 5
TABLE = pa.table({"id": pa.array(range(ROWS), pa.int64()), "text": [f"row {i}" for i in range(ROWS)]})


def write_many(uri, **options):
    return lance_core.write_dataset(TABLE, uri, max_rows_per_file=PER_FILE, **options)


def files_below(root):
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_all_files_and_their_names_are_on_disk_before_the_commit(tmp_path, monkeypatch):
    events = []
    real_sync, real_rename, real_link = os.fsync, os.rename, os.link

    def sync(fd):
        real_sync(fd)
        events.append(("sync", os.fstat(fd).st_ino))

    def rename(source, target):
        real_rename(source, target)
        if target.endswith(".lance"):
            events.append(("rename", target))

    def link(source, target):
        events.append(("commit", target))
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "link", link)
    write_many(tmp_path / "t")

    kinds = [kind for kind, _ in events]
    assert kinds.count("commit") == 1
    before = events[: kinds.index("commit")]
    data = tmp_path / "t" / "data"
    written = list(data.iterdir())
    assert len(written) == ROWS // PER_FILE
    for path in written:
        named = before.index(("rename", str(path)))
        assert ("sync", path.stat().st_ino) in before[:named]
        assert ("sync", data.stat().st_ino) in before[named:]


def test_files_are_closed_side_by_side_and_the_rows_keep_their_order(tmp_path, monkeypatch):
    real, numbers, second = os.fsync, itertools.count(), threading.Event()

    def first_waits_for_second(fd):
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)  # a folder is flushed by who makes it
        number = next(numbers) if is_file else -1
        assert number or second.wait(100)
        real(fd)
        if number == 1:
            second.set()

    monkeypatch.setattr(os, "fsync", first_waits_for_second)
    dataset = write_many(tmp_path / "t")
    assert dataset.to_table() == TABLE
    assert [fragment.count_rows() for fragment in dataset.get_fragments()] == [PER_FILE] * (ROWS // PER_FILE)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lance-close")]


@pytest.mark.parametrize("which", [0, 1, 7, 11])
def test_a_file_that_does_not_reach_the_disk_fails_the_write_and_nothing_stays(tmp_path, monkeypatch, which):
    write_many(tmp_path / "t")
    before = files_below(tmp_path)
    real, count = os.fsync, iter(range(1000))
    directory = (tmp_path / "t" / "data").stat().st_ino

    def broken(fd):
        if os.fstat(fd).st_ino != directory and next(count) == which:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match="Input/output"):
        write_many(tmp_path / "t", mode="append")
    monkeypatch.undo()
    assert files_below(tmp_path) == before
    assert lance_core.dataset(tmp_path / "t").to_table() == TABLE


@pytest.mark.parametrize("what", ["data file", "data folder", "manifest"])
@pytest.mark.parametrize("verb", ["insert", "update", "delete", "add_columns"])
def test_what_does_not_reach_the_disk_with_a_small_commit_fails_it_and_nothing_stays(tmp_path, monkeypatch, what, verb):
    dataset = lance_core.write_dataset(TABLE, tmp_path / "t")
    dataset.delete("id = 59")
    table, before = dataset.to_table(), files_below(tmp_path)
    folder = "_deletions" if verb == "delete" else "data"
    real = os.fsync

    def broken(fd):
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        inside = f"/t/{folder}/" in path
        if {"data file": inside, "data folder": path.endswith(f"/t/{folder}"), "manifest": ".manifest#" in path}[what]:
            raise OSError(5, "Input/output error")
        real(fd)

    verbs = {
        "insert": lambda: dataset.insert(TABLE),
        "update": lambda: dataset.update({"text": "'new'"}, where="id < 9"),
        "delete": lambda: dataset.delete("id < 9"),
        "add_columns": lambda: dataset.add_columns({"more": "id + 1"}),
    }
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match="Input/output"):
        verbs[verb]()
    monkeypatch.undo()
    assert files_below(tmp_path) == before
    assert lance_core.dataset(tmp_path / "t").to_table() == table
    verbs[verb]()


def test_a_writer_that_fails_on_the_way_leaves_no_file_behind(tmp_path):
    def batches():
        yield from TABLE.to_batches(max_chunksize=7)
        raise RuntimeError("no more rows")

    with pytest.raises(RuntimeError, match="no more rows"):
        lance_core.write_dataset(batches(), tmp_path / "t", TABLE.schema, max_rows_per_file=PER_FILE)
    assert files_below(tmp_path) == []


def test_progress_is_reported_file_by_file(tmp_path):
    calls = []

    class Recorded(FragmentWriteProgress):
        def begin(self, fragment, **kwargs):
            calls.append(("begin", fragment.id))

        def complete(self, fragment, **kwargs):
            calls.append(("complete", fragment.id, fragment.physical_rows))

    write_many(tmp_path / "t", progress=Recorded())
    expected = []
    for number in range(ROWS // PER_FILE):
        expected += [("begin", number), ("complete", number, PER_FILE)]
    assert calls == expected

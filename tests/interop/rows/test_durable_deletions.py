"""Data and deletion files are on the disk, with their names, before a version refers to them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_core
from lance_core import LanceDataset
from lance_core.store.external import SqliteTable

ROWS = pa.table({"id": range(100), "x": range(100)})


class Disk:
    """What was written to disk: the inodes of files and folders, in order, and the commits between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
        self.synced: set[int] = set()
        self.before = {one.name for one in (table / "data").iterdir()}
        self.unsynced: list[str] = []
        fsync, link = os.fsync, os.link

        def note(fd: int) -> None:
            self.synced.add(os.fstat(fd).st_ino)
            fsync(fd)

        def commit(source: str, target: str) -> None:
            self.check(Path(target).parent.parent)
            link(source, target)

        monkeypatch.setattr(os, "fsync", note)
        monkeypatch.setattr(os, "link", commit)

    def check(self, table: Path) -> None:
        """Take note of files that are not on disk when a version is committed."""
        for folder in (table / "_deletions", table / "data"):
            files = [one for one in folder.iterdir() if one.name not in self.before] if folder.is_dir() else []
            self.unsynced += [
                one.name for one in [*files, *([folder] if files else [])] if one.stat().st_ino not in self.synced
            ]


CHANGES: dict[str, Callable[[LanceDataset], object]] = {
    "delete": lambda ds: ds.delete("id % 10 = 3"),
    "update": lambda ds: ds.update({"x": "x + 1"}, where="id % 10 = 3"),
    "merge_insert": lambda ds: ds.merge_insert("id").when_matched_update_all().execute(ROWS.slice(5, 3)),
    "fragment": lambda ds: ds.get_fragments()[0].delete("id = 3"),
}


DATA: dict[str, Callable[[LanceDataset], object]] = {
    "insert": lambda ds: ds.insert(ROWS),
    "overwrite": lambda ds: ds.insert(ROWS, mode="overwrite"),
    "several files": lambda ds: ds.insert(ROWS, max_rows_per_file=9),
    "update": lambda ds: ds.update({"x": "x + 1"}),
    "merge_insert": lambda ds: ds.merge_insert("id").when_matched_update_all().execute(ROWS.slice(5, 3)),
    "add_columns": lambda ds: ds.add_columns({"y": "x + 1"}),
    "alter_columns": lambda ds: ds.alter_columns({"path": "x", "data_type": pa.int32()}),
    "fragment": lambda ds: ds.get_fragments()[0].merge_columns(lambda batch: pa.record_batch({"y": batch["x"]})),
}


CASES = [*(("_deletions", name) for name in CHANGES), *(("data", name) for name in DATA)]


@pytest.mark.parametrize(("folder", "name"), CASES)
@pytest.mark.parametrize("rows_per_file", [100, 10])
def test_files_are_on_disk_before_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str, rows_per_file: int
) -> None:
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=rows_per_file)
    disk = Disk(monkeypatch, tmp_path / "t")
    {"_deletions": CHANGES, "data": DATA}[folder][name](dataset)
    disk.check(tmp_path / "t")
    assert {one.name for one in (tmp_path / "t" / folder).iterdir()} - disk.before
    assert disk.unsynced == []


def test_merged_deletions_are_on_disk_before_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lance_core.write_dataset(ROWS, tmp_path / "t")
    one, other = lance_core.dataset(tmp_path / "t"), lance_core.dataset(tmp_path / "t")
    disk = Disk(monkeypatch, tmp_path / "t")
    one.delete("id = 3")
    other.delete("id = 5")
    assert lance_core.dataset(tmp_path / "t").count_rows() == 98
    assert disk.unsynced == []


def test_deletions_of_a_promotion_are_on_disk_before_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t")
    branch = dataset.create_branch("b")
    branch.insert(pa.table({"id": [200, 201], "x": [0, 0]}))
    branch.delete("id = 200")
    disk = Disk(monkeypatch, tmp_path / "t")
    dataset.branches.promote("b")
    assert lance_core.dataset(tmp_path / "t").count_rows() == 101
    assert disk.unsynced == []


@pytest.mark.parametrize("name", ["delete", "update", "several files"])
def test_an_index_of_manifests_names_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/index.db"}
    dataset = lance_core.write_dataset(ROWS, tmp_path / "t", storage_options=options)
    disk = Disk(monkeypatch, tmp_path / "t")
    named = []

    def noting(record: Callable[..., Any]) -> Callable[..., Any]:
        def note(table: SqliteTable, version: int, path: str, size: int) -> Any:
            disk.check(tmp_path / "t")
            manifest = tmp_path / "t" / path
            named.append([one.stat().st_ino in disk.synced for one in (manifest, manifest.parent)])
            disk.synced.discard(manifest.parent.stat().st_ino)  # names that come later are not there yet
            return record(table, version, path, size)

        return note

    for name_of in ("add", "finalize"):
        monkeypatch.setattr(SqliteTable, name_of, noting(getattr(SqliteTable, name_of)))
    {**CHANGES, **DATA}[name](dataset)
    assert named == [[True, True], [True, True]], "the staged manifest, and the one that takes its place"
    assert disk.unsynced == []

"""The tables of a lake: the ones that are there, with their versions, by few requests."""

import errno
import os
import random
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import StoreError
from lance_core.maintenance import find_tables
from lance_core.store import open_store
from lance_core.store.s3_client import S3Client

ROWS = pa.table({"n": [1, 2]})


@pytest.fixture
def requests(monkeypatch):
    """The requests to S3: the method of each."""
    real, made = S3Client._once, []

    async def request_once(self, method, parameters):
        made.append(method)
        return await real(self, method, parameters)

    monkeypatch.setattr(S3Client, "_once", request_once)
    return made


def test_tables_of_either_library_on_a_disk(tmp_path):
    lance.write_dataset(ROWS, str(tmp_path / "sea" / "ships.lance"))
    lance_core.write_dataset(ROWS, tmp_path / "nyc" / "deep" / "flights.lance")
    (tmp_path / "nyc" / "files.parquet").write_bytes(b"")
    assert [one.path for one in find_tables(tmp_path)] == ["nyc/deep/flights.lance", "sea/ships.lance"]
    assert find_tables(tmp_path / "none") == []


def test_each_table_with_its_versions_for_a_share_of_a_request(s3, requests):
    root, options = f"s3://{s3.new_bucket()}/lake", s3.storage_options
    for number in range(30):
        for _ in range(1 + number % 3):
            lance.write_dataset(ROWS, f"{root}/n{number:02}.lance", mode="append", storage_options=options)
    requests.clear()
    found = find_tables(root, storage_options=options)
    assert requests == ["list_objects_v2"] * 2  # the manifest table of a namespace, and the tables
    assert [one.path for one in found] == [f"n{number:02}.lance" for number in range(30)]
    for one in found:
        theirs = lance.dataset(f"{root}/{one.path}", storage_options=options)
        assert list(one.versions) == [version["version"] for version in theirs.versions()]
    table = lance_core.dataset(f"{root}/n02.lance", version=3, storage_options=options)
    assert requests == ["list_objects_v2"] * 2 + ["get_object"]
    assert table.count_rows() == 6


def test_deregistered_tables_are_left_out(s3, tmp_path):
    options = s3.storage_options
    for root in (str(tmp_path / "lake"), f"s3://{s3.new_bucket()}/lake"):
        for name in ("a", "b", "c/d", "e"):
            lance.write_dataset(ROWS, f"{root}/{name}.lance", storage_options=options)
        store = open_store(root, options)
        for name in ("b.lance/.a", "b.lance/.lance-deregistered", "b.lance/.z", "e.lance/.a", "e.lance/.z"):
            store.put(name, b"")
        assert lance_core.list_tables(root, storage_options=options) == ["a.lance", "c/d.lance", "e.lance"]
        assert lance_core.list_tables(root, storage_options=options, unfinished=True) == []
        forgotten = [lance_core.dataset(f"{root}/{name}.lance", storage_options=options) for name in ("b", "e")]
        assert [table.is_deregistered for table in forgotten] == [True, False]


def test_files_of_large_tables_are_skipped(s3, requests, monkeypatch):
    for page in ("lance_core.store.s3._PAGE_KEYS", "lance_core.verbs.inspect.tables._PAGE"):
        monkeypatch.setattr(page, 10)
    root, options = f"s3://{s3.new_bucket()}/lake", s3.storage_options
    names = ["a/large", "a/other", "b/large", "c"]
    for name in names:
        lance_core.write_dataset(ROWS, f"{root}/{name}.lance", storage_options=options)
    store = open_store(root, options)
    for name in ("a/large", "b/large"):
        for folder in ("_deletions", "data"):
            for number in range(45):
                store.put(f"{name}.lance/{folder}/{number:05}", b"x")
    requests.clear()
    assert lance_core.list_tables(root, storage_options=options) == [f"{name}.lance" for name in names]
    assert requests.count("list_objects_v2") <= 6


def test_any_layout_of_keys_shows_the_same_tables_as_all_keys(monkeypatch):
    """However the pages fall: the listing with skips finds what a look at each key finds."""
    for seed in range(20):
        chance, uri = random.Random(seed), f"memory://layout{seed}"
        monkeypatch.setattr("lance_core.verbs.inspect.tables._PAGE", chance.choice([1, 2, 3, 7, 1000]))
        store, wanted = open_store(uri), {}
        for _ in range(chance.randint(0, 12)):
            path = "/".join(chance.choices(["a", "b-", "t.lance-old", "é", "_ops", "x y"], k=chance.randint(0, 2)))
            path = f"{path}/{chance.choice(['t', 't.lance', 'u', 'v'])}.lance".lstrip("/")
            if any(f"{path}/".startswith(f"{one}/") or f"{one}/".startswith(f"{path}/") for one in wanted):
                continue
            versions = sorted(chance.sample(range(1, 30), chance.randint(0, 5)))
            wanted[path] = versions
            for version in versions:
                store.put(f"{path}/_versions/{2**64 - 1 - version:020d}.manifest", b"")
            for folder in chance.sample(["_indices", "_transactions", "data", "tree/b/_versions"], 2):
                for number in range(chance.randint(0, 9)):
                    store.put(f"{path}/{folder}/{number}", b"")
        found = {one.path: list(one.versions) for one in find_tables(uri)}
        assert found == {path: versions for path, versions in wanted.items() if versions}, seed
        assert lance_core.list_tables(uri) == sorted(found), seed


def test_an_empty_folder_of_versions_is_no_table(tmp_path):
    (tmp_path / "a.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "b.lance" / "_versions").mkdir(parents=True)
    (tmp_path / "b.lance" / "_versions" / "latest_version_hint.json").write_text("{}")
    lance_core.write_dataset({"id": [1]}, tmp_path / "c.lance")
    lance_core.write_dataset({"id": [1]}, tmp_path / "d.lance", enable_v2_manifest_paths=False)
    assert lance_core.list_tables(tmp_path) == ["c.lance", "d.lance"]
    assert lance_core.list_tables(tmp_path, unfinished=True) == ["a.lance", "b.lance"]


def test_a_folder_without_versions_is_no_table_and_a_link_is_one(tmp_path):
    lance_core.write_dataset(ROWS, tmp_path / "real.lance")
    (tmp_path / "empty.lance" / "data").mkdir(parents=True)
    Path(tmp_path / "other.lance").symlink_to(tmp_path / "real.lance")
    assert [one.path for one in find_tables(tmp_path)] == ["other.lance", "real.lance"]
    assert lance_core.list_tables(tmp_path, unfinished=True) == ["empty.lance"]


def test_links_that_lead_back_end_no_listing(tmp_path):
    root = tmp_path / "lake"
    for name in ("a", "b/c/d"):
        lance_core.write_dataset(ROWS, root / f"{name}.lance")
    lance_core.write_dataset(ROWS, tmp_path / "elsewhere" / "e.lance")
    (root / "loop").symlink_to(root)
    (root / "b" / "c" / "up").symlink_to(root / "b")
    (root / "self").symlink_to(root / "self")
    (root / "nothing").symlink_to(tmp_path / "none")
    (root / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    expected = ["a.lance", "b/c/d.lance", "other/e.lance"]
    assert lance_core.list_tables(root) == expected
    assert [one.path for one in find_tables(root)] == expected
    assert lance_core.list_tables(root, unfinished=True) == []


def test_a_folder_that_cannot_be_read_is_named_and_the_rest_is_listed(tmp_path, monkeypatch, caplog):
    for name in ("a", "b/c"):
        lance_core.write_dataset(ROWS, tmp_path / f"{name}.lance")
    locked, real = {str(tmp_path / "b")}, os.scandir

    def scandir(path):
        if path in locked:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert lance_core.list_tables(tmp_path) == ["a.lance"]
    assert f"{tmp_path / 'b'} cannot be listed" in caplog.text
    locked.add(str(tmp_path))
    with pytest.raises(StoreError, match="Permission denied"):
        lance_core.list_tables(tmp_path)

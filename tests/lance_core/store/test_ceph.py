"""Commits to Ceph's S3 gateway, which checks signatures and decides conditional puts atomically: `make test-ceph`."""

import json
import os

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.commit.versions import list_versions
from lance_core.errors import AlreadyExistsError, StoreError
from lance_core.store import conditions, open_store
from lance_core.testing import StoreConformance
from lance_core.testing.racing import race

pytestmark = pytest.mark.ceph


@pytest.fixture
def root(s3):
    return f"s3://{s3.new_bucket()}/deep/dataset"


class TestCeph(StoreConformance):
    @pytest.fixture
    def store(self, s3, root):
        return open_store(root, s3.storage_options)


def test_the_probe_proves_the_server(s3, root, monkeypatch):
    monkeypatch.setattr(conditions, "_proven", set())
    store = open_store(root, s3.storage_options)
    store.put_if_absent("k", b"x")
    assert len(conditions._proven) == 1
    assert [found.key for found in store.list("")] == ["k"]


def test_of_racing_puts_one_wins(s3, root):
    store = open_store(root, s3.storage_options)
    writers, keys = 8, 25
    for key in range(keys):

        def put(writer, key=key):
            try:
                store.put_if_absent(f"k{key}", f"{writer}".encode() * 50_000)
            except AlreadyExistsError:
                return False
            return True

        won = race(writers, put)
        assert won.count(True) == 1
        assert bytes(store.get(f"k{key}")) == f"{won.index(True)}".encode() * 50_000


def test_large_objects_go_up_in_parts(s3, root):
    store = open_store(root, s3.storage_options)
    data = os.urandom((17 << 20) + 5)
    with store.open_writer("k") as writer:
        writer.write(data)
    assert bytes(store.get("k")) == data
    pieces = store.get_ranges("k", [(0, 10), (9 << 20, (9 << 20) + 7), (len(data) - 3, len(data))])
    assert [bytes(piece) for piece in pieces] == [data[:10], data[9 << 20 : (9 << 20) + 7], data[-3:]]


@pytest.mark.parametrize("libraries", [(lance_core, lance), (lance, lance_core)])
def test_either_reads_and_continues_what_the_other_wrote(s3, root, libraries):
    options = s3.storage_options
    table = pa.table({"a": range(1000), "b": [f"row {i}" for i in range(1000)]})
    for number in range(6):
        writer = libraries[number % 2]
        writer.write_dataset(table.slice(number * 100, 100), root, mode="append", storage_options=options)
        for reader in libraries:
            found = reader.dataset(root, storage_options=options)
            assert (found.version, found.to_table()) == (number + 1, table.slice(0, (number + 1) * 100))
    for number, library in enumerate(libraries):
        dataset = library.dataset(root, storage_options=options)
        dataset.delete(f"a = {number}")
        dataset.merge_insert("a").when_matched_update_all().execute(pa.table({"a": [number + 10], "b": ["new"]}))
        dataset.optimize.compact_files()
        dataset.cleanup_old_versions(retain_versions=1, delete_unverified=True)
    ours, theirs = (each.dataset(root, storage_options=options) for each in (lance_core, lance))
    assert ours.to_table() == theirs.to_table()
    assert (ours.count_rows(), ours.version, len(list_versions(open_store(root, options)))) == (598, theirs.version, 1)


def test_a_wrong_secret_is_rejected_and_not_shown(s3, root):
    wrong = {**s3.storage_options, "aws_secret_access_key": "another-canary"}
    with pytest.raises(StoreError, match="403") as rejected:
        open_store(root, wrong).get("k")
    assert "canary" not in json.dumps([repr(rejected.value), str(rejected.value), repr(rejected.value.__cause__)])

"""Merges at a time that insert the same new key: with `record_keys` each key is inserted once, beside any other writer."""

import datetime as dt
import sys

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core import MAX_EXACT_KEYS
from tests.interop.format.wire import latest_transaction

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def table(*rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def merge(dataset, source, on="id", *, records_keys=True):
    builder = dataset.merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
    return (builder.record_keys() if records_keys else builder).execute(source)


def rows(uri):
    found = lance.dataset(uri).to_table()
    assert found.equals(lance_core.dataset(uri).to_table())
    return sorted(zip(*(found[name].to_pylist() for name in found.column_names), strict=True))


@pytest.fixture
def uri(tmp_path):
    lance.write_dataset(table((1, 0)), str(tmp_path / "t.lance"))
    return str(tmp_path / "t.lance")


def test_a_key_is_inserted_once(uri):
    first, second = lance_core.dataset(uri), lance_core.dataset(uri)
    assert merge(first, table((2, 20)))["num_inserted_rows"] == 1
    said = merge(second, table((2, 22), (3, 30)))
    assert (said["num_inserted_rows"], said["num_updated_rows"]) == (1, 1)
    assert rows(uri) == [(1, 0), (2, 22), (3, 30)]


def test_other_keys_do_not_conflict(uri):
    first, second = lance_core.dataset(uri), lance_core.dataset(uri)
    merge(first, table((2, 20)))
    builder = second.merge_insert("id").record_keys().when_not_matched_insert_all()
    builder.conflict_retries(0).execute(table((3, 30)))
    assert rows(uri) == [(1, 0), (2, 20), (3, 30)]


@pytest.mark.parametrize("other", ["merge", "append"])
def test_a_key_that_pylance_inserts_meanwhile_is_updated(uri, other):
    stale = lance_core.dataset(uri)
    if other == "append":
        lance.write_dataset(table((2, 20)), uri, mode="append")
    else:
        merge(lance.dataset(uri), table((2, 20)), records_keys=False)
    assert merge(stale, table((2, 22)))["num_updated_rows"] == 1
    assert rows(uri) == [(1, 0), (2, 22)]


def test_pylance_reads_the_commit_and_commits_beside_it(uri):
    writers = [lance.dataset(uri) for _ in range(3)]
    merge(lance_core.dataset(uri), table((2, 20)))
    assert latest_transaction(uri).update.inserted_rows.exact.key_hashes
    assert lance.dataset(uri).read_transaction(2).operation.new_fragments
    merge(writers[0], table((1, 11), (3, 30)), records_keys=False)
    writers[1].insert(table((4, 40)))
    writers[2].delete("id = 1")
    assert rows(uri) == [(2, 20), (3, 30), (4, 40)]


def test_more_keys_than_a_commit_lists_conflict_with_any_insert(uri):
    many = pa.table({"id": range(10, 11 + MAX_EXACT_KEYS), "n": [0] * (MAX_EXACT_KEYS + 1)}, schema=SCHEMA)
    stale = [lance_core.dataset(uri) for _ in range(3)]
    merge(stale[0], many)
    filter_size = latest_transaction(uri).update.inserted_rows.ByteSize()
    assert filter_size < 40_000
    assert merge(stale[1], table((10, 1), (2, 2)))["num_updated_rows"] == 1
    merge(lance.dataset(uri), table((3, 3)), records_keys=False)
    assert merge(stale[2], many)["num_updated_rows"] == len(many)
    assert lance.dataset(uri).count_rows() == len(many) + 3


def test_the_listed_keys_are_bounded(uri):
    merge(lance_core.dataset(uri), pa.table({"id": range(10, 10 + MAX_EXACT_KEYS), "n": [0] * MAX_EXACT_KEYS}, SCHEMA))
    listed = latest_transaction(uri).update.inserted_rows
    assert len(listed.exact.key_hashes) == MAX_EXACT_KEYS
    assert listed.ByteSize() <= 10 * MAX_EXACT_KEYS + 16


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, 1_000_000_001], pa.timestamp("ns", "UTC")),
        pa.array([1, 2], pa.duration("ns")),
        pa.array([1, 2], pa.time64("ns")),
        pa.array([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
        pa.array([0.5, float("nan")]),
        pa.array([b"a", b"b"], pa.binary(1)),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
    ids=lambda keys: str(keys.type),
)
def test_keys_of_every_type_are_recorded(tmp_path, monkeypatch, keys):
    monkeypatch.setitem(sys.modules, "pandas", None)  # optional
    source = pa.table({"id": keys, "n": [1, 2]})
    lance_core.write_dataset(source.slice(0, 0), tmp_path / "t.lance")
    stale = [lance_core.dataset(tmp_path / "t.lance") for _ in range(2)]
    assert merge(stale[0], source)["num_inserted_rows"] == 2
    assert merge(stale[1], source)["num_updated_rows"] == 2
    assert lance_core.dataset(tmp_path / "t.lance").count_rows() == 2


def test_a_key_with_a_null_equals_no_key(uri):
    stale = [lance_core.dataset(uri) for _ in range(2)]
    assert merge(stale[0], table((None, 1)))["num_inserted_rows"] == 1
    builder = stale[1].merge_insert("id").record_keys().when_not_matched_insert_all()
    assert builder.conflict_retries(0).execute(table((None, 2)))["num_inserted_rows"] == 1
    assert lance_core.dataset(uri).count_rows() == 3

"""Broken small files of a table: each ends in a record, or in an error of ours, and takes little memory."""

import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core._proto import rowids_pb2, table_pb2, transaction_pb2
from lance_core.errors import CorruptFileError, InvalidInputError, LanceError
from lance_core.optimize import Compaction
from lance_core.table.deletion import DeletionFile, DeletionFileType, DeletionVector
from lance_core.table.fragment import Fragment
from lance_core.table.fragment_list import FragmentList
from lance_core.table.index import IndexMetadata
from lance_core.table.refs import BranchRef, TagRef
from lance_core.table.rowids import decode_row_ids, decode_versions, encode_row_ids, encode_versions
from lance_core.table.transaction import Transaction
from tests.lance_core.file.damage import damaged, misstated

ROWS = 100_000
TAG = TagRef(version=3, branch="b", manifest_size=9, created_at="2026", updated_at="2026", metadata={"a": "b"})
BRANCH = BranchRef(parent_version=3, parent_branch="b", identifier=((2, "ab"), (3, "cd")), created_at=5)
VALUES = [None, -1, 1.5, "x", "", [], {}, True, 2**70, [[1, 2, 3]], [["a", 1]], {"a": 1}, float("inf"), [1]]


def read_deletions(form):
    return lambda data: DeletionVector.from_bytes(data, form).live_rows(ROWS)


def read_transaction(data):
    transaction = Transaction.from_bytes(data)
    assert repr(transaction)


@pytest.fixture(scope="module")
def transactions(tmp_path_factory):
    """Those of one table."""
    folder = tmp_path_factory.mktemp("table")
    table = pa.table({"k": range(20), "d": ["x"] * 20})
    dataset = lance_core.write_dataset(table, folder, max_rows_per_file=6, enable_stable_row_ids=True)
    dataset.delete("k % 3 = 0")
    dataset.update({"k": "k + 1"}, "k > 5")
    dataset.add_columns({"z": "k"})
    dataset.drop_columns(["z"])
    dataset.update_config({"a": "b"})
    dataset.optimize.compact_files()
    dataset.checkout_version(2).restore()
    return [path.read_bytes() for path in sorted((folder / "_transactions").iterdir())]


def records(transactions):
    """Bytes of each kind, what reads them, and the message that they are."""
    for rows in ([1, 5, 9], range(0, 9000, 3), range(70_000)):
        for form in DeletionFileType:
            yield DeletionVector(rows).to_bytes(form)[0], read_deletions(form), None
    for ids in ([1, 2, 3], [5, 3, 1], [1, 9, 70_000], list(range(0, 100, 2)), [*range(500), 800], [1, 2**40]):
        data = encode_row_ids(np.array(ids, np.uint64))
        yield data, lambda data: decode_row_ids(data, ROWS), rowids_pb2.RowIdSequence
    for versions in ([1, 1, 3], [5, 5, 1]):
        data = encode_versions(np.array(versions, np.uint64))
        yield data, lambda data: decode_versions(data, ROWS), rowids_pb2.RowDatasetVersionSequence
    for data in transactions:
        yield data, read_transaction, transaction_pb2.Transaction
    yield TAG.to_bytes(), lambda data: TagRef.from_bytes(data).to_bytes(), "JSON"
    yield BRANCH.to_bytes(), lambda data: BranchRef.from_bytes(data).to_bytes(), "JSON"


def misspelled(good, rng):
    """JSON with another value somewhere."""
    content = json.loads(good)
    owner, key = rng.choice(list(_places(content)))
    owner[key] = rng.choice(VALUES)
    return json.dumps(content).encode()


def _places(content):
    keys = content.keys() if isinstance(content, dict) else range(len(content))
    for key in keys:
        yield content, key
        if isinstance(content[key], dict | list):
            yield from _places(content[key])


def run(transactions, numbers):
    goods = list(records(transactions))
    for number in numbers:
        rng = random.Random(number)
        good, read, kind = goods[number % len(goods)]
        if kind is None or rng.random() < 0.4:
            data = damaged(good, rng)
        else:
            data = misspelled(good, rng) if kind == "JSON" else misstated(good, kind, rng)
        try:
            read(data)
        except LanceError:
            continue
        except Exception as error:
            raise AssertionError(f"number {number}: {error!r}") from error


def test_some_damaged_records(transactions):
    run(transactions, range(6_000))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(6_000, 300_000, 29_400))
def test_many_damaged_records(transactions, first):
    run(transactions, range(first, first + 29_400))


def deletions(column, name="row_id"):
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({name: column})
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ARROW1\0\0" + bytes(20) + b"ARROW1",
        deletions(pa.array([1, None], pa.uint32())),
        deletions(pa.array([1.5])),
        deletions(pa.array(["1"])),
        deletions(pa.array([-1])),
        deletions(pa.array([2**32])),
        deletions(pa.array([1], pa.uint32()), name="rows"),
    ],
)
def test_what_is_no_deletion_file(data):
    with pytest.raises(CorruptFileError):
        DeletionVector.from_bytes(data, DeletionFileType.ARROW)


@pytest.mark.parametrize("change", [{"version": "3"}, {"version": -1}, {"metadata": [1]}, {"branch": 1}])
def test_tags_with_values_of_another_kind(change):
    with pytest.raises(CorruptFileError, match=next(iter(change))):
        TagRef.from_bytes(json.dumps(json.loads(TAG.to_bytes()) | change).encode())


@pytest.mark.parametrize("identifier", ["x", [], {"version_mapping": 1}, {"version_mapping": [[1]]}])
def test_branches_with_an_identifier_of_another_kind(identifier):
    with pytest.raises(CorruptFileError, match="identifier"):
        BranchRef.from_bytes(json.dumps(json.loads(BRANCH.to_bytes()) | {"identifier": identifier}).encode())


def test_a_few_bytes_do_not_become_billions_of_rows():
    segment = rowids_pb2.U64Segment()
    segment.range.end = 2**31
    ids = rowids_pb2.RowIdSequence(segments=[segment]).SerializeToString()
    with pytest.raises(CorruptFileError, match="at most 10"):
        decode_row_ids(ids, 10)
    versions = rowids_pb2.RowDatasetVersionSequence()
    versions.runs.add(version=1, span=segment)
    with pytest.raises(CorruptFileError, match="at most 10"):
        decode_versions(versions.SerializeToString(), 10)


def test_a_bad_span_names_what_it_belongs_to():
    segment = rowids_pb2.U64Segment()
    segment.array.u64_array.values = b"123"
    versions = rowids_pb2.RowDatasetVersionSequence()
    versions.runs.add(version=1, span=segment)
    with pytest.raises(CorruptFileError, match=r"^row versions: an array is truncated"):
        decode_versions(versions.SerializeToString())
    with pytest.raises(CorruptFileError, match=r"^row ids: an array is truncated"):
        decode_row_ids(rowids_pb2.RowIdSequence(segments=[segment]).SerializeToString())


def test_numbers_that_stand_for_nothing():
    message = DeletionFile(file_type=DeletionFileType.ARROW, read_version=1, id=1, num_deleted_rows=1).to_protobuf()
    message.file_type = 6
    with pytest.raises(CorruptFileError, match="6"):
        DeletionFile.from_protobuf(message)
    update = transaction_pb2.Transaction(update=transaction_pb2.Transaction.Update(update_mode=6))
    assert "update mode 6" in repr(Transaction.from_bytes(update.SerializeToString()).operation)
    index = IndexMetadata.from_protobuf
    with pytest.raises(CorruptFileError, match="UUID"):
        index(transaction_pb2.Transaction.CreateIndex().new_indices.add(name="i"))


def test_manifests_that_miscount(tmp_path):
    table = pa.table({"k": range(10), "d": ["x"] * 10})
    dataset = lance_core.write_dataset(table, tmp_path, enable_stable_row_ids=True)
    manifest = dataset.snapshot.manifest
    (fragment,) = manifest.fragments
    (file,) = fragment.files
    few_columns = replace(fragment, files=(replace(file, column_indices=(0,)),))
    no_such_column = replace(fragment, files=(replace(file, column_indices=(0, 9)),), id=1)
    dataset._manifest = replace(manifest, fragments=FragmentList.of([fragment, no_such_column]))
    with pytest.raises(InvalidInputError, match="is not in the file"):
        Compaction.plan(dataset).tasks[0].execute(dataset)
    few_ids = replace(fragment, row_ids=encode_row_ids(np.arange(4, dtype=np.uint64)))
    for broken in (few_columns, few_ids):
        dataset._manifest = replace(manifest, fragments=FragmentList.of([broken]))
        for read in (
            lambda: dataset.to_table(with_row_id=True),
            lambda: dataset.update({"d": "'y'"}, "k = 7"),
            lambda: dataset.merge_insert("k").when_matched_update_all().execute(table.slice(7)),
            lambda: dataset.add_columns({"e": "k"}, read_columns=["k"]) or dataset.take([7], ["_rowid"]),
        ):
            with pytest.raises(CorruptFileError):
                read()


def test_fragment_ids_fit_row_addresses():
    assert Fragment.from_protobuf(table_pb2.DataFragment(id=2**32 - 1)).id == 2**32 - 1
    message = table_pb2.DataFragment(id=2**32, physical_rows=1)
    listed = FragmentList([message.SerializeToString()])
    for ask in (
        lambda: Fragment.from_protobuf(message),
        lambda: listed[0],
        lambda: listed.ids,
        listed.sizes,
        lambda: list(listed.messages()),
    ):
        with pytest.raises(CorruptFileError, match="fragment id 4294967296 has more than 32 bits"):
            ask()

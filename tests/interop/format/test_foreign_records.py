"""Columns and transactions as other tools, or older versions, may have described them."""

from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core._proto import transaction_pb2
from lance_core.errors import CorruptFileError, IncompatibleConflictError
from lance_core.maintenance.verify.files import verify
from tests.interop.format.wire import edit_latest, latest_message

ROWS = pa.table({"a": [1, 2], "b": [3, 4]})


def with_columns(uri, *, fields=None, columns=None):
    def change(message):
        file = message.fragments[0].files[0]
        if columns is not None:
            file.column_indices[:] = columns
        if fields is not None:
            file.fields[:] = fields

    edit_latest(uri, change)


@pytest.mark.parametrize("storage_version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([0, 0], "names column 0 twice"),
        ([1, 1], "names column 1 twice"),
        ([], "0 columns for 2"),
        ([0], "1 columns for 2"),
    ],
)
def test_column_indices_that_cannot_be_meant_are_rejected_by_name(tmp_path, columns, message, storage_version):
    uri = str(tmp_path)
    lance.write_dataset(ROWS, uri, data_storage_version=storage_version)
    with_columns(uri, columns=columns)
    name = latest_message(uri).fragments[0].files[0].path
    dataset = lance_core.dataset(uri)
    for use in (
        dataset.to_table,
        lambda: dataset.to_table(["b"]),
        lambda: dataset.take([1]),
        lambda: dataset.to_table(filter="b = 4"),
        dataset.validate,
        lambda: dataset.delete("a = 1"),
        lambda: dataset.update({"b": "5"}),
        lambda: dataset.add_columns({"c": "a + b"}),
    ):
        with pytest.raises(CorruptFileError, match=f"{name}.*{message}"):
            use()
    assert [(problem.path, message in problem.message) for problem in verify(dataset)] == [(name, True)]
    assert latest_message(uri).version == 1


@pytest.mark.parametrize("columns", [[0, 0], [], [0], [0, -1]])
def test_fragments_with_such_columns_are_not_committed(tmp_path, columns):
    uri = str(tmp_path)
    lance_core.write_dataset(ROWS, uri)
    (fragment,) = lance_core.write_fragments(ROWS, uri)
    fragment.files[0].column_indices = columns
    with pytest.raises(CorruptFileError, match="column_indices"):
        lance_core.LanceDataset.commit(uri, lance_core.LanceOperation.Append([fragment]), read_version=1)


def test_the_first_format_has_columns_by_place_whatever_the_indices_say(tmp_path):
    uri = str(tmp_path)
    lance.write_dataset(ROWS, uri, data_storage_version="legacy")
    for columns in ([0, 0], [1, 0], [0], []):
        with_columns(uri, columns=columns)
        assert lance_core.dataset(uri).to_table() == lance.dataset(uri).to_table() == ROWS
        assert verify(lance_core.dataset(uri)) == []


def test_no_column_is_null_in_the_second_format_and_rejected_later(tmp_path):
    for version in ("2.0", "2.2"):
        uri = str(tmp_path / version)
        lance.write_dataset(ROWS, uri, data_storage_version=version)
        with_columns(uri, columns=[0, -1])
    uri = str(tmp_path / "2.0")
    assert lance_core.dataset(uri).to_table() == lance.dataset(uri).to_table()
    assert lance_core.dataset(uri).to_table()["b"].null_count == 2
    for library in (lance, lance_core):
        with pytest.raises(ValueError, match=r"column_index=-1|not in the file"):
            library.dataset(str(tmp_path / "2.2")).to_table()
        with pytest.raises((ValueError, CorruptFileError), match=r"column_index=-1|has none for field 1"):
            library.dataset(str(tmp_path / "2.2")).validate()
    assert [problem.message for problem in verify(lance_core.dataset(str(tmp_path / "2.2")))] != []
    assert verify(lance_core.dataset(uri)) == []


@pytest.mark.parametrize("library", [lance, lance_core])
def test_a_column_for_what_is_made_of_others_is_not_committed(tmp_path, library):
    uri = str(tmp_path)
    data = pa.table({"s": [{"x": 1}]})
    library.write_dataset(data, uri)
    (fragment,) = library.fragment.write_fragments(data, uri, mode="append")
    fragment.files[0].fields, fragment.files[0].column_indices = [0, 1], [0, 1]
    with pytest.raises((OSError, CorruptFileError), match=r"Non-leaf|no column of its own"):
        library.LanceDataset.commit(uri, library.LanceOperation.Append([fragment]), read_version=1)


def test_a_field_that_stands_twice_in_a_file_is_no_sound_dataset(tmp_path):
    uri = str(tmp_path)
    lance.write_dataset(ROWS, uri)
    with_columns(uri, fields=[0, 0])
    for library in (lance, lance_core):
        with pytest.raises((OSError, CorruptFileError)):
            library.dataset(uri).validate()


@pytest.mark.parametrize("library", [lance, lance_core])
def test_a_base_that_the_manifest_does_not_know_is_an_error(tmp_path, library):
    uri = str(tmp_path)
    lance.write_dataset(ROWS, uri)
    edit_latest(uri, lambda message: setattr(message.fragments[0].files[0], "base_id", 9))
    with pytest.raises((OSError, ValueError, CorruptFileError), match=r"(?i)base.* 9|9.*base"):
        library.dataset(uri).to_table()


def test_row_ids_stay_in_the_manifest_however_many_there_are(tmp_path):
    """The specification puts more than 200 KB into a file of their own; pylance reads none of these."""
    uri = str(tmp_path)
    count = 150_000
    lance.write_dataset(pa.table({"a": range(count), "b": range(count)}), uri, enable_stable_row_ids=True)
    order = np.random.default_rng(0).permutation(count)[: count - 10_000]
    changed = pa.table({"a": order, "b": -order})
    lance.dataset(uri).merge_insert("a").when_matched_update_all().execute(changed)
    lance_core.dataset(uri).update({"b": "0"}, where="a % 1000 = 7")
    assert max(len(f.inline_row_ids) for f in latest_message(uri).fragments) > 200 * 1024
    for reader in (lance, lance_core):
        rows = reader.dataset(uri).to_table(with_row_id=True)
        assert rows["_rowid"].equals(rows["a"].cast(pa.uint64()))


# Transactions that cannot be read as what they are.


def part(number, data):
    """A length-delimited field of the wire."""
    key = number << 3 | 2
    head = [key] if key < 128 else [key & 127 | 128, key >> 7]
    return bytes([*head, len(data)]) + data


MEM_WAL = part(1, part(1, b"GLOBAL") + b"\x10\x03") + part(2, b"memory://x") + part(3, b"wal") + b"\x28\x02"
SIXTEEN = part(1, part(1, b"a region of 16 b") + b"\x10\x03") + part(2, b"memory://x")

OPERATIONS = {
    "mem_wal_to_merge": part(108, part(5, MEM_WAL)),
    "mem_wal_to_merge, 16 bytes": part(108, part(5, SIXTEEN)),
    "added log": part(112, part(1, MEM_WAL)),
    "updated log": part(112, part(2, MEM_WAL) + part(3, MEM_WAL)),
    "rewritten index without ids": part(104, part(4, b"")),
    "rewritten index with short ids": part(104, part(4, part(1, part(1, b"x")) + part(2, part(1, b"y")))),
    "index without id": part(103, part(1, part(3, b"idx"))),
    "field before its parent": part(105, part(2, part(2, b"n") + b"\x18\x05\x20\x03")),
    "of the future": part(199, b"\x08\x01"),
    "no message": part(108, b"\xff\xff"),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("inline", [True, False])
def test_what_cannot_be_parsed_is_an_unknown_operation(tmp_path, operation, inline):
    uri = str(tmp_path)
    lance.write_dataset(ROWS, uri)
    lance.dataset(uri).delete("false")
    path = Path(uri, "_transactions", latest_message(uri).transaction_file)
    recorded = transaction_pb2.Transaction.FromString(path.read_bytes())
    recorded.ClearField("operation")
    recorded.transaction_properties["who"] = "another"
    data = recorded.SerializeToString() + operation
    if inline:
        manifest = next(iter(sorted(Path(uri, "_versions").glob("*.manifest"))))
        _append_section(manifest, data)
        path.unlink()
    else:
        edit_latest(uri, lambda message: message.ClearField("transaction_section"))
        path.write_bytes(data)
    stale = lance_core.dataset(uri, version=1)
    dataset = lance_core.dataset(uri)
    found = dataset.read_transaction(2)
    assert type(found.operation).__name__ == "Other"
    assert (found.read_version, found.uuid) == (1, recorded.uuid)
    assert found.transaction_properties["who"] == "another"
    assert [type(t.operation).__name__ for t in dataset.get_transactions()] == ["Other", "Overwrite"]
    assert dataset.find_transaction("who", "another")[0] == 2
    with pytest.raises(IncompatibleConflictError, match="transaction Unknown at version 2"):
        stale.delete("a = 1")
    with pytest.raises((OSError, ValueError)):
        lance.dataset(uri, version=1).delete("a = 1")
    lance_core.write_dataset(ROWS, uri, mode="append")
    assert lance.dataset(uri).count_rows() == 4


def _append_section(manifest, data):
    """Put a section behind a manifest's message, and its position into the message."""
    root, position = manifest.parent.parent, 0
    while position != len(manifest.read_bytes()) - 16:  # the message grows with the number
        position = len(manifest.read_bytes()) - 16
        edit_latest(root, partial(_point_to, position))
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-16] + len(data).to_bytes(4, "little") + data + content[-16:])


def _point_to(position, message):
    message.transaction_section = position

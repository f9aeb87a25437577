"""Payloads of blobs by position, row id and address, from both libraries."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import InvalidInputError, SchemaError, UnsupportedError

VALUES = [b"foo", None, b"", b"bar", b"quux" * 1000]
FIELD = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def write(path, version, stable):
    table = pa.table([pa.array(range(5)), pa.array(VALUES, pa.large_binary())], pa.schema([("id", pa.int64()), FIELD]))
    for _ in range(2):
        options = {"data_storage_version": version, "enable_stable_row_ids": stable}
        lance.write_dataset(table, path, mode="append", **options)


def content(blobs):
    return [None if blob is None else (blob.size(), blob.read()) for blob in blobs]


def without_a_row(path):
    """The table in both libraries once a row is deleted, and the ids and addresses of its rows from the last one on."""
    theirs, ours = lance.dataset(path), lance_core.dataset(path)
    theirs.delete("id = 3")
    ours.checkout_latest()
    rows = theirs.to_table(["id"], with_row_id=True, with_row_address=True)
    return theirs, ours, rows["_rowid"].to_pylist()[::-1], rows["_rowaddr"].to_pylist()[::-1]


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_both_give_the_same_payloads(tmp_path, version, stable):
    path = str(tmp_path / "t.lance")
    write(path, version, stable)
    theirs, ours, ids, addresses = without_a_row(path)
    for asked in ({"indices": [6, 0, 1, 0]}, {"ids": ids}, {"addresses": addresses}, {"indices": []}):
        assert content(ours.take_blobs("b", **asked)) == content(theirs.take_blobs("b", **asked)), asked
    with pytest.raises(NotImplementedError, match="must not target deleted"):
        ours.take_blobs("b", addresses=[3])


def test_a_blob_is_a_file_to_read(tmp_path):
    path = str(tmp_path / "t.lance")
    write(path, "2.2", False)
    said = []
    for module in (lance, lance_core):
        blob = module.dataset(path).take_blobs("b", indices=[3])[0]
        steps = [blob.seek(1), blob.read(1), blob.tell(), blob.read_range(0, 2), blob.tell(), blob.readall()]
        steps += [blob.read_ranges([(0, 1), (2, 1)]), blob.seekable(), blob.readable(), blob.writable(), repr(blob)]
        with pytest.raises(ValueError, match="exceeds blob size"):
            blob.read_range(1, 5)
        for offset, whence in ((-1, 0), (-9, 1), (-64, 2)):
            with pytest.raises(ValueError, match=r"position|seek"):
                blob.seek(offset, whence)
        steps += [blob.tell(), blob.seek(-1, 2), blob.seek(-1, 1), blob.seek(99), blob.read()]
        blob.close()
        said.append([*steps, blob.size(), blob.closed])
    assert said[0] == said[1]


def test_what_is_no_blob_is_rejected(tmp_path):
    path = str(tmp_path / "t.lance")
    write(path, "2.2", False)
    dataset = lance_core.dataset(path)
    with pytest.raises(InvalidInputError, match="not a blob column"):
        dataset.take_blobs("id", indices=[0])
    with pytest.raises(SchemaError, match="nothing"):
        dataset.take_blobs("nothing", indices=[0])
    for asked in ({}, {"ids": [0], "indices": [0]}, {"ids": [99]}, {"addresses": [9 << 32]}, {"ids": [-1]}):
        with pytest.raises(InvalidInputError):
            dataset.take_blobs("b", **asked)
    with pytest.raises(UnsupportedError):
        dataset.take_blobs("b", indices=[0])[0].write(b"")
    column = pa.chunked_array([[b"a", None]])
    assert [f and f.read() for f in lance_core.BlobColumn(column)] == [b"a", None]
    with pytest.raises(ValueError, match="Expected a binary array"):
        lance_core.BlobColumn(pa.array([1]))


def test_errors_can_be_caught_as_pylances(tmp_path):
    table = pa.table({"a": [1]})
    lance_core.write_dataset(table, tmp_path / "t")
    with pytest.raises(OSError, match="Append with different schema"):
        lance_core.write_dataset(pa.table({"b": [1]}), tmp_path / "t", mode="append")
    with pytest.raises(OSError, match="at least one column"):
        lance_core.LanceFragment.create(tmp_path / "u", pa.table({}))
    described = lance_core.LanceFragment.create(tmp_path / "t", table)
    with pytest.warns(DeprecationWarning, match="path"):
        assert described.files[0].path() == described.files[0].path
    lance_core.LanceDataset.drop(tmp_path / "t")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "blob array"])
def test_both_read_the_same_payloads_and_parts_of_them(tmp_path, version, stable):
    path = str(tmp_path / "t.lance")
    if version == "blob array":
        table = pa.table({"id": range(5), "b": lance.blob_array(VALUES)})
        for _ in range(2):
            options = {"data_storage_version": "2.2", "enable_stable_row_ids": stable}
            lance.write_dataset(table, path, mode="append", **options)
    else:
        write(path, version, stable)
    theirs, ours, ids, addresses = without_a_row(path)
    for asked in ({"indices": [6, 0, 1, 0]}, {"ids": ids}, {"addresses": addresses}, {"indices": []}):
        assert ours.read_blobs("b", **asked) == theirs.read_blobs("b", preserve_order=True, **asked), asked
    requests = [(0, 0, 3), (7, 1000, 17), (0, 2, 1), (1, 0, 0), (1, 5, 9), (2, 0, 0)]
    of_addresses = [(addresses[0], 0, 2), (addresses[-1], 1, 1)]
    for asked, selector in ((requests, "indices"), (of_addresses, "addresses"), ([], "ids")):
        assert ours.read_blob_ranges("b", asked, selector=selector) == theirs.read_blob_ranges(
            "b", asked, selector=selector
        )
    for library in (ours, theirs):
        with pytest.raises(ValueError, match="exceeds blob size 3"):
            library.read_blob_ranges("b", [(0, 1, 3)], selector="indices")
        with pytest.raises(ValueError, match="selector"):
            library.read_blob_ranges("b", [(0, 1, 3)], selector="rows")
        with pytest.raises(ValueError, match="io_buffer_size"):
            library.read_blobs("b", indices=[0], io_buffer_size=0)


def test_a_table_of_pylances_blob_arrays_is_read_and_changed(tmp_path):
    table = pa.table({"id": range(5), "b": lance.blob_array(VALUES)})
    lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    dataset = lance_core.dataset(tmp_path / "t")
    assert dataset.to_table(["b"], blob_handling="all_binary")["b"].to_pylist() == VALUES
    dataset.insert(table)
    dataset.insert(pa.table({"id": [9], "b": pa.array([b"plain"], pa.large_binary())}))
    dataset.delete("id = 3")
    wanted = 2 * (VALUES[:3] + VALUES[4:]) + [b"plain"]
    for library in (lance, lance_core):
        blobs = library.dataset(tmp_path / "t").take_blobs("b", indices=range(9))
        assert [blob and blob.read() for blob in blobs] == wanted


@pytest.mark.parametrize("change", [lambda b: b.write(b"x"), lambda b: b.writelines([b"x"]), lambda b: b.truncate(1)])
def test_a_blob_is_only_read(tmp_path, change):
    path = str(tmp_path / "t.lance")
    write(path, "2.2", False)
    for module in (lance, lance_core):
        blob = module.dataset(path).take_blobs("b", indices=[3])[0]
        with pytest.raises((OSError, UnsupportedError)):
            change(blob)
        assert blob.read() == b"bar"
    with lance_core.dataset(path).take_blobs("b", indices=[3])[0].getbuffer() as view:
        assert view.readonly

"""Types that pylance rejects, or writes and cannot read: here rejected before anything is written, or read."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError

UUIDS = pa.array([b"a" * 16, b"b" * 16], pa.uuid())
SORTED = pa.map_(pa.int32(), pa.string(), keys_sorted=True)
REJECTED = {
    "sorted keys": (pa.array([[(1, "a")], None], SORTED), pa.map_(pa.int32(), pa.string())),
    "sorted keys in a list": (pa.array([[[(1, "a")]], None], pa.list_(SORTED)), None),
    "fixed-size list of an extension type": (pa.FixedSizeListArray.from_arrays(UUIDS, 1), pa.list_(pa.uuid())),
}


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("name", REJECTED)
def test_what_pylance_rejects_is_rejected_with_a_remedy(tmp_path, name, version):
    values, remedy = REJECTED[name]
    rows = pa.table({"c": values})
    with pytest.raises(OSError, match=r"keys_sorted|c\.item"):
        lance.write_dataset(rows, tmp_path / "theirs", data_storage_version=version)
    with pytest.raises(SchemaError, match=r"column 'c.*cast it to"):
        lance_core.write_dataset(rows, tmp_path / "ours", data_storage_version=version)
    assert not (tmp_path / "ours").exists()
    if remedy is None:
        return
    rows = pa.table({"c": values.cast(remedy)})
    dataset = lance_core.write_dataset(rows, tmp_path / "ours", data_storage_version=version)
    assert dataset.to_table() == rows
    with pytest.raises(SchemaError, match=r"column 'c'.*cast it to"):
        dataset.insert(pa.table({"c": values}))


NO_FIELDS = pa.array([{}, {}], pa.struct([]))
UNREADABLE = {
    "a struct without fields before empty lists": (
        {"o": NO_FIELDS, "l": pa.array([[], []], pa.list_(pa.null()))},
        "2.1",
    ),
    "a struct without fields before lists": ({"o": NO_FIELDS, "l": pa.array([[1], []])}, "2.2"),
    "lists of an extension type in 0.1": ({"l": pa.ListArray.from_arrays([0, 1, 2], UUIDS)}, "0.1"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_pylance_writes_and_cannot_read_is_read(tmp_path, name):
    columns, version = UNREADABLE[name]
    rows = pa.table(columns)
    for library in (lance, lance_core):
        uri = tmp_path / library.__name__
        library.write_dataset(rows, uri, data_storage_version=version)
        assert lance_core.dataset(uri).to_table() == rows
        with pytest.raises(Exception, match=r"panicked|column types must match"):
            lance.dataset(uri).to_table()

"""Tables of pylance with blobs inside of structs and lists: their rows are read, and none is written that pylance cannot read."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError, UnsupportedError

BLOB = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
STRUCTS = (pa.struct([BLOB, pa.field("n", pa.int64())]), [{"b": b"abc", "n": 1}, {"b": None, "n": 2}])
LISTS = (pa.list_(BLOB), [[b"abc"], [b"x" * 100, b""]])


def tables(tmp_path, version, kind, values):
    rows = pa.table({"id": [1, 2], "s": pa.array(values, kind)})
    theirs = lance.write_dataset(rows, tmp_path / "t", data_storage_version=version)
    lance.write_dataset(rows, tmp_path / "t", mode="append")
    theirs.checkout_latest()
    return rows, theirs, lance_core.dataset(tmp_path / "t")


@pytest.mark.parametrize(("version", "shape"), [("2.0", STRUCTS), ("2.0", LISTS), ("2.1", STRUCTS)])
def test_rows_are_read_and_deleted(tmp_path, version, shape):
    rows, theirs, ours = tables(tmp_path, version, *shape)
    assert ours.to_table(blob_handling="all_binary").to_pylist() == rows.to_pylist() * 2
    ours.delete("id = 1")
    theirs.checkout_latest()
    assert theirs.count_rows() == 2
    assert [row["id"] for row in theirs.to_table().to_pylist()] == [2, 2]


@pytest.mark.parametrize(
    ("version", "shape"), [("2.0", STRUCTS), ("2.0", LISTS), ("2.1", STRUCTS), ("2.2", STRUCTS), ("2.2", LISTS)]
)
def test_rows_are_not_written(tmp_path, version, shape):
    rows, theirs, ours = tables(tmp_path, version, *shape)
    before = theirs.to_table().to_pylist()
    changes = {
        "insert": lambda: ours.insert(rows),
        "compact": ours.optimize.compact_files,
        "update": lambda: ours.update({"s": "null"}, where="id = 1"),
        "merge": lambda: ours.merge_insert("id").when_matched_update_all().execute(rows),
    }
    message = r"blobs (of 2\.2 )?inside of other types cannot be|are not stored as struct"
    for change in changes.values():
        with pytest.raises((UnsupportedError, SchemaError), match=message):
            change()
    theirs.checkout_latest()
    assert theirs.version == 2
    assert theirs.to_table().to_pylist() == before
    data = {path.name for path in (tmp_path / "t" / "data").iterdir() if path.suffix == ".lance"}
    assert len(data) == 2


def test_other_columns_of_2_2_are_read(tmp_path):
    ours = tables(tmp_path, "2.2", *STRUCTS)[2]
    assert ours.to_table(columns=["id"])["id"].to_pylist() == [1, 2, 1, 2]
    with pytest.raises(UnsupportedError, match=r"column 's': blobs of 2\.2 inside of other types cannot be read"):
        ours.to_table()

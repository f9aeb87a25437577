"""Strings that are not UTF-8 are rejected in every version of files and at every level; hidden bytes are left out."""

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError
from lance_core.file.write_plan import checked_strings

VERSIONS = ("0.1", "2.0", "2.1", "2.2")


def strings(*values, valid=None, large=False):
    """An array of these bytes as strings, whether or not they are UTF-8."""
    kind, width = (pa.large_string(), np.int64) if large else (pa.string(), np.int32)
    ends = pa.py_buffer(np.cumsum([0, *map(len, values)], dtype=width))
    mask = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [mask, ends, pa.py_buffer(b"".join(values))])


BAD = strings(b"a", "é".encode(), b"\xff\xfe", b"")
LISTS = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), BAD)
NESTED = {
    "strings": BAD,
    "large strings": strings(b"a", b"b", b"\xff", large=True),
    "a character in two strings": strings(b"a", b"b", b"\xc3", b"\xa9"),
    "structs": pa.StructArray.from_arrays([BAD], ["s"]),
    "lists": LISTS,
    "lists of structs": pa.ListArray.from_arrays(LISTS.offsets, pa.StructArray.from_arrays([BAD], ["s"])),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), BAD),
    "slice": pa.concat_arrays([strings(b"\xff"), BAD]).slice(1),
}
HIDDEN = {
    "null": (strings(b"a", b"\xff", b"b", valid=[True, False, True]), ["a", None, "b"]),
    "unused item": (pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), BAD), ["a", "é", "a"]),
    "outside of a slice": (pa.concat_arrays([strings(b"\xff", b"c"), BAD]).slice(1, 3), ["c", "a", "é"]),
    "below a null": (
        pa.StructArray.from_arrays([strings(b"a", b"\xff")], ["s"], mask=pa.array([False, True])),
        [{"s": "a"}, None],
    ),
    "between lists": (
        pa.Array.from_buffers(pa.list_(pa.string()), 2, [None, pa.py_buffer(np.array([0, 2, 2], np.int32))], children=[BAD]),
        [["a", "é"], []],
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NESTED)
def test_they_are_rejected_with_column_and_row_before_a_file_is_visible(tmp_path, name, version):
    with pytest.raises(SchemaError, match="column 'c': row 2 has a string that is not UTF-8"):
        lance_core.write_dataset(pa.table({"c": NESTED[name]}), tmp_path / "t", data_storage_version=version)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        (name, version)
        for name, (array, _) in HIDDEN.items()
        for version in VERSIONS
        if not pa.types.is_struct(array.type) or version not in ("0.1", "2.0")  # where structs have no nulls
    ],
)
def test_bytes_that_no_value_has_are_left_out(tmp_path, name, version):
    array, values = HIDDEN[name]
    lance_core.write_dataset(pa.table({"c": array}), tmp_path / "t", data_storage_version=version)
    for library in (lance, lance_core):
        assert library.dataset(tmp_path / "t").to_table()["c"].to_pylist() == values


def test_the_row_is_counted_over_batches_and_files(tmp_path):
    batches = [pa.record_batch({"c": strings(b"a", b"b")}), pa.record_batch({"c": NESTED["structs"].field(0)})]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with pytest.raises(SchemaError, match="row 4 "):
        lance_core.write_dataset(reader, tmp_path / "t", max_rows_per_file=2)


@pytest.mark.parametrize(
    "mode", ["append", "merge", "merge on it", "insert of a reader", "add_columns", "merge of columns"]
)
def test_every_way_of_writing_rejects_them(tmp_path, mode):
    dataset = lance_core.write_dataset(pa.table({"id": [1, 2], "c": ["x", "y"]}), tmp_path / "t")
    files = sorted(tmp_path.rglob("*.*"))
    rows = pa.table({"id": [2, 3], "c": strings(b"x", b"\xff")})
    ways = {
        "append": lambda: lance_core.write_dataset(rows, dataset, mode="append"),
        "merge": lambda: dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows),
        "merge on it": lambda: dataset.merge_insert("c").when_not_matched_insert_all().execute(rows),
        "insert of a reader": lambda: dataset.insert(rows.to_reader()),
        "add_columns": lambda: dataset.add_columns(rows.select(["c"]).rename_columns(["new"]).to_reader()),
        "merge of columns": lambda: dataset.merge(rows.set_column(0, "id", [[1, 2]]).rename_columns(["id", "new"]), "id"),
    }  # fmt: skip
    with pytest.raises(SchemaError, match="row 1 has a string that is not UTF-8"):
        ways[mode]()
    assert sorted(tmp_path.rglob("*.*")) == files


def test_an_array_of_valid_strings_is_not_copied():
    for array in (
        pa.array(["a", None, "ä", ""]),
        pa.array([], pa.string()),
        pa.array(["é", ""]),
        pa.nulls(3, pa.string()),
    ):
        assert checked_strings("c", array, 0) is array

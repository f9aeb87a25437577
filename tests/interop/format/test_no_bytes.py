"""Types whose values have no bytes: stored so that both libraries read them, or rejected before anything is written."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import LanceError

EMPTY = pa.struct([])
VALUES = {
    "binary": pa.array([b"", None, b""] * 50, pa.binary(0)),
    "binary without nulls": pa.array([b""] * 150, pa.binary(0)),
    "only nulls": pa.nulls(150, pa.binary(0)),
    "in structs": pa.array([{"b": b""}, None, {"b": None}] * 50, pa.struct([("b", pa.binary(0))])),
    "in lists": pa.array([[b""], [], None, [None, b""], [b""]] * 30, pa.list_(pa.binary(0))),
    "empty structs": pa.array([{}] * 150, EMPTY),
    "empty structs in structs": pa.array([{"e": {}}] * 150, pa.struct([("e", EMPTY)])),
    "in lists of equal length": pa.array([[b"", b""]] * 150, pa.list_(pa.binary(0), 2)),
    "lists of no items": pa.array([[]] * 150, pa.list_(pa.float32(), 0)),
    "null empty structs": pa.array([{}, None, {}] * 50, EMPTY),
    "empty structs in lists": pa.array([[{}], [], [{}]] * 50, pa.list_(EMPTY)),
    "dictionaries": pa.DictionaryArray.from_arrays(pa.array([0] * 150), pa.array([b""], pa.binary(0))),
}
STORED = {
    "legacy": (),
    "2.0": ("empty structs", "empty structs in structs", "empty structs in lists"),
    "2.1": ("empty structs", "empty structs in structs"),
    "2.2": ("binary", "binary without nulls", "only nulls", "in structs", "in lists", *list(VALUES)[5:7]),
}


@pytest.mark.parametrize("version", STORED)
@pytest.mark.parametrize("name", VALUES)
def test_both_read_them_or_they_are_rejected(tmp_path, name, version):
    path = tmp_path / "t"
    table = pa.table({"id": pa.array(range(150)), "z": VALUES[name]})
    if name not in STORED[version]:
        with pytest.raises(LanceError, match=r"z|b|e|item"):
            lance_core.write_dataset(table, path, data_storage_version=version)
        assert not list(tmp_path.rglob("*.lance"))
        return
    dataset = lance_core.write_dataset(table, path, data_storage_version=version, max_rows_per_file=40)
    expected = table.to_pylist()
    dataset.delete("id = 3")
    dataset.optimize.compact_files(compaction_mode="try_binary_copy")
    del expected[3]
    for library in (lance_core, lance):
        read = library.dataset(path)
        assert read.to_table().to_pylist() == expected
        assert read.take([0, 100]).to_pylist() == [expected[0], expected[100]]
        assert read.to_table(filter="id > 140").to_pylist() == [row for row in expected if row["id"] > 140]

"""Columns of nulls are added without touching a file."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError


def test_null_columns_are_added_for_both_libraries(tmp_path):
    table = pa.table({"a": [1, 2], "s": [{"x": 1}, None]})
    dataset = lance_core.write_dataset(table, tmp_path / "t")
    dataset.add_columns(pa.schema([("b", pa.string()), ("c", pa.list_(pa.struct([("y", pa.int8())])))]))
    assert dataset.version == 2
    lance.write_dataset(
        pa.table({"a": [3], "s": [None], "b": ["x"], "c": [[{"y": 5}]]}, schema=dataset.schema),
        tmp_path / "t",
        mode="append",
    )
    ours, theirs = lance_core.dataset(tmp_path / "t"), lance.dataset(tmp_path / "t")
    assert ours.to_table() == theirs.to_table()
    assert ours.to_table()["b"].to_pylist() == [None, None, "x"]
    assert theirs.read_transaction(2).operation.preserves_nullability


def test_what_cannot_be_added_is_rejected(tmp_path):
    dataset = lance_core.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    for fields, error in (
        (pa.field("a", pa.int8()), SchemaError),
        (pa.field("b", pa.int8(), nullable=False), SchemaError),
        ({"a": "a + 1"}, SchemaError),
        ([], ValueError),
    ):
        with pytest.raises(error):
            dataset.add_columns(fields)
    assert dataset.latest_version == 1

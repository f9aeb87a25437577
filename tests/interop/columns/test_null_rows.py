"""Rows without a value are accepted only where a file of the table's version can hold their null when they move."""

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError, UnsupportedError

STRUCT = pa.struct([("a", pa.string())])
PACKED = pa.field("p", pa.struct([("a", pa.int32())]), metadata={"packed": "true"})
SCHEMA = pa.schema([("i", pa.int64()), ("g", pa.struct([("z", pa.int32())])), PACKED])
FIELDS = {
    "struct": pa.field("s", STRUCT),
    "map": pa.field("s", pa.map_(pa.string(), pa.int64())),
    "list of fixed size of structs": pa.field("s", pa.list_(STRUCT, 2)),
    "list of fixed size of strings": pa.field("s", pa.list_(pa.string(), 2)),
    "list of structs": pa.field("s", pa.list_(STRUCT)),
    "no bytes": pa.field("s", pa.binary(0)),
    "no fields": pa.field("s", pa.struct([])),
    "packed": pa.field("s", PACKED.type, metadata={"packed": "true"}),
    "struct in a struct": pa.field("g", pa.struct([("b", STRUCT)])),
    "field of a packed struct": pa.field("p", pa.struct([("b", pa.int32())])),
    "dictionary": pa.field("s", pa.dictionary(pa.int8(), pa.string())),
    "null": pa.field("s", pa.null()),
}
REJECTED = {
    "2.0": {*FIELDS} - {"list of structs", "dictionary", "null"},
    "2.1": {"list of fixed size of strings", "no bytes", "no fields", "field of a packed struct"},
    "2.2": {"list of fixed size of strings", "no fields", "field of a packed struct"},
}


def rows(number):
    return pa.table([[number], [{"z": 1}], [{"a": 1}]], schema=SCHEMA)


@pytest.mark.parametrize("version", REJECTED)
@pytest.mark.parametrize("case", FIELDS)
def test_null_columns_can_be_maintained_or_are_rejected(tmp_path, version, case):
    for number in range(2):
        table = lance_core.write_dataset(rows(number), tmp_path / "t", mode="append", data_storage_version=version)
    if case in REJECTED[version]:
        with pytest.raises((SchemaError, UnsupportedError), match=f"column '{FIELDS[case].name}"):
            table.add_columns(FIELDS[case])
        assert lance_core.dataset(table.uri).version == 2
    else:
        table.add_columns(FIELDS[case])
    table.update({"i": "i + 10"}, where="i = 1")
    table.optimize.compact_files()
    rows_now = table.to_table().to_pylist()
    assert [row["i"] for row in rows_now] == [0, 11]
    if case != "list of fixed size of structs":  # which pylance does not read beside other columns
        assert lance.dataset(table.uri).to_table().to_pylist() == rows_now


def test_the_error_names_the_version_that_could(tmp_path):
    table = lance_core.write_dataset({"i": [1]}, tmp_path / "t", data_storage_version="2.0")
    with pytest.raises(SchemaError, match=r"column 's'.*version 2\.0.*2\.1"):
        table.add_columns([FIELDS["struct"]])


def test_rows_that_lack_a_struct(tmp_path):
    table = lance_core.write_dataset(
        pa.table({"i": [1], "n": [1], "s": pa.array([{"a": "x"}], STRUCT)}), tmp_path / "t", data_storage_version="2.0"
    )
    for write in (
        lambda: table.insert(pa.table({"i": [2]})),
        lambda: lance_core.write_fragments(pa.table({"i": [2]}), table),
        lambda: table.merge_insert("i").when_not_matched_insert_all().execute(pa.table({"i": [2]})),
        lambda: table.merge(pa.table({"i": [2], "t": pa.array([{"a": "x"}], STRUCT)}), "i"),
    ):
        with pytest.raises(SchemaError, match=r"'[st]'.*2\.1"):
            write()
    assert (table.latest_version, len(list(tmp_path.rglob("*.lance")))) == (1, 1)
    table.insert(pa.table({"i": [2], "s": pa.array([{"a": "y"}], STRUCT)}))
    table.optimize.compact_files()
    assert lance.dataset(table.uri).to_table()["n"].to_pylist() == [1, None]

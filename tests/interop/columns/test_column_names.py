"""Names of columns that other tools cannot read are rejected at every entry; tables that have them are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_core
from lance_core.errors import SchemaError
from lance_core.schema import LanceSchema
from lance_core.verbs.files import fragment_writer

NAMES = ["k.x", ".", "a`b", "`a`", "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version"]
REJECTED = r"cannot contain a (dot|back-tick)|is reserved for a row column"


@pytest.mark.parametrize("name", NAMES)
def test_new_columns_of_such_names_are_rejected(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2], "k": pa.array([{"x": 1}, {"x": 2}])})
    wide = rows.append_column(name, pa.array([1, 2]))
    uri = str(tmp_path / "t")
    for mode in ("create", "append", "overwrite"):
        with pytest.raises(SchemaError, match=REJECTED):
            lance_core.write_dataset(wide, uri, mode=mode)
    with pytest.raises(SchemaError, match=REJECTED):
        lance_core.write_fragments(wide, str(tmp_path / "f"))
    made = lance_core.write_dataset(rows, uri)
    with pytest.raises(SchemaError, match=REJECTED):
        lance_core.write_dataset(wide, uri, mode="overwrite")
    with pytest.raises(SchemaError):
        lance_core.write_dataset(wide, uri, mode="append")
    with pytest.raises(SchemaError, match=REJECTED):
        made.add_columns({name: "id + 1"})
    with pytest.raises(SchemaError, match=REJECTED):
        made.add_columns(pa.field(name, pa.int64()))
    with pytest.raises(SchemaError, match=REJECTED):
        made.alter_columns({"path": "id", "name": name})
    with pytest.raises(SchemaError, match=REJECTED):
        made.merge(wide.select(["id", name]), "id")
    assert lance.dataset(uri).schema.names == ["id", "k"]
    assert made.latest_version == 1


def test_fields_of_structs_may_have_them_as_in_pylance(tmp_path: Path) -> None:
    rows = pa.table({"s": pa.array([{"a.b": 1}])})
    uri = str(tmp_path / "t")
    lance_core.write_dataset(rows, uri)
    assert lance.dataset(uri).to_table().equals(rows)


def test_tables_that_have_such_names_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(fragment_writer, "check_column_name", lambda _: None)
        made = lance_core.write_dataset(pa.table({"k.x": [1, 2], "a`b": [3, 4]}), tmp_path / "t")
    assert made.to_table().to_pydict() == {"k.x": [1, 2], "a`b": [3, 4]}
    assert made.to_table(filter="`k.x` > 1").num_rows == 1
    made.delete("`k.x` = 1")
    made.alter_columns({"path": "`k.x`", "name": "k_x"})
    assert made.schema.names == ["k_x", "a`b"]


COMMITTED = {
    "Overwrite": lambda schema, _: lance_core.LanceOperation.Overwrite(schema, []),
    "Project": lambda schema, _: lance_core.LanceOperation.Project(schema),
    "Merge": lambda schema, fragments: lance_core.LanceOperation.Merge(fragments, schema),
}


@pytest.mark.filterwarnings("ignore:Passing a pyarrow.Schema to Merge")
@pytest.mark.parametrize("kind", COMMITTED)
@pytest.mark.parametrize("name", [*NAMES, "", "id"])
def test_schemas_that_are_committed_are_checked(tmp_path: Path, kind: str, name: str) -> None:
    made = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
    schema = pa.schema([pa.field("id", pa.int64()), pa.field(name, pa.int64())])
    fragments = [fragment.metadata for fragment in made.get_fragments()]
    with pytest.raises(SchemaError, match=f"{REJECTED}|empty name|occurs twice"):
        lance_core.LanceDataset.commit(made.uri, COMMITTED[kind](schema, fragments), read_version=1)
    if kind == "Overwrite":
        with pytest.raises(SchemaError):
            lance_core.LanceDataset.commit(tmp_path / "new", COMMITTED[kind](schema, []))
    assert made.latest_version == 1


def test_columns_that_have_such_names_may_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(fragment_writer, "check_column_name", lambda _: None)
        made = lance_core.write_dataset(pa.table({"a`b": [1], "c": [2]}), tmp_path / "t")
    kept = made.lance_schema.record
    operation = lance_core.LanceOperation.Project(lance_core.schema.LanceSchema(replace(kept, fields=kept.fields[:1])))
    assert lance_core.LanceDataset.commit(made.uri, operation, read_version=1).schema.names == ["a`b"]


@pytest.mark.parametrize(
    "path",
    ["`a B`", "a b", "s.`t-U`", "s.t-u", "`S`.v", "`s`.`V`", "S.v.x", "", "`", "s.`t-u", "s.", "s..v", "Ab", "aB"],
)
def test_paths_regardless_of_case(path: str) -> None:
    inner = pa.struct([("T-u", pa.int64()), ("V", pa.int64())])
    schema = pa.schema([("A b", pa.int64()), ("S", inner), ("ab", pa.int8()), ("AB", pa.int8())])
    theirs = lance.schema.LanceSchema.from_pyarrow(schema).field_case_insensitive(path)
    found = LanceSchema.from_pyarrow(schema).field_case_insensitive(path)
    assert (found and found.id()) == (theirs and theirs.id())


def test_names_with_dots_regardless_of_case() -> None:
    schema = LanceSchema.from_pyarrow(pa.schema([("A.b", pa.int64()), ("S", pa.struct([("T.u", pa.int64())]))]))
    for path, exact in (("a.B", "A.b"), ("`a.B`", "`A.b`"), ("s.`t.u`", "S.`T.u`")):
        found = schema.field_case_insensitive(path)
        assert found is not None
        assert found == schema.field(exact)
    assert schema.field_case_insensitive("s.t.u") is None


TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
KEYS_AND_VALUES = pa.map_(pa.field("x", pa.int64(), nullable=False), pa.field("x", pa.int64()))
IN_COLUMNS = {
    "struct": TWICE,
    "struct in a struct": pa.StructArray.from_arrays([TWICE], ["inner"]),
    "struct in a list": pa.ListArray.from_arrays([0, 1], TWICE),
    "struct in a map": pa.MapArray.from_arrays([0, 1], ["k"], TWICE),
    "entries of a map": pa.array([[(1, 2)]], KEYS_AND_VALUES),
    "extension type": pa.ExtensionArray.from_storage(pa.opaque(TWICE.type, "type", "vendor"), TWICE),
}


@pytest.mark.parametrize("kind", IN_COLUMNS)
def test_fields_of_one_name_are_rejected(tmp_path: Path, kind: str) -> None:
    rows = pa.table({"id": [1], "a": IN_COLUMNS[kind]})
    lance.write_dataset(rows, tmp_path / "theirs", data_storage_version="2.2")
    with pytest.raises(ValueError, match="planning"):  # pylance writes such a table, and cannot read it
        lance.dataset(tmp_path / "theirs").to_table()
    with pytest.raises(SchemaError, match=r"column 'a.*field name 'x' occurs twice: rename"):
        lance_core.write_dataset(rows, tmp_path / "t", data_storage_version="2.2")
    assert not (tmp_path / "t").exists()
    made = lance_core.write_dataset(pa.table({"id": [1]}), tmp_path / "t", data_storage_version="2.2")
    for call in (
        lambda: made.add_columns(pa.field("a", rows.schema.field("a").type)),
        lambda: made.merge(rows, "id"),
        lambda: lance_core.write_dataset(rows, made, mode="overwrite"),
    ):
        with pytest.raises(SchemaError, match="occurs twice"):
            call()
    assert made.latest_version == 1
